"""Queues rest while nothing changes in them; whatever is due is found all the same, by the sweep
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from ojs.domain.job import envelope
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.runtime import Runtime
from ojs.services.operations.metrics_sweep import MetricsReport
from ojs.services.queues import rest
from ojs.services.sweeps import REPLACED_MS, TURNS
from ojs.store.deployment.notes import DeploymentStore
from ojs.store.queues.due_notes import BUCKET_MS
from ojs.store.queues.registry import QUIET_MS, QueueRegistry, RegistryQueue
from ojs.store.table import keys
from tests.spread import spread
from tests.store.due import overdue, push, unnoted
from tests.store.faults import attempt, faults
from tests.store.spending import spending
from tests.store.streams import Projected, Stream

if TYPE_CHECKING:
    from tests.store.conftest import World

    Worlds = Callable[[], AbstractContextManager[World]]

MINUTE_MS = 60_000
LATER = "+PT30M"


def minute(world: World, *, ms: int = MINUTE_MS) -> None:
    """Time passes, then the sweeps run that find what is due, and let queues rest."""
    world.clock.advance(ms)
    now_ms = world.clock.now_ms()
    with world.run.sweep_queues.shared():
        for sweep in (world.run.sweep, world.run.rest):
            assert not sweep.run_once(now_ms, 1_000).failures


def measured(world: World) -> MetricsReport:
    """What the metrics sweep sees."""
    return world.run.metrics_sweep.run_once(world.clock.now_ms(), 1_000)


def known(world: World, name: str = "default") -> RegistryQueue:
    (found,) = [queue for queue in world.run.stores.registry.all() if queue.name == name]
    return found


def lull(world: World, name: str = "default") -> None:
    """Nothing happens for so long that the queue rests."""
    minute(world, ms=QUIET_MS)
    assert known(world, name).rest is not None
    # Not in a minute in which it is looked at all the same.
    while name in world.run.sweep_queues.plan().names:
        minute(world)
    assert name not in world.run.sweep_queues.plan().names


@pytest.fixture
def resting(exact: World) -> World:
    exact.run.queues.create("default", {})
    lull(exact)
    return exact


# --- what is due is found -------------------------------------------------------------------------


def fetch(run: Runtime) -> list[str]:
    return [job.id for job in run.fetch.fetch(["default"], 1, "w", visibility_timeout_ms=60_000)]


def done(run: Runtime, jobs: Iterable[Job]) -> None:
    for job in jobs:
        run.finish.ack(job.id)


def nack(run: Runtime, job_id: str) -> Any:
    return run.finish.nack(job_id, error={"code": "x", "message": "x"}, worker_id="w")


ACTS: dict[str, Callable[[Runtime], Any]] = {
    "a start": lambda run: push(run, scheduled_at=LATER),
    "a deadline": lambda run: push(run, expires_at=LATER),
    "starts of a batch": lambda run: push(run, 3, scheduled_at=LATER),
    "a lost lease": fetch,
}


def half_an_hour(world: World) -> None:
    """Nobody asks for anything, and the queue rests meanwhile."""
    minute(world)
    minute(world, ms=QUIET_MS)
    minute(world, ms=30 * MINUTE_MS - QUIET_MS)
    assert not overdue(world)


@pytest.mark.parametrize("what", spread(ACTS, 3))
def test_what_is_due_is_found_wherever_the_request_died(resting: World, what: str) -> None:
    """At each of its calls, in each way: by the sweep alone, and in the minute in which it is due,
    though the queue rests before.
    """
    stored = 0
    for run, _ in faults(resting):
        if what == "a lost lease":
            push(resting.run)
            lull(resting)
        attempt(lambda run=run: ACTS[what](run))  # type: ignore[misc]
        half_an_hour(resting)
        stored += bool(known(resting).rest)
        lull(resting)
    jobs = [item for item in resting.items() if "state" in item and "J|" in item["pk"]["S"]]
    assert stored
    assert len(jobs) > 5


@pytest.mark.exhaustive
def test_a_retry_is_found_wherever_the_nack_died(resting: World) -> None:
    """Of a job that runs for so long that its queue rests."""
    retry = {"max_attempts": 3, "initial_interval": "PT20M", "jitter": False}
    lasting: dict[str, Any] = {"visibility_timeout_ms": 43_200_000, "timeout_ms": 43_200_000}
    for run, _ in faults(resting):
        (job_id,) = push(resting.run, retry=retry, **lasting)
        assert [job.id for job in resting.run.fetch.fetch(["default"], 1, "w")] == [job_id]
        # It gets its entry in the index.
        minute(resting, ms=61_000)
        lull(resting)
        answered = attempt(lambda run=run, job_id=job_id: nack(run, job_id))  # type: ignore[misc]
        half_an_hour(resting)
        stored = resting.run.stores.jobs.read_record(job_id)
        assert stored is not None
        assert stored.state in (State.ACTIVE, State.AVAILABLE)
        assert stored.state is State.AVAILABLE or answered is None
        resting.run.jobs.cancel(job_id)
        lull(resting)


def test_a_lease_that_was_extended_is_found(resting: World) -> None:
    """The index has its first end; the worker lives for half an hour, and dies."""
    push(resting.run)
    (job_id,) = fetch(resting.run)
    for _ in range(30):
        resting.run.workers.beat("w", active_jobs=[job_id])
        minute(resting, ms=50_000)
        assert resting.state(resting.run.jobs.get(job_id)) == "active"
    minute(resting, ms=61_000)
    assert resting.run.stores.jobs.read_record(job_id).state is not State.ACTIVE  # type: ignore[union-attr]


def test_a_start_in_a_year_is_found_then(resting: World) -> None:
    (job_id,) = push(resting.run, scheduled_at="+P365D")
    lull(resting)
    while known(resting).name in resting.run.sweep_queues.plan().names:
        minute(resting)
    resting.clock.advance(365 * 86_400_000 - 60 * MINUTE_MS)
    lull(resting)
    minute(resting, ms=60 * MINUTE_MS)
    assert resting.state(resting.run.jobs.get(job_id)) == "available"
    assert not overdue(resting)


def test_the_first_of_all_lanes_and_lines_is_waited_for(exact: World) -> None:
    exact.run.queues.create("default", {"lanes": 3})
    for number in range(12):
        push(exact.run, scheduled_at=f"+PT{20 + number}M", expires_at=f"+PT{50 + number}M")
    minute(exact, ms=QUIET_MS)
    assert known(exact).rest is not None
    for _ in range(60):
        minute(exact)
        assert not overdue(exact)


# --- why nothing is missed ------------------------------------------------------------------------


def test_a_note_costs_one_call_for_a_line_an_interval_and_a_container(resting: World) -> None:
    """And only where something has to be found at a time."""

    def spent(act: Callable[[], object]) -> tuple[int, float]:
        with spending(resting) as it:
            act()
        return it.calls, it.writes

    run = resting.run
    resting.clock.advance(BUCKET_MS - resting.clock.now_ms() % BUCKET_MS)
    later: dict[str, Any] = {"scheduled_at": "+PT1H"}
    assert spent(lambda: push(run)) == (2, 2)
    assert spent(lambda: push(run, **later)) == (3, 3)
    assert spent(lambda: push(run, **later)) == (2, 2)
    resting.clock.advance(BUCKET_MS - 1)
    assert spent(lambda: push(run, **later)) == (2, 2)
    resting.clock.advance(1)
    assert spent(lambda: push(run, **later)) == (3, 3)
    # Many at once are noted by one call for 25 intervals.
    requests = [
        {"type": "t", "args": [], "options": {"scheduled_at": f"+PT{minutes}M"}}
        for minutes in range(2, 102, 5)
    ]
    parsed = [envelope.parse(request) for request in requests]
    with spending(resting) as it:
        run.enqueue.push_batch(parsed)
    with spending(resting) as again:
        run.enqueue.push_batch(parsed)
    # Two of the twenty intervals are noted. The container's slot of batches is noted with them.
    assert (it.calls - again.calls, it.writes - again.writes) == (1, 18 + 1)
    # Nothing is noted that the sweep finds by itself before.
    assert spent(lambda: push(run, scheduled_at="+PT131M")) == (2, 2)
    # What was noted for a start holds for a short lease, too; a longer one leaves no entry.
    soon: dict[str, Any] = {"scheduled_at": "+PT5S"}
    resting.clock.advance(3 * 3_600_000)
    for lease_ms, more in ((10_000, 1), (30_000, 0)):
        units = []
        for options in (soon, {}):
            resting.clock.advance(BUCKET_MS)
            # Whatever waits is done with.
            while jobs := run.fetch.fetch(["default"], 10, None):
                done(run, jobs)
            push(run, visibility_timeout_ms=lease_ms)
            push(run, **options)
            with spending(resting) as it:
                claimed = run.fetch.fetch(["default"], 1, None)
            units.append(it.writes)
            done(run, claimed)
        assert units[1] == units[0] + more


class Between(QueueRegistry):
    """A registry at which somebody is quicker."""

    act: Callable[[], object]

    def let_rest(self, *arguments: Any) -> bool:
        self.act()
        return super().let_rest(*arguments)


def test_whoever_comes_while_a_queue_is_looked_at_keeps_it_awake(exact: World) -> None:
    exact.run.queues.create("default", {})
    exact.clock.advance(QUIET_MS)
    registry = Between(exact.run.table, exact.clock)
    registry.act = lambda: exact.another().stores.registry.note("default")
    sweep, now_ms = exact.run.rest, exact.clock.now_ms()
    sweep._registry = registry
    assert dict(sweep.run_once(now_ms, 100)) == {"plain": 1, "quiet": 1}
    assert known(exact).noted_ms == now_ms
    assert known(exact).rest is None


def test_a_queue_that_goes_meanwhile_is_not_listed_again(exact: World) -> None:
    exact.run.queues.create("default", {})
    exact.clock.advance(QUIET_MS)
    gone = known(exact)
    registry = Between(exact.run.table, exact.clock)
    registry.act = lambda: exact.run.deletion.delete("default", "reject")
    exact.run.rest._registry = registry
    assert exact.run.rest.run_once(exact.clock.now_ms(), 100)["quiet"] == 1
    assert exact.run.stores.registry.all() == []
    # Nor by who notes it late.
    exact.another().stores.registry.note(gone.name)
    assert exact.run.stores.registry.all() == []
    registry.act = lambda: None
    # Created again, it is looked at: whoever has noted the old one may note nothing for a while.
    push(exact.run, scheduled_at=LATER)
    minute(exact)
    assert known(exact).rest is None
    half_an_hour(exact)


class Unnoted:
    """A client that fails to note lines, in one way."""

    def __init__(self, client: Any, error: Exception) -> None:
        self._client, self._error = client, error
        self.notes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def batch_write_item(self, **arguments: Any) -> Any:
        (items,) = arguments["RequestItems"].values()
        if any(item["PutRequest"]["Item"]["pk"]["S"].startswith("DN|") for item in items):
            self.notes += 1
            raise self._error
        return self._client.batch_write_item(**arguments)


@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "ThrottlingException"}}, "BatchWriteItem"),
        ReadTimeoutError(endpoint_url="dynamodb"),
    ],
    ids=["refused", "timed out"],
)
def test_what_cannot_be_noted_is_not_done(exact: World, error: Exception) -> None:
    """And what was acquired for it is free again."""
    exact.run.queues.configure("default", {"max_size": 2, "concurrency": 1})
    push(exact.run)
    before = exact.items()
    for act in (lambda run: push(run, scheduled_at="+PT1H"), fetch):
        client = Unnoted(exact.client, error)
        attempt(lambda act=act, client=client: act(exact.another(client)))  # type: ignore[misc]
        assert client.notes

    def jobs(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [item for item in items if item["pk"]["S"].startswith("J|")]

    assert jobs(exact.items()) == jobs(before)
    # There is room for one more, and one may run.
    push(exact.run)
    assert len(fetch(exact.run)) == 1


# --- whatever is lost, within an hour -------------------------------------------------------------


def test_a_lost_note_costs_an_hour_at_most(resting: World) -> None:
    (job_id,) = push(unnoted(resting), scheduled_at="+PT1S")

    def waits() -> bool:
        job = resting.run.stores.jobs.read_record(job_id)
        return job is not None and job.state is State.SCHEDULED

    minute(resting)
    # Otherwise this shows nothing.
    assert waits()
    for _ in range(TURNS - 1):
        minute(resting)
    assert not waits()


def test_what_an_hour_shows_that_is_due_later_is_waited_for(resting: World) -> None:
    """Not for another hour."""
    push(unnoted(resting), 3, scheduled_at="+PT61M")
    for _ in range(64):
        minute(resting)
    assert not overdue(resting)


def test_each_queue_is_looked_at_once_an_hour(exact: World) -> None:
    names = [f"q{number:03d}" for number in range(130)]
    rested = f"[{exact.clock.now_ms()},null,0,null,0,{{}}]"
    exact.run.table.write_many(
        {"pk": keys.QUEUES, "sk": name, "at": 1, "rest": rested, "plain": exact.clock.now_ms()}
        for name in names
    )
    seen: list[str] = []
    minute(exact)
    for _ in range(TURNS):
        minute(exact)
        part = exact.run.sweep_queues.plan().names
        assert len(part) <= 8
        seen += part
    assert sorted(seen) == names


def test_nothing_rests_for_an_hour_after_a_deployment(resting: World) -> None:
    """Functions of version 0.2 note nothing, and are replaced by then: also when a deployment goes
    back to 0.2, and forward again.
    """
    DeploymentStore(resting.run.table).note(version="0.2", now_ms=resting.clock.now_ms())
    (job_id,) = push(unnoted(resting), scheduled_at="+PT20M")
    resting.clock.advance(15 * MINUTE_MS)
    DeploymentStore(resting.run.table).note(version="0.3", now_ms=resting.clock.now_ms())
    for _ in range(REPLACED_MS // MINUTE_MS - 1):
        minute(resting)
        assert resting.run.sweep_queues.plan().names == ["default"]
        assert not overdue(resting)
    assert resting.state(resting.run.jobs.get(job_id)) == "available"
    before = known(resting).rest
    minute(resting, ms=2 * MINUTE_MS)
    assert known(resting).rest != before
    lull(resting)


def test_queues_that_0_2_has_registered_rest_after_that_hour(exact: World) -> None:
    DeploymentStore(exact.run.table).note(version="0.3", now_ms=exact.clock.now_ms())
    for name in ("default", "other"):
        exact.run.queues.create(name, {})
        exact.run.table.write_many([{"pk": keys.QUEUES, "sk": name}])
    minute(exact, ms=REPLACED_MS - 1)
    assert [queue.rest for queue in exact.run.stores.registry.all()] == [None, None]
    # Race: a container notes one of them for the first time while the sweep looks at it.
    registry = Between(exact.run.table, exact.clock)
    registry.act = lambda: exact.another().stores.registry.note("default")
    exact.run.rest._registry = registry
    minute(exact, ms=1)
    assert known(exact).rest is None
    assert known(exact, "other").rest is not None


@pytest.mark.parametrize("text", ["", "[]", "{", "[1,2]", '["a",1,1,1,1,1]'])
def test_a_damaged_rest_is_none(resting: World, text: str) -> None:
    item = resting.run.table.get(keys.QUEUES, "default") or {}
    resting.run.table.write_many([item | {"rest": text}])
    assert known(resting).rest is None
    assert resting.run.sweep_queues.plan().resting == {}


# --- what never rests, and who wakes it -----------------------------------------------------------


RULE = {"name": "r", "filter": {}, "delay": "PT1H", "max_replays": 1}


@pytest.mark.parametrize(
    "config",
    [
        {"max_size": 10},
        {"concurrency": 3},
        {"replay_rules": [RULE]},
        {"tenant_fairness": {"enabled": True}},
    ],
    ids=lambda config: next(iter(config)),
)
def test_what_sweeps_look_after_is_looked_at_each_minute(
    resting: World, config: dict[str, Any]
) -> None:
    """From the request on that configures it, though the container dies after it."""
    resting.another().queues.configure("default", config)
    for _ in range(12):
        minute(resting)
        assert resting.run.sweep_queues.plan().names == ["default"]


def test_a_queue_that_is_deleted_wakes(resting: World) -> None:
    push(resting.run)
    minute(resting, ms=QUIET_MS)
    assert known(resting).rest is not None
    for run, _ in faults(resting):
        attempt(lambda run=run: run.deletion.delete("default", "drain"))  # type: ignore[misc]
        queue = resting.run.stores.queues.get("default")
        if queue is not None and queue.deletion is not None:
            assert resting.run.sweep_queues.plan().names == ["default"]
            break
    else:
        pytest.fail("no deletion began")


def test_a_paused_queue_rests_and_its_jobs_come_in_time(resting: World) -> None:
    resting.run.queues.pause("default")
    (job_id,) = push(resting.run, scheduled_at=LATER)
    half_an_hour(resting)
    minute(resting)
    assert resting.state(resting.run.jobs.get(job_id)) == "available"


# --- gauges ---------------------------------------------------------------------------------------


def test_gauges_are_exact_while_queues_rest(
    streamed: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of what no note goes before: pushes and acks."""
    monkeypatch.setattr(rest, "_IDLE_MS", QUIET_MS)
    with streamed() as world:
        stream = Stream(world.client, world.table)
        derived = Projected(world.client, world.table, world.clock)
        for name in ("default", "other"):
            world.run.queues.create(name, {})
        lull(world)
        push(world.run)
        lull(world)
        # Counted late, as if the stream had stood still.
        derived.run(stream.take())
        found = measured(world)
        assert found.totals is not None
        assert (found.totals.queues, found.totals.levels.of(State.AVAILABLE)) == (2, 1)
        began_ms = found.queues[0].oldest_available_ms
        assert began_ms is not None
        lull(world)
        assert known(world).rest is not None
        found = measured(world)
        assert found.totals is not None
        assert found.totals.levels.of(State.AVAILABLE) == 1
        assert found.queues[0].oldest_available_ms == began_ms
        # A job ends in a queue that rests: nobody notes it, but the projection.
        (job_id,) = fetch(world.run)
        derived.run(stream.take())
        world.run.finish.ack(job_id)
        minute(world, ms=QUIET_MS)
        assert known(world).rest is not None
        derived.another().run(stream.take())
        assert known(world).rest is None
        found = measured(world)
        assert found.totals is not None
        assert found.totals.levels.of(State.COMPLETED) == 1
        assert found.totals.levels.of(State.ACTIVE) == 0
        assert found.queues[0].oldest_available_ms is None


