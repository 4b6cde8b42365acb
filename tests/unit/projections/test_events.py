from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from ojs.domain import times
from ojs.domain.job import failure as failures
from ojs.domain.job import lifecycle
from ojs.domain.job.copies import Origin
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import Job
from ojs.domain.job.retry import RetryPolicy
from ojs.domain.job.states import State
from ojs.domain.pool.worker import Directive, Worker
from ojs.domain.queue.config import Layers
from ojs.domain.queue.queue import Queue, QueueState
from ojs.projections import dead_letters, events
from ojs.projections.pools import WorkerChange
from ojs.projections.queues import QueueChange
from ojs.projections.transitions import happened
from ojs.store.table import keys
from tests.unit.domain.arbitrary import NOW_MS, jobs

ID = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"
LATER_MS = NOW_MS + 5_000
JOB = Job(
    ID, "email.send", "mail", State.AVAILABLE, NOW_MS, enqueued_ms=NOW_MS, order="0" * 15, op="a",
    policy=RetryPolicy(max_attempts=2, jitter=False, initial_ms=1_000),
    content={"args": ["secret"], "meta": {"secret": 1}},
)  # fmt: skip
RUNNING = replace(
    lifecycle.claim(JOB, token="t", now_ms=NOW_MS + 1_000, lease_ms=2_000, worker_id="w 1"), op="b"
)
BOOM = Failure(1, "smtp", "SmtpError", "refused", LATER_MS, True, ("a.py:1", "b.py:2"), {"x": 1})
AT = {"job_type": "email.send", "queue": "mail"}


def told(
    before: Job | None, after: Job | None, error: Failure | None = None, *, ended: bool = False
) -> dict[str, Any]:
    """Data and source by type."""
    attempt = (after or before or JOB).attempt
    stored = {(keys.job(ID), keys.error(0, attempt, ended=ended)): error} if error else {}
    found = [
        events.of_job(what, "mail-service", stored)
        for what in happened(before, after, written_ms=LATER_MS)
    ]
    assert "secret" not in repr([event.to_dict() for event in found])
    assert {event.subject for event in found} == {ID}
    return {
        event.type: (event.source.removeprefix("ojs://mail-service/"), dict(event.data))
        for event in found
    }


def test_enqueued() -> None:
    data = {**AT, "priority": 0, "from": "pending"}
    assert told(None, JOB) == {"job.enqueued": ("api", data)}
    waited = replace(JOB, scheduled_ms=NOW_MS, unique_key="ab", priority=7)
    assert told(replace(waited, state=State.SCHEDULED), waited) == {
        "job.enqueued": (
            "scheduler",
            {
                **AT, "priority": 7, "scheduled_at": times.format_ms(NOW_MS), "unique_key": "ab",
                "from": "scheduled",
            },
        )
    }  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "source"),
    [
        (replace(JOB, state=State.PENDING), JOB, "api"),
        (replace(JOB, state=State.RETRYABLE), JOB, "scheduler"),
        (RUNNING, lifecycle.requeue(RUNNING, now_ms=LATER_MS, order="1"), "workers/w%201"),
        (RUNNING, lifecycle.stall(RUNNING, now_ms=LATER_MS, order="1")[0], "scheduler"),
        (replace(JOB, state=State.DISCARDED, dead_letter=True), JOB, "api"),
    ],
)
def test_who_enqueued(before: Job, after: Job, source: str) -> None:
    assert told(before, after)["job.enqueued"][0] == source


def test_a_copy_of_a_dead_letter_is_enqueued_by_the_backend() -> None:
    copy = replace(JOB, copy_of=Origin("x"))
    assert told(None, copy)["job.enqueued"][0] == "scheduler"


def test_scheduled() -> None:
    job = replace(JOB, state=State.SCHEDULED, scheduled_ms=LATER_MS)
    expected = ("scheduler", {**AT, "scheduled_at": times.format_ms(LATER_MS), "from": "pending"})
    assert told(None, job) == {"job.scheduled": expected}


