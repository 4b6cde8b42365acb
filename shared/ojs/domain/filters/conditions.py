"""How a filter is applied: each field of a request has one row, a `Condition`.

All conditions of a filter must hold. Those on the job record are checked first, those on what the
client sent last, because that may be offloaded. A field without a row fails at import: a filter
that ignores it would mean "all jobs".

A field that is empty or null is refused, because a variable that is not set must not turn "the jobs
of this queue" into "all jobs".
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
from ojs.records import record

MAX_ARGS_CHARACTERS = 1_000

# RFC 9535, section 2.5.1: the shorthand's names begin with a letter or `_`.
_CHILD = re.compile(r"\.(\*|[^\W\d]\w*)")
_BRACKET = re.compile(
    r"\[(?:(?P<any>\*)|(?P<index>0|-?[1-9]\d{0,8})"
    r"|(?P<name>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'))\]"
)


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
class Condition:
    """One field of a request, and how it is applied.

    `matches` compares a job with a value. `read` makes the value of what was sent and of the time
    (ms); it raises ValueError with the rule that was broken. `write` makes a request of the value.
    `content` is for conditions on what the client sent, `listed` for parameters of listings.
    """

    matches: Callable[[Job, Any], bool]
    read: Callable[[Any, int], object] = lambda sent, now_ms: sent
    write: Callable[[Any], object] = lambda value: value
    content: bool = False
    listed: bool = False


class Filter:
    """A filter as it is applied. `values` has what `Condition.read` made of each field."""

    # The declaration of its fields, the row of each, and those that begin a span, each with those
    # that end it.
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
        """The filter with other values of some fields; None for none."""
        return type(self)(**{**self.values, **values})

    def matches_record(self, job: Job) -> bool:
        """Whether a job may match, by its record alone."""
        return self._match(job, content=False)

    def matches_content(self, job: Job) -> bool:
        """Whether what the client sent matches; it must be loaded."""
        return self._match(job, content=True)

    @property
    def of_content(self) -> bool:
        """Whether it has conditions on what the client sent, which may be offloaded."""
        return any(self.conditions[name].content for name in self.values)

    def _match(self, job: Job, *, content: bool) -> bool:
        rows = ((self.conditions[name], value) for name, value in self.values.items())
        return all(row.matches(job, value) for row, value in rows if row.content is content)

    def to_dict(self) -> dict[str, Any]:
        """An equivalent request, with durations as times; `read` reads it."""
        return {name: self.conditions[name].write(value) for name, value in self.values.items()}

    @classmethod
    def read(cls, raw: object, *, now_ms: int, prefix: str) -> dict[str, Any]:
        """The values of the fields that a body has. Ages count back from `now_ms`. Raises
        InvalidRequest naming the field, also for a field that is empty or null, and for fields that
        contradict each other.
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
            # All conditions hold, so the earliest end counts.
            last = min(
                (name for name in ends if name in values), key=values.__getitem__, default=""
            )
            if first in values and values[first] >= values.get(last, now_ms + 1):
                rule = f"must be earlier than {last}" if last else "must not be in the future"
                raise InvalidRequest(prefix + first, rule, value=raw[first])
        return values


def all_applied(request: type[Model], conditions: Iterable[str]) -> None:
    """Check that each field of a filter is applied. Raises TypeError naming the field."""
    for name in {*request.model_fields} ^ {*conditions}:
        raise TypeError(f"{request.__name__}.{name} requires both a field and a condition")


def moment(text: str, now_ms: int) -> int:
    """A time (ms). Raises ValueError."""
    with suppress(ValueError):
        # Unlike for enqueueing, where `+` and a duration stand for a time in the future.
        if not text.startswith("+"):
            return times.timestamp_ms(text, now_ms=now_ms)
    raise ValueError("must be an RFC 3339 timestamp with a time zone")


def age(text: str, now_ms: int) -> int:
    """A time (ms), which may also be given as a duration back from now. Raises ValueError."""
    with suppress(ValueError):
        return max(0, now_ms - times.short_duration_ms(text))
    with suppress(ValueError):
        return moment(text, now_ms)
    raise ValueError("must be an RFC 3339 timestamp, or a duration such as P30D or 72h")


def since(of: Callable[[Job], int | None], *, listed: bool = False) -> Condition:
    """The row of a field that begins a span of times (ms); a time that is not set is in none."""
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
    """The row of a field that ends a span, and is not in it itself."""
    return Condition(
        lambda job, ms: (at_ms := of(job)) is not None and at_ms < ms,
        read,
        times.format_ms,
        listed=listed,
    )


def is_of_type(name: str, wanted: str) -> bool:
    """Whether a type is the wanted one, or begins with what is in front of its `*`."""
    return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted


QUEUE = Condition(lambda job, queue: job.queue == queue, listed=True)
TYPE = Condition(lambda job, wanted: is_of_type(job.type, wanted), listed=True)
ARGS = Condition(
    # A payload that could not be loaded belongs to a job that was removed meanwhile.
    lambda job, args: job.content is not None and args.matches(job.content.get("args", [])),
    lambda sent, now_ms: ArgsMatch.of(sent),
    lambda args: args.text,
    content=True,
    listed=True,
)


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
