"""Named dead-letter queues: one copy of each dead letter, whoever dies in between."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

from ojs import runtime
from ojs.domain.errors import BackendError, Conflict, OjsError, QueueFull
from ojs.domain.job import envelope
from ojs.domain.job import job as jobs
from ojs.domain.job.copies import TTL_MS
from ojs.domain.queue.queue import QueueState
from ojs.services.jobs import dead_letter_copies as service
from ojs.settings import Settings
from ojs.store.table import keys
from tests.store.bounded import bound, counter_value
from tests.store.dead_letter_queues import ERROR, die, goes_to, job_records, waiting
from tests.store.faults import Died, Faulty, attempt, faults
from tests.store.streams import Projected, Stream

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from ojs.domain.job.job import Job
    from ojs.runtime import Runtime
    from tests.store.conftest import World

    Worlds = Callable[[], AbstractContextManager[World]]

SECOND = 1_000
DAY = 86_400_000


def shown(world: World, job_id: str | None) -> dict[str, Any]:
    assert job_id is not None
    return jobs.to_dict(world.run.jobs.get(job_id))


# --- the copy -----------------------------------------------------------------------------------


@pytest.mark.requirement("QC-32", "QC-33", "DL-7")
@pytest.mark.parametrize("size", ["small", "x" * 5_000, "large"])
def test_a_dead_letter_stays_and_a_copy_of_it_is_enqueued(world: World, size: str) -> None:
    """The record keeps its id, queue and state."""
    text = "".join(f"{n:x}" for n in range(90_000)) if size == "large" else size
    goes_to(world)
    request = envelope.parse(
        {
            "type": "email.send", "args": [text, 1.50], "meta": {"trace": "t"}, "x_own": [1],
            "options": {
                "queue": "mail", "priority": 7, "tags": ["a"], "timeout_ms": 5_000,
                "retry": {"max_attempts": 9}, "unique": {"keys": ["type"]},
                "visibility_timeout_ms": 9_000, "expires_at": "2099-12-31T23:59:59Z",
            },
        }
    )  # fmt: skip
    source = world.run.enqueue.push(request).job
    world.run.fetch.fetch(["mail"], 1, "w")
    answered = world.run.finish.nack(source.id, worker_id="w", error=ERROR)
    record = shown(world, source.id)
    assert (record["queue"], record["state"], record["dead_letter"]) == ("mail", "discarded", True)
    assert record["dead_letter_job_id"] == answered.copy_id
    assert jobs.to_dict(answered)["dead_letter_job_id"] == answered.copy_id
    copy = shown(world, answered.copy_id)
    assert copy["args"] == record["args"]
    assert copy["meta"] == {
        "trace": "t",
        "ojs.dead_letter": {
            "source_job_id": source.id, "source_queue": "mail", "error": record["error"],
        },
    }  # fmt: skip
    assert copy["error"] == record["error"]
    assert copy["error"]["type"] == "SmtpError"
    expected = {
        "type": "email.send", "queue": "dead", "state": "available", "priority": 7, "attempt": 0,
        "max_attempts": 3, "tags": ["a"], "x_own": [1],
    }  # fmt: skip
    assert {name: copy[name] for name in expected} == expected
    # What was asked of the job itself is not asked of the copy.
    assert not copy.keys() & {"timeout_ms", "retry", "unique", "visibility_timeout_ms"}
    (fetched,) = world.fetch("dead")
    assert fetched.id == copy["id"]
    assert fetched.content is not None
    assert fetched.content["args"] == record["args"]
    done = world.run.finish.ack(fetched.id)
    assert "error" not in jobs.to_dict(done)


def _exhausted(world: World, job: Job) -> None:
    world.fetch("mail", worker="w")
    world.run.finish.nack(job.id, worker_id="w", error={"message": "no"})


def _not_retryable(world: World, job: Job) -> None:
    world.fetch("mail", worker="w")
    world.run.finish.nack(job.id, worker_id="w", error={"message": "no", "retryable": False})


def _after(act: Callable[[World, Job], Any]) -> Callable[[World, Job], None]:
    """When the lease and the attempt are over, and somebody notices."""

    def late(world: World, job: Job) -> None:
        world.fetch("mail", worker="w")
        world.clock.advance(1_801 * SECOND)
        act(world, job)

    return late


DEATHS: dict[str, tuple[dict[str, Any], Callable[[World, Job], Any]]] = {
    "attempts used up": ({"retry": {"max_attempts": 1}}, _exhausted),
    "not retryable": ({}, _not_retryable),
    "lease, by a fetch": (
        {"retry": {"max_attempts": 1}}, _after(lambda world, _: world.fetch("mail")),
    ),
    "lease, by the sweep": (
        {"retry": {"max_attempts": 1}}, _after(lambda world, _: world.sweep()),
    ),
    "lease, by a read": (
        {"retry": {"max_attempts": 1}}, _after(lambda world, job: world.run.jobs.get(job.id)),
    ),
    "timeout, by the sweep": (
        {"retry": {"max_attempts": 1}, "timeout_ms": 1_000}, _after(lambda world, _: world.sweep()),
    ),
}  # fmt: skip


@pytest.mark.requirement("QC-32")
@pytest.mark.parametrize("death", DEATHS)
def test_every_way_into_dead_letter_leaves_one_copy(world: World, death: str) -> None:
    options, act = DEATHS[death]
    goes_to(world)
    source = world.push(1, queue="mail", **options)
    act(world, source)
    record = shown(world, source.id)
    assert record["dead_letter"] is True
    (copy,) = job_records(world)
    assert record["dead_letter_job_id"] == copy.id
    assert shown(world, copy.id)["error"] == record["error"]
    world.sweep()
    assert len(job_records(world)) == 1


def test_what_is_discarded_for_good_leaves_none(world: World) -> None:
    goes_to(world)
    ways: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({}, {"code": "DISCARD", "message": "no"}),
        ({"retry": {"max_attempts": 1, "on_exhaustion": "discard"}}, {"message": "no"}),
    ]
    for options, error in ways:
        source = world.push(queue="mail", **options)
        world.fetch("mail", worker="w")
        world.run.finish.nack(source.id, worker_id="w", error=error)
        record = shown(world, source.id)
        assert record["state"] == "discarded"
        assert "dead_letter_job_id" not in record
    expiring = world.push(queue="mail", expires_at="+PT1S")
    world.clock.advance(2 * SECOND)
    assert shown(world, expiring.id)["state"] == "discarded"
    die(world, queue="unconfigured")
    assert job_records(world) == []


def test_a_copy_goes_by_the_rules_of_the_queue_it_is_in(world: World) -> None:
    """Its timeout, retries, retention and lanes; who may push there is not asked."""
    world.run.queues.configure(
        "dead",
        {
            "default_timeout": 60, "default_retry": {"max_attempts": 2}, "lanes": 3,
            "retention": {"completed": "P1D"}, "max_size": 5,
            "allowed_job_types": ["never.*"], "producers": ["nobody"],
        },
    )  # fmt: skip
    goes_to(world)
    die(world, timeout_ms=1_000, retry={"max_attempts": 9})
    (copy,) = job_records(world)
    assert (copy.timeout_ms, copy.policy.max_attempts) == (60_000, 2)
    assert copy.retention.completed_s == 86_400
    assert counter_value(world, "dead") == (1, copy.reserved_bytes)
    (fetched,) = world.fetch("dead")
    world.run.finish.ack(fetched.id)
    assert counter_value(world, "dead") == (0, 0)


def test_the_queue_is_made_when_it_is_missing_also_in_strict_mode(world: World) -> None:
    world.run.queues.set_policy({"dead_letter_queue": "dead", "default_timeout": 60})
    world.run = world.another()
    world.run.queues.create("mail", {})
    strict = runtime_of(world, strict_queues=True)
    source = strict.enqueue.push(envelope.parse({"type": "a", "args": [], "queue": "mail"})).job
    strict.fetch.fetch(["mail"], 1, "w")
    strict.finish.nack(source.id, worker_id="w", error=ERROR)
    (copy,) = job_records(world)
    assert copy.timeout_ms == 60_000
    # To the policy's own dead-letter queue the policy says nothing of where dead letters go.
    assert world.run.queues.get("dead").config.copies_to is None


def runtime_of(world: World, **settings: Any) -> Runtime:
    """As `World.another`, with other settings."""
    return runtime.build(
        Settings(table=world.table, **settings),
        client=world.client,
        blobs=world.blobs,
        clock=world.clock,
    )


def test_a_copy_that_dies_is_not_copied_on(world: World) -> None:
    """From a to b and back to a there would be no end."""
    goes_to(world, "b", queue="a")
    goes_to(world, "a", queue="b")
    die(world, queue="a")
    (copy,) = job_records(world, "b")
    world.fetch("b", worker="w")
    world.run.finish.nack(copy.id, worker_id="w", error=ERROR)
    record = shown(world, copy.id)
    assert record["dead_letter"] is True
    assert "dead_letter_job_id" not in record
    # Not after a retry either.
    world.run.redrive.retry(copy.id)
    world.fetch("b", worker="w")
    world.run.finish.nack(copy.id, worker_id="w", error=ERROR)
    assert [len(job_records(world, queue)) for queue in ("a", "b")] == [1, 1]


@pytest.mark.requirement("QC-5")
def test_what_the_configuration_was_when_the_job_came_counts(world: World) -> None:
    """A change leaves jobs alone that are there already."""
    before = world.push(1, queue="mail")
    goes_to(world)
    after = world.push(2, queue="mail")
    world.run.queues.configure("mail", {"dead_letter_queue": None})
    world.fetch("mail", 2, worker="w")
    for job in (before, after):
        world.run.finish.nack(job.id, worker_id="w", error=ERROR)
    assert waiting(world) == [2]


def test_a_job_moved_to_the_very_queue_leaves_no_copy_there(world: World) -> None:
    goes_to(world)
    source = world.push(queue="mail")
    world.run.deletion.delete("mail", "move", "dead")
    world.fetch("dead", worker="w")
    died = world.run.finish.nack(source.id, worker_id="w", error=ERROR)
    assert died.copy_id is None
    assert len(job_records(world)) == 1


def test_a_queue_that_is_being_deleted_gets_no_copy(world: World) -> None:
    goes_to(world)
    held = world.push(queue="dead")
    world.fetch("dead", worker="w")
    world.run.deletion.delete("dead", "discard")
    assert world.run.queues.get("dead").state is QueueState.DRAINING
    died = die(world)
    assert died.copy_id is None
    assert "dead_letter_job_id" not in shown(world, died.id)
    assert [job.id for job in job_records(world)] == [held.id]
    assert world.run.redrive.retry(died.id).state.value == "available"


def test_the_id_may_be_taken_by_a_job_that_somebody_chose_it_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = world.run.ids.uuid7()
    monkeypatch.setattr("ojs.domain.job.lifecycle.derived_uuid7", lambda *_: chosen)
    goes_to(world)
    world.run.enqueue.push(envelope.parse({"type": "a", "args": ["mine"], "id": chosen}))
    world.clock.advance(1)
    died = die(world)
    assert died.copy_id is None
    record = shown(world, died.id)
    assert (record["dead_letter"], "dead_letter_job_id" in record) == (True, False)
    assert job_records(world) == []
    # Nor is that job taken for a copy when the dead letter is retried.
    world.run.redrive.retry(died.id)
    assert shown(world, chosen)["state"] == "available"


# --- how long -----------------------------------------------------------------------------------


@pytest.mark.requirement("QC-34")
def test_a_copy_waits_thirty_days_and_the_dead_letter_stays(world: World) -> None:
    """P30D by default; the record is kept as dead letters are."""
    goes_to(world)
    died = die(world)
    assert died.ttl_s is None, "it stays until it is pruned"
    (copy,) = job_records(world)
    assert copy.expires_ms == world.clock.now_ms() + TTL_MS
    assert shown(world, copy.id)["expires_at"] == "2026-06-27T20:26:40.000Z"
    world.clock.advance(TTL_MS - 1)
    assert shown(world, copy.id)["state"] == "available"
    world.clock.advance(1)
    world.sweep()
    gone = shown(world, copy.id)
    assert (gone["state"], gone["error"]["type"]) == ("discarded", "expired")
    assert "dead_letter" not in gone
    assert shown(world, died.id)["dead_letter"] is True


@pytest.mark.requirement("QC-34")
def test_the_ttl_that_is_set_counts_for_the_copy_and_the_dead_letter(world: World) -> None:
    """The dead letter itself is pruned then."""
    goes_to(world, dead_letter_ttl="P2D")
    died = die(world)
    (copy,) = job_records(world)
    assert copy.expires_ms == world.clock.now_ms() + 2 * DAY
    assert world.run.queues.get("mail").config.dead_letter.max_age_ms == 2 * DAY
    world.clock.advance(2 * DAY)
    assert shown(world, copy.id)["error"]["type"] == "expired"
    assert world.run.dead_letter.get(died.id).dead_letter
    # Also where there is no such queue.
    plain = world.run.queues.configure("plain", {"dead_letter_ttl": "PT1H"})
    assert plain.config.dead_letter.max_age_ms == 3_600_000
    assert die(world, queue="plain").copy_id is None


# --- room ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["reject", "block", "drop_oldest"])
def test_in_a_full_queue_the_oldest_copy_gives_way(world: World, policy: str) -> None:
    """A bounded queue never holds more than its bound, and what was pushed there stays."""
    bound(world, "dead", max_size=3, overflow_policy=policy)
    goes_to(world)
    own = world.push("own", queue="dead", priority=-5)
    world.clock.advance(1)
    died = []
    for number in range(4):
        died.append(die(world, number))
        world.clock.advance(1)
    assert counter_value(world, "dead")[0] == 3
    assert waiting(world) == ["own", 2, 3]
    assert shown(world, own.id)["state"] == "available"
    dropped = [shown(world, job.copy_id) for job in died[:2]]
    assert [job["state"] for job in dropped] == ["discarded", "discarded"]
    assert {job["error"]["type"] for job in dropped} == {"overflow"}
    # The dead letters themselves are all there.
    assert all(shown(world, job.id)["dead_letter_job_id"] == job.copy_id for job in died)


def test_where_no_copy_can_give_way_there_is_none_and_the_refusal_is_told(world: World) -> None:
    bound(world, "dead", max_size=2)
    goes_to(world)
    first = die(world, 1)
    (running,) = world.fetch("dead")
    assert running.id == first.copy_id
    own = world.push("own", queue="dead")
    world.clock.advance(1)
    died = die(world, 2)
    assert died.dead_letter
    assert died.copy_id is None
    assert "dead_letter_job_id" not in shown(world, died.id)
    assert counter_value(world, "dead")[0] == 2
    refused = world.run.table.get(keys.counter("dead"), keys.REFUSED) or {}
    assert (refused["n"], refused["depth"], refused["bound"]) == (1, 2, 2)
    assert {job.id for job in job_records(world)} == {running.id, own.id}


def test_a_bound_in_bytes_is_kept_too(world: World) -> None:
    bound(world, "dead", max_size_bytes=12_000)
    goes_to(world)
    for number in range(4):
        die(world, number, "x" * 5_000)
        world.clock.advance(1)
    assert waiting(world) == [2, 3]
    assert counter_value(world, "dead")[1] <= 12_000
    died = die(world, 9, "x" * 20_000)
    assert died.copy_id is None
    assert waiting(world) == [2, 3]


def test_many_that_die_at_once_into_a_full_queue_keep_its_bound(exact: World) -> None:
    """Each takes the place of a copy that waits; none is refused as long as one does."""
    bound(exact, "dead", max_size=6)
    goes_to(exact)
    for number in range(6):
        die(exact, number)
    pushed = [exact.push("new", queue="mail") for _ in range(12)]
    exact.fetch("mail", 12, worker="w")
    exact.clock.advance(1_000)
    barrier = threading.Barrier(len(pushed))

    def nack(job: Job) -> Job:
        run = exact.another()
        barrier.wait()
        return run.finish.nack(job.id, worker_id="w", error=ERROR)

    with ThreadPoolExecutor(len(pushed)) as pool:
        died = list(pool.map(nack, pushed))
    assert all(job.dead_letter for job in died)
    # Who lost every race for a place has left its copy to the projection.
    for job in job_records(exact, "mail"):
        assert not exact.run.copies.make(job).copy_due
    assert counter_value(exact, "dead")[0] == 6
    assert waiting(exact) == ["new"] * 6
    assert exact.run.table.get(keys.counter("dead"), keys.REFUSED) is None
    named = {job.copy_id for job in died}
    assert None not in named
    assert named >= {job.id for job in job_records(exact) if job.state.value == "available"}


def test_copies_are_found_behind_many_other_jobs(exact: World) -> None:
    bound(exact, "dead", max_size=251)
    requests = [envelope.parse({"type": "a", "args": [n], "queue": "dead"}) for n in range(250)]
    exact.run.enqueue.push_batch(requests)
    goes_to(exact)
    first = die(exact, "first")
    second = die(exact, "second")
    assert shown(exact, first.copy_id)["state"] == "discarded"
    assert shown(exact, second.copy_id)["state"] == "available"
    assert counter_value(exact, "dead")[0] == 251


# --- retry --------------------------------------------------------------------------------------


def test_retrying_the_dead_letter_cancels_the_copy_that_waits(world: World) -> None:
    bound(world, "dead", max_size=5)
    goes_to(world)
    died = die(world, 1)
    back = world.run.redrive.retry(died.id)
    assert back.state.value == "available"
    assert "dead_letter_job_id" not in jobs.to_dict(back)
    copy = shown(world, died.copy_id)
    assert copy["state"] == "cancelled"
    assert counter_value(world, "dead") == (0, 0)
    assert world.fetch("dead") == []
    # It dies again: another copy.
    world.fetch("mail", worker="w")
    again = world.run.finish.nack(died.id, worker_id="w", error=ERROR)
    assert again.copy_id not in (None, died.copy_id)
    assert shown(world, again.copy_id)["state"] == "available"


def test_a_copy_that_waits_to_be_tried_again_is_cancelled_too(world: World) -> None:
    goes_to(world)
    died = die(world, 1)
    world.fetch("dead", worker="w")
    failed = world.run.finish.nack(died.copy_id or "", worker_id="w", error={"message": "no"})
    assert failed.state.value == "retryable"
    world.run.redrive.retry(died.id)
    assert shown(world, died.copy_id)["state"] == "cancelled"


def test_a_copy_that_runs_or_is_done_is_left_alone(world: World) -> None:
    goes_to(world)
    running, done = die(world, 1), die(world, 2)
    by_id = {job.id: job for job in world.fetch("dead", 2)}
    world.run.finish.ack(done.copy_id or "")
    for died in (running, done):
        assert world.run.redrive.retry(died.id).state.value == "available"
    assert by_id.keys() == {running.copy_id, done.copy_id}
    assert shown(world, running.copy_id)["state"] == "active"
    assert shown(world, done.copy_id)["state"] == "completed"


def test_a_retry_that_is_refused_changes_nothing(world: World) -> None:
    goes_to(world, max_size=1)
    died = die(world, 1)
    world.push(2, queue="mail")
    before = world.items()
    with pytest.raises(QueueFull):
        world.run.redrive.retry(died.id)
    assert shown(world, died.copy_id)["state"] == "available"
    assert shown(world, died.id)["dead_letter_job_id"] == died.copy_id
    kept = {(i["pk"]["S"], i["sk"]["S"]): i for i in before if i["pk"]["S"].startswith("J|")}
    assert kept == {
        (i["pk"]["S"], i["sk"]["S"]): i for i in world.items() if i["pk"]["S"].startswith("J|")
    }


def test_deleting_the_dead_letter_leaves_the_copy(world: World) -> None:
    goes_to(world)
    died = die(world, 1)
    world.run.dead_letter.delete(died.id)
    copy = shown(world, died.copy_id)
    assert copy["state"] == "available"
    assert copy["error"]["type"] == "SmtpError"


def test_of_a_retry_and_a_fetch_of_the_copy_at_once_each_sees_what_the_other_did(
    exact: World,
) -> None:
    """Never: the copy handed out, and then cancelled as one that waits."""
    goes_to(exact)
    outcomes = set()
    for round_ in range(8):
        died = die(exact, round_)
        barrier = threading.Barrier(2)
        retrier, fetcher = exact.another(), exact.another()

        def retry(run: Any = retrier, job: Job = died, start: Any = barrier) -> Job:
            start.wait()
            found: Job = run.redrive.retry(job.id)
            return found

        def fetch(run: Any = fetcher, start: Any = barrier) -> list[Job]:
            start.wait()
            found: list[Job] = run.fetch.fetch(["dead"], 1, "w")
            return found

        with ThreadPoolExecutor(2) as pool:
            back, got = pool.submit(retry), pool.submit(fetch)
        assert back.result().state.value == "available"
        state = exact.state(replace(died, id=died.copy_id or ""))
        assert state == ("active" if got.result() else "cancelled")
        outcomes.add(state)
        for run, job_id in ((exact.run, died.copy_id), (exact.run, died.id)):
            with suppress(OjsError):
                run.jobs.cancel(job_id or "")
    assert outcomes


def test_of_many_that_make_the_same_copy_one_does(exact: World) -> None:
    goes_to(exact)
    bound(exact, "dead", max_size=9)
    died = _died_alone(exact, 1)
    runs = [exact.another() for _ in range(6)]
    barrier = threading.Barrier(len(runs))

    def make(run: Any) -> Job:
        barrier.wait()
        found: Job = run.copies.make(died)
        return found

    with ThreadPoolExecutor(len(runs)) as pool:
        made = list(pool.map(make, runs))
    assert {job.copy_id for job in made} == {died.copy_id}
    assert not any(job.copy_due for job in made)
    assert [job.id for job in job_records(exact)] == [died.copy_id]
    assert counter_value(exact, "dead")[0] == 1


def _died_alone(world: World, *args: Any) -> Job:
    """A dead letter whose copy nobody lived to make."""
    follow = world.run.copies.follow
    world.run.copies.follow = lambda record: record  # type: ignore[method-assign]
    try:
        died = die(world, *args)
    finally:
        world.run.copies.follow = follow  # type: ignore[method-assign]
    found = world.run.enqueue._jobs.read_record(died.id)
    assert found is not None
    assert found.copy_due
    return found


def test_what_was_retried_or_deleted_before_its_copy_was_made_leaves_none(world: World) -> None:
    goes_to(world)
    retried = _died_alone(world, 1)
    world.run.redrive.retry(retried.id)
    world.fetch("mail")
    deleted = _died_alone(world, 2)
    world.run.dead_letter.delete(deleted.id)
    for died in (retried, deleted):
        world.run.copies.make(died)
    assert job_records(world) == []


# --- the projection -----------------------------------------------------------------------------


def projected(world: World) -> Projected:
    return Projected(world.client, world.table, world.clock, copies=world.run.copies)


def test_the_projection_makes_what_nobody_lived_to_make_and_nothing_anew(
    streamed: Worlds,
) -> None:
    with streamed() as world:
        stream, derived = Stream(world.client, world.table), projected(world)
        goes_to(world)
        died = _died_alone(world, 1)
        assert job_records(world) == []
        records = stream.take()
        assert derived.run(records) == []
        (copy,) = job_records(world)
        assert copy.id == died.copy_id
        assert derived.run(records) == []
        assert derived.another().run(records) == []
        # Done, and gone for good: the records may still come again.
        world.fetch("dead")
        world.run.finish.ack(copy.id)
        client, table = world.client, world.table
        client.delete_item(
            TableName=table, Key={"pk": {"S": keys.job(copy.id)}, "sk": {"S": keys.RECORD}}
        )
        assert projected(world).run(records) == []
        assert job_records(world) == []
        assert derived.run(stream.take()) == []
        told = [event["type"] for event in derived.events() if event["subject"] == copy.id]
        assert told == ["job.enqueued", "job.started", "job.completed"]


def test_the_projection_leaves_alone_what_is_made(streamed: Worlds) -> None:
    """One read more for each dead letter, and no write."""
    with streamed() as world:
        stream, derived = Stream(world.client, world.table), projected(world)
        goes_to(world)
        died = die(world, 1)
        world.run.table.meter.reset()
        assert derived.run(stream.take()) == []
        assert world.run.table.meter.calls == []
        (copy,) = job_records(world)
        assert copy.id == died.copy_id
        assert derived.stats("dead") == {"available": 1, "p0": 1, "copies": 1, "t_enqueued": 1}


def test_what_cannot_be_made_now_comes_again(streamed: Worlds) -> None:
    with streamed() as world:
        stream, derived = Stream(world.client, world.table), projected(world)
        goes_to(world)
        died = _died_alone(world, 1)
        fine = world.push(2, queue="other")
        records = stream.take()
        make = world.run.copies.make

        def refuses(record: Job) -> Job:
            raise BackendError("no")

        world.run.copies.make = refuses  # type: ignore[method-assign]
        failed = derived.run(records)
        mine = [
            one["dynamodb"]["SequenceNumber"]
            for one in records
            if one["dynamodb"]["Keys"]["pk"]["S"] == keys.job(died.id)
        ]
        # The death, and nothing before it: what came before was counted.
        assert failed == mine[-1:]
        assert derived.stats("other")["available"] == 1
        world.run.copies.make = make  # type: ignore[method-assign]
        assert derived.run(records) == []
        assert [job.id for job in job_records(world)] == [died.copy_id]
        assert fine.id


@pytest.mark.exhaustive
def test_a_crash_at_any_call_leaves_exactly_one_copy(streamed: Worlds) -> None:
    """Of the nack, at every call and in every way; then the projection, more than once."""
    with streamed() as world:
        stream = Stream(world.client, world.table)
        goes_to(world)
        bound(world, "dead", max_size=100_000)
        derived = projected(world)
        died: dict[str, str] = {}
        for text in ("small", "x" * 5_000):
            for run, _ in faults(world):
                pushed = world.push(text, queue="mail", retry={"max_attempts": 1})
                died[pushed.id] = text
                world.fetch("mail", worker="w")
                attempt(partial(run.finish.nack, pushed.id, worker_id="w", error=ERROR))
                with suppress(Conflict):
                    # The worker asks again: whichever of the two went through.
                    world.run.finish.nack(pushed.id, worker_id="w", error=ERROR)
        alone = [job for job in job_records(world, "mail") if job.copy_due]
        assert alone
        records = stream.take()
        for start in range(0, len(records), 100):
            assert derived.run(records[start : start + 100]) == []
        assert projected(world).run(records) == []
        catch_up(stream, derived)
        copies = {job.id: job for job in job_records(world)}
        assert derived.stats("dead")["copies"] == len(copies) == len(died)
        for job_id, text in died.items():
            record = shown(world, job_id)
            assert record["dead_letter"] is True
            copy = shown(world, copies.pop(record["dead_letter_job_id"]).id)
            assert (copy["state"], copy["args"]) == ("available", [text])
            assert copy["error"] == record["error"]


@pytest.mark.exhaustive
def test_a_crash_of_the_projection_at_any_call_leaves_exactly_one_copy(streamed: Worlds) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        goes_to(world)
        for run, _ in faults(world):
            died = _died_alone(world, 1)
            records = stream.take()
            failing = Projected(world.client, world.table, world.clock, copies=run.copies)
            with suppress(Died):
                failing.run(records)
            assert projected(world).run(records) == []
            assert projected(world).run(stream.take()) == []
            (copy,) = world.run.fetch.fetch(["dead"], 9, "w")
            assert copy.id == died.copy_id
            world.run.finish.ack(copy.id)


@pytest.mark.exhaustive
def test_a_crash_of_a_retry_at_any_call_leaves_one_of_the_two(exact: World) -> None:
    """Never both to be worked off, and never neither."""
    goes_to(exact)
    bound(exact, "dead", max_size=100_000)
    for run, _ in faults(exact):
        died = die(exact, 1)
        attempt(partial(run.redrive.retry, died.id))
        copy, record = exact.run.jobs.get(died.copy_id or ""), exact.run.jobs.get(died.id)
        states = (record.state.value, copy.state.value)
        assert states in (("discarded", "available"), ("available", "cancelled"))
        for job in (copy, record):
            with suppress(Conflict):
                exact.run.jobs.cancel(job.id)


# --- how many -----------------------------------------------------------------------------------


def catch_up(stream: Stream, derived: Projected) -> None:
    """The projection has seen everything, and what follows from it."""
    while records := stream.take():
        while derived.run(records):
            pass


@pytest.mark.requirement("QC-34")
@pytest.mark.parametrize(
    "kind", ["streamed", pytest.param("streamed_ministack", marks=pytest.mark.exhaustive)]
)
def test_the_oldest_copies_beyond_the_number_are_dropped(
    kind: str, request: pytest.FixtureRequest
) -> None:
    worlds: Worlds = request.getfixturevalue(kind)
    with worlds() as world:
        stream, derived = Stream(world.client, world.table), projected(world)
        goes_to(world, dead_letter_max_size=3)
        world.push("own", queue="dead")
        died = []
        for number in range(5):
            world.clock.advance(1)
            died.append(die(world, number, priority=-number))
            catch_up(stream, derived)
        assert waiting(world) == ["own", 2, 3, 4]
        gone = [shown(world, job.copy_id) for job in died[:2]]
        assert [(job["state"], job["error"]["type"]) for job in gone] == [
            ("discarded", "overflow"), ("discarded", "overflow"),
        ]  # fmt: skip
        assert [len(job["errors"]) for job in gone] == [1, 1]
        for job in died[:2]:
            told = [e["type"] for e in derived.events() if e["data"].get("job_id") == job.copy_id]
            assert sorted(told) == ["backpressure.dropped", "queue.overflow"]
            told = [e["type"] for e in derived.events() if e["subject"] == job.copy_id]
            assert told == ["job.enqueued", "job.discarded", "backpressure.dropped"]
        assert derived.stats("dead")["copies"] == 3


def test_many_at_once_leave_as_many_as_may_wait(streamed: Worlds) -> None:
    """A burst that is projected in one batch, in another order, more than once."""
    with streamed() as world:
        stream, derived = Stream(world.client, world.table), projected(world)
        goes_to(world, dead_letter_max_size=4)
        for number in range(20):
            world.clock.advance(1)
            die(world, number)
        records = stream.take()
        half = records[: len(records) // 2]
        assert derived.run(half) == []
        assert derived.run(records[::-1]) == []
        assert projected(world).run(records) == []
        catch_up(stream, derived)
        assert waiting(world) == [16, 17, 18, 19]
        assert derived.stats("dead")["copies"] == 4


def test_projections_at_once_do_not_drop_twice_for_one_excess(streamed: Worlds) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        goes_to(world, dead_letter_max_size=5)
        for number in range(12):
            world.clock.advance(1)
            die(world, number)
        records = stream.take()
        shares = [records[at::4] for at in range(4)]
        deriving = [
            Projected(world.client, world.table, world.clock, copies=world.another().copies)
            for _ in shares
        ]

        def run(at: int) -> None:
            while deriving[at].run(shares[at], f"shardId-{at}"):
                pass

        with ThreadPoolExecutor(len(shares)) as pool:
            list(pool.map(run, range(len(shares))))
        catch_up(stream, deriving[0])
        assert waiting(world) == [7, 8, 9, 10, 11]


def test_copies_that_run_or_are_done_do_not_count(streamed: Worlds) -> None:
    with streamed() as world:
        stream, derived = Stream(world.client, world.table), projected(world)
        goes_to(world, dead_letter_max_size=2)
        for number in range(2):
            world.clock.advance(1)
            die(world, number)
        catch_up(stream, derived)
        (running,) = world.fetch("dead")
        world.clock.advance(1)
        die(world, 2)
        # That it was taken is not projected yet; the line knows it.
        created = [one for one in stream.take() if one["eventName"] == "INSERT"]
        assert derived.run(created) == []
        assert waiting(world) == [1, 2]
        catch_up(stream, derived)
        # It comes back into the line, which is one too many then.
        world.run.finish.nack(running.id, worker_id=running.worker_id, error=None, requeue=True)
        catch_up(stream, derived)
        assert len(waiting(world)) == 2


def test_a_number_that_was_lowered_is_reached_a_hundred_at_a_time(
    streamed: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_DROPS", 4)
    with streamed() as world:
        stream, derived = Stream(world.client, world.table), projected(world)
        goes_to(world)
        for number in range(10):
            world.clock.advance(1)
            die(world, number)
        catch_up(stream, derived)
        assert len(waiting(world)) == 10
        goes_to(world, dead_letter_max_size=1)
        catch_up(stream, derived)
        # The change itself drops nothing.
        assert len(waiting(world)) == 10
        world.clock.advance(1)
        die(world, 10)
        records = stream.take()
        rounds = 1
        while derived.run(records):
            rounds += 1
        assert waiting(world) == [10]
        assert rounds == 3


@pytest.mark.exhaustive
def test_a_crash_before_or_while_copies_are_dropped_is_made_up_for(streamed: Worlds) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        goes_to(world, dead_letter_max_size=1)
        catch_up(stream, projected(world))
        for at, fault in product(range(1, 20), ("died before", "died after", "timed out")):
            client = Faulty(world.client, at, fault)
            world.clock.advance(1)
            die(world, at)
            records, copies = stream.take(), world.another(client).copies
            with suppress(Died):
                Projected(world.client, world.table, world.clock, copies=copies).run(records)
            derived = projected(world)
            assert derived.run(records) == []
            catch_up(stream, derived)
            assert waiting(world) == [at]
            assert derived.stats("dead")["copies"] == 1
            if client.calls < at:
                break
        else:
            pytest.fail("a path with twenty calls")


# --- cost ---------------------------------------------------------------------------------------


def test_what_copies_cost(exact: World) -> None:
    """Nothing where none are configured; and a push and a fetch cost what they always do."""
    goes_to(exact)
    for queue in ("plain", "mail"):
        die(exact, queue=queue)
    plain, copied = (_costs(exact, queue) for queue in ("plain", "mail"))
    assert plain["push"] == copied["push"]
    assert plain["fetch"] == copied["fetch"]
    assert plain["ack"] == copied["ack"]
    assert plain["nack"] == (3.0, 1.0, 2)
    # The queue, and one transaction with the copy and the word that it is made.
    assert copied["nack"] == (9.0, 2.0, 4)
    assert plain["retry"] == (4.0, 3.0, 4)
    # The copy is read, and changed in the same transaction.
    assert copied["retry"] == (9.0, 4.0, 5)


def _costs(world: World, queue: str) -> dict[str, tuple[float, float, int]]:
    """Write units, read units and calls of each step, in a queue that is there."""
    meter, finish = world.run.table.meter, world.run.finish
    spent = {}

    def note(name: str) -> None:
        spent[name] = (meter.write_units, meter.read_units, len(meter.calls))
        meter.reset()

    meter.reset()
    job = world.push(1, queue=queue)
    note("push")
    world.run.fetch.fetch([queue], 1, "w")
    note("fetch")
    finish.nack(job.id, worker_id="w", error=ERROR)
    note("nack")
    world.run.redrive.retry(job.id)
    note("retry")
    world.run.fetch.fetch([queue], 1, "w")
    meter.reset()
    finish.ack(job.id, worker_id="w")
    note("ack")
    return spent


def test_dropping_costs_the_same_however_many_wait(streamed: Worlds) -> None:
    with streamed() as world:
        stream, derived = Stream(world.client, world.table), projected(world)
        goes_to(world, dead_letter_max_size=3)
        costs = []
        for count in (4, 12):
            goes_to(world, dead_letter_max_size=count - 1)
            while len(waiting(world)) < count - 1:
                world.clock.advance(1)
                die(world, count)
                catch_up(stream, derived)
            world.clock.advance(1)
            die(world, count)
            records = stream.take()
            world.run.table.meter.reset()
            assert derived.run(records) == []
            meter = world.run.table.meter
            costs.append((meter.write_units, len(meter.calls)))
            catch_up(stream, derived)
        assert costs[0] == costs[1]