def test_started_and_heartbeat() -> None:
    at = {**AT, "worker_id": "w 1", "attempt": 1}
    assert told(JOB, RUNNING) == {"job.started": ("workers/w%201", at)}
    assert RUNNING.lease is not None
    lease = replace(RUNNING.lease, until_ms=LATER_MS)
    assert told(RUNNING, replace(RUNNING, lease=lease)) == {
        "job.heartbeat": ("workers/w%201", {**at, "visible_until": times.format_ms(LATER_MS)})
    }
    nameless = replace(RUNNING, worker_id=None)
    assert told(JOB, nameless) == {
        "job.started": ("workers/anonymous", {**at, "worker_id": "anonymous"})
    }


def test_completed() -> None:
    done = lifecycle.complete(RUNNING, now_ms=LATER_MS)
    data = {**AT, "duration_ms": 4_000, "attempt": 1}
    assert told(RUNNING, done) == {"job.completed": ("workers/w%201", data)}
    result = replace(done, result={"ok": 1})
    assert told(RUNNING, result)["job.completed"][1] == {**data, "result": {"ok": 1}}
    nothing = replace(done, result=None)
    assert told(RUNNING, nothing)["job.completed"][1] == {**data, "result": None}


def test_failed_and_retrying() -> None:
    after = lifecycle.fail(RUNNING, BOOM, now_ms=LATER_MS, chance=0.5)
    short = {"code": "smtp", "type": "SmtpError", "message": "refused", "retryable": True}
    assert told(RUNNING, after, BOOM) == {
        "job.failed": (
            "workers/w%201",
            {
                **AT, "attempt": 1, "duration_ms": 4_000,
                "error": {**short, "stack_trace": "a.py:1\nb.py:2"},
            },
        ),
        "job.retrying": (
            "workers/w%201",
            {
                **AT, "attempt": 1, "max_attempts": 2, "error": short,
                "next_retry_at": times.format_ms(LATER_MS + 1_000),
            },
        ),
    }  # fmt: skip


def test_discarded_into_dead_letter() -> None:
    last = replace(RUNNING, attempt=2)
    after = lifecycle.fail(last, BOOM, now_ms=LATER_MS, chance=0.5)
    found = told(last, after, BOOM)
    assert list(found) == ["job.failed", "job.discarded", "dead_letter.added"]
    error = {"code": "smtp", "type": "SmtpError", "message": "refused", "retryable": True}
    data = {**AT, "total_attempts": 2, "last_error": error}
    assert found["job.discarded"] == ("workers/w%201", {**data, "from": "active"})
    assert found["dead_letter.added"] == ("workers/w%201", data)


@pytest.mark.parametrize("kind", ["timeout", "visibility_timeout"])
def test_what_the_backend_saw_by_itself_is_not_the_workers_word(kind: str) -> None:
    error = failures.observed(kind, "too long", attempt=1, now_ms=LATER_MS)
    after = lifecycle.fail(RUNNING, error, now_ms=LATER_MS, chance=0.5)
    assert {source for source, _ in told(RUNNING, after, error).values()} == {"scheduler"}


def test_a_lost_lease_needs_no_stored_error() -> None:
    after, _ = lifecycle.stall(RUNNING, now_ms=LATER_MS, order="1")
    # A worker may report the same attempt meanwhile; this is not about that.
    source, data = told(RUNNING, after, BOOM)["job.failed"]
    assert source == "scheduler"
    assert data["error"]["code"] == "visibility_timeout"
    assert "duration_ms" not in data


def test_an_error_that_is_gone_or_anothers() -> None:
    after = lifecycle.fail(RUNNING, BOOM, now_ms=LATER_MS, chance=0.5)
    error = told(RUNNING, after)["job.retrying"][1]["error"]
    assert (error["code"], error["retryable"]) == ("unknown", True)
    # Of an earlier job with the same id.
    older = replace(BOOM, occurred_ms=NOW_MS - 1)
    assert told(RUNNING, after, older)["job.retrying"][1]["error"] == error


def test_expired() -> None:
    job = replace(JOB, expires_ms=NOW_MS + 100)
    after, failure = lifecycle.expire(job, now_ms=LATER_MS)
    found = told(job, after, failure, ended=True)
    assert found["job.expired"] == (
        "scheduler",
        {
            **AT, "created_at": times.format_ms(NOW_MS), "expired_at": times.format_ms(LATER_MS),
            "ttl_ms": 100,
        },
    )  # fmt: skip
    source, data = found["job.discarded"]
    assert source == "scheduler"
    assert (data["total_attempts"], data["last_error"]["code"]) == (0, "expired")


