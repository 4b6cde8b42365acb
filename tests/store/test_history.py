"""The error history, progress and removal of a job: what is kept, and what gives way."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import Conflict, Duplicate, NotFound
from ojs.domain.job import envelope
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import Job, to_dict
from ojs.store.jobs import items
from ojs.store.jobs.records import _apart
from ojs.store.table import keys

if TYPE_CHECKING:
    from tests.store.conftest import World

SECOND = 1_000
# More than a job record has room for.
LARGE = {"type": "Large", "message": "no", "backtrace": ["f" * 199] * 10}


def _expiring(world: World) -> list[str]:
    now_ms = world.clock.now_ms()
    index = world.run.stores.jobs.index
    return index.expiring("default", 0, now_ms=now_ms, until_ms=now_ms, limit=10).jobs


def _kinds(world: World, job_id: str) -> list[str]:
    return [error.type for error in world.run.jobs.get(job_id).errors or ()]


def test_a_deadline_is_noted_beside_the_failure_before_it(world: World) -> None:
    job = world.push(expires_at="+PT10S", retry={"initial_interval": "PT60S", "jitter": False})
    world.fetch(worker="w")
    world.run.finish.nack(job.id, worker_id="w", error={"type": "Boom", "message": "no"})
    world.clock.advance(11 * SECOND)
    assert world.state(job) == "discarded"
    assert _kinds(world, job.id) == ["Boom", "expired"]


def test_a_job_that_never_ran_has_its_deadline_in_listings_too(world: World) -> None:
    job = world.push(expires_at="+PT10S")
    world.clock.advance(11 * SECOND)
    assert world.state(job) == "discarded"
    store = world.run.jobs._jobs
    (listed,) = store.with_errors([store.read_records([job.id])[job.id]])
    assert [error.type for error in listed.errors or ()] == ["expired"]


def test_a_running_job_is_not_listed_under_its_deadline(world: World) -> None:
    job = world.push(expires_at="+PT10S", retry={"initial_interval": "PT5S", "jitter": False})
    world.fetch(worker="w")
    world.clock.advance(11 * SECOND)
    assert _expiring(world) == []
    world.sweep()
    before = _writes(world)
    assert world.sweep() == {}
    assert _writes(world) == before
    # It may not start again once it is back.
    world.run.finish.nack(job.id, worker_id="w", error={"message": "no"})
    assert _expiring(world) == [job.id]
    assert world.sweep()["expired"] == 1


def _writes(world: World) -> int:
    return sum(call in {"UpdateItem", "PutItem"} for call in world.run.table.meter.calls)


def _left_apart(world: World, held: Job, failure: Failure, *, reported: bool = False) -> None:
    """Who noted it as an item died, or lost its race, before the job record followed."""
    world.run.jobs._jobs._add(_apart(held.id, items.entry(held, failure, reported=reported)))


def test_a_refused_nack_leaves_the_history_of_a_later_run_alone(world: World) -> None:
    job = world.push(retry={"initial_interval": "PT1S", "jitter": False})
    (first,) = world.fetch(worker="w")
    world.run.finish.nack(job.id, worker_id="w", error=None, requeue=True)
    world.clock.advance(SECOND)
    (second,) = world.fetch(worker="w")
    assert (first.attempt, second.attempt) == (1, 1)
    world.run.finish.nack(job.id, worker_id="w", error={"message": "second"})
    with pytest.raises(Conflict):
        world.run.finish.nack(job.id, worker_id="w", error={"message": "zombie"})
    assert [e.message for e in world.run.jobs.get(job.id).errors or ()] == ["second"]


def test_what_a_worker_said_takes_the_place_of_what_an_earlier_run_left(world: World) -> None:
    job = world.push(retry={"max_attempts": 2})
    (held,) = world.fetch(worker="v")
    # A sweep noted that the lease ended, and lost its race to the worker, who hands the job back;
    # all that in one millisecond.
    left = Failure(1, "visibility_timeout", "visibility_timeout", "", world.clock.now_ms())
    _left_apart(world, held, left)
    world.run.finish.nack(job.id, worker_id="v", error=None, requeue=True)
    world.fetch(worker="w")
    world.run.finish.nack(job.id, worker_id="w", error={"code": "E", "message": "mine"})
    assert _kinds(world, job.id) == ["E"]


def test_what_a_worker_said_stays_though_its_clock_is_behind(world: World) -> None:
    job = world.push(visibility_timeout_ms=SECOND)
    world.clock.advance(10 * SECOND)
    (held,) = world.fetch(worker="w")
    # Noted by a container whose clock is two seconds behind; it died before it ended the attempt.
    told = Failure(1, "E", "E", "mine", world.clock.now_ms() - 2 * SECOND)
    _left_apart(world, held, told, reported=True)
    world.clock.advance(SECOND)
    assert _kinds(world, job.id) == ["E"]


def test_a_run_that_stalls_is_noted_though_a_dead_worker_left_an_entry(world: World) -> None:
    """A nack died between its entry and its change of the record; then the job was handed back."""
    job = world.push(visibility_timeout_ms=SECOND)
    (held,) = world.fetch(worker="w")
    lost = Failure(1, "lost", "lost", "its job record never followed", world.clock.now_ms())
    _left_apart(world, held, lost, reported=True)
    world.run.finish.nack(job.id, worker_id="w", error=None, requeue=True)
    world.clock.advance(SECOND)
    world.fetch(worker="w")
    world.clock.advance(SECOND)
    assert _kinds(world, job.id) == ["visibility_timeout"]


def test_errors_of_an_earlier_job_of_the_same_id_are_not_shown(world: World) -> None:
    chosen = world.run.ids.uuid7()
    request = envelope.parse({"type": "a", "args": [], "id": chosen})
    world.run.enqueue.push(request)
    world.fetch(worker="w")
    world.run.finish.nack(chosen, worker_id="w", error={"message": "old"})
    # The job record is gone by its time to live; DynamoDB removes nothing else by itself.
    key = {"pk": {"S": keys.job(chosen)}, "sk": {"S": keys.RECORD}}
    world.client.delete_item(TableName=world.table, Key=key)
    world.clock.advance(SECOND)
    world.run.enqueue.push(request)
    assert world.run.jobs.get(chosen).errors == ()


def test_what_a_removed_record_leaves_behind_can_be_cleared_away(world: World) -> None:
    job = world.push("x" * 5_000)
    world.fetch(worker="w")
    world.run.finish.nack(job.id, worker_id="w", error=LARGE)
    store = world.run.jobs._jobs
    record = store.read_records([job.id])[job.id]
    assert store.removal.remove_rest(record) == 0, "it lives"
    key = {"pk": {"S": keys.job(job.id)}, "sk": {"S": keys.RECORD}}
    world.client.delete_item(TableName=world.table, Key=key)
    assert store.removal.remove_rest(record) == 2
    assert not [i for i in world.items() if i["pk"]["S"] == keys.job(job.id)]
    assert store.removal.remove_rest(record) == 0


def test_clearing_away_spares_the_text_of_a_new_job_whose_record_comes_next(world: World) -> None:
    chosen = world.run.ids.uuid7()
    raw = {"type": "a", "args": ["x" * 5_000], "id": chosen}
    world.run.enqueue.push(envelope.parse(raw))
    store = world.run.jobs._jobs
    old = store.read_records([chosen])[chosen]
    key = {"pk": {"S": keys.job(chosen)}, "sk": {"S": keys.RECORD}}
    world.client.delete_item(TableName=world.table, Key=key)
    content = {"args": raw["args"]}
    new, texts = store.prepare(replace(old, content=content, content_ref=None, content_bytes=0))
    store._payloads.save(texts)
    assert store.removal.remove_rest(old) == 1
    left = [i["sk"]["S"] for i in world.items() if i["pk"]["S"] == keys.job(chosen)]
    assert left == [f"{keys.PAYLOAD}{new.content_ref}"]


def test_a_deleted_dead_letter_leaves_nothing(world: World) -> None:
    job = world.push("x" * 5_000, retry={"max_attempts": 1})
    world.fetch(worker="w")
    world.run.jobs.report_progress(job.id, progress=0.5, worker_id="w")
    world.run.finish.nack(job.id, worker_id="w", error=LARGE)
    world.run.dead_letter.delete(job.id)
    assert not [i for i in world.items() if i["pk"]["S"] == keys.job(job.id)]
    with pytest.raises(NotFound):
        world.run.dead_letter.delete(job.id)


@pytest.mark.exhaustive
def test_a_job_of_many_large_errors_is_read_with_the_latest_of_them(exact: World) -> None:
    job = exact.push(
        "x" * 5_000, retry={"max_attempts": 300, "initial_interval": "PT1S", "jitter": False,
                            "backoff_strategy": "constant"},
    )  # fmt: skip
    frames = ["f" * 199] * 50
    for attempt in range(1, 161):
        exact.fetch(worker="w")
        exact.run.finish.nack(
            job.id, worker_id="w", error={"message": str(attempt), "backtrace": frames}
        )
        exact.clock.advance(SECOND)
    exact.fetch(worker="w")
    exact.run.jobs.report_progress(job.id, progress=0.25, worker_id="w")
    exact.run.table.meter.reset()
    found = exact.run.jobs.get(job.id)
    assert found.content == {**(found.content or {}), "args": ["x" * 5_000]}
    assert found.progress is not None
    messages = [int(error.message) for error in found.errors or ()]
    assert messages == list(range(messages[0], 161))
    assert messages[0] > 1
    assert len(exact.run.table.meter.calls) <= 3
    # Those who only want to know how far it is do not pay for its history.
    exact.run.table.meter.reset()
    assert exact.run.jobs.progress(job.id).progress == 0.25
    assert exact.run.table.meter.calls == ["BatchGetItem"]
    assert exact.run.table.meter.read_units <= 2


# --- progress -----------------------------------------------------------------------------------


def test_data_alone_is_told_beside_the_value_that_stands(world: World) -> None:
    job = world.push()
    world.fetch(worker="w")
    report = world.run.jobs.report_progress
    report(job.id, progress=0.3, worker_id="w", message="a third", data={"rows": 3})
    told = report(job.id, progress=None, worker_id="w", data={"rows": 4})
    assert (told.progress, told.message, told.data) == (0.3, None, {"rows": 4})
    assert report(job.id, progress=0.2, worker_id="w").data == {"rows": 4}
    assert report(job.id, progress=0.4, worker_id="w").progress == 0.4


def test_a_late_report_of_a_former_run_does_not_hide_the_present_one(world: World) -> None:
    job = world.push(visibility_timeout_ms=SECOND)
    (former,) = world.fetch(worker="v")
    began_ms = world.clock.now_ms()
    world.clock.advance(SECOND)
    assert world.fetch(worker="w")
    report = world.run.jobs.report_progress
    report(job.id, progress=0.4, worker_id="w")
    # Its lease was extended in time, and the report itself comes now.
    store = world.run.jobs._jobs.progress
    assert not store.save(former, 0.9, {"message": None, "data": None}, now_ms=began_ms)
    assert world.run.jobs.progress(job.id).progress == 0.4


def test_data_alone_begins_a_run_without_a_value(world: World) -> None:
    job = world.push(visibility_timeout_ms=SECOND)
    world.fetch(worker="w")
    report = world.run.jobs.report_progress
    report(job.id, progress=0.9, worker_id="w")
    world.clock.advance(SECOND)
    world.sweep()
    world.fetch(worker="v")
    told = report(job.id, progress=None, worker_id="v", data={"again": True})
    assert (told.progress, told.data) == (None, {"again": True})


# --- leases -------------------------------------------------------------------------------------


def test_no_beat_makes_a_lease_shorter(world: World) -> None:
    job = world.push(visibility_timeout_ms=SECOND)
    world.fetch(worker="w")
    world.run.workers.beat("w", active_jobs=[job.id], visibility_timeout_ms=60 * SECOND)
    world.run.jobs.report_progress(job.id, progress=0.1, worker_id="w")
    world.run.workers.beat("w", active_jobs=[job.id])
    world.run.workers.beat("w", active_jobs=[job.id], visibility_timeout_ms=SECOND)
    world.clock.advance(59 * SECOND)
    assert world.state(job) == "active"


# --- unique -------------------------------------------------------------------------------------


def _unique(world: World, job_id: str | None = None, **fields: Any) -> dict[str, Any]:
    unique = {"keys": ["type"], "on_conflict": "replace"}
    return {
        "type": "a",
        "args": [],
        "id": job_id or world.run.ids.uuid7(),
        "unique": unique,
    } | fields


def test_a_job_cannot_replace_itself(world: World) -> None:
    raw = _unique(world)
    world.run.enqueue.push(envelope.parse(raw))
    with pytest.raises(Duplicate):
        world.run.enqueue.push(envelope.parse(raw))
    with pytest.raises(Duplicate) as refused:
        world.run.enqueue.push_batch([envelope.parse(raw), envelope.parse({**raw, "type": "b",
                                      "id": world.run.ids.uuid7()})])  # fmt: skip
    assert refused.value.details["index"] == 0
    assert world.run.jobs.get(raw["id"]).state == "available"


def test_no_job_of_a_batch_may_have_the_id_of_one_that_the_batch_replaces(world: World) -> None:
    first = _unique(world)
    world.run.enqueue.push(envelope.parse(first))
    batch = [_unique(world), {"type": "other", "args": [], "id": first["id"]}]
    with pytest.raises(Duplicate) as refused:
        world.run.enqueue.push_batch([envelope.parse(raw) for raw in batch])
    assert refused.value.details["index"] == 1
    assert world.run.jobs.get(first["id"]).state == "available"


def test_a_lock_whose_job_is_gone_holds_nobody_back_though_the_id_lives_on(world: World) -> None:
    raw = _unique(world, on_conflict=None, retry={"max_attempts": 1})
    raw["unique"] = {"keys": ["type"]}
    world.run.enqueue.push(envelope.parse(raw))
    world.fetch(worker="w")
    world.run.finish.nack(raw["id"], worker_id="w", error={"message": "no"})
    world.run.dead_letter.delete(raw["id"])
    # The id again, for a job of another kind that is not unique.
    world.run.enqueue.push(envelope.parse({"type": "b", "args": [], "id": raw["id"]}))
    again = {**raw, "id": world.run.ids.uuid7()}
    assert not world.run.enqueue.push(envelope.parse(again)).deduplicated


def test_a_job_that_keeps_the_schedule_of_the_one_it_replaces_shows_it(world: World) -> None:
    later = "2030-01-02T03:04:05.000Z"
    world.run.enqueue.push(envelope.parse(_unique(world, scheduled_at=later)))
    raw = _unique(world)
    raw["unique"]["on_conflict"] = "replace_except_schedule"
    shown = to_dict(world.run.enqueue.push(envelope.parse(raw)).job)
    assert (shown["state"], shown["scheduled_at"]) == ("scheduled", later)
    assert to_dict(world.run.jobs.get(raw["id"]))["scheduled_at"] == later
