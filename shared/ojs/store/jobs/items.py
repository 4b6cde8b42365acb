"""The job record: the one mapping between a job and its DynamoDB attributes.

Attributes that have their default are left out, so that the record of a small job stays within
1 KB, one write unit, through its whole life.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ojs.domain import jsontext
from ojs.domain.dead_letter.copies import Origin, Target
from ojs.domain.fair_queue.tags import TAG_DIGITS, Share, tagged
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import DEFAULT_TIMEOUT_MS, MISSING, Job, Lease
from ojs.domain.job.retention import RETENTION, Retention
from ojs.domain.job.retry import RetryPolicy
from ojs.domain.job.states import TERMINAL, State
from ojs.domain.rate_limit.limiter import RateLimit
from ojs.store.table import keys
from ojs.store.table.values import Item, Value, size

# A job record should fit one write unit. This much of it is kept free for what a job gains later:
# lease, worker, times, a small result.
HEAD_BYTES = 1_024
GROWTH_BYTES = 230
# And this much more for a pending job, which gains the time of its activation.
ACTIVATION_BYTES = 28
# And this much for a job under a rate limit, which gains the name of a permit.
PLACE_BYTES = 34
# And this much for a job with a dead letter queue: the id of its copy, and that it is to be made.
COPY_BYTES = 50
# And this much for a job of a tenant without a start tag: the position in line that it will have.
FAIR_BYTES = 20
_WAITS_FOR = {
    State.SCHEDULED: keys.START,
    State.RETRYABLE: keys.RETRY,
    State.ACTIVE: keys.LEASE_END,
}
INLINE_RESULT_BYTES = 128


def head(job: Job) -> Item:
    """The record of a job, with its index entries. The content is in it unless it was offloaded."""
    item: dict[str, Value | None] = {
        "pk": keys.job(job.id),
        "sk": keys.HEAD,
        "state": job.state.value,
        "type": job.type,
        "queue": job.queue,
        "lane": job.lane or None,
        "priority": job.priority or None,
        "attempt": job.attempt or None,
        "created": job.created_ms,
        "enqueued": job.enqueued_ms,
        "scheduled": job.scheduled_ms,
        "expires": job.expires_ms,
        "timeout": job.timeout_ms if job.timeout_ms != DEFAULT_TIMEOUT_MS else None,
        "visibility": job.visibility_ms,
        "retry": job.policy.compact(),
        **_kept(job.retention),
        "payload": job.content_ref,
        "payload_bytes": job.content_bytes or None,
        "life": job.life or None,
        "activated": job.activated_ms,
        "started": job.started_ms,
        "completed": job.completed_ms,
        "cancelled": job.cancelled_ms,
        "discarded": job.discarded_ms,
        "worker": job.worker_id,
        "stalled": job.stalled,
        "retry_at": job.retry_at_ms,
        "retry_delay": job.retry_delay_ms,
        "dead": 1 if job.dead_letter else None,
        "etype": job.error_type,
        "deleting": 1 if job.deleting else None,
        "replayed": job.replayed,
        "dlq": job.copies_to.compact() if job.copies_to else None,
        "copy": job.copy_id,
        "copy_due": 1 if job.copy_due else None,
        "copy_of": job.copy_of.compact() if job.copy_of else None,
        "trimmed": 1 if job.trimmed else None,
        "unique": job.unique_key,
        "held": job.reserved_bytes,
        "slot": 1 if job.slot else None,
        "pool": job.pool,
        "seats": job.seats or None,
        "limit": job.limit.compact() if job.limit else None,
        "place": job.place,
        "fair": job.share.compact() if job.share else None,
        "batch": job.batch,
        "by": job.producer,
        "made": job.made_by,
        "result_ref": job.result_ref,
        "op": job.op,
        "ttl": job.ttl_s,
    }
    if job.content_ref is None and job.content is not None:
        item["body"] = jsontext.dumps(job.content)
    if job.result_ref is None and job.result is not MISSING:
        item["result"] = jsontext.dumps(job.result)
    if job.lease is not None:
        item["lease"] = job.lease.token
        item["lease_until"] = job.lease.until_ms
        item["lease_ms"] = job.lease.length_ms
    item |= index_entries(job)
    return {name: value for name, value in item.items() if value is not None}


# Attribute of the record → field of the retention. An ack computes with the first one unread.
KEEP_COMPLETED = "keep_c"
_KEEP = {
    KEEP_COMPLETED: "completed_s",
    "keep_x": "cancelled_s",
    "keep_d": "discarded_s",
}


def _kept(retention: Retention) -> dict[str, Value | None]:
    """Retention periods (s) that differ from the default."""
    return {
        name: getattr(retention, field)
        for name, field in _KEEP.items()
        if getattr(retention, field) != getattr(RETENTION, field)
    }


def _retention(item: Mapping[str, Any]) -> Retention:
    given = {field: item[name] for name, field in _KEEP.items() if name in item}
    return Retention(**given) if given else RETENTION


def index_entries(job: Job) -> Item:
    """A job's keys in the sparse indexes."""
    entries: Item = {}
    match job.state:
        case State.AVAILABLE:
            entries["wpk"] = keys.ready(job.queue, job.lane)
            entries["wsk"] = position(job).key()
        case State.SCHEDULED | State.RETRYABLE | State.ACTIVE:
            entries["wpk"] = keys.due(job.queue, job.lane)
            entries["wsk"] = keys.due_at(job.due_ms, _WAITS_FOR[job.state])
        case State.PENDING:
            entries["wpk"] = keys.pending(job.queue, job.lane)
            entries["wsk"] = keys.instant(job.created_ms)
        case State.DISCARDED if job.dead_letter:
            entries["wpk"] = keys.dead(job.queue)
            entries["wsk"] = keys.dead_at(job.discarded_ms or 0, job.id)
            # And among the dead letters of all queues, in the other index: its deadline is over.
            entries["epk"] = keys.all_dead()
            entries["esk"] = entries["wsk"]
        case _:
            pass
    # A running job started in time: its deadline is over, and must not be found again.
    if job.expires_ms is not None and job.state not in TERMINAL and job.state is not State.ACTIVE:
        entries["epk"] = keys.expiry(job.queue, job.lane)
        entries["esk"] = keys.instant(job.expires_ms)
    return entries


