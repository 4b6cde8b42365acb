"""The job record: how a job is stored in DynamoDB attributes, and its error items.

A field that has its default value is not stored. So the record of a small job stays within 1 KB,
one write unit, until it is deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ojs.domain import jsontext
from ojs.domain.fair_queue.tags import TAG_DIGITS, Share, tagged
from ojs.domain.job import failure as failures
from ojs.domain.job.copies import CopyTarget, Origin
from ojs.domain.job.durable import Parent, Suspension
from ojs.domain.job.failure import ErrorEntry, Failure
from ojs.domain.job.job import DEFAULT_TIMEOUT_MS, MISSING, Job, Lease
from ojs.domain.job.permits import RunPermits
from ojs.domain.job.retry import RetryPolicy
from ojs.domain.job.states import TERMINAL, State
from ojs.domain.job.workflow_step import WorkflowStep
from ojs.domain.rate_limit.limiter import RateLimit
from ojs.store.table import keys
from ojs.store.table.record import Attribute, Record, flag, member
from ojs.store.table.values import Item, size

# Number of bytes of a new job record that are kept free for later attributes: lease, worker, times,
# and a small result. The record then still fits into one write unit.
RECORD_BYTES = 1_024
GROWTH_BYTES = 230
# Additional bytes for a pending job, for the time of its activation.
ACTIVATION_BYTES = 28
# Additional bytes for a job with a rate limit, for the name of a permit.
PERMIT_BYTES = 34
# Additional bytes for a job with a dead letter queue, for the ID of its copy and the flag that a
# copy must be created.
COPY_BYTES = 50
# Additional bytes for a job of a tenant without a start tag, for the sort key with the tag.
FAIR_BYTES = 20
_WAITS_FOR = {
    State.SCHEDULED: keys.START,
    State.RETRYABLE: keys.RETRY,
    State.ACTIVE: keys.LEASE_END,
}
INLINE_RESULT_BYTES = 128


def _lease(record: Mapping[str, Any]) -> Lease | None:
    if "lease_until" not in record:
        return None
    return Lease(record["lease"], record["lease_until"], record["lease_ms"], record.get("worker"))


def _order(record: Mapping[str, Any]) -> str | None:
    if record["state"] != State.AVAILABLE or "wsk" not in record:
        return None
    return keys.Position.parse(record["wsk"]).order


# An acknowledgement adds to this attribute without reading the record.
KEEP_COMPLETED = "keep_c"
# The condition of an acknowledgement checks this attribute.
RESULT_TTL = "rt"
# A saved checkpoint adds to this attribute without reading the record.
CHECKPOINTS = "cp"
# So do saved steps. A claim of a suspended job removes its waits.
SAVES, SAVED_BYTES, FORGIVEN, VERSION, WAITS = "stn", "stb", "fg", "ver", "waits"
JOB = Record(
    Job,
    "job",
    {
        "type": "type",
        "queue": "queue",
        "lane": "lane",
        "priority": "priority",
        "attempt": "attempt",
        "created": "created_ms",
        "enqueued": "enqueued_ms",
        "scheduled": "scheduled_ms",
        "expires": "expires_ms",
        "timeout": "timeout_ms",
        "visibility": "visibility_ms",
        "payload": "content_ref",
        "payload_bytes": "content_bytes",
        "life": "life",
        "activated": "activated_ms",
        "started": "started_ms",
        "completed": "completed_ms",
        "cancelled": "cancelled_ms",
        "discarded": "discarded_ms",
        "worker": "worker_id",
        "stalled": "stalled",
        "retry_at": "retry_at_ms",
        "retry_delay": "retry_delay_ms",
        "etype": "error_type",
        "replayed": "replayed",
        "copy": "copy_id",
        "unique": "unique_key",
        "held": "reserved_bytes",
        "held_in": "reserved_in",
        "pool": "pool",
        "seats": "pool_permits",
        "place": "key_permit",
        "batch": "batch",
        "by": "producer",
        "edited": "changed_by",
        "made": "made_by",
        "result_ref": "result_ref",
        RESULT_TTL: "result_ttl_s",
        "op": "op",
        "ttl": "ttl_s",
        "state": member("state", State, "a job in state"),
        "errors": Attribute("noted", failures.compact, failures.entries_of),
        "retry": Attribute("policy", RetryPolicy.compact, RetryPolicy.of),
        "dlq": Attribute("copies_to", CopyTarget.compact, CopyTarget.of),
        "copy_of": Attribute("copy_of", Origin.compact, Origin.of),
        "limit": Attribute("limit", RateLimit.compact, RateLimit.of),
        "fair": Attribute("share", Share.compact, Share.of),
        "permits": Attribute("permits", RunPermits.compact, RunPermits.of),
        "wf": Attribute("workflow", WorkflowStep.compact, WorkflowStep.of),
        CHECKPOINTS: "durable.checkpoints",
        "cpx": "durable.cleared",
        SAVES: "durable.saves",
        SAVED_BYTES: "durable.bytes",
        FORGIVEN: "durable.forgiven",
        VERSION: "durable.version",
        "ep": "durable.epoch",
        "sgn": "durable.signals",
        WAITS: Attribute("durable.waits", Suspension.compact, Suspension.of),
        "nap": "durable.stopped",
        "pa": Attribute("durable.parent", Parent.compact, Parent.of),
        # The permit of a queue's semaphore can be stored as a token.
        "slot": flag("queue_permit"),
        "dead": flag("dead_letter"),
        "deleting": flag("deleting"),
        "copy_due": flag("copy_due"),
        "trimmed": flag("trimmed"),
        "fenced": flag("fenced"),
        KEEP_COMPLETED: "retention.completed_s",
        "keep_x": "retention.cancelled_s",
        "keep_d": "retention.discarded_s",
        "lease": Attribute("lease", lambda lease: lease.token),
        "lease_until": Attribute("lease", lambda lease: lease.until_ms, None, "N"),
        "lease_ms": Attribute("lease", lambda lease: lease.length_ms, None, "N"),
        "beat": Attribute("lease", lambda lease: lease.until_ms - lease.length_ms, None, "N"),
    },
    apart={
        "id": lambda record: keys.job_id(record["pk"]),
        "lease": _lease,
        "order": _order,
        "content": lambda it: jsontext.stored(it["body"]) if "body" in it else None,
        "result": lambda it: jsontext.stored(it["result"]) if "result" in it else MISSING,
        **dict.fromkeys(
            ("chosen_id", "errors", "progress", "previous_state", "checkpoint", "outcomes")
        ),
    },
)


def record_of(job: Job) -> Item:
    """Return the record of a job with its index keys.

    The content is included unless it is offloaded.
    """
    record = JOB.item(job, pk=keys.job(job.id), sk=keys.RECORD, **index_entries(job))
    if job.content_ref is None and job.content is not None:
        record["body"] = jsontext.dumps(job.content)
    if job.result_ref is None and job.result is not MISSING:
        record["result"] = jsontext.dumps(job.result)
    return record


def job_of(record: Mapping[str, Any]) -> Job:
    """Return the job of a record, with its content and result unless they are offloaded.

    Attributes that this version doesn't know are ignored. They are kept, because a write changes
    only known attributes. Raises UnknownForm or UnreadableItem.
    """
    return JOB.of(record)


def index_entries(job: Job) -> Item:
    """Return the keys of a job in the sparse indexes."""
    entries: Item = {}
    match job.state:
        case State.AVAILABLE:
            entries["wpk"] = keys.ready(job.queue, job.lane)
            entries["wsk"] = position(job).key()
        case State.SCHEDULED | State.RETRYABLE | State.ACTIVE:
            lane = job.lane if job.state is State.ACTIVE else keys.due_lane(job.lane)
            entries["wpk"] = keys.due(job.queue, lane)
            entries["wsk"] = keys.due_at(job.due_ms, _WAITS_FOR[job.state])
        case State.PENDING:
            entries["wpk"] = keys.pending(job.queue, job.lane)
            entries["wsk"] = keys.instant(job.created_ms)
        case State.DISCARDED if job.dead_letter:
            entries["wpk"] = keys.dead(job.queue)
            entries["wsk"] = keys.dead_at(job.discarded_ms or 0, job.id)
            # A dead letter is also listed in the index `expiry`, with those of all queues. Its
            # deadline no longer has an effect.
            entries["epk"] = keys.all_dead()
            entries["esk"] = entries["wsk"]
        case _:
            pass
    # An active job started before its deadline, so the deadline no longer has an effect, and the
    # sweep must not find the job again.
    if job.expires_ms is not None and job.state not in TERMINAL and job.state is not State.ACTIVE:
        entries["epk"] = keys.expiry(job.queue, job.lane)
        entries["esk"] = keys.instant(job.expires_ms)
    return entries


def waits_for_a_time(job: Job) -> bool:
    """Return whether the sweep must process a job at a start, retry, lease end, or deadline."""
    deadline = job.expires_ms is not None and job.state not in TERMINAL
    return deadline or job.state in _WAITS_FOR


def due_entries(job: Job) -> Iterator[tuple[str, int]]:
    """The lines in which the sweep finds a job at a time, and when (ms)."""
    if not waits_for_a_time(job):
        return
    entries = index_entries(job)
    for letter in "we":
        line = str(entries.get(f"{letter}pk", ""))
        if keys.is_sweepable(line):
            yield line, keys.instant_of(str(entries[f"{letter}sk"]))


def position(job: Job) -> keys.Position:
    """Return an available job's position in the ready index, with the data for a claim."""
    return keys.Position(
        priority=job.priority,
        order=job.order or "",
        visibility_ms=job.visibility_ms,
        timeout_ms=job.timeout_ms if job.timeout_ms != DEFAULT_TIMEOUT_MS else None,
        batch=job.batch,
        size_kib=job.content_bytes // 1024,
        limit=job.limit.spec(job.queue) if job.limit is not None else None,
        copy=job.copy_of is not None,
    )


