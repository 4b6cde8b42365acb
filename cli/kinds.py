"""The kinds of configuration, each declared once: how it is read, compared, written, and deleted.

Each write has the ETag of the configuration as read. So it never overwrites a concurrent change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cli import output
from cli.target import CommandError, Exit, Server
from ojs.domain.edits import merge_patch
from ojs_aws.client.call import place

Configuration = dict[str, Any]
_PAGE = 100
_ABSENT = object()


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of configuration.

    `unmanaged` are states that a file only sets if it names them: an operator pauses something.
    """

    name: str
    one: str
    listing: str
    path: str
    # Method and path of the requests that replace and create one. `{}` is its name or ID.
    change: tuple[str, str]
    create: tuple[str, str]
    fields: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    unmanaged: tuple[str, ...] = ()
    # Field of an answer that has the name, and the field of a request.
    key: str = "name"
    named: str | None = None
    deletes: bool = True

    def plain(self, configuration: Mapping[str, Any]) -> Configuration:
        """Return a configuration without fields that have their defaults."""
        found = {k: v for k, v in configuration.items() if v != self.defaults.get(k, _ABSENT)}
        if isinstance(template := found.get("job_template"), Mapping):
            found["job_template"] = {k: v for k, v in template.items() if v not in ([], {})}
        if found.get("strategy") == ("weighted" if found.get("weights") else "round-robin"):
            del found["strategy"]
        return found


QUEUES, POOLS, CRONS, LIMITS, WEBHOOKS = KINDS = (
    Kind("queues", "queue", "admin/queues", "queues/{}/config", ("PUT", "queues/{}/config"),
        ("PUT", "queues/{}/config"), deletes=False),
    Kind("pools", "pool", "admin/pools", "admin/pools/{}", ("PUT", "admin/pools/{}"),
        ("PUT", "admin/pools/{}"),
        ("queues", "concurrency", "strategy", "weights", "isolated", "starvation_prevention",
         "tenant_fairness"),
        {"isolated": False}),
    Kind("crons", "cron job", "cron", "cron/{}", ("POST", "cron"), ("POST", "cron"),
        ("expression", "timezone", "job_template", "overlap_policy", "enabled", "description",
         "starts_at", "ends_at", "catchup_window", "jitter", "pause_on_failure"),
        {"timezone": "UTC", "overlap_policy": "skip", "enabled": True, "description": None,
         "pause_on_failure": False},
        ("enabled",), named="name"),
    Kind("limits", "rate limit", "rate-limits", "rate-limits/{}", ("PUT", "rate-limits/{}"),
        ("PUT", "rate-limits/{}"), ("concurrency", "rate", "throttle", "expires_at"), key="key"),
    Kind("webhooks", "webhook", "webhooks/subscriptions", "webhooks/subscriptions/{}",
        ("PATCH", "webhooks/subscriptions/{}"), ("POST", "webhooks/subscriptions"),
        ("events", "filter", "metadata", "timeout_s", "active"),
        {"filter": {"queues": [], "job_types": []}, "metadata": {}, "timeout_s": 30,
         "active": True},
        ("active",), key="url", named="url"),
)  # fmt: skip
BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Found:
    """A configuration as read. `id` is in its path. Without `configuration`, there is none."""

    kind: Kind
    name: str
    id: str
    configuration: Configuration | None = None
    etag: str | None = None


def items(server: Server, kind: Kind) -> Iterator[Any]:
    """Yield all entries of the list of a kind. Raises CommandError."""
    for answer in server.pages(partial(server.ask, "GET", kind.listing), limit=_PAGE):
        yield from answer["items"]


def names(server: Server, kind: Kind) -> list[str]:
    """Return the names of all configurations of a kind. Raises CommandError."""
    there = (it for it in items(server, kind) if kind is not LIMITS or "override" in it)
    found = [str(each[kind.key]) for each in there]
    if kind is WEBHOOKS:
        for url in {url for url in found if found.count(url) > 1}:
            output.note(f"{url}: left out, because several webhooks have this URL")
        found = [url for url in found if found.count(url) == 1]
    return ["_default", *found] if kind is QUEUES else found


