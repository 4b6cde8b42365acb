"""The job, and its JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from ojs.domain import jsontext, times
from ojs.domain.dead_letter import replay
from ojs.domain.dead_letter.copies import META, Origin, Target
from ojs.domain.fair_queue.tags import Share
from ojs.domain.job.failure import Failure
from ojs.domain.job.retention import RETENTION, Retention
from ojs.domain.job.retry import DEFAULT, RetryPolicy
from ojs.domain.job.states import State
from ojs.domain.rate_limit.limiter import RateLimit

SPECVERSION = "1.0"
DEFAULT_QUEUE = "default"
DEFAULT_TIMEOUT_MS = 1_800_000
DEFAULT_VISIBILITY_MS = 1_800_000


class Missing(Enum):
    """Stands for an absent value where null is a value."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING


@dataclass(frozen=True)
class Lease:
    """A worker's lease of an attempt. `token` is the fencing token; times in ms."""

    token: str
    until_ms: int
    length_ms: int
    worker_id: str | None = None


# Places that a running job may take in its pool.
POOL_PERMIT, WORKER_PERMIT = "p", "w"


@dataclass(frozen=True)
class Job:
    """A job. Times in ms since the epoch, lengths in ms.

    `content` has the fields that are only stored and shown: args, meta and others of the request.
    It is None when it was not loaded: it may be offloaded to an item of its own.
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
    # Position among jobs of equal priority; a new one each time the job becomes available. With a
    # share it is a tag and the arrival (`ojs.domain.fair_queue.tags`).
    order: str | None = None
    # Its tenant and weight, if its queue was fair when the job came.
    share: Share | None = None
    life: int = 0
    activated_ms: int | None = None
    started_ms: int | None = None
    completed_ms: int | None = None
    cancelled_ms: int | None = None
    discarded_ms: int | None = None
    lease: Lease | None = None
    worker_id: str | None = None
    # Token of the lease that ended, until the job is claimed again.
    stalled: str | None = None
    retry_at_ms: int | None = None
    retry_delay_ms: int | None = None
    dead_letter: bool = False
    # Of a dead letter: the type of its latest error, and whether an operator is deleting it.
    error_type: str | None = None
    deleting: bool = False
    # The latest automatic replay, in a text that each replay changes; kept if it fails again.
    replayed: str | None = None
    # Where its copy goes if it becomes a dead letter; then the copy's id, and whether the copy is
    # still to be made. A copy has its origin instead, and is not copied again.
    copies_to: Target | None = None
    copy_id: str | None = None
    copy_due: bool = False
    copy_of: Origin | None = None
    # A copy that was dropped because too many waited; the one that dropped it has counted that.
    trimmed: bool = False
    unique_key: str | None = None
    # Whether it has one of its queue's concurrency permits while it runs.
    slot: bool = False
    # The worker pool it was handed out to last, and the permits that it has there while it runs:
    # one of the pool's, one of its worker's, or both (`POOL_PERMIT`, `WORKER_PERMIT`).
    pool: str | None = None
    seats: str = ""
    # Bytes reserved for it at the depth counter of its bounded queue, until it is done.
    reserved_bytes: int | None = None
    # Its rate limit, and the name of its permit there while it is active (`limiter.permit_name`).
    limit: RateLimit | None = None
    place: str | None = None
    batch: str | None = None
    # The name of the key that pushed it, if known.
    producer: str | None = None
    # Token of the write that created it, if its id was chosen by the client or derived from another
    # job. It never changes, and so distinguishes jobs that have the same id.
    made_by: str | None = None
    # Bytes of the content if it is offloaded, else 0.
    content_bytes: int = 0
    content_ref: str | None = None
    result: Any = MISSING
    result_ref: str | None = None
    # Token of the write that made this version of the record; for compare-and-swap.
    op: str | None = None
    ttl_s: int | None = None
    # Of a job about to be created: whether its id was chosen.
    chosen_id: bool = field(default=False, compare=False)
    # Loaded on demand, never written with the record:
    errors: tuple[Failure, ...] | None = field(default=None, compare=False)
    progress: Mapping[str, Any] | None = field(default=None, compare=False)
    previous_state: State | None = field(default=None, compare=False)

    @property
    def max_attempts(self) -> int:
        """Attempts in all, including the first."""
        return self.policy.max_attempts

    @property
    def size(self) -> int:
        """Bytes of its content, which must be loaded unless it is offloaded."""
        return self.content_bytes or jsontext.size_of(self.content or {})

    @property
    def waiting_copy(self) -> bool:
        """Whether it is an available copy of a dead letter."""
        return self.copy_of is not None and self.state is State.AVAILABLE

    def gone(self, now_ms: int) -> bool:
        """Whether its retention is over: the table removes it some time later."""
        return self.ttl_s is not None and self.ttl_s * 1000 <= now_ms

    @property
    def timeout_at_ms(self) -> int | None:
        """When the running attempt reaches its timeout."""
        return None if self.started_ms is None else self.started_ms + self.timeout_ms

    @property
    def due_ms(self) -> int:
        """The next time transition: start, retry, end of the lease, or timeout. In ms."""
        if self.state is State.SCHEDULED:
            return self.scheduled_ms or 0
        if self.state is State.RETRYABLE:
            return self.retry_at_ms or 0
        if self.state is State.ACTIVE and self.lease and self.timeout_at_ms is not None:
            return min(self.lease.until_ms, self.timeout_at_ms)
        raise ValueError(f"a job in state {self.state} waits for no time")


def expired(job: Job, now_ms: int) -> bool:
    """Whether the job's deadline to start (`expires_at`) has passed."""
    return job.expires_ms is not None and job.expires_ms <= now_ms