def test_gauges_of_queues_in_use_are_read_when_they_change(streamed: Worlds) -> None:
    """Their counters, and their records."""
    with streamed() as world:
        stream = Stream(world.client, world.table)
        derived = Projected(world.client, world.table, world.clock)
        names = ["default", "other", "third"]

        def read() -> tuple[int, dict[str, int]]:
            derived.run(stream.take())
            turn = True
            while turn:
                world.clock.advance(MINUTE_MS)
                world.run.sweep.run_once(world.clock.now_ms(), 100)
                turn = bool(world.run.sweep_queues.plan().turn)
            found = measured(world)
            assert not found.failures
            counted = {each.queue.name: each.levels.of(State.AVAILABLE) for each in found.queues}
            return found.get("queues", 0), counted

        for name in names:
            world.run.queues.create(name, {})
            world.push(queue=name)
        world.clock.advance(QUIET_MS)
        minute(world)
        read()
        assert read() == (0, dict.fromkeys(names, 1))
        world.push(queue="other")
        assert read() == (1, {"default": 1, "other": 2, "third": 1})
        assert read()[0] == 0
        # Another container knows nothing yet.
        assert world.another().metrics_sweep.run_once(world.clock.now_ms(), 100)["queues"] == 3
        # While a record may change it is read each time.
        world.run.queues.configure("third", {"max_size": 10})
        for _ in range(5):
            assert read()[0] == 1
        (third,) = (each for each in measured(world).queues if each.queue.name == "third")
        assert third.filling is not None


