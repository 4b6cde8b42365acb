"""The latest errors of a job stand on its record, as far as there is room; earlier ones apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.filters.dead_letters import DeadLetterFilter
from ojs.domain.job import lifecycle
from ojs.domain.job.failure import ErrorEntry, Failure, compact, entries_of
from ojs.domain.job.job import Job
from ojs.store.jobs import items
from ojs.store.table import keys
from ojs.store.table.table import Put
from tests.store.spending import RETRY, WORKER, incompressible, spending, warm

if TYPE_CHECKING:
    from tests.store.conftest import World

ERROR = {"code": "smtp_refused", "type": "SmtpError", "message": "mailbox full"}
# More than a job record has room for.
LARGE = {**ERROR, "type": "Large", "backtrace": ["f" * 199] * 10}
ALWAYS = {"max_attempts": 6, "initial_interval": "PT1S", "jitter": False}


def _fail(world: World, error: Mapping[str, Any] = ERROR, **more: Any) -> Job:
    """Hand out the one job that waits, and fail it."""
    world.clock.advance(60_000)
    (job,) = world.fetch(worker=WORKER)
    return world.run.finish.nack(job.id, error=dict(error), worker_id=WORKER, **more)


def _apart(world: World, job: Job) -> list[str]:
    """The sort keys of errors with items of their own."""
    found = (item for item in world.items() if item["pk"]["S"] == keys.job(job.id))
    return sorted(sk for item in found if (sk := item["sk"]["S"]).startswith(keys.ERROR))


def _messages(world: World, job: Job) -> list[str]:
    """What readers find, be it of one job or in a listing."""
    store = world.run.jobs._jobs
    whole = store.load(job.id)
    (listed,) = store.with_errors([store.read_records([job.id])[job.id]])
    assert whole is not None
    assert whole.errors == listed.errors
    assert store.load_whole(job.id) == whole
    return [error.message for error in whole.errors or ()]


# --- where they stand -----------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "room"), [(100, True), (460, False)])
def test_a_history_is_whole_and_in_order_however_much_room_there_is(
    world: World, size: int, room: bool
) -> None:
    job = world.push(incompressible(size), retry=ALWAYS)
    for attempt in range(1, 6):
        _fail(world, ERROR | {"message": f"no {attempt}"})
        assert _messages(world, job) == [f"no {n}" for n in range(1, attempt + 1)]
    apart = _apart(world, job)
    assert apart == [keys.error(0, n) for n in range(1, len(apart) + 1)]
    assert room == (apart == [])
    assert len(apart) < 5


def test_a_large_error_stands_apart_between_others_on_the_record(world: World) -> None:
    job = world.push(retry=ALWAYS)
    for error in (ERROR, LARGE, ERROR | {"message": "last"}):
        _fail(world, error)
    assert _apart(world, job) == [keys.error(0, 2)]
    assert _messages(world, job) == ["mailbox full", "mailbox full", "last"]
    types = [error.type for error in world.run.jobs.get(job.id).errors or ()]
    assert types == ["SmtpError", "Large", "SmtpError"]


def test_why_a_job_ended_in_line_stands_on_its_record(world: World) -> None:
    job = world.push(expires_at="+PT10S")
    world.clock.advance(11_000)
    assert world.state(job) == "discarded"
    assert _apart(world, job) == []
    assert [error.type for error in world.run.jobs.get(job.id).errors or ()] == ["expired"]


def test_errors_of_an_earlier_life_stay(world: World) -> None:
    job = world.push(retry={"max_attempts": 1})
    _fail(world, ERROR | {"message": "first life"})
    back = world.run.redrive.retry(job.id)
    assert [error.message for error in back.errors or ()] == ["first life"]
    _fail(world, ERROR | {"message": "second life"})
    found = world.run.jobs.get(job.id)
    assert [error.message for error in found.errors or ()] == ["first life", "second life"]
    # A listing shows those of the present life.
    (listed,) = world.run.dead_letter.list().items
    assert [error.message for error in listed.errors or ()] == ["second life"]


def test_what_a_worker_said_late_takes_the_place_of_its_lost_lease(world: World) -> None:
    job = world.push(retry=ALWAYS, visibility_timeout_ms=1_000)
    (held,) = world.fetch(worker=WORKER)
    world.clock.advance(2_000)
    assert [error.type for error in world.run.jobs.get(job.id).errors or ()] == [
        "visibility_timeout"
    ]
    world.run.finish.nack(held.id, error=LARGE, worker_id=WORKER)
    assert [error.type for error in world.run.jobs.get(job.id).errors or ()] == ["Large"]
    assert len(_messages(world, job)) == 1


# --- whoever dies, and who is of another version --------------------------------------------------


def test_who_dies_while_errors_make_room_loses_none_and_shows_none_twice(world: World) -> None:
    job = world.push(incompressible(460), retry=ALWAYS)
    _fail(world, ERROR | {"message": "one"})
    _fail(world, ERROR | {"message": "two"})
    world.clock.advance(60_000)
    (held,) = world.fetch(worker=WORKER)
    failure = Failure(3, "smtp_refused", "SmtpError", "three" * 9, world.clock.now_ms())
    before = _apart(world, job)
    after = lifecycle.fail(held, failure, now_ms=world.clock.now_ms(), chance=0.5)
    # The record never follows.
    world.run.jobs._jobs.noting(held, after, failure, reported=True)
    assert _apart(world, job) == [*before, keys.error(0, 2)] == [keys.error(0, 1), keys.error(0, 2)]
    assert _messages(world, job) == ["one", "two"]
    world.run.finish.nack(job.id, error={"message": "again"}, worker_id=WORKER)
    assert _messages(world, job) == ["one", "two", "again"]


def test_a_worker_that_died_over_a_large_error_is_heard_all_the_same(world: World) -> None:
    job = world.push(retry={"max_attempts": 1}, visibility_timeout_ms=1_000)
    (held,) = world.fetch(worker=WORKER)
    store = world.run.jobs._jobs
    failure = Failure(1, "Large", "Large", "mine", world.clock.now_ms(), backtrace=("f" * 2_000,))
    after = lifecycle.fail(held, failure, now_ms=world.clock.now_ms(), chance=0.5)
    _, apart = store.noting(held, after, failure, reported=True)
    assert apart is not None
    store._add(apart)
    world.clock.advance(2_000)
    # Its lease is found to be lost, and that is its last attempt.
    assert world.state(job) == "discarded"
    assert _messages(world, job) == ["mine"]


def test_errors_of_older_versions_are_read_and_followed(world: World) -> None:
    """Those have all errors in items, and leave attributes alone that they do not know."""
    job = world.push(retry=ALWAYS)
    _fail(world, ERROR | {"message": "one"})
    _as_items(world, job)
    assert _messages(world, job) == ["one"]
    _fail(world, ERROR | {"message": "two"})
    # An older container is still at work, and ends the next attempt.
    record = world.run.table.get(keys.job(job.id), keys.RECORD) or {}
    _fail(world, ERROR | {"message": "three"})
    _as_items(world, job, keeps=str(record["errors"]))
    assert _messages(world, job) == ["one", "two", "three"]
    _fail(world, ERROR | {"message": "four"})
    assert _messages(world, job) == ["one", "two", "three", "four"]


def _as_items(world: World, job: Job, keeps: str = "[]") -> None:
    """Put the errors of a record where older versions do, but those that it `keeps`."""
    record = world.run.table.get(keys.job(job.id), keys.RECORD) or {}
    kept = entries_of(keeps)
    for entry in entries_of(str(record["errors"])):
        if entry not in kept:
            world.run.jobs._jobs._table.put(Put(items.error(job.id, entry)))
    changed = {"errors": {"S": compact(kept)}}
    whole = world.client.get_item(
        TableName=world.table, Key={"pk": {"S": keys.job(job.id)}, "sk": {"S": keys.RECORD}}
    )["Item"]
    world.client.put_item(TableName=world.table, Item={**whole, **changed})


# --- what it costs --------------------------------------------------------------------------------


def test_the_first_failure_of_half_a_kilobyte_is_two_units_and_two_calls(exact: World) -> None:
    warm(exact)
    job = exact.push(incompressible(460), kind="email.send", retry=RETRY)
    exact.fetch(worker=WORKER)
    with spending(exact) as spent:
        exact.run.finish.nack(job.id, error=dict(ERROR), worker_id=WORKER)
    assert (spent.calls, spent.writes, spent.reads) == (2, 2, 1)


def test_a_large_error_costs_an_item_as_before(exact: World) -> None:
    warm(exact)
    job = exact.push(incompressible(460), kind="email.send", retry=RETRY)
    exact.fetch(worker=WORKER)
    error = ERROR | {"backtrace": ["f" * 80] * 8}
    with spending(exact) as spent:
        exact.run.finish.nack(job.id, error=error, worker_id=WORKER)
    assert (spent.calls, spent.writes, spent.reads) == (3, 3, 1)


@pytest.mark.parametrize("result", [1, "x" * 120])
def test_no_error_on_a_record_costs_more_than_its_item(
    exact: World, monkeypatch: pytest.MonkeyPatch, result: Any
) -> None:
    """At whatever size it just fits: nacked, fetched again, acked."""
    warm(exact)

    def spent(size: int) -> float:
        exact.push(incompressible(size), kind="email.send", retry=RETRY)
        (job,) = exact.fetch(worker=WORKER)
        with spending(exact) as nacked:
            exact.run.finish.nack(job.id, error=dict(ERROR), worker_id=WORKER)
        exact.clock.advance(10_000)
        with spending(exact) as ended:
            exact.fetch(worker=WORKER)
            exact.run.finish.ack(job.id, worker_id=WORKER, result=result)
        return nacked.writes + ended.writes

    sizes = range(400, 521, 20)
    noted = [spent(size) for size in sizes]
    monkeypatch.setattr(items, "has_room", lambda *_: False)
    apart = [spent(size) for size in sizes]
    assert all(one <= other for one, other in zip(noted, apart, strict=True))
    assert noted[0] < apart[0]


@pytest.mark.parametrize(("attempts", "size"), [(1, 460), (3, 100)])
def test_a_page_of_dead_letters_is_read_with_their_errors(
    exact: World, attempts: int, size: int
) -> None:
    """It was 50.5 and 100.5 units."""
    retry = {"max_attempts": attempts, "initial_interval": "PT1S"}
    for _ in range(25):
        exact.push(incompressible(size), kind="email.send", retry=retry)
    for _ in range(attempts):
        for job in exact.fetch(count=25):
            exact.run.finish.nack(job.id, error=dict(ERROR))
        exact.clock.advance(60_000)
    with spending(exact) as spent:
        page = exact.run.dead_letter.list(DeadLetterFilter("default"), limit=25)
    assert [len(job.errors or ()) for job in page.items] == [attempts] * 25
    assert (spent.calls, spent.reads) == (2, 25.5)


def test_the_text_on_the_record_is_short() -> None:
    failure = Failure(1, "smtp_refused", "SmtpError", "mailbox full", 1_800_000_000_000)
    (told,) = json.loads(compact([ErrorEntry(failure, run="token", reported=True)]))
    assert told == [1, 1800000000000, 0, "token", 5, "smtp_refused", "SmtpError", "mailbox full"]
