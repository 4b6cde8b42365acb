"""A job and its JSON object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from enum import Enum
from operator import attrgetter
from typing import Any, Final

from ojs.domain import jsontext, times
from ojs.domain.fair_queue.tags import Share
from ojs.domain.job import replay
from ojs.domain.job.copies import META, CopyTarget, Origin
from ojs.domain.job.durable import NOT_DURABLE, Checkpoint, Durable, DurableOutcome, Suspension
from ojs.domain.job.failure import ErrorEntry, Failure
from ojs.domain.job.permits import QUEUE_PERMIT, RunPermits
from ojs.domain.job.retention import RETENTION, Retention
from ojs.domain.job.retry import DEFAULT, RetryPolicy
from ojs.domain.job.states import State
from ojs.domain.job.workflow_step import WorkflowStep
from ojs.domain.rate_limit.limiter import RateLimit
from ojs.records import record

SPECVERSION = "1.0"
DEFAULT_QUEUE = "default"
DEFAULT_TIMEOUT_MS = 1_800_000
DEFAULT_VISIBILITY_MS = 1_800_000


class Missing(Enum):
    """Represents an absent value where null is a valid value."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING


@record(frozen=True)
class Lease:
    """A worker's lease of an attempt. `token` is the fencing token. Times in milliseconds."""

    token: str
    until_ms: int
    length_ms: int
    worker_id: str | None = None


@record(frozen=True)
class JobPermits:
    """The permits of a running job, from its record, and the `pool` that it was dispatched to."""

    run: RunPermits | None = None
    pool: str | None = None