def position(job: Job) -> keys.Position:
    """An available job's position in the ready line, with the hints a claim needs."""
    return keys.Position(
        priority=job.priority,
        order=job.order or "",
        visibility_ms=job.visibility_ms,
        timeout_ms=job.timeout_ms if job.timeout_ms != DEFAULT_TIMEOUT_MS else None,
        batch=job.batch,
        size_kib=job.content_bytes // 1024,
        limit=job.limit.hint(job.queue) if job.limit is not None else None,
        copy=job.copy_of is not None,
    )


def job_from_head(item: Mapping[str, Any]) -> Job:
    """The job that a record holds, with its content and result unless they were offloaded."""
    state = State(item["state"])
    lease = None
    if "lease_until" in item:
        lease = Lease(item["lease"], item["lease_until"], item["lease_ms"], item.get("worker"))
    order = None
    if state is State.AVAILABLE and "wsk" in item:
        order = keys.Position.parse(item["wsk"]).order
    return Job(
        id=keys.job_id(item["pk"]),
        type=item["type"],
        queue=item["queue"],
        state=state,
        created_ms=item["created"],
        lane=item.get("lane", 0),
        priority=item.get("priority", 0),
        attempt=item.get("attempt", 0),
        content=jsontext.stored(item["body"]) if "body" in item else None,
        enqueued_ms=item.get("enqueued"),
        scheduled_ms=item.get("scheduled"),
        expires_ms=item.get("expires"),
        timeout_ms=item.get("timeout", DEFAULT_TIMEOUT_MS),
        visibility_ms=item.get("visibility"),
        policy=RetryPolicy.from_compact(item.get("retry")),
        retention=_retention(item),
        order=order,
        life=item.get("life", 0),
        activated_ms=item.get("activated"),
        started_ms=item.get("started"),
        completed_ms=item.get("completed"),
        cancelled_ms=item.get("cancelled"),
        discarded_ms=item.get("discarded"),
        lease=lease,
        worker_id=item.get("worker"),
        stalled=item.get("stalled"),
        retry_at_ms=item.get("retry_at"),
        retry_delay_ms=item.get("retry_delay"),
        dead_letter="dead" in item,
        error_type=item.get("etype"),
        deleting="deleting" in item,
        replayed=item.get("replayed"),
        copies_to=Target.of(item["dlq"]) if "dlq" in item else None,
        copy_id=item.get("copy"),
        copy_due="copy_due" in item,
        copy_of=Origin.of(item["copy_of"]) if "copy_of" in item else None,
        trimmed="trimmed" in item,
        unique_key=item.get("unique"),
        reserved_bytes=item.get("held"),
        slot="slot" in item,
        pool=item.get("pool"),
        seats=item.get("seats", ""),
        limit=RateLimit.of(item["limit"]) if "limit" in item else None,
        place=item.get("place"),
        share=Share.of(item["fair"]) if "fair" in item else None,
        batch=item.get("batch"),
        producer=item.get("by"),
        made_by=item.get("made"),
        content_bytes=item.get("payload_bytes", 0),
        content_ref=item.get("payload"),
        result=jsontext.stored(item["result"]) if "result" in item else MISSING,
        result_ref=item.get("result_ref"),
        op=item.get("op"),
        ttl_s=item.get("ttl"),
    )


