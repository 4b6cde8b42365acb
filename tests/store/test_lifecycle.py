"""A job's whole life on every engine."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain import jsontext
from ojs.domain.errors import BackendUnavailable, Conflict, Duplicate, InvalidRequest, NotFound
from ojs.domain.job import envelope
from ojs.domain.job.job import Job, to_dict
from ojs.domain.job.states import State
from tests.store.spending import spending

if TYPE_CHECKING:
    from tests.store.conftest import World

ERROR = {"code": "handler_error", "message": "broken", "type": "Boom"}
SECOND = 1_000


@pytest.mark.requirement("C-9", "C-10")
def test_push_fetch_ack(world: World) -> None:
    pushed = world.push({"n": 1}, "text")
    assert pushed.state is State.AVAILABLE
    (job,) = world.fetch()
    assert (job.id, job.attempt, job.state) == (pushed.id, 1, State.ACTIVE)
    assert job.content == {"args": [{"n": 1}, "text"]}
    done = world.run.finish.ack(job.id, worker_id=job.worker_id, result={"ok": [1, None]})
    assert done.state is State.COMPLETED
    shown = to_dict(world.run.jobs.get(job.id))
    assert shown["result"] == {"ok": [1, None]}
    assert shown["completed_at"].endswith("Z")
    assert "error" not in shown
    assert world.fetch() == []


@pytest.mark.requirement("C-3")
def test_what_the_client_gave_comes_back_as_it_was(world: World) -> None:
    given = {
        "type": "test.job",
        "args": [Decimal("3.10"), 1, 10**30, "", {"": []}, None, True],
        "meta": {"a.b": {"c": [Decimal("1.0")]}, "empty": "", "é😀": "\u0000"},
        "x_custom": {"k": None},
        "tags": ["one"],
    }
    pushed = world.run.enqueue.push(envelope.parse(given)).job
    shown = to_dict(world.run.jobs.get(pushed.id))
    assert jsontext.dumps({name: shown[name] for name in given}) == jsontext.dumps(given)


@pytest.mark.requirement("C-9")
def test_priority_then_first_in_first_out(world: World) -> None:
    first, low = world.push("first"), world.push("low", priority=-100)
    high, second = world.push("high", priority=100), world.push("second")
    order = [job.id for job in world.fetch(count=10)]
    assert order == [high.id, first.id, second.id, low.id]


@pytest.mark.parametrize("size", [2, 100, 101])
def test_a_batch_keeps_its_order(world: World, size: int) -> None:
    requests = [envelope.parse({"type": "a", "args": [n]}) for n in range(size)]
    pushed = world.run.enqueue.push_batch(requests)
    fetched = world.fetch(count=100)
    assert [job.id for job in fetched] == [item.job.id for item in pushed][:100]
    assert [job.content and job.content["args"] for job in fetched[:2]] == [[0], [1]]


@pytest.mark.parametrize("size", [3, 120])
def test_a_batch_with_a_taken_id_stores_nothing(world: World, size: int) -> None:
    taken = world.push("there before")
    raw = [{"type": "a", "args": [n], "queue": "batched"} for n in range(size)]
    raw[size - 1]["id"] = taken.id
    with pytest.raises(Duplicate) as refused:
        world.run.enqueue.push_batch([envelope.parse(one) for one in raw])
    assert refused.value.details["index"] == size - 1
    assert world.fetch("batched", 100) == []
    assert len([i for i in world.items() if i["pk"]["S"].startswith(("J|", "B|"))]) == 1
    assert world.state(taken) == "available"


def test_jobs_of_a_batch_under_way_do_not_exist_yet(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.push("before")
    requests = [envelope.parse({"type": "a", "args": [n]}) for n in range(101)]
    batch = world.run.enqueue
    jobs = batch._jobs
    commits: list[str] = []
    monkeypatch.setattr(jobs.batches, "_commit", commits.append)
    staged = [item.job for item in batch.push_batch(requests)]
    other = world.another()
    assert len(other.fetch.fetch(["default"], 100)) == 1
    with pytest.raises(NotFound):
        other.jobs.get(staged[0].id)
    with pytest.raises(NotFound):
        other.jobs.cancel(staged[0].id)
    # Never committed: after its grace the sweep takes it away whole.
    world.clock.advance(301 * SECOND)
    assert world.sweep()["batches_undone"] == 1
    assert {i["pk"]["S"] for i in world.items() if i["pk"]["S"].startswith(("J|", "B|"))} == {
        i["pk"]["S"] for i in world.items() if i["pk"]["S"].startswith("J|")
    }
    assert sum(i["sk"]["S"] == "@" and i["pk"]["S"].startswith("J|") for i in world.items()) == 1
    # Too late: the sweep was first. (The item is put back as the sweep leaves it midway.)
    world.client.put_item(
        TableName=world.table,
        Item={"pk": {"S": f"B|{commits[0]}"}, "sk": {"S": "@"}, "state": {"S": "undone"}},
    )
    with pytest.raises(BackendUnavailable, match="rolled back"):
        world.another().enqueue._jobs.batches._commit(commits[0])


@pytest.mark.requirement("C-7", "C-11")
def test_retry_with_backoff_then_dead_letter_then_retried_by_hand(world: World) -> None:
    pushed = world.push(retry={"max_attempts": 2, "jitter": False, "initial_interval": "PT4S"})
    world.fetch()
    failed = world.run.finish.nack(pushed.id, error=ERROR)
    assert (failed.state, failed.retry_delay_ms) == (State.RETRYABLE, 4_000)
    world.clock.advance(3_999)
    assert world.fetch() == []
    world.clock.advance(1)
    (again,) = world.fetch()
    assert (again.attempt, again.retry_delay_ms) == (2, 4_000)
    dead = world.run.finish.nack(pushed.id, error=ERROR)
    assert (dead.state, dead.dead_letter) == (State.DISCARDED, True)
    assert [job.id for job in world.run.dead_letter.list().items] == [pushed.id]
    shown = to_dict(world.run.dead_letter.get(pushed.id))
    assert [error["attempt"] for error in shown["errors"]] == [1, 2]
    assert shown["completed_at"] == shown["discarded_at"]

    revived = world.run.redrive.retry(pushed.id)
    assert (revived.state, revived.attempt, revived.id) == (State.AVAILABLE, 0, pushed.id)
    assert len(revived.errors or ()) == 2
    with pytest.raises(Conflict):
        world.run.redrive.retry(pushed.id)
    (third,) = world.fetch()
    world.run.finish.nack(third.id, error=ERROR | {"message": "later life"})
    errors = world.run.jobs.get(pushed.id).errors or ()
    assert [(error.attempt, error.message) for error in errors][-1] == (1, "later life")
    assert len(errors) == 3


def test_a_success_after_a_failure_keeps_the_history_but_no_error(world: World) -> None:
    pushed = world.push(retry={"initial_interval": "PT1S", "jitter": False})
    world.fetch()
    world.run.finish.nack(pushed.id, error=ERROR)
    assert to_dict(world.run.jobs.get(pushed.id))["error"]["type"] == "Boom"
    world.clock.advance(SECOND)
    world.fetch()
    world.run.finish.ack(pushed.id)
    shown = to_dict(world.run.jobs.get(pushed.id))
    assert "error" not in shown
    assert len(shown["errors"]) == 1


def test_handler_codes_end_a_job_at_once(world: World) -> None:
    for code, dead in (("DISCARD", False), ("DEAD_LETTER", True)):
        pushed = world.push(retry={"max_attempts": 9, "on_exhaustion": "discard"})
        world.fetch()
        ended = world.run.finish.nack(pushed.id, error={"code": code, "message": "no use"})
        assert (ended.state, ended.dead_letter) == (State.DISCARDED, dead)
    assert len(world.run.dead_letter.list().items) == 1


def test_requeue_gives_the_attempt_back(world: World) -> None:
    pushed = world.push(retry={"max_attempts": 1})
    world.fetch()
    back = world.run.finish.nack(pushed.id, error=ERROR, requeue=True)
    assert (back.state, back.attempt) == (State.AVAILABLE, 0)
    assert [job.attempt for job in world.fetch()] == [1]


def test_a_lost_lease_makes_the_job_available_and_counts_the_attempt(world: World) -> None:
    pushed = world.push(visibility_timeout_ms=3_000)
    world.fetch()
    world.clock.advance(2_999)
    assert world.state(pushed) == "active"
    world.clock.advance(1)
    shown = to_dict(world.run.jobs.get(pushed.id))
    assert (shown["state"], shown["attempt"]) == ("available", 1)
    assert shown["error"]["type"] == "visibility_timeout"
    (job,) = world.fetch(worker="another")
    assert job.attempt == 2
    with pytest.raises(Conflict):
        world.run.finish.ack(pushed.id, worker_id="worker-1")


def test_a_poison_job_ends_in_dead_letter(world: World) -> None:
    pushed = world.push(visibility_timeout_ms=1_000, retry={"max_attempts": 3})
    for attempt in (1, 2, 3):
        assert [job.attempt for job in world.fetch()] == [attempt]
        world.clock.advance(1_000)
        assert world.sweep() == {"stalled_or_timed_out": 1}
    job = world.run.dead_letter.get(pushed.id)
    assert [error.type for error in job.errors or ()] == ["visibility_timeout"] * 3


@pytest.mark.requirement("C-12")
def test_heartbeat_extends_and_the_sweep_files_the_job_again(world: World) -> None:
    pushed = world.push(visibility_timeout_ms=3_000)
    (job,) = world.fetch()
    world.clock.advance(2_000)
    beat = world.run.workers.beat(str(job.worker_id), active_jobs=[pushed.id])
    assert beat.jobs_extended == [pushed.id]
    world.clock.advance(2_000)
    assert world.sweep() == {"refiled": 1}
    assert world.sweep() == {}
    assert world.state(pushed) == "active"
    world.clock.advance(1_000)
    assert world.sweep() == {"stalled_or_timed_out": 1}


def end_of_lease(world: World, job: Job) -> int:
    lease = world.run.jobs.get(job.id).lease
    assert lease is not None
    return lease.until_ms


@pytest.mark.parametrize("since", ["claim", "heartbeat"])
@pytest.mark.parametrize("asked_ms", [None, 3_000, 12_000])
def test_a_container_whose_clock_is_behind_makes_no_lease_shorter(
    exact: World, asked_ms: int | None, since: str
) -> None:
    """It puts the lease off from the time of the one that was ahead, at one call more."""
    job = exact.push(visibility_timeout_ms=6_000)
    exact.fetch(worker="w")
    if since == "heartbeat":
        exact.clock.advance(2_000)
        exact.run.workers.beat("w", active_jobs=[job.id])
    before_ms = exact.clock.now_ms()
    assert end_of_lease(exact, job) == before_ms + 6_000
    exact.clock.advance(-1_500)
    with spending(exact) as spent:
        beat = exact.run.workers.beat("w", active_jobs=[job.id], visibility_timeout_ms=asked_ms)
    assert beat.jobs_extended == [job.id]
    assert end_of_lease(exact, job) == before_ms + max(6_000, asked_ms or 0)
    # The read of the job, and the worker's record.
    assert spent.calls <= 4
    # A report of progress is one, too, and is not lost.
    exact.run.jobs.report_progress(job.id, progress=0.5, worker_id="w")
    assert exact.run.jobs.progress(job.id).progress == 0.5


@pytest.mark.parametrize("asked_ms", [None, 6_000])
def test_a_heartbeat_that_takes_effect_late_changes_no_lease(
    exact: World, asked_ms: int | None
) -> None:
    job = exact.push(visibility_timeout_ms=6_000)
    exact.fetch(worker="w")
    exact.clock.advance(1_000)
    tries: list[Callable[[], object]] = []
    call = exact.client.update_item

    def noted(**arguments: Any) -> Any:
        tries.append(lambda: call(**arguments))
        return call(**arguments)

    with mock.patch.object(exact.client, "update_item", noted):
        exact.run.stores.jobs.extend(
            job.id, now_ms=exact.clock.now_ms(), worker_id="w", lease_ms=asked_ms
        )
    exact.clock.advance(1_000)
    exact.run.workers.beat("w", active_jobs=[job.id], visibility_timeout_ms=8_000)
    after = exact.run.stores.jobs.read_record(job.id)
    (first,) = tries
    with pytest.raises(exact.client.exceptions.ConditionalCheckFailedException):
        first()
    assert exact.run.stores.jobs.read_record(job.id) == after


def test_heartbeat_leaves_other_workers_jobs_alone(world: World) -> None:
    pushed = world.push(visibility_timeout_ms=3_000)
    world.fetch(worker="owner")
    world.clock.advance(2_000)
    beat = world.run.workers.beat("stranger", active_jobs=[pushed.id])
    assert (beat.jobs_extended, beat.cancelled_jobs) == ([], [])
    world.clock.advance(1_000)
    assert world.state(pushed) == "available"


@pytest.mark.requirement("C-13")
def test_cancel_of_a_running_job_is_told_by_the_heartbeat(world: World) -> None:
    pushed = world.push()
    (job,) = world.fetch()
    cancelled = world.run.jobs.cancel(pushed.id)
    assert (cancelled.previous_state, cancelled.state) == (State.ACTIVE, State.CANCELLED)
    beat = world.run.workers.beat(str(job.worker_id), active_jobs=[pushed.id])
    assert (beat.jobs_extended, beat.cancelled_jobs) == ([], [pushed.id])
    refusals: list[Callable[[], Any]] = [
        lambda: world.run.finish.ack(pushed.id, worker_id=job.worker_id),
        lambda: world.run.finish.nack(pushed.id, error=ERROR),
        lambda: world.run.jobs.cancel(pushed.id),
    ]
    for refused in refusals:
        with pytest.raises(Conflict):
            refused()
    shown = to_dict(world.run.jobs.get(pushed.id))
    assert "completed_at" not in shown
    assert shown["cancelled_at"]


@pytest.mark.parametrize("how", ["sweep", "fetch", "read"])
def test_time_is_applied_by_whoever_looks_first(world: World, how: str) -> None:
    later = world.push("later", scheduled_at="+PT10S")
    expiring = world.push("expiring", expires_at="+PT5S", queue="short")
    slow = world.push("slow", queue="slow", timeout_ms=2_000, retry={"jitter": False})
    world.fetch("slow")
    assert (later.state, world.fetch()) == (State.SCHEDULED, [])
    world.clock.advance(10_000)
    if how == "sweep":
        counts = world.sweep()
        assert counts == {"promoted": 1, "expired": 1, "stalled_or_timed_out": 1}
    elif how == "fetch":
        assert [job.id for job in world.fetch()] == [later.id]
        assert world.fetch("short") == world.fetch("slow") == []
    shown = {job.id: to_dict(world.run.jobs.get(job.id)) for job in (later, expiring, slow)}
    assert shown[later.id]["state"] == ("active" if how == "fetch" else "available")
    assert shown[expiring.id]["state"] == "discarded"
    assert "completed_at" not in shown[expiring.id]
    assert shown[expiring.id]["error"]["type"] == "expired"
    assert shown[slow.id]["state"] in ("retryable", "available")
    assert shown[slow.id]["error"]["type"] == "timeout"


@pytest.mark.requirement("C-18")
def test_an_expired_job_is_never_handed_out(world: World) -> None:
    world.push("old", expires_at="+PT1S")
    fresh = world.push("fresh")
    world.clock.advance(1_000)
    assert [job.id for job in world.fetch(count=5)] == [fresh.id]


@pytest.mark.requirement("C-19")
def test_pending_waits_for_activation(world: World) -> None:
    pushed = world.push(pending=True)
    assert (pushed.state, world.fetch()) == (State.PENDING, [])
    with pytest.raises(Conflict):
        world.run.finish.ack(pushed.id)
    ready = world.run.jobs.activate(pushed.id)
    assert (ready.previous_state, ready.state) == (State.PENDING, State.AVAILABLE)
    assert [job.id for job in world.fetch()] == [pushed.id]
    with pytest.raises(Conflict):
        world.run.jobs.activate(pushed.id)


def test_a_replayed_ack_of_the_same_worker_gets_the_same_answer(world: World) -> None:
    pushed = world.push()
    (job,) = world.fetch()
    big = {"rows": list(range(500))}
    world.run.finish.ack(pushed.id, worker_id=job.worker_id, result=big)
    again = world.run.finish.ack(pushed.id, worker_id=job.worker_id, attempt=1, result="other")
    assert again.result == big
    strangers: list[dict[str, Any]] = [
        {"worker_id": "other"},
        {},
        {"worker_id": job.worker_id, "attempt": 2},
    ]
    for refused in strangers:
        with pytest.raises(Conflict):
            world.run.finish.ack(pushed.id, **refused)
    assert world.run.jobs.get(pushed.id).result == big


def test_the_fencing_token_refuses_a_former_lease_of_the_same_worker(world: World) -> None:
    pushed = world.push(visibility_timeout_ms=1_000)
    (first,) = world.fetch()
    world.clock.advance(1_000)
    (second,) = world.fetch()
    assert first.lease
    assert second.lease
    former: list[dict[str, Any]] = [{"attempt": 1}, {"lease_token": first.lease.token}]
    for refused in former:
        with pytest.raises(Conflict):
            world.run.finish.ack(pushed.id, worker_id=first.worker_id, **refused)
        with pytest.raises(Conflict):
            world.run.finish.nack(
                pushed.id,
                error=ERROR,
                worker_id=first.worker_id,
                **refused,
            )
    assert world.run.finish.ack(pushed.id, lease_token=second.lease.token).attempt == 2


@pytest.mark.parametrize("size", [3_000, 100_000, 400_000])
def test_large_contents_and_results_live_apart(world: World, size: int) -> None:
    text = "".join(chr(33 + (n * n + n // 7) % 90) for n in range(size))
    pushed = world.push(text)
    (job,) = world.fetch()
    assert job.content == {"args": [text]}
    world.run.finish.ack(job.id, result=text)
    whole = world.run.jobs.get(pushed.id)
    assert (whole.content, whole.result) == ({"args": [text]}, text)
    assert len(world.blobs.objects) == (2 if size > 300 * 1024 else 0)


@pytest.mark.requirement("C-17")
@pytest.mark.parametrize("directive", ["quiet", "terminate"])
def test_a_directed_worker_gets_no_jobs_and_hears_why(world: World, directive: str) -> None:
    world.push()
    world.run.workers.register("w", {"hostname": "h"})
    world.run.workers.direct("w", directive)
    assert world.fetch(worker="w") == []
    assert world.run.workers.beat("w").state == directive
    assert len(world.fetch(worker="other")) == 1
    world.run.workers.register("w", {})
    assert world.run.workers.beat("w").state == "running"


def test_workers_are_listed_page_by_page(world: World) -> None:
    names = {f"worker-{n}" for n in range(25)}
    for name in names:
        world.run.workers.beat(name)
    seen: list[str] = []
    cursor = None
    while True:
        page = world.run.workers.list(limit=10, cursor=cursor)
        assert len(page.items) <= 10
        seen += [worker.id for worker in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert sorted(seen) == sorted(names)
    world.run.workers.remove("worker-1")
    with pytest.raises(NotFound):
        world.run.workers.get("worker-1")
    with pytest.raises(NotFound):
        world.run.workers.direct("worker-1", "quiet")


def test_progress_goes_up_only_and_starts_anew_with_each_attempt(world: World) -> None:
    pushed = world.push(visibility_timeout_ms=2_000)
    world.fetch()
    report = world.run.jobs.report_progress
    assert report(pushed.id, progress=0.5, message="half").progress == 0.5
    assert report(pushed.id, progress=0.2).progress == 0.5
    assert report(pushed.id, progress=7).progress == 1.0
    world.clock.advance(1_999)
    assert report(pushed.id, progress=1, data={"rows": Decimal("1.50")}).data
    world.clock.advance(1_999)
    assert world.state(pushed) == "active"
    world.clock.advance(1)
    assert world.run.jobs.progress(pushed.id).progress is None
    # Nobody runs it: the report is passed over.
    assert report(pushed.id, progress=0.9).progress is None
    world.fetch()
    world.run.finish.ack(pushed.id)
    assert world.run.jobs.progress(pushed.id).to_dict()["progress"] == 1.0


UNIQUE = {"keys": ["type", "args"], "args_keys": ["user"]}


def test_unique_reject_and_ignore(world: World) -> None:
    first = world.push({"user": 1, "n": 1}, unique=UNIQUE)
    with pytest.raises(Duplicate) as refused:
        world.push({"user": 1.0, "n": 2}, unique=UNIQUE)
    assert refused.value.details["existing_job_id"] == first.id
    request = {
        "type": "test.job",
        "args": [{"user": 1}],
        "unique": UNIQUE | {"on_conflict": "ignore"},
    }
    same = world.run.enqueue.push(envelope.parse(request))
    assert (same.deduplicated, same.job.id) == (True, first.id)
    assert (same.job.content or {})["args"] == [{"user": 1, "n": 1}]
    assert world.push({"user": 2}, unique=UNIQUE).id != first.id
    world.fetch()
    world.run.finish.ack(first.id)
    assert world.push({"user": 1}, unique=UNIQUE).id != first.id


def test_unique_replace_cancels_the_holder(world: World) -> None:
    replace = UNIQUE | {"on_conflict": "replace"}
    first = world.push({"user": 1}, unique=replace)
    second = world.push({"user": 1}, unique=replace)
    assert (world.state(first), world.state(second)) == ("cancelled", "available")
    keep = UNIQUE | {"on_conflict": "replace_except_schedule"}
    third = world.push({"user": 5}, unique=keep, scheduled_at="+PT1H")
    fourth = world.push({"user": 5}, unique=keep, scheduled_at="+PT9H")
    assert (world.state(third), fourth.scheduled_ms) == ("cancelled", third.scheduled_ms)


def test_unique_period_ends(world: World) -> None:
    short = UNIQUE | {"period": "PT2S"}
    first = world.push({"user": 1}, unique=short)
    world.clock.advance(1_999)
    with pytest.raises(Duplicate):
        world.push({"user": 1}, unique=short)
    world.clock.advance(1)
    assert world.push({"user": 1}, unique=short).id != first.id
    assert world.state(first) == "available"


def test_unique_in_a_batch_is_all_or_nothing(world: World) -> None:
    world.push({"user": 1}, unique=UNIQUE)
    raw = [
        {"type": "test.job", "args": [{"user": n}], "queue": "b", "unique": UNIQUE}
        for n in (3, 2, 1)
    ]
    with pytest.raises(Duplicate) as refused:
        world.run.enqueue.push_batch([envelope.parse(one) for one in raw])
    assert refused.value.details["index"] == 2
    assert world.fetch("b", 10) == []
    assert len(world.run.enqueue.push_batch([envelope.parse(one) for one in raw[:2]])) == 2
    with pytest.raises(InvalidRequest):
        world.run.enqueue.push_batch([envelope.parse(one) for one in (raw[0], raw[0])])


def test_lanes_spread_a_queue_and_lose_nothing(world: World) -> None:
    world.run.queues.resume("wide")
    world.client.update_item(
        TableName=world.table,
        Key={"pk": {"S": "Q|wide"}, "sk": {"S": "@"}},
        UpdateExpression="SET config = :config",
        ExpressionAttributeValues={":config": {"S": '{"lanes":4}'}},
    )
    pushed = {world.push(n, queue="wide", visibility_timeout_ms=1_000).id for n in range(40)}
    assert len({i["lane"]["N"] for i in world.items() if "lane" in i}) > 1
    taken: set[str] = set()
    while jobs := world.fetch("wide", 7):
        taken |= {job.id for job in jobs}
    assert taken == pushed
    world.clock.advance(1_000)
    assert world.sweep() == {"stalled_or_timed_out": 40}
    assert len(world.fetch("wide", 100)) == 40


def test_a_deadline_that_is_over_does_not_upset_the_order(world: World) -> None:
    """A claim that an expired job loses is no race lost to others: the next in line is next."""
    world.push(0, expires_at="+PT1S")
    jobs = [world.push(number) for number in range(1, 9)]
    world.clock.advance(2_000)
    assert [job.id for job in world.fetch(count=6)] == [job.id for job in jobs[:6]]
