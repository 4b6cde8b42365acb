"""Listed workers: what a fetch writes for them, and when it tells them to come again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from ojs.domain.access import Principal
from ojs.domain.errors import PermissionDenied
from ojs.domain.job.job import Job
from ojs.domain.realtime import CONNECTION_MS, group_of
from ojs.domain.stats import WorkerCounts
from ojs.services.jobs.empty_lines import FEW
from ojs.services.jobs.fetch import WorkerFetch
from ojs.services.realtime.listening import FALLBACK_MS, ListenerState
from ojs.store.realtime import directory
from tests.store.conftest import World
from tests.store.doubles import Broken
from tests.store.ringing import QUEUE, Hub, connect, in_memory, listens
from tests.store.spending import Spent, spending

SECOND = 1_000
MINUTE = 60_000


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def world(hub: Hub) -> World:
    return in_memory(hub)


@pytest.fixture
def counted(exact: World, hub: Hub) -> World:
    """The same on a table whose units are DynamoDB's."""
    exact.connections = hub
    exact.run = exact.another()
    # The queue exists and the worker is known, as in steady operation.
    exact.push(queue=QUEUE)
    exact.fetch(QUEUE, worker="c1")
    return exact


@dataclass
class Worker:
    """A worker as it fetches: with its connection, and whether it is listed as it knows."""

    world: World
    connection: str
    queues: tuple[str, ...] = (QUEUE,)
    slots: int = 1
    caller: Principal = field(default_factory=lambda: Principal(None))
    listed: bool | None = False
    next_ms: int | None = None

    def fetch(self, *, rung: tuple[str, ...] = (), pool: str | None = None) -> list[Job]:
        run = self.world.run
        assert run.listening is not None
        seen = WorkerFetch(frozenset(rung), self.connection, self.listed)
        jobs = run.fetch.fetch(
            None if pool else self.queues, self.slots, self.connection, pool=pool, seen=seen
        )
        heard = run.listening.update(seen, worker_id=self.connection, caller=self.caller)
        assert heard is not None
        self.listed, self.next_ms = heard.listed, heard.next_ms
        run.flush()
        return jobs

    def costs(self) -> Spent:
        """What a fetch costs more than one without a connection."""
        with spending(self.world) as plain:
            self.world.run.fetch.fetch(self.queues, self.slots, self.connection)
        with spending(self.world) as spent:
            self.fetch()
        return Spent(
            spent.calls - plain.calls, spent.writes - plain.writes, spent.reads - plain.reads
        )


def worker(world: World, name: str = "c1", **more: Any) -> Worker:
    return Worker(world, connect(world, name), **more)


def listed(world: World, queues: tuple[str, ...] = (QUEUE,)) -> list[str]:
    found = world.run.stores.listeners.list_first(group_of(queues), now_ms=world.clock.now_ms())
    return sorted(listener.connection for listener in found)


# --- what it costs --------------------------------------------------------------------------------


def test_listing_costs_one_read_unit_and_one_write_unit(counted: World) -> None:
    one = worker(counted)
    one.fetch()
    # The first time: the group in the directory, in the connection's record, in the worker's.
    assert listed(counted) == ["c1"]
    counted.push(queue=QUEUE)
    one.fetch()
    assert listed(counted) == []
    assert one.costs() == Spent(2, 1.0, 1.0)
    assert listed(counted) == ["c1"]


def test_delisting_costs_one_write_unit(counted: World) -> None:
    one = worker(counted)
    one.fetch()
    for _ in range(2):
        counted.push(queue=QUEUE)
    counted.run.flush()
    assert one.costs() == Spent(1, 1.0, 0.0)
    assert one.listed is False


def test_a_listed_fetch_costs_half_a_read_unit(counted: World) -> None:
    one = worker(counted)
    one.fetch()
    assert one.costs() == Spent(1, 0.0, 0.5)