@pytest.mark.requirement("DL-26")
def test_a_replay_is_no_retry() -> None:
    dead = replace(JOB, state=State.DISCARDED, dead_letter=True, replayed="1|rule")
    back = lifecycle.revive(dead, now_ms=LATER_MS, order="1")
    assert list(told(dead, back)) == ["dead_letter.retried", "job.enqueued"]
    found = told(dead, replace(back, replayed="2|rule"))
    assert found["dead_letter.replayed"] == ("scheduler", AT)
    assert found["job.enqueued"][0] == "scheduler"
    assert "dead_letter.retried" not in found


@pytest.mark.requirement("DL-26")
def test_what_was_pruned_is_told_of_by_queue() -> None:
    dead = replace(JOB, state=State.DISCARDED, dead_letter=True)
    other = replace(dead, queue="post")
    what = [
        (bytes([n]), happened(job, None, written_ms=LATER_MS + n))
        for n, job in enumerate([dead, other, dead])
    ]
    found = dead_letters.pruned(what, "s")
    assert [one.event.data for one in found] == [
        {"queue": "mail", "count": 2},
        {"queue": "post", "count": 1},
    ]
    first = found[0]
    assert (first.event.type, first.event.subject) == ("dead_letter.pruned", "mail")
    assert (first.event.source, first.event.time_ms) == ("ojs://s/scheduler", LATER_MS + 2)
    assert first.changes == {b"\0", b"\2"}
    # The same changes in another order are the same event, others are not.
    assert dead_letters.pruned(what[::-1], "s")[0].event == first.event
    assert dead_letters.pruned(what[:2], "s")[0].event.id != first.event.id


@pytest.mark.parametrize("kind", ["job.cancelled", "dead_letter.retried", "dead_letter.deleted"])
def test_what_an_operator_did(kind: str) -> None:
    dead = replace(JOB, state=State.DISCARDED, dead_letter=True)
    found = {
        **told(JOB, lifecycle.cancel(JOB, now_ms=LATER_MS)),
        **told(dead, lifecycle.revive(dead, now_ms=LATER_MS, order="1")),
        **told(replace(dead, deleting=True), None),
    }
    before = {"from": "available"} if kind == "job.cancelled" else {}
    assert found[kind] == ("api", AT | before)


@given(jobs(), jobs())
def test_ids_are_distinct_and_the_same_each_time(before: Job, after: Job) -> None:
    after = replace(after, id=before.id)
    what = happened(before, after, written_ms=LATER_MS)
    ids = [events.of_job(one, "s", {}).id for one in what]
    assert len(set(ids)) == len(ids)
    assert ids == [events.of_job(one, "other", {}).id for one in what]
    again = happened(before, replace(after, op="other"), written_ms=LATER_MS)
    assert set(ids).isdisjoint(events.of_job(one, "s", {}).id for one in again)


def test_every_kind_has_an_event() -> None:
    for kind in events.ROWS:
        (what,) = happened(None, JOB, written_ms=0)
        assert events.of_job(replace(what, kind=kind, length_ms=1), "s", {}).type == kind


# --- queues and workers -------------------------------------------------------------------------


def of_queue(
    before: Queue | None, after: Queue | None, *, explicit: bool = False
) -> list[tuple[str, int, str, Any]]:
    found = QueueChange(before, after, explicit=explicit).events(LATER_MS)
    made = [new.event("s", "cause") for new in found]
    return [(event.type, event.time_ms, event.source, event.data) for event in made]


