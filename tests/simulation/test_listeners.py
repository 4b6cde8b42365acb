"""How often workers that listen fetch, and how soon their jobs begin, on a simulated clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

import pytest

from ojs import runtime
from ojs.clock import ManualClock
from ojs.domain.ids import IdSource
from ojs.domain.job import envelope
from ojs.domain.job.job import Job
from ojs.runtime import Runtime
from ojs.services.for_each import one_by_one
from ojs.settings import Settings
from ojs.store.jobs.blobs import MemoryBlobs
from tests.simulation.listeners import SECOND, SETTLED_MS, Air, Listener, Timeline, client, fetches
from tests.simulation.memory import Memory

QUEUE = "mail"
HOUR = 3_600 * SECOND
# More workers are listed without a fetch, which takes long.
_SHORT_CUT = 50


@dataclass
class Fleet:
    """Workers of one queue, and the containers that serve them."""

    workers: int
    seed: int = 1
    containers: int = 3
    slots: int = 1
    job_ms: int = 2 * SECOND
    listeners: list[Listener] = field(default_factory=list)
    # By job: when it was pushed, and when it was claimed.
    pushed: dict[str, int] = field(default_factory=dict)
    began: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        random.seed(self.seed)
        self.chance = random.Random(self.seed)
        self.clock = ManualClock()
        self.timeline = Timeline(self.clock)
        self.air = Air(self.timeline, self.chance)
        self.client = client(Memory(), self.clock, self.chance)
        self.runs = [self._container() for _ in range(self.containers)]
        for number in range(self.workers):
            self.listeners.append(
                Listener(
                    f"w{number}", self.air, self.runs, [QUEUE], self.slots, self.job_ms,
                    claimed=self._claimed,
                )
            )  # fmt: skip
        # The queue exists, and workers come within a while.
        self.push(0)
        for listener in self.listeners:
            connect = partial(listener.connect, listed=self.workers > _SHORT_CUT)
            self.timeline.after(self.chance.randint(0, SETTLED_MS), connect)
        self.timeline.go_on(4 * SETTLED_MS)
        self.pushed.clear()
        self.began.clear()
        self._before = 0
        self.count()

    def _container(self) -> Runtime:
        return runtime.build(
            Settings("fleet", realtime="wake"),
            client=self.client,
            blobs=MemoryBlobs(),
            clock=self.clock,
            ids=IdSource(self.clock, self.chance.randbytes),
            sleep=lambda _: None,
            for_each=one_by_one,
            realtime=lambda: self.air,
        )

    def _claimed(self, job: Job) -> None:
        assert job.id not in self.began
        self.began[job.id] = self.clock.now_ms()

    def push(self, jobs: int) -> None:
        """One request."""
        run = self.chance.choice(self.runs)
        wanted = {"type": "t", "args": [], "options": {"queue": QUEUE}}
        requests = [envelope.parse(wanted) for _ in range(max(1, jobs))]
        for pushed in run.enqueue.push_batch(requests) if jobs else ():
            self.pushed[pushed.job.id] = self.clock.now_ms()
        run.flush()

    def count(self) -> int:
        """The fetches since the last call."""
        before, self._before = self._before, fetches(self.listeners)
        return self._before - before

    def waits(self) -> list[int]:
        """How long each job waited until it was claimed (ms)."""
        assert self.began.keys() == self.pushed.keys()
        return [self.began[job] - at_ms for job, at_ms in self.pushed.items()]


@pytest.mark.parametrize(("workers", "most"), [(1, 150), (20, 315)])
def test_an_idle_hour(workers: int, most: int) -> None:
    fleet = Fleet(workers)
    fleet.timeline.go_on(HOUR)
    assert fleet.count() <= most
    assert fleet.air.posted == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_push_for_20_workers(seed: int) -> None:
    fleet = Fleet(20, seed, job_ms=60 * SECOND)
    fleet.push(20)
    fleet.timeline.go_on(600)
    assert max(fleet.waits()) <= 600
    assert fleet.count() <= 25


@pytest.mark.parametrize(
    ("workers", "jobs", "most"),
    [(200, 40, 100), pytest.param(1_000, 200, 420, marks=pytest.mark.exhaustive)],
)
def test_a_push_for_a_fifth_of_many_workers(workers: int, jobs: int, most: int) -> None:
    fleet = Fleet(workers, job_ms=60 * SECOND)
    fleet.push(jobs)
    fleet.timeline.go_on(1_000)
    assert max(fleet.waits()) <= 400
    assert fleet.count() <= most


def test_a_job_costs_three_fetches_and_begins_at_once() -> None:
    """The rung one, the one when it has ended, and the look after that lists the worker again."""
    fleet = Fleet(20)
    waits = []
    for _ in range(20):
        fleet.push(1)
        fleet.timeline.go_on(4 * SECOND)
        waits += fleet.waits()
        fleet.pushed.clear()
        fleet.began.clear()
    # Besides, each worker looks each 250 s.
    assert fleet.count() <= 3 * 20 + 2 * 20
    assert sorted(waits)[10] <= 100
    assert max(waits) <= 500


@pytest.mark.parametrize(("workers", "most_s"), [(1, 30), (2, 30), (20, 100)])
def test_a_lost_ring(workers: int, most_s: int) -> None:
    fleet = Fleet(workers)
    fleet.air.lost = 1.0
    for _ in range(40):
        fleet.push(1)
        fleet.timeline.go_on(fleet.chance.randint(60, 120) * SECOND)
    waits = fleet.waits()
    assert sum(waits) / len(waits) <= 15 * SECOND
    assert max(waits) <= most_s * SECOND


@pytest.mark.parametrize("workers", [1, 5, 20])
def test_half_of_the_messages_lost_loses_no_job(workers: int) -> None:
    fleet = Fleet(workers, job_ms=500)
    fleet.air.lost = 0.5
    for _ in range(60):
        fleet.push(fleet.chance.choice((1, 1, 3)))
        fleet.timeline.go_on(fleet.chance.randint(1, 60) * SECOND)
    fleet.timeline.go_on(300 * SECOND)
    assert max(fleet.waits()) <= 300 * SECOND


def test_a_worker_of_ten_slots_is_not_delisted() -> None:
    fleet = Fleet(2, slots=10)
    for _ in range(5):
        fleet.push(4)
        fleet.timeline.go_on(10 * SECOND)
    assert max(fleet.waits()) <= 500
    assert all(one.listed and two.listed for one, two in pairwise(fleet.listeners))