def test_a_fetch_that_is_filled_each_time_costs_nothing(counted: World) -> None:
    one = worker(counted)
    for _ in range(2):
        counted.push(queue=QUEUE)
    counted.run.flush()
    assert one.costs() == Spent()
    assert (one.listed, one.next_ms) == (False, None)


def test_a_group_stays_in_the_directory_for_hours(world: World) -> None:
    one = worker(world)
    one.fetch()
    read = world.run.stores.realtime_directory.read
    ended_ms = world.clock.now_ms() + 2 * 60 * MINUTE
    while world.clock.now_ms() < ended_ms:
        world.clock.advance(one.next_ms or 0)
        one.fetch()
        assert read(remembered_ms=0).groups_of(QUEUE)
    assert world.run.table.meter.calls.count("PutItem") < 40


# --- listed or not --------------------------------------------------------------------------------


def test_a_worker_is_listed_while_it_has_a_free_slot(world: World) -> None:
    one = worker(world, slots=2)
    one.fetch()
    assert listed(world) == ["c1"]
    world.push(queue=QUEUE)
    assert len(one.fetch()) == 1
    assert listed(world) == ["c1"]
    for _ in range(2):
        world.push(queue=QUEUE)
    assert len(one.fetch()) == 2
    assert (listed(world), one.listed, one.next_ms) == ([], False, None)


@pytest.mark.parametrize("jobs", [0, 1])
def test_after_a_lost_answer_the_right_write_is_made_again(world: World, jobs: int) -> None:
    one = worker(world)
    for was_listed in (False, True):
        if was_listed:
            listens(world, "c1")
        for _ in range(jobs):
            world.push(queue=QUEUE)
        one.listed = None
        one.fetch()
        assert listed(world) == ([] if jobs else ["c1"])
        assert one.listed is not None


def test_a_failed_write_loses_no_job(world: World) -> None:
    one = worker(world, slots=2)
    world.push(queue=QUEUE)
    # The first one is the lease note of the claim.
    client: Any = Broken(world.client, "put_item", 2)
    world.run.table.client = client
    assert len(one.fetch()) == 1
    assert (one.listed, one.next_ms) == (None, None)


def test_a_foreign_connection_is_refused(world: World) -> None:
    connect(world, "c1", Principal("other", key="0" * 16))
    for caller in (Principal(None), Principal("other", key="1" * 16), Principal("me")):
        with pytest.raises(PermissionDenied):
            Worker(world, "c1", caller=caller).fetch()
    assert listed(world) == []


@pytest.mark.parametrize("jobs", [0, 1])
@pytest.mark.parametrize("listed_as", [True, None])
def test_a_foreign_connection_is_not_delisted(
    world: World, jobs: int, listed_as: bool | None
) -> None:
    """Neither by a fetch that is filled nor by one that claims to be listed. No call more."""
    owner, thief = Principal("me", key="0" * 16), Principal("other", key="1" * 16)
    connect(world, "c1", owner)
    one = Worker(world, "c1", caller=owner)
    one.fetch()
    other = Worker(world, "c1", caller=thief)
    other.listed = listed_as
    for _ in range(jobs):
        world.push(queue=QUEUE)
    with pytest.raises(PermissionDenied):
        other.fetch()
    assert listed(world) == ["c1"]
    # The next one of the owner is as ever.
    world.push(queue=QUEUE)
    assert len(one.fetch()) == 1
    assert listed(world) == []


def test_an_ended_connection_is_not_listed(world: World) -> None:
    one = worker(world)
    gone = Worker(world, "never")
    gone.fetch()
    assert (gone.listed, gone.next_ms) == (False, None)
    one.fetch()
    world.clock.advance(CONNECTION_MS)
    one.fetch()
    assert (one.listed, one.next_ms) == (False, None)


