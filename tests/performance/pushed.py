"""Jobs that are pushed, at a rate: who is called when, and what that takes.

Time is simulated: requests come evenly, wake-ups and outcomes take a moment to arrive, and jobs
last about a second. What is called is what the functions dispatch and outcomes call.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeVar

from ojs.domain.ids import IdSource
from ojs.services.deliveries.parts import AllowedTargets, DeliveryDependencies
from tests.store.pushing import DONE, FUNCTION, FakeTarget, Wakes, settled

if TYPE_CHECKING:
    from ojs.domain.delivery.push import Push
    from tests.performance.counted import Counting

T = TypeVar("T")
QUEUE = "pushed"
# What a message takes, and within which messages come together: a guess, like the length of jobs.
_MESSAGE_MS = 20
_JOB_MS = (500, 1_500)
_SHOWN = (
    "wakes", "dispatches", "calls of dispatches", "invokes of dispatches", "settles",
    "calls of settles", "invokes of settles",
)  # fmt: skip


class Pushed:
    """One delivery, whose target is done with a job after a while."""

    def __init__(
        self,
        bench: Counting,
        rate: float,
        containers: int = 1,
        job_ms: tuple[int, int] = _JOB_MS,
    ) -> None:
        """Declare a delivery.

        Args:
            bench: The table, and the counts.
            rate: Jobs per second.
            containers: Number of containers of each function. Calls go to one at random.
            job_ms: Shortest and longest duration of a job.
        """
        self.bench, self.rate = bench, rate
        self._wakes, self._target = Wakes(bench.clock), FakeTarget()
        allowed = AllowedTargets([FUNCTION], ["*"], check_endpoint=lambda _: None)
        parts = DeliveryDependencies(
            wakes=self._wakes, target=lambda _: self._target, allowed=allowed, sends=None
        )
        self._runs = [
            bench.another(push=parts, ids=IdSource(bench.clock, random.Random(number).randbytes))
            for number in range(1, containers + 1)
        ]
        bench.run = self._runs[0]
        for run in self._runs:
            # They are counted together.
            run.table.meter = bench.run.table.meter
        # Twice what it takes.
        concurrency = min(1_000, max(10, round(rate * sum(job_ms) / 1_000)))
        body = {"target": {"function": FUNCTION}, "queues": [QUEUE], "concurrency": concurrency}
        bench.run.deliveries.put("work", body)
        self._wakes.waiting.clear()
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._random = random.Random(1)
        self._job_ms = job_ms
        self._told: Counter[str] = Counter()

    def count(self, jobs: int) -> dict[str, float]:
        """Push so many jobs, until all are done; what a job takes."""
        bench = self.bench
        # What was woken when it was declared is forgotten.
        bench.clock.advance(20_000)
        # Which shards of the permits are asked first is chosen at random.
        random.seed(1)
        bench.know_maintenance()
        bench.reset()
        start_ms = bench.clock.now_ms()
        for number in range(jobs):
            self._at(start_ms + round(number * 1_000 / self.rate), self._push)
        while self._agenda:
            at_ms, _, act = heappop(self._agenda)
            bench.clock.advance(max(0, at_ms - bench.clock.now_ms()))
            act()
        assert len(self._target.pushes) == jobs
        assert self._told["settled"] == jobs
        told = {name: round(self._told[name] / jobs, 4) for name in _SHOWN}
        return bench.spent(jobs) | told

    def _at(self, at_ms: int, act: Callable[[], None]) -> None:
        # Those of one moment in the order in which they were planned.
        self._told["planned"] += 1
        heappush(self._agenda, (at_ms, self._told["planned"], act))

    def _choose(self) -> None:
        self.bench.run = self._random.choice(self._runs)

    def _push(self) -> None:
        self._choose()
        self.bench.push(options={"queue": QUEUE})
        self._go_on()

    def _dispatch(self) -> None:
        self._called("dispatches", lambda: self.bench.run.dispatch.run("work"))

    def _end(self, push: Push) -> None:
        """Lambda calls the function outcomes with each success by itself."""
        report = self._called(
            "settles", lambda: self.bench.run.dispatch.settle([settled(push, DONE)])
        )
        assert not report.failed
        self._told["settled"] += 1

    def _called(self, what: str, call: Callable[[], T]) -> T:
        self._choose()
        before = len(self.bench.run.table.meter.calls)
        sent = len(self._target.pushes)
        found = call()
        self._told[what] += 1
        self._told[f"calls of {what}"] += len(self.bench.run.table.meter.calls) - before
        self._told[f"invokes of {what}"] += len(self._target.pushes) - sent
        self._go_on()
        return found

    def _go_on(self) -> None:
        """Let the wake-ups arrive that were sent, and the jobs end that were."""
        now_ms = self.bench.clock.now_ms()
        for due_ms, _ in self._wakes.waiting:
            self._told["wakes"] += 1
            self._at(max(due_ms, now_ms) + _MESSAGE_MS, self._dispatch)
        self._wakes.waiting.clear()
        for push in self._target.flying:
            ends_ms = now_ms + _MESSAGE_MS + self._random.randrange(*self._job_ms)
            self._at(ends_ms, partial(self._end, push))
        self._target.flying.clear()