@record(frozen=True)
class Job:
    """A job. Times in milliseconds since the epoch, durations in milliseconds.

    `content` is the payload: args, meta, and other fields of the request that the server stores and
    returns. It is None if it was not loaded. A large payload is offloaded to a separate item.
    """

    id: str
    type: str
    queue: str
    state: State
    created_ms: int
    lane: int = 0
    priority: int = 0
    attempt: int = 0
    content: Mapping[str, Any] | None = None
    enqueued_ms: int | None = None
    scheduled_ms: int | None = None
    expires_ms: int | None = None
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    visibility_ms: int | None = None
    policy: RetryPolicy = DEFAULT
    retention: Retention = RETENTION
    # Position among jobs of equal priority. Each time the job becomes available, it gets a new
    # position. With a share: the tag and the arrival (`ojs.domain.fair_queue.tags`).
    order: str | None = None
    # The tenant of the job and its weight, if tenant fairness was enabled for the queue when the
    # job was enqueued.
    share: Share | None = None
    life: int = 0
    activated_ms: int | None = None
    started_ms: int | None = None
    completed_ms: int | None = None
    cancelled_ms: int | None = None
    discarded_ms: int | None = None
    lease: Lease | None = None
    worker_id: str | None = None
    # Token of the expired lease, until another worker claims the job.
    stalled: str | None = None
    retry_at_ms: int | None = None
    retry_delay_ms: int | None = None
    dead_letter: bool = False
    # For a dead letter: the type of its most recent error, and whether it is being deleted.
    error_type: str | None = None
    deleting: bool = False
    # The most recent entries of its error history, oldest first, as many as fit into the record.
    noted: tuple[ErrorEntry, ...] = ()
    # The most recent automatic replay. Each replay changes this text. It is kept if the job fails
    # again.
    replayed: str | None = None
    # Target of the job's copy if the job becomes a dead letter, the ID of that copy, and whether
    # the copy must still be created. A copy has `copy_of` instead and is never copied again.
    copies_to: CopyTarget | None = None
    copy_id: str | None = None
    copy_due: bool = False
    copy_of: Origin | None = None
    # Whether it is a copy that was discarded because the maximum number of copies was exceeded. The
    # request that discarded it has counted it.
    trimmed: bool = False
    unique_key: str | None = None
    # The worker pool that the job was most recently dispatched to.
    pool: str | None = None
    # The permits of the job while it is active: of its queue, pool, worker, and rate limit key.
    permits: RunPermits | None = None
    # Unnamed permits of a job that version 0.2 claimed: whether it has one of its queue, and which
    # ones it has of its pool (`POOL_PERMIT`, `WORKER_PERMIT`).
    queue_permit: bool = False
    pool_permits: str = ""
    # Whether an ack or nack must include the lease token. Copied from the queue when the job is
    # claimed.
    fenced: bool = False
    # Bytes that are reserved for the job in the depth counter of its queue, until it is in a final
    # state.
    reserved_bytes: int | None = None
    # The period in which they were reserved (`ojs.store.bounds.depth_counter`).
    reserved_in: int | None = None
    # The job's rate limit, and, if version 0.2 claimed the job, the name of its permit while it is
    # active.
    limit: RateLimit | None = None
    key_permit: str | None = None
    batch: str | None = None
    # The job's place in a workflow, if it is a workflow step.
    workflow: WorkflowStep | None = None
    # The steps and checkpoints of durable code.
    durable: Durable = NOT_DURABLE
    # The name of the access key that enqueued it, if known.
    producer: str | None = None
    # The caller that later changed it or moved it to its queue, if known.
    changed_by: str | None = None
    # Token of the write that created the job, if the client chose its ID or the ID was derived from
    # another job or an idempotency key. It never changes, so it distinguishes jobs with the same
    # ID. With an idempotency key, the token starts with the seed of the request.
    made_by: str | None = None
    # Size of an offloaded payload in bytes, else 0.
    content_bytes: int = 0
    content_ref: str | None = None
    result: Any = MISSING
    result_ref: str | None = None
    # Time in seconds for which the result is shown, if the client chose it.
    result_ttl_s: int | None = None
    # Token of the write that created this version of the record, for compare-and-swap.
    op: str | None = None
    ttl_s: int | None = None
    # Whether the client chose the ID. Used only while the job is created.
    chosen_id: bool = field(default=False, compare=False)
    # Errors and other parts that are loaded when they are needed. Never written with the record.
    errors: tuple[Failure, ...] | None = field(default=None, compare=False)
    progress: Mapping[str, Any] | None = field(default=None, compare=False)
    previous_state: State | None = field(default=None, compare=False)
    checkpoint: Checkpoint | None = field(default=None, compare=False)
    outcomes: tuple[DurableOutcome, ...] | None = field(default=None, compare=False)

    @property
    def max_attempts(self) -> int:
        """Maximum number of attempts, including the first one."""
        return self.policy.max_attempts

    @property
    def counted_attempts(self) -> int:
        """Number of attempts since a step was last stored."""
        return self.attempt - self.durable.forgiven

    @property
    def size(self) -> int:
        """Size of the job's payload in bytes. The payload must be loaded unless it is offloaded."""
        return self.content_bytes or jsontext.size_of(self.content or {})

    @property
    def unnamed_permits(self) -> str:
        """The limits for which the job has unnamed permits."""
        return (QUEUE_PERMIT if self.queue_permit else "") + self.pool_permits

    @property
    def waiting_copy(self) -> bool:
        """Whether it is an available copy of a dead letter."""
        return self.copy_of is not None and self.state is State.AVAILABLE

    def gone(self, now_ms: int) -> bool:
        """Return whether the job's retention has ended. DynamoDB deletes the job later."""
        return self.ttl_s is not None and self.ttl_s * 1000 <= now_ms

    @property
    def result_until_ms(self) -> int | None:
        """When the result of a completed job expires (ms), or None in any other state."""
        if self.state is not State.COMPLETED or self.completed_ms is None:
            return None
        if self.result_ttl_s is not None:
            return self.completed_ms + self.result_ttl_s * 1_000
        return None if self.ttl_s is None else self.ttl_s * 1_000

    def has_expired_result(self, now_ms: int) -> bool:
        """Return whether the time to live that the client chose for the result has ended."""
        until_ms = None if self.result_ttl_s is None else self.result_until_ms
        return until_ms is not None and until_ms <= now_ms

    def without_expired_result(self, now_ms: int) -> Job:
        """Return the job without a result whose time to live has ended."""
        return replace(self, result=MISSING) if self.has_expired_result(now_ms) else self

    @property
    def ended_ms(self) -> int | None:
        """When the job reached its final state (ms), or None if its state is not final."""
        match self.state:
            case State.COMPLETED:
                return self.completed_ms
            case State.CANCELLED:
                return self.cancelled_ms
            case State.DISCARDED:
                return self.discarded_ms
            case _:
                return None

    @property
    def failed_ms(self) -> int | None:
        """When a `retryable` job failed (ms), or None in any other state."""
        if self.state is not State.RETRYABLE or self.retry_at_ms is None:
            return None
        return self.retry_at_ms - (self.retry_delay_ms or 0)

    @property
    def timeout_at_ms(self) -> int | None:
        """When the current attempt reaches its timeout (ms), or None before the first start."""
        return None if self.started_ms is None else self.started_ms + self.timeout_ms

    @property
    def due_ms(self) -> int:
        """The time (ms) of the job's next transition: start, retry, end of the lease, or timeout.

        Raises ValueError if the state has no such transition.
        """
        if self.state is State.SCHEDULED:
            return self.scheduled_ms or 0
        if self.state is State.RETRYABLE:
            return self.retry_at_ms or 0
        if self.state is State.ACTIVE and self.lease and self.timeout_at_ms is not None:
            return min(self.lease.until_ms, self.timeout_at_ms)
        raise ValueError(f"a job in state {self.state} has no due time")