def test_a_connection_that_ends_meanwhile_is_not_listed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = worker(world)
    stores = world.run.stores
    add = stores.listeners.add

    def ends(*listener: Any) -> None:
        add(*listener)
        stores.connections.remove("c1")

    monkeypatch.setattr(stores.listeners, "add", ends)
    one.fetch()
    assert (listed(world), one.listed, one.next_ms) == ([], False, None)


def test_a_worker_that_is_taken_for_gone_is_listed_again(world: World) -> None:
    one = worker(world)
    one.fetch()
    world.run.stores.listeners.remove(group_of([QUEUE]), "c1")
    one.fetch()
    assert listed(world) == ["c1"]


def test_a_worker_whose_queues_change_is_listed_for_the_new_ones(world: World) -> None:
    world.run.pools.put("p", {"queues": ["mail", "sms"]})
    one = worker(world)
    one.fetch(pool="p")
    assert listed(world, ("mail", "sms")) == ["c1"]
    world.run.pools.put("p", {"queues": ["sms"]})
    one.fetch(pool="p")
    assert (listed(world, ("mail", "sms")), listed(world, ("sms",))) == ([], ["c1"])


def test_a_paused_queue_rings_when_it_is_resumed(world: World, hub: Hub) -> None:
    world.push(queue=QUEUE)
    world.run.queues.pause(QUEUE)
    one = worker(world)
    assert one.fetch() == []
    world.clock.advance(11 * SECOND)
    hub.sent.clear()
    world.run.queues.resume(QUEUE)
    world.run.flush()
    assert hub.rung() == ["c1"]
    assert len(one.fetch(rung=(QUEUE,))) == 1


def test_a_worker_that_must_not_fetch_is_not_listed(world: World) -> None:
    one = worker(world)
    world.run.workers.register("c1", {})
    one.fetch()
    world.run.workers.direct("c1", "quiet")
    world.push(queue=QUEUE)
    assert one.fetch() == []
    assert (listed(world), one.listed) == ([], False)
    assert one.next_ms is not None
    assert one.next_ms >= 0.9 * FALLBACK_MS


def test_a_directory_that_is_too_large_makes_workers_poll(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "MAX_BYTES", 50)
    listens(world, "other")
    one = worker(world)
    one.fetch()
    assert (one.listed, one.next_ms) == (False, None)


# --- when to come again ---------------------------------------------------------------------------


def test_a_worker_that_was_just_listed_looks_again_after_half_a_second(world: World) -> None:
    """A job that was pushed before it was listed rings nobody."""
    one = worker(world)
    one.fetch()
    assert one.next_ms == 500


@pytest.mark.parametrize("lanes", [1, FEW + 8])
def test_that_look_reads_every_line(world: World, lanes: int) -> None:
    """Also those that the container has just seen empty."""
    queues = tuple(f"q{number}" for number in range(lanes))
    one = worker(world, queues=queues)
    world.run.queues.create("q0", {})
    one.fetch()
    # By another container.
    world.another().enqueue.push(_request("q0"))
    world.clock.advance(500)
    assert len(one.fetch()) == 1


def test_rung_queues_are_read_although_they_were_empty(world: World) -> None:
    queues = tuple(f"q{number}" for number in range(FEW + 8))
    one = worker(world, queues=queues)
    for name in queues:
        world.run.queues.create(name, {})
    one.fetch()
    one.fetch()
    world.another().enqueue.push(_request("q3"))
    assert one.fetch(rung=("q4",)) == []
    assert len(one.fetch(rung=("q3",))) == 1


def _request(queue: str) -> Any:
    from ojs.domain.job import envelope

    return envelope.parse({"type": "t", "args": [], "options": {"queue": queue}})


