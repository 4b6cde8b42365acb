"""Options of typed jobs, with the names of the API. All durations can be timedeltas."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypedDict,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from ojs_aws.client.operations import Moment
from ojs_aws.hints import REPLACED, hint
from ojs_aws.typed.plain import iso_duration

Duration = Union[str, timedelta]
States = Literal[
    "available", "scheduled", "pending", "active", "retryable", "completed", "cancelled",
    "discarded",
]  # fmt: skip
# Durations that the server reads.
ISO_DURATION = re.compile(
    r"P(?=.)(\d+(\.\d+)?W|(\d+(\.\d+)?D)?(T(?=.)(\d+(\.\d+)?H)?(\d+(\.\d+)?M)?(\d+(\.\d+)?S)?)?)"
)
_hints = cache(get_type_hints)


class _Option:
    if not TYPE_CHECKING:  # type checkers read `__init__`

        def __new__(cls, *_: Any, **options: Any) -> _Option:  # noqa: PYI034 - Python 3.10
            _known(f"{cls.__name__}()", cls.__name__, options, cls.__dataclass_fields__)
            return super().__new__(cls)

    def __post_init__(self) -> None:
        given = {name: value for name, value in vars(self).items() if value is not None}
        called = f"{type(self).__name__}()"
        for name, value in checked(called, given, type(self)).items():
            if isinstance(value, (int, float)) and value < 0:
                raise TypeError(f"{called}: {name} must be 0 or more, but is {value}")

    def wire(self) -> dict[str, Any]:
        """Return the fields that are set, as the API expects them."""
        return {name: _wire(value) for name, value in vars(self).items() if value is not None}


def _wire(value: Any) -> Any:
    if isinstance(value, timedelta):
        return iso_duration(value)
    if isinstance(value, _Option):
        return value.wire()
    return list(value) if isinstance(value, (tuple, set, frozenset)) else value


@dataclass(frozen=True)
class Retry(_Option):
    """Retry policy of a job. Fields that are None take the value of the queue.

    Attributes:
        max_attempts: Number of attempts, including the first one.
        initial_interval: Pause after the first failure, for example `PT10S`.
        max_interval: Longest pause.
        backoff_coefficient: Factor by which the pause grows.
        backoff_strategy: How the pause grows.
        jitter: Whether the pause is random, from 0.5 to 1.5 times its length.
        non_retryable_errors: Error types and codes after which the job is not retried.
        on_exhaustion: What happens after the last attempt.
    """

    max_attempts: int | None = None
    initial_interval: Duration | None = None
    max_interval: Duration | None = None
    backoff_coefficient: float | None = None
    backoff_strategy: Literal["exponential", "linear", "polynomial", "constant"] | None = None
    jitter: bool | None = None
    non_retryable_errors: Sequence[str] | None = None
    on_exhaustion: Literal["discard", "dead_letter"] | None = None


@dataclass(frozen=True)
class Unique(_Option):
    """Uniqueness policy of a job.

    Attributes:
        keys: Parts of the job that must differ, in addition to its type.
        args_keys: Keys of the objects in `args` that are compared. Default: all.
        meta_keys: Keys of `meta` that are compared.
        period: Time after which an equal job is accepted again, for example `PT1H`.
        states: States in which a job blocks an equal one.
        on_conflict: What happens to an equal job. Default: it is rejected with `Duplicate`.
    """

    keys: Sequence[Literal["type", "queue", "args", "meta"]] | None = None
    args_keys: Sequence[str] | None = None
    meta_keys: Sequence[str] | None = None
    period: Duration | None = None
    states: Sequence[States] | None = None
    on_conflict: Literal["reject", "replace", "replace_except_schedule", "ignore"] | None = None


@dataclass(frozen=True)
class Throttle(_Option):
    """Evenly spaced starts: `Throttle(10, "PT1S")` is one in 100 ms.

    Attributes:
        limit: Number of starts in each period.
        period: The period, for example `PT1S`.
    """

    limit: int
    period: Duration


@dataclass(frozen=True)
class RateLimit(_Option):
    """Rate limit of a job. Jobs with the same key share it.

    Attributes:
        key: Key, or a function that returns it. The function gets the arguments by name.
        concurrency: Maximum number of jobs that run at the same time.
        rate: Maximum number of starts in each `period`.
        period: Period of `rate`, for example `PT1M`.
        throttle: Spacing of the starts.
        on_limit: What happens to a job that is due while the limit is reached. Default: it waits.
    """

    key: str | Callable[..., str] | None = None
    concurrency: int | None = None
    rate: int | None = None
    period: Duration | Literal["second", "minute", "hour", "day"] | None = None
    throttle: Throttle | None = None
    on_limit: Literal["wait", "reschedule", "drop"] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.rate is None) != (self.period is None):
            raise TypeError("RateLimit(): rate and period must be given together")


class JobOptions(TypedDict, total=False):
    """Options of all jobs of a type. `options` has any other option of the API by its name."""

    queue: str
    priority: int
    timeout_s: float
    retry: Retry
    unique: Unique
    rate_limit: RateLimit
    tags: Sequence[str]
    result_ttl: int
    meta: Mapping[str, Any]
    options: Mapping[str, Any]


class DeclaredOptions(JobOptions, total=False):
    """Options of one job type. `version` is that of its code, 1 or more. Default: 1."""

    version: int


class CallOptions(JobOptions, total=False):
    """Options of one call, as in `Client.enqueue`."""

    id: str
    delay_s: float
    scheduled_at: Moment
    expires_at: Moment
    pending: bool
    idempotency_key: str
    producer: str
    block_s: float


# Options of a request, which a step of a workflow can't have.
OF_REQUESTS = frozenset({"id", "idempotency_key", "producer", "block_s"})


def _misfit(value: Any, hint: Any) -> str | None:
    """Return what a value with this annotation must be, or None if it fits."""
    kind, inner = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, types.UnionType):
        some = [each for each in inner if each is not type(None)]
        if timedelta in inner:
            if isinstance(value, str) and ISO_DURATION.fullmatch(value):
                return None
            some.remove(str)
        found = [_misfit(value, each) for each in some]
        return None if None in found else " or ".join(map(str, found))
    if kind is Literal:
        fits, name = value in inner, f"one of {', '.join(map(repr, inner))}"
    elif kind is timedelta:
        fits = isinstance(value, timedelta) and value >= timedelta()
        name = 'a timedelta or an ISO 8601 duration such as "PT10S"'
    elif kind is Sequence:
        items = value if isinstance(value, (list, tuple, set, frozenset)) else [None]
        first = next(filter(None, (_misfit(each, inner[0]) for each in items)), None)
        fits, name = first is None, f"a list with only {first}"
    elif kind is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits, name = fits and math.isfinite(value), "a number"
    else:
        fits = isinstance(value, kind) and not (kind is int and isinstance(value, bool))
        name = f"{kind.__name__}(…)" if issubclass(kind, _Option) else kind.__name__
    return None if fits else name


def of_a_call(name: str) -> str:
    """Return the sentence that follows the name of an option of one call, or ""."""
    option = REPLACED["options"].get(name, name)
    value = "" if "=" in option else "=…"
    known = option.partition("=")[0] in CallOptions.__annotations__
    return f" Use .options({option}{value})." if known else ""


def _known(called: str, place: str, options: Iterable[str], known: Collection[str]) -> None:
    """Raise TypeError for the first option that is unknown."""
    for name in options:
        if name not in known:
            used = REPLACED["options"].get(name, name).partition("=")[0]
            meant = of_a_call(name) if place == "options" and used not in known else ""
            raise TypeError(
                f"{called}: unknown option {name!r}.{meant or hint(place, name, known)}"
                f" Options are {', '.join(sorted(known))}"
            )


def checked(called: str, options: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """Return options that fit the annotations of a class. Raises TypeError for another one."""
    hints = _hints(kind)
    _known(called, "options", options, hints)
    for name, value in options.items():
        if expected := _misfit(value, hints[name]):
            raise TypeError(f"{called}: {name} must be {expected}, but is {value!r:.100}")
    return dict(options)


def request_fields(options: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of `JobRequest` and of the request for these options."""
    fields = {
        name: value.wire() if isinstance(value, _Option) else value
        for name, value in options.items()
    }
    if limit := fields.pop("rate_limit", None):
        if callable(limit.get("key")):
            limit["key"] = limit["key"](**arguments)
        fields["options"] = {**fields.get("options", {}), "rate_limit": limit}
    return fields