def fits_inline(job: Job) -> bool:
    """Return whether the job record with the content stays within one write unit.

    This allows for worker IDs of up to 48 bytes. A longer one can cost a second unit.
    """
    # The first change of the job removes the token of its staged batch.
    return size(record_of(replace(job, batch=None))) + growth(job) <= RECORD_BYTES


def growth(job: Job) -> int:
    """Return the number of bytes by which a new job's record can grow."""
    more = ACTIVATION_BYTES if job.state is State.PENDING else 0
    more += COPY_BYTES if job.copies_to is not None else 0
    more += PERMIT_BYTES if job.limit is not None else 0
    if job.share is not None:
        # The fairness tag is part of the name of a permit, too. A scheduled job has no tag yet.
        more += TAG_DIGITS if job.limit is not None else 0
        more += 0 if job.state is State.AVAILABLE and tagged(job.order or "") else FAIR_BYTES
    return GROWTH_BYTES + more


def entry(job: Job, failure: Failure, *, reported: bool = False) -> ErrorEntry:
    """Return an entry of the error history.

    Args:
        job: The job at the time when it failed.
        failure: The error.
        reported: Whether a worker reported the error.
    """
    return ErrorEntry(
        failure,
        life=job.life,
        ended=job.state is not State.ACTIVE,
        run=None if job.lease is None else job.lease.token,
        reported=reported,
    )