@pytest.mark.parametrize(
    ("workers", "times", "spread"),
    [(1, 1, 0.1), (2, 1, 0.1), (3, 1.5, 0.9), (20, 10, 0.9), (24, 12, 0.9), (300, 12, 0.9)],
)
def test_the_more_workers_listen_the_more_rarely_each_looks(
    world: World, workers: int, times: float, spread: float
) -> None:
    random.seed(workers)
    one = worker(world)
    one.fetch()
    listens(world, *(f"d{number}" for number in range(workers - 1)))
    seen = []
    for _ in range(200):
        one.fetch()
        seen.append((one.next_ms or 0) / FALLBACK_MS / times - 1)
    assert -spread - 0.001 <= min(seen) < -0.9 * spread
    assert 0.9 * spread < max(seen) <= spread
    assert abs(sum(seen)) / len(seen) < 0.1 * spread


@pytest.mark.parametrize("lanes", [1, FEW + 8])
def test_a_worker_comes_when_the_first_job_is_due(world: World, lanes: int) -> None:
    queues = (QUEUE, *(f"q{number}" for number in range(lanes)))
    one = worker(world, queues=queues)
    world.push(queue=QUEUE, scheduled_at="+PT20S")
    world.push(queue=QUEUE, scheduled_at="+PT8S")
    one.fetch()
    one.fetch()
    assert one.next_ms is not None
    assert 8 * SECOND <= one.next_ms <= 8 * SECOND + 20
    world.clock.advance(one.next_ms)
    assert len(one.fetch()) == 1


def test_the_ends_of_leases_call_no_worker(world: World) -> None:
    for _ in range(30):
        world.push(queue=QUEUE)
    assert len(world.fetch(QUEUE, 30)) == 30
    world.push(queue=QUEUE, scheduled_at="+PT24S")
    one = worker(world)
    one.fetch()
    one.fetch()
    assert one.next_ms is not None
    assert 22 * SECOND < one.next_ms <= 24 * SECOND + 20


def test_workers_that_wait_for_one_job_come_one_after_the_other(world: World) -> None:
    one = worker(world)
    one.fetch()
    listens(world, *(f"d{number}" for number in range(19)))
    world.push(queue=QUEUE, scheduled_at="+PT8S")
    seen = set()
    for _ in range(50):
        one.fetch()
        seen.add(one.next_ms or 0)
    assert min(seen) >= 8 * SECOND
    assert max(seen) <= 8 * SECOND + 400
    assert len(seen) > 20


def test_a_worker_that_a_rate_limit_holds_back_comes_when_it_allows_a_start(world: World) -> None:
    world.run.queues.configure(QUEUE, {"rate_limit": {"limit": 1, "period": "PT10S"}})
    for _ in range(2):
        world.push(queue=QUEUE)
    one = worker(world, slots=2)
    assert len(one.fetch()) == 1
    assert len(one.fetch()) == 0
    assert one.next_ms is not None
    assert one.next_ms <= 10 * SECOND + 20
    # The window of the limit slides in steps.
    for _ in range(2):
        world.clock.advance(one.next_ms or 0)
        if one.fetch():
            return
    raise AssertionError


def test_a_worker_whose_keys_wait_comes_soon(world: World) -> None:
    limit: dict[str, Any] = {"rate_limit": {"key": "k", "concurrency": 1}}
    for _ in range(2):
        world.push(queue=QUEUE, **limit)
    one = worker(world, slots=2)
    assert len(one.fetch()) == 1
    one.fetch()
    assert one.next_ms is not None
    assert one.next_ms <= 5 * SECOND + 20


# --- the chain ------------------------------------------------------------------------------------


def test_a_fetch_that_leaves_jobs_rings_two_others(world: World, hub: Hub) -> None:
    one = worker(world)
    one.fetch()
    for _ in range(3):
        world.push(queue=QUEUE)
    world.run.flush()
    listens(world, "d1", "d2", "d3")
    hub.sent.clear()
    one.fetch()
    assert len(hub.rung()) == 2
    assert "c1" not in hub.rung()


def test_a_fetch_that_leaves_none_rings_nobody(world: World, hub: Hub) -> None:
    one = worker(world)
    one.fetch()
    world.push(queue=QUEUE)
    world.run.flush()
    listens(world, "d1")
    hub.sent.clear()
    assert len(one.fetch()) == 1
    assert hub.sent == []