def expired(job: Job, now_ms: int) -> bool:
    """Return whether the deadline to start the job (`expires_at`) has passed."""
    return job.expires_ms is not None and job.expires_ms <= now_ms


def _time(field: str) -> Callable[[Job], str | None]:
    """Return a function that formats a time of a job, or returns None if the time is not set."""
    ms_of = attrgetter(field)

    def shown(job: Job) -> str | None:
        ms = ms_of(job)
        return None if ms is None else times.format_ms(ms)

    return shown


def _start(job: Job) -> str | None:
    """Return the start time of a job. Its rate limit or its code might have rescheduled the job.

    If the time is unchanged, the result has the client's format.
    """
    rescheduled = job.limit is not None or job.durable.waits is not None
    if job.state is not State.SCHEDULED or not rescheduled:
        return None
    ms = job.scheduled_ms or 0
    requested = (job.content or {}).get("scheduled_at")
    try:
        same = times.timestamp_ms(requested, now_ms=job.created_ms) == ms
    except ValueError:
        same = False
    return str(requested) if same else times.format_ms(ms)


def _next_attempt(job: Job) -> str | None:
    if job.state is not State.RETRYABLE or job.retry_at_ms is None:
        return None
    return times.format_ms(job.retry_at_ms)


def _running(job: Job) -> Lease | None:
    return job.lease if job.state is State.ACTIVE else None


def _error(job: Job) -> Any:
    # The response for a completed job doesn't contain its last error.
    if job.state is State.COMPLETED or not (job.errors or job.copy_of):
        return None
    if job.errors:
        return job.errors[-1].to_dict()
    # A copy without an error returns the error of the original dead letter.
    meta = (job.content or {}).get("meta")
    origin = meta.get(META) if isinstance(meta, Mapping) else None
    return origin.get("error") if isinstance(origin, Mapping) else None


def _of_result(value_of: Callable[[Job], Any]) -> Callable[[Job], Any]:
    """Return a function that describes the result of a job, or returns None without a result."""
    return lambda job: None if job.result is MISSING else value_of(job)


def _progress(job: Job) -> Any:
    """Return the reported progress of a job, between 0 and 1. It is 1 for a completed job."""
    if job.progress is None:
        return None
    return 1.0 if job.state is State.COMPLETED else job.progress.get("progress")


def _checkpoint(stored: Checkpoint) -> dict[str, Any]:
    return {"state": stored.state, "sequence": stored.sequence}


def _durable(found: Durable) -> dict[str, Any]:
    version = {} if found.version is None else {"version": found.version}
    return {
        "steps": found.saves + found.signals,
        **version,
        "epoch": found.epoch,
        "forgiven_attempts": found.forgiven,
    }


def _waiting(found: Suspension) -> list[dict[str, Any]]:
    return [
        {"kind": wait.kind, "name": wait.name, "until": times.format_ms(wait.until_ms)}
        for wait in found.waits
    ]


def _metadata(job: Job) -> dict[str, Any] | None:
    if not job.dead_letter:
        return None
    # The client's `metadata` is merged with it (ojs-dead-letter, section 9.2).
    own = (job.content or {}).get("metadata")
    return {
        **(own if isinstance(own, dict) else {}),
        "created_at": times.format_ms(job.created_ms),
        "discarded_at": times.format_ms(job.discarded_ms or 0),
    }