def to_dict(job: Job) -> dict[str, Any]:
    """The JSON object of a job. A field that is not set is absent, never null."""
    content = dict(job.content or {})
    shown: dict[str, Any] = {
        "specversion": content.pop("specversion", SPECVERSION),
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
    }
    if job.state is State.SCHEDULED and job.limit is not None:
        # Its rate limit may have rescheduled it.
        content["scheduled_at"] = _start(job, content.get("scheduled_at"))
    if job.content is not None:
        shown["args"] = content.pop("args", [])
        shown["meta"] = replay.shown(content.pop("meta", {}), job.replayed)
    shown |= content
    shown |= {
        "priority": job.priority,
        "state": job.state.value,
        "attempt": job.attempt,
        "max_attempts": job.max_attempts,
        "created_at": times.format_ms(job.created_ms),
    }
    for name, ms in (
        ("enqueued_at", job.enqueued_ms),
        ("activated_at", job.activated_ms),
        ("started_at", job.started_ms),
        ("completed_at", job.completed_ms),
        ("cancelled_at", job.cancelled_ms),
        ("discarded_at", job.discarded_ms),
    ):
        if ms is not None:
            shown[name] = times.format_ms(ms)
    if job.producer is not None:
        shown["producer"] = job.producer
    shown |= _attempt(job)
    if job.result is not MISSING:
        shown["result"] = job.result
    if job.progress is not None and (value := _fraction(job)) is not None:
        shown["progress"] = value
    if job.dead_letter:
        shown |= _dead_letter(job, shown)
    if job.previous_state is not None:
        shown["previous_state"] = job.previous_state.value
    return shown


def _dead_letter(job: Job, shown: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that only a dead letter has."""
    # The client's own `metadata` is kept beside it (ojs-dead-letter, section 9.2).
    own = shown.get("metadata")
    metadata = {
        **(own if isinstance(own, dict) else {}),
        "created_at": shown["created_at"],
        "discarded_at": times.format_ms(job.discarded_ms or 0),
    }
    copied = {} if job.copy_id is None else {"dead_letter_job_id": job.copy_id}
    return {"dead_letter": True, **copied, "metadata": metadata}


def _start(job: Job, requested: Any) -> str:
    """The start time of a scheduled job: as the client wrote it, if it is still the same."""
    ms = job.scheduled_ms or 0
    try:
        same = times.timestamp_ms(requested, now_ms=job.created_ms) == ms
    except ValueError:
        same = False
    return str(requested) if same else times.format_ms(ms)


def _attempt(job: Job) -> dict[str, Any]:
    """The fields of the current or last attempt: lease, delay, errors."""
    shown: dict[str, Any] = {}
    if job.retry_delay_ms is not None:
        shown["retry_delay_ms"] = job.retry_delay_ms
    if job.state is State.RETRYABLE and job.retry_at_ms is not None:
        shown["next_attempt_at"] = shown["next_retry_at"] = times.format_ms(job.retry_at_ms)
    if job.worker_id is not None:
        shown["worker_id"] = job.worker_id
    if job.state is State.ACTIVE and job.lease is not None:
        shown["lease_token"] = job.lease.token
        shown["lease_expires_at"] = times.format_ms(job.lease.until_ms)
    if job.errors:
        shown["errors"] = [failure.to_dict() for failure in job.errors]
        # A completed job does not show its last error.
        if job.state is not State.COMPLETED:
            shown["error"] = job.errors[-1].to_dict()
    elif job.copy_of is not None and job.state is not State.COMPLETED:
        # The error of the dead letter that it is a copy of, until it has an error of its own.
        meta = (job.content or {}).get("meta")
        origin = meta.get(META) if isinstance(meta, Mapping) else None
        if isinstance(origin, Mapping) and "error" in origin:
            shown["error"] = origin["error"]
    return shown


def _fraction(job: Job) -> Any:
    """Reported progress between 0 and 1; 1 for a completed job."""
    return 1.0 if job.state is State.COMPLETED else (job.progress or {}).get("progress")