def test_so_many_queues_rest_in_one_run(exact: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the others later."""
    monkeypatch.setattr(rest, "_QUEUES", 2)
    for number in range(5):
        exact.run.queues.create(f"q{number}", {})
    exact.clock.advance(QUIET_MS)
    exact.run.sweep.run_once(exact.clock.now_ms(), 100)
    first = exact.run.rest.run_once(exact.clock.now_ms(), 2)
    assert dict(first) == {"plain": 2, "quiet": 2, "rested": 2, "more": 1}
    again = exact.run.rest.run_once(exact.clock.now_ms(), 100)
    assert (again["plain"], again["rested"]) == (3, 3)
    assert dict(exact.run.rest.run_once(exact.clock.now_ms(), 100)) == {}


def test_a_store_that_notes_nothing_is_found_out(resting: World) -> None:
    """These tests can fail."""
    push(unnoted(resting), scheduled_at=LATER)
    with pytest.raises(AssertionError):
        half_an_hour(resting)


# --- what sweeps need not read --------------------------------------------------------------------


def test_a_plain_queue_in_use_is_not_read(resting: World) -> None:
    """Its gauges are."""
    for _ in range(12):
        resting.another().stores.registry.note("default")
        minute(resting)
    assert known(resting).rest is None
    while "default" in resting.run.sweep_queues.plan().turn:
        minute(resting)
    assert resting.run.sweep_queues.plan().names == []
    assert [each.queue.name for each in measured(resting).queues] == ["default"]


def test_a_change_is_seen_wherever_the_request_dies(resting: World) -> None:
    """From the note on, which comes before the change."""
    for run, _ in faults(resting):
        attempt(lambda run=run: run.queues.configure("default", {"concurrency": 2}))  # type: ignore[misc]
        queue = resting.run.stores.queues.get("default")
        assert queue is not None
        assert not queue.limits_concurrency or resting.run.sweep_queues.plan().names
        resting.run.queues.configure("default", {"concurrency": None})
        minute(resting)
        lull(resting)


def test_a_change_while_a_sweep_looks_leaves_no_mark(exact: World) -> None:
    """It has read the record as it was before."""
    exact.run.queues.create("default", {})
    exact.clock.advance(QUIET_MS)
    before = known(exact)
    exact.another().queues.configure("default", {"concurrency": 2})
    registry = exact.run.stores.registry
    assert not registry.mark_plain(before, now_ms=exact.clock.now_ms())
    assert not registry.mark_plain(known(exact), now_ms=exact.clock.now_ms())
    exact.clock.advance(QUIET_MS - 1)
    assert not registry.mark_plain(known(exact), now_ms=exact.clock.now_ms())
    minute(exact)
    assert exact.run.sweep_queues.plan().names == ["default"]


def test_a_lost_removal_of_a_mark_costs_an_hour_at_most(resting: World) -> None:
    run = resting.another()
    run.stores.registry.note = lambda name, changes=False: None  # type: ignore[method-assign, misc]
    run.queues.configure("default", {"concurrency": 2})
    for _ in range(TURNS):
        minute(resting)
    assert known(resting).plain_ms is None
    assert resting.run.sweep_queues.plan().names == ["default"]


def test_a_mark_of_before_a_deployment_is_not_used(resting: World) -> None:
    """The earlier version may have changed the record without a note of that."""
    assert known(resting).plain_ms is not None
    DeploymentStore(resting.run.table).note(version="0.2", now_ms=resting.clock.now_ms())
    resting.clock.advance(REPLACED_MS + MINUTE_MS)
    assert resting.run.sweep_queues.plan().names == ["default"]


def test_a_mark_does_not_bring_a_deleted_queue_back(resting: World) -> None:
    gone = known(resting)
    resting.run.deletion.delete("default", "reject")
    resting.run.stores.registry.unmark(gone)
    assert not resting.run.stores.registry.mark_plain(gone, now_ms=resting.clock.now_ms())
    assert resting.run.stores.registry.all() == []