# The fields of a job's JSON object in addition to its payload, in order. None is omitted, except as
# the result. The fields that clients set are in `ojs.domain.job.envelope`.
SHOWN: Mapping[str, Callable[[Job], Any]] = {
    "scheduled_at": _start,
    "priority": attrgetter("priority"),
    "state": attrgetter("state.value"),
    "attempt": attrgetter("attempt"),
    "max_attempts": attrgetter("policy.max_attempts"),
    "created_at": _time("created_ms"),
    "enqueued_at": _time("enqueued_ms"),
    "activated_at": _time("activated_ms"),
    "started_at": _time("started_ms"),
    "completed_at": _time("completed_ms"),
    "cancelled_at": _time("cancelled_ms"),
    "discarded_at": _time("discarded_ms"),
    "durable": lambda job: _durable(job.durable) if job.durable.used else None,
    "parent": lambda job: (
        {"job_id": job.durable.parent.job_id, "name": job.durable.parent.name}
        if job.durable.parent
        else None
    ),
    "waiting": lambda job: job.durable.waits and _waiting(job.durable.waits),
    "checkpoint": lambda job: job.checkpoint and _checkpoint(job.checkpoint),
    "last_checkpoint": lambda job: (
        job.checkpoint.state if job.checkpoint and job.checkpoint.repeated else MISSING
    ),
    "workflow_id": lambda job: job.workflow and job.workflow.workflow_id,
    "step": lambda job: job.workflow and job.workflow.name,
    "producer": attrgetter("producer"),
    "changed_by": attrgetter("changed_by"),
    "retry_delay_ms": attrgetter("retry_delay_ms"),
    "next_attempt_at": _next_attempt,
    "next_retry_at": _next_attempt,
    "worker_id": attrgetter("worker_id"),
    "lease_token": lambda job: (lease := _running(job)) and lease.token,
    "lease_expires_at": lambda job: (lease := _running(job)) and times.format_ms(lease.until_ms),
    "errors": lambda job: [error.to_dict() for error in job.errors] if job.errors else None,
    "error": _error,
    "result": attrgetter("result"),
    "result_ttl": attrgetter("result_ttl_s"),
    "result_stored_at": _of_result(_time("completed_ms")),
    "result_expires_at": _of_result(_time("result_until_ms")),
    "result_size_bytes": _of_result(lambda job: jsontext.size_of(job.result)),
    "progress": _progress,
    "dead_letter": lambda job: job.dead_letter or None,
    "dead_letter_job_id": lambda job: job.copy_id if job.dead_letter else None,
    "metadata": _metadata,
    "previous_state": lambda job: job.previous_state and job.previous_state.value,
}


# Fields whose value can be null. They are absent if their value is `MISSING`.
_NULLABLE = frozenset({"result", "last_checkpoint"})


def _from_queue(job: Job) -> dict[str, Any]:
    """Return the timeout and the retry policy that a job got from its queue, for workers.

    Values that the client set are in the payload, and system defaults are omitted.
    """
    content, found = job.content or {}, dict[str, Any]()
    if job.timeout_ms != DEFAULT_TIMEOUT_MS and not {"timeout", "timeout_ms"} & content.keys():
        found = {"timeout": job.timeout_ms // 1_000, "timeout_ms": job.timeout_ms}
    # `max_attempts` is always in the response and can be set without the rest of the policy.
    default = replace(DEFAULT, max_attempts=job.policy.max_attempts)
    if job.policy != default and "retry" not in content:
        found["retry"] = job.policy.to_dict()
    return found


def to_dict(job: Job) -> dict[str, Any]:
    """Return the JSON object of a job. A field that is not set is absent, never null."""
    content = dict(job.content or {})
    shown: dict[str, Any] = {
        "specversion": content.pop("specversion", SPECVERSION),
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
    }
    if job.content is not None:
        shown["args"] = content.pop("args", [])
        shown["meta"] = replay.shown(content.pop("meta", {}), job.replayed)
    shown |= content
    if job.content is not None:
        shown |= _from_queue(job)
    for name, value_of in SHOWN.items():
        value = value_of(job)
        if value is not MISSING and (value is not None or name in _NULLABLE):
            shown[name] = value
    return shown
