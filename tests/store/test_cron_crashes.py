"""Dying, losing answers and being throttled at every call of the paths of cron jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.access import ANYBODY
from ojs.domain.errors import NotFound
from ojs.services.operations.tidy import Tidy
from ojs.store.jobs.orphans import Orphans
from ojs.store.table import keys
from tests.store.conftest import make_world
from tests.store.faults import FAULTS, Faulty, attempt, orphans

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine
    from ojs.runtime import Runtime
    from tests.store.conftest import World

MINUTE = 60_000
RAW = {
    "name": "c",
    "expression": "* * * * *",
    "job_template": {"type": "t", "args": [], "options": {"queue": "q"}},
}
LARGE = {**RAW, "job_template": {"type": "t", "args": ["x" * 3_000], "options": {"queue": "q"}}}


def registered(world: World, **more: Any) -> None:
    world.run.crons.register({**RAW, **more}, ANYBODY, None)


def due(world: World, **more: Any) -> None:
    registered(world, **more)
    world.clock.advance(MINUTE - world.clock.now_ms() % MINUTE)


def due_again(world: World, **more: Any) -> None:
    """Its job of the tick before runs."""
    due(world, **more)
    assert len(world.fetch("q")) == 1
    world.clock.advance(MINUTE)


def jobs_of(world: World) -> list[dict[str, Any]]:
    return [
        item
        for item in world.items()
        if item["pk"]["S"].startswith(keys.job("")) and item["sk"]["S"] == keys.RECORD
    ]


def definitions(world: World) -> list[str]:
    """Sort keys of the definitions that stand apart."""
    found = (item["sk"]["S"] for item in world.items())
    return [sk for sk in found if sk.startswith(keys.DEFINITION)]


def fire(run: Runtime) -> Any:
    return run.fire("c")


def fetch(run: Runtime) -> Any:
    return run.fetch.fetch(["q"], 1, "w")


def sweep(run: Runtime) -> Any:
    return run.sweep.run_once(run.clock.now_ms(), 1_000)


def delete(run: Runtime) -> Any:
    try:
        return run.crons.delete("c", ANYBODY)
    except NotFound:
        # By the call before, whose answer was lost.
        return True


FIRING: list[tuple[str, Callable[[World], None], Callable[[Runtime], Any], int]] = [
    ("the first tick", due, fire, 1),
    ("at a fetch", due, fetch, 1),
    ("in the sweep", due, sweep, 1),
    ("in spite of one", lambda world: due_again(world, overlap_policy="allow"), fire, 2),
    ("instead of one", lambda w: due_again(w, overlap_policy="cancel_previous"), fire, 2),
    ("after one", lambda world: due_again(world, overlap_policy="enqueue"), fire, 2),
    ("skipped", due_again, fire, 1),
]


# `make test` has one kind of fault.
SOME_FAULTS = pytest.mark.parametrize(
    "kinds", [("died after",), pytest.param(FAULTS, marks=pytest.mark.exhaustive)]
)


def each_fault(
    engine: DynamoDBClient, kinds: tuple[str, ...], before: Callable[[World], None]
) -> Iterator[tuple[World, Runtime, str]]:
    """For each fault: a world after `before`, a container that has the fault, and where it is."""
    for fault in kinds:
        for number in range(1, 60):
            world = make_world(engine)
            before(world)
            client = Faulty(world.client, number, fault)
            yield world, world.another(client), f"{fault} at call {number}"
            engine.delete_table(TableName=world.table)
            if client.calls < number:
                break
        else:
            pytest.fail("a path with sixty calls")


@SOME_FAULTS
@pytest.mark.parametrize("row", FIRING, ids=lambda row: row[0])
def test_a_tick_fires_once_and_its_job_is_not_lost(
    dynoxide: Engine, dynamodb: DynamoDBClient, row: Any, kinds: tuple[str, ...]
) -> None:
    _, before, act, jobs = row
    for world, broken, where in each_fault(dynamodb, kinds, before):
        ticks = world.run.crons.get("c", ANYBODY).tick_ms
        attempt(partial(act, broken))
        # Another container, and the sweep of the minute, which look at what is still due.
        act(world.run)
        world.sweep()
        cron = world.run.crons.get("c", ANYBODY)
        found = jobs_of(world)
        assert len(found) == cron.runs == jobs, where
        assert {job["pk"]["S"] for job in found} >= {keys.job(each) for each in cron.jobs}
        log = world.run.crons.history("c", ANYBODY, limit=10).items
        told = [run for run, _ in log if run.scheduled_ms == ticks]
        assert len(told) == 1, where
        assert (cron.tick_ms or 0) > world.clock.now_ms()
        states = sorted(job["state"]["S"] for job in found)
        if cron.definition.overlap == "cancel_previous":
            assert "cancelled" in states, where
        assert orphans(world) == [], where


# What is there, what is asked for, what must hold then.
MANAGING: list[tuple[str, Callable[..., Any], Callable[..., Any], Callable[[Any], Any]]] = [
    (
        "register",
        lambda _: None,
        lambda run: run.crons.register(RAW, ANYBODY, None),
        lambda cron: cron.runs == 0 and cron.due_ms,
    ),
    (
        "register a large one",
        lambda _: None,
        lambda run: run.crons.register(LARGE, ANYBODY, None),
        lambda cron: len(cron.definition.template["args"][0]) == 3_000,
    ),
    (
        "replace a large one",
        lambda world: registered(world, **LARGE),
        lambda run: run.crons.register({**LARGE, "description": "new"}, ANYBODY, None),
        lambda cron: cron.definition.description == "new",
    ),
    (
        "change",
        registered,
        lambda run: run.crons.change("c", {"timezone": "Asia/Tokyo"}, ANYBODY, None),
        lambda cron: cron.definition.timezone == "Asia/Tokyo",
    ),
    (
        "pause",
        registered,
        lambda run: run.crons.enable("c", ANYBODY, enabled=False),
        lambda cron: cron.due_ms is None,
    ),
    ("delete", registered, delete, lambda cron: cron is None),
    ("delete a large one", lambda w: registered(w, **LARGE), delete, lambda cron: cron is None),
]  # fmt: skip


@SOME_FAULTS
@pytest.mark.parametrize("row", MANAGING, ids=lambda row: row[0])
def test_what_is_tried_again_is_done_once(
    dynoxide: Engine, dynamodb: DynamoDBClient, row: Any, kinds: tuple[str, ...]
) -> None:
    _, before, act, holds = row
    for world, broken, where in each_fault(dynamodb, kinds, before):
        if attempt(partial(act, broken)) is None:
            act(world.run)
        assert holds(world.run.stores.crons.get("c")), where
        # One that nobody refers to may be left by who dies, or is refused its removal.
        assert len(definitions(world)) <= 1 + ("answer lost" not in where), where
        Tidy(Orphans(world.run.table), lambda _: None).run()
        cron = world.run.stores.crons.get("c")
        apart = [] if cron is None or cron.definition_ref is None else [cron.definition_ref]
        assert definitions(world) == [keys.DEFINITION + ref for ref in apart], where
        # The queue is swept, whatever happened, so that it fires.
        world.clock.advance(2 * MINUTE)
        world.sweep()
        cron = world.run.stores.crons.get("c")
        assert cron is None or not cron.enabled or cron.runs == 1, where


@SOME_FAULTS
def test_triggering_counts_each_job_that_is_stored(
    dynoxide: Engine, dynamodb: DynamoDBClient, kinds: tuple[str, ...]
) -> None:
    for world, broken, where in each_fault(dynamodb, kinds, registered):
        attempt(partial(broken.crons.trigger, "c", ANYBODY, None))
        world.run.crons.trigger("c", ANYBODY, None)
        cron = world.run.crons.get("c", ANYBODY)
        assert len(jobs_of(world)) == cron.runs, where
        assert len(world.run.crons.history("c", ANYBODY, limit=10).items) == cron.runs, where
        assert cron.runs in (1, 2)


def test_two_who_register_at_once_make_one(exact: World) -> None:
    """The second finds what the first stored in between, and updates that."""
    other = exact.another()
    stored = exact.run.stores.crons
    original = stored.add

    def late(cron: Any) -> Any:
        other.crons.register({**RAW, "description": "first"}, ANYBODY, None)
        return original(cron)

    stored.add = late  # type: ignore[method-assign]
    made = exact.run.crons.register({**RAW, "description": "second"}, ANYBODY, None)
    assert not made.created
    assert exact.run.crons.get("c", ANYBODY).definition.description == "second"


def test_a_pause_in_the_moment_of_firing_wins_or_comes_after(exact: World) -> None:
    due(exact)
    other = exact.another()
    original = exact.run.enqueue.push

    def late(*given: Any, **named: Any) -> Any:
        other.crons.enable("c", ANYBODY, enabled=False)
        return original(*given, **named)

    exact.run.enqueue.push = late  # type: ignore[method-assign]
    assert exact.run.fire("c") is None
    assert jobs_of(exact) == []
    assert exact.run.crons.get("c", ANYBODY).runs == 0
