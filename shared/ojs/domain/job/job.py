"""The job, and the one way it is shown (requirements section 1.1)."""

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
    """Marks a value that was not given, where null would be a value."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING


@dataclass(frozen=True)
class Lease:
    """One worker's claim on one attempt. `token` is the fencing token; times in ms."""

    token: str
    until_ms: int
    length_ms: int
    worker_id: str | None = None


# Places that a running job may take in its pool.
POOL_SEAT, WORKER_SEAT = "p", "w"


@dataclass(frozen=True)
class Job:
    """A job as the store holds it. Times in ms since the epoch, lengths in ms.

    `content` is what the client gave and nobody decides on: args, meta and fields to echo. It is
    None when it was not loaded (it may live in an item of its own).
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
    # share its arrival in line stands behind a tag (`ojs.domain.fair_queue.tags`).
    order: str | None = None
    # Its part in the fairness of its queue, if the queue was fair when it came.
    share: Share | None = None
    life: int = 0
    activated_ms: int | None = None
    started_ms: int | None = None
    completed_ms: int | None = None
    cancelled_ms: int | None = None
    discarded_ms: int | None = None
    lease: Lease | None = None
    worker_id: str | None = None
    # Token of the lease that ran out, until the job is handed out again.
    stalled: str | None = None
    retry_at_ms: int | None = None
    retry_delay_ms: int | None = None
    dead_letter: bool = False
    # Of a dead letter: the type of its latest error, and whether somebody is deleting it by hand.
    error_type: str | None = None
    deleting: bool = False
    # The latest automatic replay, a text that each replay changes; stays when it dies again.
    replayed: str | None = None
    # Where a copy goes should it die; as a dead letter the copy's id, and whether it is still to be
    # made. A copy has where it is from instead, and is not copied on.
    copies_to: Target | None = None
    copy_id: str | None = None
    copy_due: bool = False
    copy_of: Origin | None = None
    # A copy that was dropped because too many waited, and was counted as gone by whoever did so.
    trimmed: bool = False
    unique_key: str | None = None
    # Whether it takes one of its queue's places for running jobs.
    slot: bool = False
    # The worker pool it was handed out to last, and the places it takes there while it runs:
    # one of the pool's, one of its worker's, or both (`POOL_SEAT`, `WORKER_SEAT`).
    pool: str | None = None
    seats: str = ""
    # Bytes that the gate of its bounded queue charged for it, until it is done.
    held: int | None = None
    # Its rate limit, and the place it takes under it while it is active: its position in line then.
    limit: RateLimit | None = None
    place: str | None = None
    batch: str | None = None
    # Who pushed it, as far as that is known.
    producer: str | None = None
    # The write that made it, where the id was chosen: by the client, or derived from another job.
    # It never changes, and so tells this job from another one that has the same id.
    made_by: str | None = None
    # Bytes of the content when it is stored apart, else 0.
    content_bytes: int = 0
    content_ref: str | None = None
    result: Any = MISSING
    result_ref: str | None = None
    # The write that made this version of the head; guards compare-and-swap.
    op: str | None = None
    ttl_s: int | None = None
    # Of a new job on its way to the table: whether its id was chosen.
    chosen_id: bool = field(default=False, compare=False)
    # Loaded on demand, never written with the head:
    errors: tuple[Failure, ...] | None = field(default=None, compare=False)
    progress: Mapping[str, Any] | None = field(default=None, compare=False)
    previous_state: State | None = field(default=None, compare=False)

    @property
    def max_attempts(self) -> int:
        """Tries in all, the first one included."""
        return self.policy.max_attempts

    @property
    def size(self) -> int:
        """Bytes of its content, which must be loaded unless it is kept apart."""
        return self.content_bytes or jsontext.size_of(self.content or {})

    @property
    def waiting_copy(self) -> bool:
        """Whether it is a copy of a dead letter that stands in line."""
        return self.copy_of is not None and self.state is State.AVAILABLE

    def gone(self, now_ms: int) -> bool:
        """Whether it was kept as long as it should be: the table removes it some time later."""
        return self.ttl_s is not None and self.ttl_s * 1000 <= now_ms

    @property
    def timeout_at_ms(self) -> int | None:
        """When the running attempt exceeds its execution time."""
        return None if self.started_ms is None else self.started_ms + self.timeout_ms

    @property
    def due_ms(self) -> int:
        """When time alone will move the job: start, retry, or the end of its lease or attempt."""
        if self.state is State.SCHEDULED:
            return self.scheduled_ms or 0
        if self.state is State.RETRYABLE:
            return self.retry_at_ms or 0
        if self.state is State.ACTIVE and self.lease and self.timeout_at_ms is not None:
            return min(self.lease.until_ms, self.timeout_at_ms)
        raise ValueError(f"a job in state {self.state} waits for no time")


def expired(job: Job, now_ms: int) -> bool:
    """Whether the deadline before execution has passed (`expires_at`)."""
    return job.expires_ms is not None and job.expires_ms <= now_ms


def to_dict(job: Job) -> dict[str, Any]:
    """The job as every endpoint shows it. A field that is not set is absent, never null."""
    content = dict(job.content or {})
    shown: dict[str, Any] = {
        "specversion": content.pop("specversion", SPECVERSION),
        "id": job.id,
        "type": job.type,
        "queue": job.queue,
    }
    if job.state is State.SCHEDULED and job.limit is not None:
        # Its limit may have put it off since the client said when.
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
    """What is added where the job is a dead letter."""
    # The seed's detail of a dead letter (DL section 9.2); a client's own keys stay beside it.
    own = shown.get("metadata")
    metadata = {
        **(own if isinstance(own, dict) else {}),
        "created_at": shown["created_at"],
        "discarded_at": times.format_ms(job.discarded_ms or 0),
    }
    copied = {} if job.copy_id is None else {"dead_letter_job_id": job.copy_id}
    return {"dead_letter": True, **copied, "metadata": metadata}


def _start(job: Job, said: Any) -> str:
    """When a scheduled job starts: as the client said, if that is when."""
    ms = job.scheduled_ms or 0
    try:
        same = times.timestamp_ms(said, now_ms=job.created_ms) == ms
    except ValueError:
        same = False
    return str(said) if same else times.format_ms(ms)


def _attempt(job: Job) -> dict[str, Any]:
    """What is known of the current or last attempt: lease, delay, errors."""
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
        # The last error belongs to a job that has not succeeded (L0-OPS-011).
        if job.state is not State.COMPLETED:
            shown["error"] = job.errors[-1].to_dict()
    elif job.copy_of is not None and job.state is not State.COMPLETED:
        # Of what it is a copy (queue-config seed, section 6.4), until it has an error of its own.
        meta = (job.content or {}).get("meta")
        told = meta.get(META) if isinstance(meta, Mapping) else None
        if isinstance(told, Mapping) and "error" in told:
            shown["error"] = told["error"]
    return shown


def _fraction(job: Job) -> Any:
    """Reported progress between 0 and 1; whatever is done is done to the end."""
    return 1.0 if job.state is State.COMPLETED else (job.progress or {}).get("progress")
