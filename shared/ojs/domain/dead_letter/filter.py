"""Filters of dead letters, for listings, bulk operations and replay rules.

All conditions of a filter must hold. Those on the job record are checked first, those on args last,
because args may be offloaded.

A field that is empty or null is refused: a variable that is not set must not turn "the dead letters
of this queue" into "all dead letters". Only listings take an empty parameter for "not given". For
the same reason a bulk operation refuses a filter without fields. A replay rule accepts it, since
its filter must be written down, applies to one queue, and deletes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from decimal import Decimal
from typing import Annotated, Any

from ojs.domain import jsontext, times
from ojs.domain.errors import InvalidPayload, InvalidRequest, naming_field
from ojs.domain.job.envelope import JobType, QueueName
from ojs.domain.job.failure import MAX_NAME_CHARACTERS, UNKNOWN_TYPE, kept_type
from ojs.domain.job.job import Job
from ojs.domain.requests import Field, Model
from ojs.records import record

MAX_ARGS_CHARACTERS = 1_000
# The error of an `all` that is not true.
EVERY = "must be true, or left out where a filter says which dead letters are meant"

# RFC 9535, section 2.5.1: the shorthand's names begin with a letter or `_`.
_CHILD = re.compile(r"\.(\*|[^\W\d]\w*)")
_BRACKET = re.compile(
    r"\[(?:(?P<any>\*)|(?P<index>0|-?[1-9]\d{0,8})"
    r"|(?P<name>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'))\]"
)


class FilterRequest(Model):
    """A filter as sent, in the body of a bulk operation or as parameters of a listing."""

    filled = True

    queue: QueueName | None = None
    type: JobType | None = None
    error_type: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)] | None = Field(
        None, description="the type of the latest error; `Unknown` where there is none"
    )
    since: str | None = Field(None, description="discarded then or later; RFC 3339")
    until: str | None = Field(None, description="discarded before; RFC 3339")
    before: str | None = Field(None, description="the same as until")
    older_than: str | None = Field(
        None, description="discarded before; RFC 3339, or how long ago: `P30D`, `72h`"
    )
    args: Annotated[str, Field(min_length=1, max_length=MAX_ARGS_CHARACTERS)] | None = Field(
        None,
        description="a part of the JSON text of args; or, beginning with `$`, a JSON path of "
        "children, indexes and `*` which leads somewhere, with `=` and a value that is found there",
    )


# The names of its fields, for tables of parameters.
FIELDS = tuple(FilterRequest.model_fields)


@record(frozen=True)
class ArgsMatch:
    """A condition on args: a text in their JSON, or a value at the end of a path.

    A step of `path` is a name, an index, or None for all members. Without a `value` it is enough
    that the path exists.
    """

    text: str
    path: tuple[str | int | None, ...] | None = None
    value: str | None = None
    # `value` parsed as JSON, if it is valid JSON.
    parsed: tuple[Any, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, text: str) -> ArgsMatch:
        """Read a condition on args. Raises ValueError with the rule that a path breaks."""
        if not text.startswith("$"):
            return cls(text)
        path, rest = _path(text)
        if not rest:
            return cls(text, path)
        value = rest[1:]
        try:
            return cls(text, path, value, (jsontext.loads(value),))
        except InvalidPayload:
            return cls(text, path, value)

    def matches(self, args: Any) -> bool:
        """Whether the args of a job fulfil the condition."""
        if self.path is None:
            return self.text in jsontext.dumps(args)
        found: Iterable[Any] = (args,)
        for step in self.path:
            found = _stepped(found, step)
        return any(self.value is None or self._is(value) for value in found)

    def _is(self, found: Any) -> bool:
        if isinstance(found, str):
            # Without quotes, `=5` matches the text as well as the number.
            return found == self.value or found in self.parsed
        return any(same(found, wanted) for wanted in self.parsed)


@record(frozen=True)
class DeadLetterFilter:
    """A filter as it is applied; jobs discarded at `since_ms` or later, and before `until_ms`."""

    queue: str | None = None
    type: str | None = None
    error_type: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    args: ArgsMatch | None = None

    @property
    def everything(self) -> bool:
        """Whether it matches all dead letters (of its queue, if it names one)."""
        return not self.picky and self.since_ms is None and self.until_ms is None

    @property
    def picky(self) -> bool:
        """Whether it has conditions besides queue and times, which the index cannot check."""
        return self.type is not None or self.error_type is not None or self.args is not None

    def matches_record(self, job: Job) -> bool:
        """Whether a dead letter may match, by its job record."""
        return job.dead_letter and all(matches(self, job) for matches in CONDITIONS.values())

    def matches_args(self, job: Job) -> bool:
        """Whether the args of a job match; its payload must be loaded."""
        if self.args is None:
            return True
        # A payload that could not be loaded belongs to a job that was removed meanwhile.
        return job.content is not None and self.args.matches(job.content.get("args", []))

    def matches(self, job: Job) -> bool:
        """Whether a dead letter matches. Its payload must be loaded if the filter has args."""
        return self.matches_record(job) and self.matches_args(job)

    def to_dict(self) -> dict[str, str]:
        """An equivalent request, with durations as times; `parse` reads it."""
        fields = {
            "queue": self.queue,
            "type": self.type,
            "error_type": self.error_type,
            "since": None if self.since_ms is None else times.format_ms(self.since_ms),
            "until": None if self.until_ms is None else times.format_ms(self.until_ms),
            "args": None if self.args is None else self.args.text,
        }
        return {name: value for name, value in fields.items() if value is not None}


def all_applied(request: type[Model], conditions: Mapping[str, object]) -> None:
    """Check that each field of a filter is applied: one that is not would mean "all jobs". Raises
    TypeError naming the field.
    """
    for name in {*request.model_fields} ^ {*conditions}:
        raise TypeError(f"{request.__name__}.{name} requires both a field and a condition")


def _until(wanted: DeadLetterFilter, job: Job) -> bool:
    return wanted.until_ms is None or (job.discarded_ms or 0) < wanted.until_ms


# How each field of a request is applied to the job record; args are applied to the payload. Of the
# fields that end the span `parse` keeps the earliest.
CONDITIONS: Mapping[str, Callable[[DeadLetterFilter, Job], bool]] = {
    "queue": lambda f, job: f.queue in (None, job.queue),
    "type": lambda f, job: f.type in (None, job.type),
    "error_type": lambda f, job: f.error_type in (None, job.error_type or UNKNOWN_TYPE),
    "since": lambda f, job: f.since_ms is None or f.since_ms <= (job.discarded_ms or 0),
    "until": _until,
    "before": _until,
    "older_than": _until,
    "args": lambda f, job: f.args is None or job.content is None or f.matches_args(job),
}
all_applied(FilterRequest, CONDITIONS)

EVERYTHING = DeadLetterFilter()


def parse(raw: object, *, now_ms: int, prefix: str = "filter.") -> DeadLetterFilter:
    """The filter that a body describes; `{}` matches all dead letters.

    `older_than` counts back from `now_ms`. Raises InvalidRequest naming the field, also for a field
    that is empty or null.
    """
    if not isinstance(raw, Mapping):
        raise InvalidRequest(prefix.rstrip(".") or "body", "must be a JSON object", value=raw)
    request = FilterRequest.model_validate(raw, prefix)
    bounds = {
        name: moment_of(text, name, prefix, now_ms)
        for name in ("since", "until", "before", "older_than")
        if (text := getattr(request, name)) is not None
    }
    since_ms = bounds.pop("since", None)
    # All conditions hold, so the earliest counts.
    first = min(bounds, key=lambda name: bounds[name], default=None)
    until_ms = None if first is None else bounds[first]
    if since_ms is not None and since_ms >= (now_ms + 1 if until_ms is None else until_ms):
        rule = "must not be in the future" if first is None else f"must be before '{first}'"
        raise InvalidRequest(f"{prefix}since", rule, value=request.since)
    with naming_field(f"{prefix}args", request.args):
        args = None if request.args is None else ArgsMatch.of(request.args)
    error_type = None if request.error_type is None else kept_type(request.error_type)
    return DeadLetterFilter(request.queue, request.type, error_type, since_ms, until_ms, args)


def parse_bulk(
    filters: Mapping[str, Mapping[str, object]], every: object, *, now_ms: int
) -> DeadLetterFilter:
    """The filter of a bulk operation: one with conditions, or all dead letters.

    Only `all` stands for all dead letters. An empty or missing filter may be one whose values were
    lost on the way here.

    Args:
        filters: The filters of the request, each by the prefix of its fields' paths.
        every: The value of `all`; None when it was not given.
        now_ms: The time that `older_than` counts back from.

    Raises InvalidRequest naming the field.
    """
    if every is not None:
        if every is not True:
            raise InvalidRequest("all", EVERY, value=every)
        if filters:
            raise InvalidRequest("all", "cannot be combined with a filter")
        return EVERYTHING
    if not filters:
        rule = f"is required: one of {', '.join(FIELDS)}; or say all: true for all dead letters"
        raise InvalidRequest("filter", rule)
    (prefix, wanted), *others = filters.items()
    if others:
        raise InvalidRequest("filter", "cannot be combined with filters beside it")
    if not wanted:
        rule = f"must have one of {', '.join(FIELDS)}; for all dead letters say all: true instead"
        raise InvalidRequest(prefix.rstrip(".") or "filter", rule)
    return parse(wanted, now_ms=now_ms, prefix=prefix)


def from_query(query: Mapping[str, str], *, now_ms: int) -> DeadLetterFilter:
    """The filter that parameters of a listing describe; an empty value means "not given".

    Raises InvalidRequest naming the parameter.
    """
    sent = {name: query[name] for name in FIELDS if query.get(name)}
    return parse(sent, now_ms=now_ms, prefix="")


def moment_of(text: str, name: str, prefix: str, now_ms: int) -> int:
    """The time (ms) that a field gives; for `older_than` also by a duration back from now."""
    rule = "must be an RFC 3339 timestamp with a time zone"
    if name == "older_than":
        with suppress(ValueError):
            return max(0, now_ms - times.short_duration_ms(text))
        rule = "must be an RFC 3339 timestamp, or a duration such as P30D or 72h"
    with naming_field(prefix + name, text, rule):
        # Unlike for enqueueing, where `+` and a duration stand for a time in the future.
        if text.startswith("+"):
            raise ValueError(rule)
        return times.timestamp_ms(text, now_ms=now_ms)


def _path(text: str) -> tuple[tuple[str | int | None, ...], str]:
    """The steps of a JSON path, and what follows it from `=` on.

    A strict subset of RFC 9535, each node of which is visited once: no descendants, slices, unions
    or filters. Raises ValueError.
    """
    steps: list[str | int | None] = []
    at = 1
    while at < len(text) and text[at] != "=":
        child, bracket = _CHILD.match(text, at), _BRACKET.match(text, at)
        if child is not None:
            steps.append(None if child[1] == "*" else child[1])
            at = child.end()
        elif bracket is not None:
            steps.append(_step(bracket))
            at = bracket.end()
        else:
            raise ValueError(
                f"must be a JSON path of .name, ['name'], [0], [*] or .* steps; "
                f"character {at + 1} begins none"
            )
        if len(steps) > jsontext.MAX_DEPTH:
            raise ValueError(f"must be a JSON path of at most {jsontext.MAX_DEPTH} steps")
    return tuple(steps), text[at:]


def _step(bracket: re.Match[str]) -> str | int | None:
    if bracket["any"]:
        return None
    if bracket["index"]:
        return int(bracket["index"])
    quoted: str = bracket["name"]
    if quoted.startswith("'"):
        quoted = '"{}"'.format(quoted[1:-1].replace("\\'", "'").replace('"', '\\"'))
    try:
        return str(jsontext.loads(quoted))
    except InvalidPayload:
        raise ValueError("must be a JSON path; a name in brackets is no JSON string") from None


def _stepped(found: Iterable[Any], step: str | int | None) -> Iterator[Any]:
    for value in found:
        if isinstance(value, Mapping):
            if step is None:
                yield from value.values()
            elif isinstance(step, str) and step in value:
                yield value[step]
        elif isinstance(value, list):
            if step is None:
                yield from value
            elif isinstance(step, int) and -len(value) <= step < len(value):
                yield value[step]


def same(found: Any, wanted: Any) -> bool:
    """Whether two JSON values are equal: true is not 1, but 1 equals 1.0."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, int | Decimal) and isinstance(wanted, int | Decimal):
        return found == wanted
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        return found.keys() == wanted.keys() and all(same(found[k], wanted[k]) for k in found)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return type(found) is type(wanted) and bool(found == wanted)