def read(server: Server, kind: Kind, name: str) -> Found:
    """Read a configuration. Raises CommandError."""
    at = name
    if kind is WEBHOOKS:
        ids = [each["id"] for each in items(server, kind) if each["url"] == name]
        if len(ids) > 1:
            raise CommandError(f"{name}: several webhooks have this URL", Exit.REFUSED)
        if not ids:
            return Found(kind, name, "")
        (at,) = ids
    try:
        answer = server.ask("GET", place(kind.path, at))
    except CommandError as error:
        if error.status is not Exit.NOT_FOUND:
            raise
        return Found(kind, name, at)
    source = {QUEUES: "own", LIMITS: "override", CRONS: "cron_job"}.get(kind)
    given = answer if source is None else answer.get(source)
    if given is not None and kind.fields:
        given = {each: given[each] for each in kind.fields if each in given}
    if kind is CRONS and "job_template" not in given:
        raise CommandError(f"{name}: the template is too large for a response", Exit.REFUSED)
    if kind is QUEUES and name == "_default" and not given:
        given = None
    return Found(kind, name, at, None if given is None else kind.plain(given), answer["etag"])


def wanted_of(found: Found, given: Mapping[str, Any]) -> Configuration:
    """Return the configuration that a file asks for: as given, with unmanaged fields as found."""
    kept = {
        each: (found.configuration or {})[each]
        for each in found.kind.unmanaged
        if each not in given and each in (found.configuration or {})
    }
    return found.kind.plain({**given, **kept})


def patched(there: Mapping[str, Any], changes: Mapping[str, Any]) -> Configuration:
    """Return a configuration with changes: null removes a field, and objects are merged."""
    made = dict(there)
    for name, value in changes.items():
        if value is None:
            made.pop(name, None)
        elif isinstance(value, Mapping):
            inner = made.get(name)
            made[name] = patched(inner if isinstance(inner, Mapping) else {}, value)
        else:
            made[name] = value
    return made


def write(server: Server, found: Found, wanted: Configuration) -> Any:
    """Make a configuration as wanted, unless it has changed since it was read."""
    kind = found.kind
    new = found.configuration is None
    method, path = kind.create if new else kind.change
    body: Configuration = {**kind.defaults, **wanted}
    if kind is QUEUES:
        body = merge_patch(found.configuration or {}, wanted)
    if kind.named and (new or kind is CRONS):
        body[kind.named] = found.name
    at = place(path, found.id) if "{}" in path else path
    checked = not (new and kind is WEBHOOKS)
    return server.edit(method, at, body, etag=found.etag, new=checked and found.etag is None)


def delete(server: Server, found: Found) -> Any:
    """Delete a configuration, unless it has changed since it was read."""
    return server.edit("DELETE", place(found.kind.path, found.id), etag=found.etag)


def differences(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, prefix: str = ""
) -> dict[str, dict[str, Any]]:
    """Return the fields that differ, by their path, with their values before and after."""
    one, other = before or {}, after or {}
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys((*one, *other)):
        old, new = one.get(name), other.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found |= differences(old, new, f"{prefix}{name}.")
        elif old != new or (name in one) != (name in other):
            told = {"before": old} if name in one else {}
            found[prefix + name] = told | ({"after": new} if name in other else {})
    return found


def show(
    sign: str, label: str, changes: Mapping[str, Mapping[str, Any]], *, json: bool, **more: Any
) -> None:
    """Print the changes of one configuration."""
    if json:
        output.as_json({"change": _SIGNS[sign], "name": label, "fields": changes, **more})
        return
    print(output.printable(f"{sign} {label}"))
    for field_name, each in changes.items():
        old, new = (output.compact(each[at]) if at in each else "(none)" for at in _BOTH)
        print(output.printable(f"    {field_name}: {old} -> {new}"))


_BOTH = ("before", "after")
_SIGNS = {"+": "create", "~": "change", "-": "delete", "?": "unlisted"}