def test_a_fetch_that_leaves_jobs_for_lack_of_permits_rings_nobody(world: World, hub: Hub) -> None:
    world.run.queues.configure(QUEUE, {"concurrency": 1})
    for _ in range(3):
        world.push(queue=QUEUE)
    world.run.flush()
    listens(world, "d1")
    one = worker(world, slots=3)
    assert len(one.fetch()) == 1
    assert hub.sent == []


def test_a_fetch_of_a_wide_queue_rings_one_other(world: World, hub: Hub) -> None:
    """It has not read the other lanes."""
    world.run.queues.create(QUEUE, {"lanes": 8})
    one = worker(world)
    one.fetch()
    world.push(queue=QUEUE)
    world.run.flush()
    listens(world, "d1", "d2", "d3")
    hub.sent.clear()
    one.fetch()
    assert len(hub.rung()) == 1


def test_heard_says_not_listed_by_default() -> None:
    assert ListenerState() == ListenerState(listed=False, next_ms=None)


# --- heartbeats -----------------------------------------------------------------------------------


def test_a_directive_asks_the_worker_for_a_heartbeat(world: World, hub: Hub) -> None:
    world.run.workers.register("c1", {})
    one = worker(world)
    one.fetch()
    world.run.workers.direct("c1", "terminate")
    assert hub.sent == [("c1", {"type": "beat"})]


def test_a_cancelled_job_asks_its_worker_for_a_heartbeat(world: World, hub: Hub) -> None:
    one = worker(world, slots=2)
    one.fetch()
    job = world.push(queue=QUEUE)
    one.fetch()
    other = world.push(queue=QUEUE)
    world.run.flush()
    hub.sent.clear()
    world.run.jobs.cancel(other.id)
    assert hub.sent == []
    world.run.jobs.cancel(job.id)
    assert hub.sent == [("c1", {"type": "beat"})]


def test_a_worker_without_a_connection_is_asked_for_nothing(world: World, hub: Hub) -> None:
    world.run.workers.register("w", {})
    world.run.workers.direct("w", "quiet")
    assert hub.tried == 0


def test_an_idle_worker_is_alive_until_its_next_heartbeat(world: World) -> None:
    run = world.run
    run.workers.register("w", {"queues": [QUEUE]}, pool="p")
    run.workers.beat("w", next_ms=300 * SECOND)
    world.clock.advance(329 * SECOND)
    now_ms = world.clock.now_ms()
    assert run.workers.get("w").to_dict(now_ms)["state"] == "running"
    assert run.scheduling._count_workers({}) == {"p": 1}
    run.metrics_sweep.run_once(now_ms, 100)
    assert run.stores.statistics.totals()[0].workers == WorkerCounts(running=1)
    world.clock.advance(2 * SECOND)
    now_ms = world.clock.now_ms()
    assert run.workers.get("w").to_dict(now_ms)["state"] == "stale"
    assert run.scheduling._count_workers({}) == {}
    run.metrics_sweep.run_once(now_ms, 100)
    assert run.stores.statistics.totals()[0].workers == WorkerCounts(stale=1)


def test_a_busy_worker_is_stale_after_the_usual_time(world: World) -> None:
    run = world.run
    run.workers.beat("w", next_ms=300 * SECOND)
    run.workers.beat("w")
    world.clock.advance(31 * SECOND)
    assert run.workers.get("w").to_dict(world.clock.now_ms())["state"] == "stale"


def test_listing_keeps_the_time_of_the_next_heartbeat(world: World) -> None:
    world.run.workers.beat("c1", next_ms=300 * SECOND)
    worker(world).fetch()
    found = world.run.workers.get("c1")
    assert (found.connection, found.next_ms) == ("c1", world.clock.now_ms() + 300 * SECOND)
