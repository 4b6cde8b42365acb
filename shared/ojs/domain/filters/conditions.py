"""Applies filters. Each field of a filter request has one `Condition`.

A job must match all conditions. Conditions on the job record are checked first. Conditions on the
payload are checked last, because the payload can be offloaded. A field without a condition fails at
import, because a filter that ignores the field would match all jobs.

Empty and null fields are rejected. Otherwise, an unset variable in a client could turn "the jobs of
this queue" into "all jobs".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from decimal import Decimal
from typing import Any, ClassVar, Self

from ojs.domain import jsontext, times
from ojs.domain.errors import InvalidPayload, InvalidRequest, naming_field
from ojs.domain.job.job import Job
from ojs.domain.requests import Model
from ojs.domain.tenants import get_tenant
from ojs.records import record

MAX_ARGS_CHARACTERS = 1_000

# RFC 9535, section 2.5.1: names in the shorthand start with a letter or `_`.
_CHILD = re.compile(r"\.(\*|[^\W\d]\w*)")
_BRACKET = re.compile(
    r"\[(?:(?P<any>\*)|(?P<index>0|-?[1-9]\d{0,8})"
    r"|(?P<name>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'))\]"
)


@record(frozen=True)
class ArgsMatch:
    """A condition on args: a substring of their JSON, or a value at a path.

    A step of `path` is a name, an index, or None for all members. Without a `value`, the path must
    exist.
    """

    text: str
    path: tuple[str | int | None, ...] | None = None
    value: str | None = None
    # `value` parsed as JSON, if it is valid JSON.
    parsed: tuple[Any, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, text: str) -> ArgsMatch:
        """Parse a condition on args.

        Raises ValueError with the violated rule if its path is invalid.
        """
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
        """Return whether the args of a job match."""
        if self.path is None:
            return self.text in jsontext.dumps(args)
        found: Iterable[Any] = (args,)
        for step in self.path:
            found = _stepped(found, step)
        return any(self.value is None or self._is(value) for value in found)

    def _is(self, found: Any) -> bool:
        if isinstance(found, str):
            # Without quotes, `=5` matches both the string and the number.
            return found == self.value or found in self.parsed
        return any(same(found, wanted) for wanted in self.parsed)


@record(frozen=True)
class Condition:
    """One field of a filter, and the functions that apply it.

    `matches` compares a job with a value. `read` converts the field of a request to the value, with
    the current time in ms, and raises ValueError with the violated rule. `write` converts the value
    back to a request. If `content` is true, the condition is on the payload. If `listed` is true,
    listings accept the field as a parameter.
    """

    matches: Callable[[Job, Any], bool]
    read: Callable[[Any, int], object] = lambda sent, now_ms: sent
    write: Callable[[Any], object] = lambda value: value
    content: bool = False
    listed: bool = False


class Filter:
    """A parsed filter. `values` contains the result of `Condition.read` for each field."""

    # The request model, the condition of each field, and the start fields of time ranges with their
    # end fields.
    request: ClassVar[type[Model]]
    conditions: ClassVar[Mapping[str, Condition]]
    spans: ClassVar[Mapping[str, Sequence[str]]]

    def __init__(self, queue: str | None = None, **values: Any) -> None:
        values["queue"] = self.queue = queue
        if unknown := values.keys() - self.conditions.keys():
            raise TypeError(f"{type(self).__name__} has no {unknown}")
        self.values: Mapping[str, Any] = {
            name: value for name in self.conditions if (value := values.get(name)) is not None
        }
        self.since_ms: int | None = self.values.get("since")

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self.values)})"

    def but(self, **values: Any) -> Self:
        """Return the filter with other values of some fields. None removes a field."""
        return type(self)(**{**self.values, **values})

    def matches_record(self, job: Job) -> bool:
        """Return whether the record of a job matches. The payload might not match."""
        return self._match(job, content=False)

    def matches_content(self, job: Job) -> bool:
        """Return whether the payload of a job matches. The payload must be loaded."""
        return self._match(job, content=True)

    @property
    def of_content(self) -> bool:
        """Whether the filter has conditions on the payload, which can be offloaded."""
        return any(self.conditions[name].content for name in self.values)

    def _match(self, job: Job, *, content: bool) -> bool:
        rows = ((self.conditions[name], value) for name, value in self.values.items())
        return all(row.matches(job, value) for row, value in rows if row.content is content)

    def to_dict(self) -> dict[str, Any]:
        """Return an equivalent request for `read`, with times instead of durations."""
        return {name: self.conditions[name].write(value) for name, value in self.values.items()}

    @classmethod
    def read(cls, raw: object, *, now_ms: int, prefix: str) -> dict[str, Any]:
        """Parse a request.

        Args:
            raw: Request body, decoded.
            now_ms: Current time in milliseconds since the epoch. Ages are relative to it.
            prefix: Prefix of field names in errors.

        Returns:
            The values by field.

        Raises:
            InvalidRequest: A field is invalid, empty, or null, or two fields contradict each other.
                The error names the field.
        """
        if not isinstance(raw, Mapping):
            raise InvalidRequest(prefix.rstrip(".") or "body", "must be a JSON object", value=raw)
        request = cls.request.model_validate(raw, prefix)
        values: dict[str, Any] = {}
        for name in cls.request.model_fields:
            if (sent := getattr(request, name)) is not None:
                with naming_field(prefix + name, sent):
                    values[name] = cls.conditions[name].read(sent, now_ms)
        for first, ends in cls.spans.items():
            # A job must match all conditions, so the earliest end applies.
            last = min(
                (name for name in ends if name in values), key=values.__getitem__, default=""
            )
            if first in values and values[first] >= values.get(last, now_ms + 1):
                rule = f"must be earlier than {last}" if last else "must not be in the future"
                raise InvalidRequest(prefix + first, rule, value=raw[first])
        return values


def all_applied(request: type[Model], conditions: Iterable[str]) -> None:
    """Check that each field of a filter has a condition. Raises TypeError that names the field."""
    for name in {*request.model_fields} ^ {*conditions}:
        raise TypeError(f"{request.__name__}.{name} requires both a field and a condition")


def moment(text: str, now_ms: int) -> int:
    """Parse a time to ms since the epoch. Raises ValueError."""
    with suppress(ValueError):
        # Unlike enqueue requests, filters don't accept `+` and a duration for a time in the future.
        if not text.startswith("+"):
            return times.timestamp_ms(text, now_ms=now_ms)
    raise ValueError("must be an RFC 3339 timestamp with a time zone")


def age(text: str, now_ms: int) -> int:
    """Parse a time, or a duration before `now_ms`, to ms since the epoch. Raises ValueError."""
    with suppress(ValueError):
        return max(0, now_ms - times.short_duration_ms(text))
    with suppress(ValueError):
        return moment(text, now_ms)
    raise ValueError("must be an RFC 3339 timestamp, or a duration such as P30D or 72h")


def since(of: Callable[[Job], int | None], *, listed: bool = False) -> Condition:
    """Return the condition of the start of a time range (ms).

    A job without the time doesn't match.
    """
    return Condition(
        lambda job, ms: (at_ms := of(job)) is not None and ms <= at_ms,
        moment,
        times.format_ms,
        listed=listed,
    )


def until(
    of: Callable[[Job], int | None],
    read: Callable[[str, int], int] = moment,
    *,
    listed: bool = False,
) -> Condition:
    """Return the condition of the exclusive end of a time range.

    Args:
        of: Returns the time of a job in ms, or None. A job without the time doesn't match.
        read: Converts the field of a request to a time in ms. Default: a timestamp.
        listed: Whether listings accept the field as a parameter. Default: false.
    """
    return Condition(
        lambda job, ms: (at_ms := of(job)) is not None and at_ms < ms,
        read,
        times.format_ms,
        listed=listed,
    )


def is_of_type(name: str, wanted: str) -> bool:
    """Return whether a type equals `wanted`, or starts with the part of `wanted` before its `*`."""
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted


TENANT = Condition(lambda job, tenant: get_tenant(job.queue) == tenant)
QUEUE = Condition(lambda job, queue: job.queue == queue, listed=True)
TYPE = Condition(lambda job, wanted: is_of_type(job.type, wanted), listed=True)
ARGS = Condition(
    # If the payload can't be loaded, the job was deleted after the record was read.
    lambda job, args: job.content is not None and args.matches(job.content.get("args", [])),
    lambda sent, now_ms: ArgsMatch.of(sent),
    lambda args: args.text,
    content=True,
    listed=True,
)


def _path(text: str) -> tuple[tuple[str | int | None, ...], str]:
    """Parse a JSON path. Returns its steps and the rest of the text, which starts with `=`.

    Supports a strict subset of RFC 9535, without descendants, slices, unions, and filters. Each
    node is visited once. Raises ValueError.
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
                "must be a JSON path of the steps .name, ['name'], [0], [*], and .*. Character "
                f"{at + 1} doesn't start a step"
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
        raise ValueError("must be a JSON path. A name in brackets must be a JSON string") from None


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
    """Return whether two JSON values are equal. 1 equals 1.0, but true doesn't equal 1."""
    if isinstance(found, bool) or isinstance(wanted, bool):
        return found is wanted
    if isinstance(found, int | Decimal) and isinstance(wanted, int | Decimal):
        return found == wanted
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        return found.keys() == wanted.keys() and all(same(found[k], wanted[k]) for k in found)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return type(found) is type(wanted) and bool(found == wanted)
