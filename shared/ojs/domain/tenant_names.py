"""Names of queues as a tenant's caller has them (`mail`), and as the store has them (`acme:mail`).

Only requests and connections of such a caller load this module.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ojs.domain import jsontext
from ojs.domain.errors import InvalidRequest
from ojs.domain.job.copies import META as COPY_META
from ojs.domain.tenants import get_tenant, qualified

# Fields with the name of a queue, several names, or an object by name.
QUEUE_FIELDS = frozenset(
    {"queue", "queues", "target_queue", "dead_letter_queue", "rung", "by_queue"}
)
# Further fields of an event.
EVENT_FIELDS = frozenset({"cron_name", "subject"})
# Fields with the content of the client.
CONTENT = frozenset(
    {
        "args", "checkpoint", "data", "details", "errors", "info", "last_checkpoint", "meta",
        "metadata", "parent_errors", "parent_results", "parent_results_by_step", "payload",
        "result", "schema", "state", "suspend", "value",
    }
)  # fmt: skip
# Translates a name. The first argument is its path in the request.
Name = Callable[[str, str], str]


def format_channel(channel: str, tenant: str) -> str:
    """Return the stored form of a channel. Raises InvalidRequest for that of another tenant."""
    return _change_channel(channel, make_storing(tenant), "channel")


def render_message(text: str, tenant: str) -> str:
    """Return a message to a connection, or an event (JSON), with the local names."""
    fields, content = QUEUE_FIELDS | EVENT_FIELDS, CONTENT - {"data"}
    shown = change_names(jsontext.loads(text), make_showing(tenant), fields, content, tenant)
    return jsontext.dumps(shown)


def render_text(text: str, tenant: str) -> str:
    """Return a text of a response, for example a message or a header, with the local names."""
    for mark in (":", "|", "%3A"):
        text = text.replace(f"{tenant}{mark}", "")
    return text


def make_storing(tenant: str) -> Name:
    """Return the translation of local names."""

    def change_name(path: str, value: str) -> str:
        if (there := get_tenant(value)) is None:
            return qualified(tenant, value)
        if there != tenant:
            raise InvalidRequest(path, "must be a name without the prefix of a tenant", value=value)
        return value

    return change_name


def make_showing(tenant: str) -> Name:
    """Return the translation of stored names."""
    prefix = qualified(tenant, "")

    def change_name(_path: str, value: str) -> str:
        return value.removeprefix(prefix) if get_tenant(value) == tenant else value

    return change_name


def change_names(
    value: Any,
    name: Name,
    fields: frozenset[str],
    content: frozenset[str],
    tenant: str | None = None,
    path: str = "",
) -> Any:
    """Return the value with translated names. With `tenant`, texts of errors are translated too."""
    if isinstance(value, list):
        parts = enumerate(value)
        return [change_names(e, name, fields, content, tenant, f"{path}[{at}]") for at, e in parts]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, each in value.items():
        place = f"{path}.{key}" if path else key
        if tenant is not None and _is_told(key, each):
            found[key] = _texts_out(each, tenant)
        elif tenant is not None and key == "meta" and isinstance(each, dict):
            found[key] = _meta_out(each, name)
        elif key in content:
            found[key] = each
        elif key in {*fields, "channel"} and isinstance(each, str):
            found[key] = (
                _change_channel(each, name, place) if key == "channel" else name(place, each)
            )
        elif key in fields and isinstance(each, list):
            found[key] = [
                name(f"{place}[{at}]", e)
                if isinstance(e, str)
                else change_names(e, name, fields, content, tenant, f"{place}[{at}]")
                for at, e in enumerate(each)
            ]
        elif key in ("queues", "by_queue") and isinstance(each, dict):
            found[key] = {
                name(place, k): change_names(e, name, fields, content, tenant, f"{place}.{k}")
                for k, e in each.items()
            }
        else:
            found[key] = change_names(each, name, fields, content, tenant, place)
    return found


def _meta_out(meta: dict[str, Any], name: Name) -> dict[str, Any]:
    """Translate the names that the server wrote to the `meta` of a job."""
    found = dict(meta)
    if isinstance(cron := meta.get("cron_name"), str):
        found["cron_name"] = name("", cron)
    origin = meta.get(COPY_META)
    if isinstance(origin, dict) and isinstance(queue := origin.get("source_queue"), str):
        found[COPY_META] = {**origin, "source_queue": name("", queue)}
    return found


def _is_told(key: str, value: Any) -> bool:
    """Return whether a field of a response has texts of this server: an error, or warnings."""
    if key in ("error", "fetch_error"):
        # The stored error of a job is the client's.
        return isinstance(value, dict) and "retryable" in value and "occurred_at" not in value
    return key in ("warnings", "source")


def _texts_out(value: Any, tenant: str) -> Any:
    if isinstance(value, str):
        return render_text(value, tenant)
    if isinstance(value, list):
        return [_texts_out(each, tenant) for each in value]
    if isinstance(value, dict):
        return {render_text(key, tenant): _texts_out(each, tenant) for key, each in value.items()}
    return value


def _change_channel(channel: str, name: Name, path: str) -> str:
    kind, _, queue = channel.partition(":")
    return f"queue:{name(path, queue)}" if kind == "queue" and queue else channel
