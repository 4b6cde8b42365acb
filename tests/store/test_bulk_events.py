"""Events of bulk work: one for each piece that was carried out, whoever ended it, at what price."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.domain.access import Principal, everything
from ojs.domain.bulk.operation import Action, JobIds
from ojs.domain.filters.dead_letters import DeadLetterFilter
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job import envelope
from ojs.domain.job.idempotency import IdempotencyKey
from ojs.services.bulk import runner as bulk
from ojs.store.table import keys
from tests.store.faults import attempt, faults
from tests.store.spending import spending, stage_once
from tests.store.streams import Projected, Stream, lambda_form

if TYPE_CHECKING:
    from ojs.runtime import Runtime
    from tests.store.conftest import World

Streamed = Callable[[], AbstractContextManager["World"]]
GONE = "01968f2a-0000-7000-8000-000000000001"


def told(world: World, stream: Stream) -> list[tuple[str, dict[str, Any]]]:
    """The events of bulk work since the last time; the records come twice."""
    found = Projected(world.client, world.table, world.clock)
    before = [event["id"] for event in found.events()]
    records = stream.take()
    assert found.run([lambda_form(record) for record in records]) == []
    assert found.run(records) == []
    return [
        (event["type"], event["data"])
        for event in found.events()
        if event["type"].startswith("bulk.") and event["id"] not in before
    ]


def dead(world: World) -> str:
    job = world.push(retry={"max_attempts": 1})
    (got,) = world.fetch()
    world.run.finish.nack(got.id, error={"message": "no"})
    return job.id


def test_operations_are_told_when_they_are_complete(streamed: Streamed) -> None:
    """With what they skipped; within the request, and by the sweep."""
    with streamed() as world:
        stream, begin = Stream(world.client, world.table), world.run.bulk.begin
        jobs = [world.push().id for _ in range(3)]
        begin(Action.CANCEL_JOBS, JobIds((*jobs[:2], GONE)))
        data: dict[str, Any] = {"total": 3, "cancelled": 2, "skipped": 1}
        assert told(world, stream) == [("bulk.cancel.completed", data)]

        with mock.patch.object(bulk, "REQUEST_JOBS", 1):
            begin(Action.DELETE_JOBS, JobIds((*jobs[:2],)))
        assert told(world, stream) == []
        world.clock.advance(60_001)
        world.run.bulk.run_once(world.clock.now_ms(), 100)
        data = {"total": 2, "deleted": 2, "skipped": 0}
        assert told(world, stream) == [("bulk.delete.completed", data)]

        begin(Action.CANCEL_JOBS, JobFilter("default"))
        told(world, stream)
        dead(world)
        begin(Action.RETRY_JOBS, JobFilter("default"))
        data = {"total": 1, "retried": 1, "skipped": 0}
        assert told(world, stream) == [("bulk.retry.completed", data)]


def test_other_work_of_the_same_record_is_not_told(streamed: Streamed) -> None:
    """Dry runs, dead letters, erasures, and what an operator stopped."""
    with streamed() as world:
        stream, begin = Stream(world.client, world.table), world.run.bulk.begin
        begin(Action.RETRY, DeadLetterFilter(queue=None))
        dead(world)
        begin(Action.PURGE, DeadLetterFilter(queue=None))
        job = world.push()
        begin(Action.CANCEL_JOBS, JobIds((job.id,)), dry_run=True)
        begin(Action.ERASE_JOBS, JobIds((job.id,)))
        job = world.push()
        other = begin(Action.CANCEL_JOBS, JobIds((job.id,)), go_on=lambda: False).operation
        world.run.bulk.stop(other.id)
        assert told(world, stream) == []


def bulk_push(run: Runtime, count: int, key: str | None, *, atomic: bool = False) -> None:
    """As the handler does."""
    raw = [{"type": "t", "args": [number]} for number in range(count)]
    requests = [envelope.parse(job) for job in raw]
    sent = None
    if key is not None:
        caller = Principal("a", key="a" * 16)
        sent = IdempotencyKey.of(key, caller=caller, operation=f"{count}", body={"jobs": raw})
    if not atomic:
        outcomes = run.bulk_push.push(requests, key=sent, producer=None, reaches=everything)
    elif sent is not None:
        outcomes = list(run.idempotent_push.push(sent, requests, batch=True))
    else:
        outcomes = list(run.enqueue.push_batch(requests))
    run.bulk_push.note(outcomes, "atomic" if atomic else "partial")


@pytest.mark.parametrize("atomic", [False, True])
def test_a_bulk_enqueue_is_told_once_for_each_key(streamed: Streamed, atomic: bool) -> None:
    with streamed() as world:
        stream = Stream(world.client, world.table)
        atomicity = "atomic" if atomic else "partial"
        for count in (2, 6):
            data = {"total": count, "succeeded": count, "failed": 0, "atomicity": atomicity}
            event = [("bulk.enqueue.completed", data)]
            named = f"k{count}"
            for key, expected in ((None, event), (None, event), (named, event), (named, [])):
                bulk_push(world.another(), count, key, atomic=atomic)
                assert told(world, stream) == expected


def noted(world: World) -> list[dict[str, Any]]:
    """What the stream is told of bulk enqueues."""
    return [item for item in world.items() if item["pk"]["S"].startswith(keys.bulk_push(""))]


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("count", [2, 6])
def test_whatever_call_goes_wrong_it_is_told_at_most_once(
    exact: World, count: int, atomic: bool
) -> None:
    """And the jobs are stored all the same: only a try that was cut off has no event."""
    exact.push(0)
    most = []
    for number, (run, _) in enumerate(faults(exact), start=1):
        before = len(noted(exact))
        tries: list[Runtime] = [run, exact.another(), exact.another()]
        for each in tries:
            attempt(partial(bulk_push, each, count, f"k{number}", atomic=atomic))
            exact.clock.advance(5_000)
        most.append(len(noted(exact)) - before)
    assert max(most) == 1


@pytest.mark.parametrize("atomic", [False, True])
def test_what_it_costs(exact: World, atomic: bool) -> None:
    """A call and a write unit for a request, whatever its number of jobs."""
    exact.push(0)
    stage_once(exact)
    for count in (1, 6, 100):
        with mock.patch.object(exact.run.bulk_push, "note"), spending(exact) as without:
            bulk_push(exact.run, count, None, atomic=atomic)
        with spending(exact) as spent:
            bulk_push(exact.run, count, None, atomic=atomic)
        assert (spent.calls, spent.writes) == (without.calls + 1, without.writes + 1)