def test_queues_paused_and_resumed() -> None:
    active = Queue("mail", created_ms=1)
    paused = replace(active, state=QueueState.PAUSED, changed_ms=5)
    again = replace(active, changed_ms=9)
    assert of_queue(active, paused) == [("queue.paused", 5, "ojs://s/api", {"queue": "mail"})]
    assert of_queue(paused, again) == [("queue.resumed", 9, "ojs://s/api", {"queue": "mail"})]
    assert of_queue(paused, replace(paused, changed_ms=7)) == []
    assert of_queue(None, active) == []
    # While it is being deleted it is neither, and when that is taken back it is as it was.
    for state in (active, paused):
        draining = replace(state, state=QueueState.DRAINING, changed_ms=11)
        assert of_queue(state, draining) == []
        assert of_queue(draining, state) == []


@pytest.mark.requirement("QC-49")
def test_queues_created_configured_and_deleted() -> None:
    plain = Queue("mail", created_ms=1)
    ((kind, at_ms, _, data),) = of_queue(None, plain, explicit=True)
    assert (kind, at_ms, data) == ("queue.created", 1, {"queue": "mail"})
    ((kind, at_ms, _, data),) = of_queue(plain, None)
    assert (kind, at_ms, data) == ("queue.deleted", LATER_MS, {"queue": "mail"})
    bounded = replace(plain, configured_ms=7, layers=Layers({"max_size": 5, "lanes": 2}))
    ((kind, at_ms, _, data),) = of_queue(plain, bounded)
    assert (kind, at_ms) == ("queue.config_updated", 7)
    assert data == {"queue": "mail", "changed": ["lanes", "max_size"]}
    wider = replace(bounded, configured_ms=8, layers=Layers({"max_size": 9, "lanes": 2}))
    ((_, _, _, data),) = of_queue(bounded, wider)
    assert data == {"queue": "mail", "changed": ["max_size"]}
    assert of_queue(bounded, replace(bounded, configured_ms=9)) == []
    # A queue that is made with a configuration is created, not configured.
    assert [kind for kind, *_ in of_queue(None, bounded, explicit=True)] == ["queue.created"]
    assert of_queue(None, None) == []


WORKER = Worker("w 1", first_seen_ms=NOW_MS, last_seen_ms=NOW_MS + 10)


def of_worker(
    before: Worker | None, after: Worker | None, *, pruned: bool = False
) -> list[tuple[str, int, Any]]:
    seen = []
    for new in WorkerChange(before, after, pruned=pruned).events(LATER_MS):
        event = new.event("s", "cause")
        assert event.source == "ojs://s/workers/w%201"
        assert event.data["worker_id"] == event.subject == "w 1"
        rest = {name: value for name, value in event.data.items() if name != "worker_id"}
        seen.append((event.type, event.time_ms, rest))
    return seen


def test_workers_that_start() -> None:
    info = {"queues": ["mail"], "concurrency": 4}
    known = replace(WORKER, info=info)
    assert of_worker(None, known) == [("worker.started", NOW_MS, info)]
    bare = {"queues": [], "concurrency": 1}
    assert of_worker(None, WORKER) == [("worker.started", NOW_MS, bare)]
    # Another process of the same name.
    anew = replace(WORKER, first_seen_ms=LATER_MS)
    assert of_worker(WORKER, anew) == [("worker.started", LATER_MS, bare)]


def test_workers_that_go_on() -> None:
    assert of_worker(WORKER, replace(WORKER, last_seen_ms=LATER_MS, active_jobs=3)) == []
    quiet = replace(WORKER, state="quiet")
    assert of_worker(quiet, replace(quiet, state="draining")) == []
    assert of_worker(quiet, WORKER) == []


def test_workers_that_go_quiet() -> None:
    said = replace(WORKER, state="draining", last_seen_ms=NOW_MS + 20, active_jobs=2)
    assert of_worker(WORKER, said) == [("worker.quiet", NOW_MS + 20, {"active_jobs": 2})]
    # Told to: it has not been heard of since.
    told_to = replace(WORKER, directive=Directive.QUIET)
    assert of_worker(WORKER, told_to) == [("worker.quiet", LATER_MS, {"active_jobs": 0})]


def test_workers_that_stop() -> None:
    assert of_worker(WORKER, None) == [
        ("worker.stopped", LATER_MS, {"reason": "shutdown", "uptime_ms": 5_000})
    ]
    assert of_worker(WORKER, None, pruned=True)[0][2]["reason"] == "error"
    assert of_worker(None, None) == []
