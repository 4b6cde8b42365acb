"""Options of typed jobs, with the names of the API. All durations can be timedeltas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Union

from ojs_aws.typed.plain import iso_duration

if TYPE_CHECKING:
    from ojs_aws.client.operations import Moment

Duration = Union[str, timedelta]
States = Literal[
    "available", "scheduled", "pending", "active", "retryable", "completed", "cancelled",
    "discarded",
]  # fmt: skip


class _Option:
    def wire(self) -> dict[str, Any]:
        """Return the fields that are set, as the API expects them."""
        return {name: _wire(value) for name, value in vars(self).items() if value is not None}


def _wire(value: Any) -> Any:
    if isinstance(value, timedelta):
        return iso_duration(value)
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
class RateLimit(_Option):
    """Rate limit of a job. Jobs with the same key share it.

    Attributes:
        key: Key, or a function that returns it. The function gets the arguments by name.
        concurrency: Maximum number of jobs that run at the same time.
        rate: Maximum number of starts in each `period`.
        period: Period of `rate`, for example `PT1M`.
        on_limit: What happens to a job that is due while the limit is reached. Default: it waits.
    """

    key: str | Callable[..., str] | None = None
    concurrency: int | None = None
    rate: int | None = None
    period: Duration | None = None
    on_limit: Literal["wait", "reschedule", "drop"] | None = None


class JobOptions(TypedDict, total=False):
    """Options of all jobs of a type. `options` has any other option of the API by its name."""

    queue: str
    priority: int
    timeout_s: float
    retry: Retry
    unique: Unique
    rate_limit: RateLimit
    tags: Sequence[str]
    meta: Mapping[str, Any]
    options: Mapping[str, Any]


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
_CLASSES: Mapping[str, type] = {"retry": Retry, "unique": Unique, "rate_limit": RateLimit}


def checked(called: str, options: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Return the options of a call. Raises TypeError for an unknown one, or a wrong class."""
    names = sorted(known)
    for name, value in options.items():
        if name not in names:
            raise TypeError(f"{called}: unknown option {name!r}. Options are {', '.join(names)}")
        kind = _CLASSES.get(name, object)
        if not isinstance(value, kind):
            raise TypeError(f"{called}: {name} must be {kind.__name__}(…), but is {value!r}")
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