def fits_inline(job: Job) -> bool:
    """Whether the job record with the content stays within one write unit.

    This allows for worker ids of up to 48 bytes; a longer one may cost a second unit.
    """
    return size(head(job)) + growth(job) <= HEAD_BYTES


def growth(job: Job) -> int:
    """How many bytes a new job's record may gain in its life."""
    more = ACTIVATION_BYTES if job.state is State.PENDING else 0
    more += COPY_BYTES if job.copies_to is not None else 0
    more += PLACE_BYTES if job.limit is not None else 0
    if job.share is not None:
        # The tag is in the name of a permit, too; a job that waits for a time has none yet.
        more += TAG_DIGITS if job.limit is not None else 0
        more += 0 if job.state is State.AVAILABLE and tagged(job.order or "") else FAIR_BYTES
    return GROWTH_BYTES + more


def error(job: Job, failure: Failure) -> Item:
    """An entry of the error history. `job` is as it was when it failed."""
    ended = job.state is not State.ACTIVE
    stored = {
        "code": failure.code,
        "type": failure.type,
        "message": failure.message,
        "retryable": failure.retryable,
        "backtrace": list(failure.backtrace),
        "details": failure.details,
    }
    item: Item = {
        "pk": keys.job(job.id),
        "sk": keys.error(job.life, failure.attempt, ended=ended),
        "attempt": failure.attempt,
        "occurred": failure.occurred_ms,
        "error": jsontext.dumps({name: value for name, value in stored.items() if value}),
    }
    if job.lease is not None:
        # Identifies the run that failed.
        item["lease"] = job.lease.token
    return item


def failure_from(item: Mapping[str, Any]) -> Failure:
    """The failure an error item holds."""
    stored = jsontext.stored(item["error"])
    return Failure(
        attempt=item["attempt"],
        code=stored.get("code", ""),
        type=stored.get("type", ""),
        message=stored.get("message", ""),
        occurred_ms=item["occurred"],
        retryable=stored.get("retryable", False),
        backtrace=tuple(stored.get("backtrace", ())),
        details=stored.get("details"),
    )
