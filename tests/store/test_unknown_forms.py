"""What a newer version may leave in the table is passed over, so that an upgrade can be undone."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.errors import Conflict, UnknownForm
from ojs.domain.job.states import State
from ojs.services.sweeps import SweepCounts
from ojs.store.permits.key_limits import limiter_from
from ojs.store.table import keys
from ojs.store.table.values import pack
from tests.store.bounded import bound, counter_value
from tests.store.streams import Projected, made_record

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from tests.store.conftest import World

FUTURE = "paused_by_future"
SECOND = 1_000


def put(world: World, pk: str, sk: str, **attributes: Any) -> None:
    world.client.put_item(TableName=world.table, Item=pack({"pk": pk, "sk": sk, **attributes}))


def change(world: World, job: Job, **attributes: Any) -> None:
    """Overwrite attributes of a job record, as a newer version would."""
    world.client.put_item(TableName=world.table, Item=raw(world, job) | pack(attributes))


def raw(world: World, job: Job) -> dict[str, Any]:
    answer = world.client.get_item(
        TableName=world.table, Key=pack({"pk": keys.job(job.id), "sk": keys.RECORD})
    )
    return answer["Item"]


def future_entries(world: World, queue: str, count: int = 3) -> None:
    """Entries of a newer version at the head of every line of a queue."""
    for at in range(count):
        due = {"wpk": keys.due(queue, 0), "wsk": f"{at:015d}z"}
        put(world, f"Z|timer{at}", "@", state="on", **due)
        put(world, keys.job("019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6"), f"lease|{at}", **due)
        put(world, f"N|{at}", "@", wpk=keys.ready(queue, 0), wsk=f"!lease|{at}")
        put(world, f"N2|{at}", "@", wpk=keys.ready(queue, 0), wsk=f"000{at}|z9")
        put(world, f"N3|{at}", "@", wpk=keys.pending(queue, 0), wsk=f"{at:015d}")
        put(world, f"N4|{at}", "@", epk=keys.expiry(queue, 0), esk=f"{at:015d}")


def test_fetch_and_sweep_go_on_behind_entries_of_unknown_form(world: World) -> None:
    job, later = world.push(queue="q"), world.push(queue="q", scheduled_at="+PT1M")
    expiring = world.push(queue="q", scheduled_at="+PT1H", expires_at="+PT1M")
    future_entries(world, "q", 30)
    before = len(world.items())
    assert [found.id for found in world.fetch("q")] == [job.id]
    world.clock.advance(61 * SECOND)
    world.sweep()
    assert world.state(later) == "available"
    assert world.state(expiring) == "discarded"
    assert [found.id for found in world.another().fetch.fetch(["q"], 1, "w")] == [later.id]
    assert len(world.items()) >= before
    world.push(queue="q")
    stats = world.run.stats.queue("q")
    assert (stats.levels.states[State.AVAILABLE], stats.levels.states[State.ACTIVE]) == (1, 2)


def test_many_unknown_entries_do_not_hide_what_is_due(world: World) -> None:
    job = world.push(queue="q", scheduled_at="+PT1S")
    future_entries(world, "q", 60)
    world.clock.advance(2 * SECOND)
    assert [found.id for found in world.fetch("q")] == [job.id]


def test_a_job_in_an_unknown_state_is_passed_over_and_stays_as_it_is(world: World) -> None:
    lost, held, kept = (world.push(queue="q") for _ in range(3))
    retried = world.push(queue="q", scheduled_at="+PT1S")
    change(world, lost, state=FUTURE)
    change(world, held, state=FUTURE, wpk=keys.due("q", 0), wsk=f"{1:015d}s")
    before = raw(world, lost), raw(world, held)
    world.clock.advance(2 * SECOND)
    world.sweep()
    assert world.state(retried) == "available"
    assert {found.id for found in world.fetch("q", 5, worker="w")} == {kept.id, retried.id}
    answer = world.run.workers.beat("w", active_jobs=[lost.id, kept.id])
    assert answer.jobs_extended == [kept.id]
    with pytest.raises(UnknownForm):
        world.run.jobs.get(lost.id)
    with pytest.raises(UnknownForm):
        world.run.finish.ack(lost.id, worker_id="w")
    assert (raw(world, lost), raw(world, held)) == before


def test_what_a_record_has_beyond_what_is_known_stays(world: World) -> None:
    job = world.push(queue="q", retry={"max_attempts": 2, "jitter": False})
    change(world, job, future="kept", retry='{"strategy":"fibonacci","paces":[1,2]}')
    (claimed,) = world.fetch("q", worker="w")
    world.run.finish.nack(claimed.id, worker_id="w", error={"message": "no"})
    stored = raw(world, job)
    assert stored["state"]["S"] == "retryable"
    assert stored["future"]["S"] == "kept"
    assert "fibonacci" in stored["retry"]["S"]


def test_a_permit_of_unknown_form_counts_for_nothing_and_stays(world: World) -> None:
    limit = {"key": "k", "concurrency": 1}
    job = world.push(queue="q", rate_limit=limit)
    limiter = next(i for i in world.items() if i["pk"]["S"].startswith(keys.limiter("")))
    world.client.put_item(TableName=world.table, Item=limiter | pack({"h_future": "v2:abc"}))
    assert [found.id for found in world.fetch("q", worker="w")] == [job.id]
    world.run.finish.ack(job.id, worker_id="w")
    after = next(
        i
        for i in world.items()
        if i["pk"]["S"].startswith(keys.limiter("")) and i["sk"]["S"] == keys.RECORD
    )
    assert after["h_future"]["S"] == "v2:abc"
    assert limiter_from({"h_future": "v2:abc"}).active == 0


def test_a_queue_does_not_end_under_what_is_not_known(world: World) -> None:
    known = [world.push(queue="old") for _ in range(3)]
    odd = world.push(queue="old")
    change(world, odd, state=FUTURE)
    _, deleted = world.run.deletion.delete("old", "discard")
    assert not deleted
    assert [world.state(job) for job in known] == ["discarded"] * 3
    for _ in range(3):
        assert "queues_deleted" not in world.sweep()
    assert world.run.queues.get("old").state == "draining"
    assert raw(world, odd)["state"]["S"] == FUTURE
    # The newer version comes back, and deals with it.
    world.client.delete_item(
        TableName=world.table, Key=pack({"pk": keys.job(odd.id), "sk": keys.RECORD})
    )
    assert world.sweep()["queues_deleted"] == 1


def test_reject_refuses_a_queue_with_a_future_entry(world: World) -> None:
    job = world.push(queue="old")
    world.run.jobs.cancel(job.id)
    put(world, "Z|timer", "@", wpk=keys.due("old", 0), wsk=f"{1:015d}z")
    with pytest.raises(Conflict):
        world.run.deletion.delete("old", "reject")


def test_jobs_behind_many_unknown_ones_are_ended(world: World) -> None:
    odd = [world.push(queue="old", priority=5) for _ in range(6)]
    known = [world.push(queue="old") for _ in range(3)]
    for job in odd:
        change(world, job, state=FUTURE)
    queue = world.run.queues.pause("old")
    world.run.deletion._begin("old", world.run.deletion._parse_request("old", "discard", None))
    queue = world.run.queues.get("old")
    counts = SweepCounts()
    world.run.deletion.resume([queue], counts, limit=3)
    assert counts["ended"] == 3
    assert [world.state(job) for job in known] == ["discarded"] * 3


def test_a_queue_in_an_unknown_state_holds_up_no_other(world: World) -> None:
    world.push(queue="odd")
    job = world.push(queue="q", scheduled_at="+PT1S")
    item = next(i for i in world.items() if i["pk"]["S"] == keys.queue("odd"))
    world.client.put_item(TableName=world.table, Item=item | pack({"state": FUTURE}))
    world.clock.advance(2 * SECOND)
    world.sweep()
    assert world.state(job) == "available"
    assert world.fetch("odd") == []
    with pytest.raises(UnknownForm):
        world.push(queue="odd")


def test_room_of_an_unknown_job_is_not_given_away(world: World) -> None:
    bound(world, "q", max_size=5)
    job = world.push(queue="q")
    change(world, job, state=FUTURE)
    future_entries(world, "q", 2)
    # Twice: a counter that is too high is only repaired when it was found so before.
    for _ in range(3):
        world.clock.advance(200 * SECOND)
        for sweep in world.run.sweeps():
            sweep.run_once(world.clock.now_ms(), 1_000)
    assert counter_value(world, "q")[0] == 1


def test_an_operation_of_a_newer_version_is_left_alone(world: World) -> None:
    put(
        world, keys.operation("x"), "@",
        action="freeze", wanted="{}", state="running", started=1, updated=1, succeeded=0,
        failed=0, errors="[]", wpk=keys.OPERATIONS, wsk=f"{1:015d}",
        epk=keys.OPERATIONS, esk="x",
    )  # fmt: skip
    for sweep in world.run.sweeps():
        assert not sweep.run_once(world.clock.now_ms(), 100).get("failed")


def test_stream_records_of_unknown_forms_are_passed_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    projected = Projected(world.client, world.table, world.clock)
    job = world.push(queue="q")
    known = {name: next(iter(value.values())) for name, value in raw(world, job).items()}
    known = {name: int(v) if "N" in raw(world, job)[name] else v for name, v in known.items()}
    odd = known | {"pk": keys.job("other"), "state": FUTURE}
    timer = {"pk": "Z|timer", "sk": "@", "state": "on"}
    with caplog.at_level(logging.WARNING):
        failed = projected.run(
            [
                made_record(1, None, odd),
                made_record(2, None, timer),
                made_record(3, odd, known | {"pk": keys.job("other")}),
                made_record(4, None, known),
            ]
        )
    assert failed == []
    assert projected.failures.__dict__ == type(projected.failures)().__dict__
    assert projected.stats("q")[State.AVAILABLE.value] == 1