def error_key(entry: ErrorEntry) -> str:
    """Return the sort key of an error's item, which also orders the errors of its job."""
    return keys.error(entry.life, entry.failure.attempt, ended=entry.ended)


def final_keys(job: Job) -> set[str]:
    """Return the sort keys of the complete errors of attempts on a job record."""
    return {error_key(entry) for entry in job.noted if entry.final}


def error(job_id: str, entry: ErrorEntry) -> Item:
    """Return the item of an entry of the error history."""
    failure = entry.failure
    stored = {
        "code": failure.code,
        "type": failure.type,
        "message": failure.message,
        "retryable": failure.retryable,
        "backtrace": list(failure.backtrace),
        "details": failure.details,
    }
    item: Item = {
        "pk": keys.job(job_id),
        "sk": error_key(entry),
        "attempt": failure.attempt,
        "occurred": failure.occurred_ms,
        "error": jsontext.dumps({name: value for name, value in stored.items() if value}),
    }
    if entry.run is not None:
        # Identifies the run of the job that failed.
        item["lease"] = entry.run
    return item


def entry_from(item: Mapping[str, Any]) -> ErrorEntry:
    """Return the error entry of an item. Only the job record has the ID of the reporting worker."""
    stored = jsontext.stored(item["error"])
    failure = Failure(
        attempt=item["attempt"],
        code=stored.get("code", ""),
        type=stored.get("type", ""),
        message=stored.get("message", ""),
        occurred_ms=item["occurred"],
        retryable=stored.get("retryable", False),
        backtrace=tuple(stored.get("backtrace", ())),
        details=stored.get("details"),
    )
    return ErrorEntry(
        failure,
        life=int(str(item["sk"]).split("|")[1]),
        ended=keys.is_of_end(str(item["sk"])),
        run=item.get("lease"),
    )


def has_room(before: Job, after: Job) -> bool:
    """Return whether a failed job's record with its errors fits into one write unit.

    This must also be true after another run of the same kind. A result can make the record exceed
    one unit, once, at the same cost as a separate error item. A retry of a dead letter removes more
    attributes than the next run adds.
    """
    if after.state is not State.DISCARDED:
        after = replace(after, lease=before.lease, permits=before.permits)
    return size(record_of(after)) <= RECORD_BYTES
