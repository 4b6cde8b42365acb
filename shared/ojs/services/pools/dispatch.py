"""Decides which queue each job of a fetch comes from.

Dispatch sequence numbers:

* Without a configured pool, each container counts them, per combination of queues and weights.
* With a configured pool, the pool's sequencer allots them (`ojs.store.permits.sequencer`), so that
  all containers together keep the order.

A number is used only if a job can be dispatched. It belongs to one queue. If that queue is empty,
another queue gets it (`ojs.domain.pool.dispatch`). A strict order without a guaranteed ratio and a
single queue need no numbers, and an idle pool writes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain.pool.dispatch import DispatchSequence, DispatchStrategy
from ojs.domain.pool.pool import Pool
from ojs.domain.pool.worker import Worker
from ojs.records import record
from ojs.services.permits.kinds import FetchPermits
from ojs.services.permits.lifecycle import Permits
from ojs.store.permits import semaphore
from ojs.store.permits.sequencer import (
    Sequencer,
    SequenceRange,
    SequencerState,
    StarvationOverride,
)
from ojs.store.table import keys

# Number of sequence numbers to look ahead, as a multiple of the number of queues.
_AHEAD = 4
# Time (ms) for which a queue that this container found empty is skipped when the number of another
# queue is reassigned. The queue still gets its own numbers.
_EMPTY_MS = 1_000
# Number of entries of a queue's ready index that are read to measure its depth. For longer queues,
# the count of the projection is used.
PAGE = 100
# A page with at least this many entries may belong to a longer queue: recently claimed jobs are
# omitted.
_DEEP = 80
_REMEMBERED = 1_000


class JobSource(Protocol):
    """A queue that a fetch claims jobs from."""

    @property
    def known(self) -> Sequence[str]:
        """The jobs known to be claimable, in order."""
        ...

    def peek(self) -> int:
        """Return the number of jobs known to be claimable. Reads the index if it is 0."""
        ...

    def claim(self) -> bool:
        """Claim the next job. Return false if none is left."""
        ...


@record
class DispatchPlan:
    """The order in which one fetch serves its queues, and its permits."""

    sequence: DispatchSequence
    strategy: DispatchStrategy
    permits: FetchPermits
    state: SequencerState = field(default_factory=SequencerState)
    # The sequence number that is probably assigned next.
    next_number: int = 0
    # Number of remaining jobs from the projection, for queues with more jobs than one page.
    deep: dict[str, int] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """Whether the pool had no free permit when it was read."""
        pool = self.permits.pool
        if pool is None or pool.concurrency is None or semaphore.shards(pool.concurrency) > 1:
            return False
        return self.state.permits >= pool.concurrency

    @property
    def plain(self) -> bool:
        """Whether queues are served in the listed order, without sequence numbers or permits."""
        free = not self.sequence.counted and self.strategy != DispatchStrategy.LEAST_LOADED
        return free and not self.permits.held and not self.rotates

    @property
    def rotates(self) -> bool:
        """Whether a starved queue is served before its turn."""
        pool = self.permits.pool
        prevents = pool is not None and pool.prevention is not None
        return prevents and len(self.sequence.queues) > 1

    def prefer(self, left: Collection[str], sources: Mapping[str, JobSource]) -> str:
        """Return the queue that gets a free number: the one with most jobs, or the first listed."""
        listed = [name for name in self.sequence.queues if name in left]
        if self.strategy == DispatchStrategy.LEAST_LOADED:
            return max(listed, key=lambda name: max(self.deep.get(name, 0), sources[name].peek()))
        return listed[0]

    def ahead(self, left: Collection[str]) -> Iterator[str]:
        """Yield the remaining queues, in the order in which they are probably served."""
        named: dict[str, None] = {}
        if self.sequence.counted:
            for number in range(
                self.next_number, self.next_number + _AHEAD * len(self.sequence.queues)
            ):
                name = self.sequence.at(number)
                if name is None:
                    break
                if name in left:
                    named.setdefault(name)
        yield from named
        yield from (name for name in self.sequence.queues if name in left and name not in named)


class DispatchPlanner:
    """Plans the order in which fetches serve queues. One instance per container."""

    def __init__(
        self,
        *,
        clock: Clock,
        permits: Permits,
        sequencer: Sequencer,
        available: Callable[[Sequence[str]], Mapping[str, int]],
    ) -> None:
        """Create the planner.

        Args:
            clock: Source of the current time.
            permits: Acquires the permits of fetches.
            sequencer: Store of the sequence numbers of pools.
            available: Returns the projected number of available jobs, by queue.
        """
        self._depths = available
        self._permits = permits
        self._sequencer = sequencer
        self._clock = clock
        self._own: BoundedMap[tuple[object, ...], int] = BoundedMap(_REMEMBERED)
        self._empty: BoundedMap[str, int] = BoundedMap(_REMEMBERED)

    def for_pool(self, pool: Pool, state: SequencerState, worker: Worker | None) -> DispatchPlan:
        """Return the plan of a fetch by a worker of a configured pool.

        Args:
            pool: The pool.
            state: State of the pool's sequencer, as read.
            worker: The worker, if known.

        Returns:
            The plan.
        """
        return DispatchPlan(
            pool.sequence,
            pool.strategy,
            FetchPermits(self._permits.new_run, pool, worker),
            state,
            next_number=state.next_number,
        )

    def for_request(
        self, queues: Sequence[str], strategy: DispatchStrategy, weights: Mapping[str, int]
    ) -> DispatchPlan:
        """Return the plan of a fetch outside of configured pools.

        Args:
            queues: Names of the queues, in the requested order.
            strategy: The requested strategy.
            weights: Weights of the queues, by name.

        Returns:
            The plan.
        """
        permits = FetchPermits(self._permits.new_run)
        plan = DispatchPlan(DispatchSequence.of(queues, strategy, weights), strategy, permits)
        plan.next_number = self._own.get(_key(plan), 0)
        return plan

    def serve(
        self, plan: DispatchPlan, sources: Mapping[str, JobSource], wanted: Callable[[], int]
    ) -> None:
        """Claim jobs from these queues, one per number, until enough are claimed or none is left.

        Args:
            plan: Plan of the fetch.
            sources: The queues that can have jobs, by name.
            wanted: Returns how many more jobs the fetch requests.

        Raises:
            OjsError: A read or a write failed. Jobs that were claimed before stay claimed.
        """
        idle = {name for name in plan.sequence.queues if name not in sources}
        override, empty = self._overdue(plan, sources)
        while wanted():
            claimable = self._claimable(plan, sources, idle, wanted())
            if not claimable:
                return
            count = min(claimable, wanted())
            if plan.permits.held:
                # Permits first: a number without a dispatched job would change the order.
                expected = self._expected(plan, sources, idle, count)
                count = self._permits.hold(plan.permits, expected)
                if not count:
                    return
            numbers = self._next_numbers(plan, count, override, empty)
            at_once = override.queue if override is not None and numbers.overridden else None
            override, empty = None, []
            for number in range(numbers.first, numbers.first + numbers.count):
                if not (wanted() and self._one(plan, sources, idle, number, at_once)):
                    break
                at_once = None

    # --- which queue is next ------------------------------------------------------------------

    def _one(
        self,
        plan: DispatchPlan,
        sources: Mapping[str, JobSource],
        idle: set[str],
        number: int,
        at_once: str | None,
    ) -> bool:
        """Claim the job of one number. Return false if no queue has a job."""
        if at_once is not None and sources[at_once].claim():
            return True
        while (name := self._whose(plan, sources, idle, number)) is not None:
            if sources[name].claim():
                self._seen(name, empty=False)
                if name in plan.deep:
                    plan.deep[name] -= 1
                return True
            idle.add(name)
            self._seen(name, empty=True)
        return False

    def _whose(
        self,
        plan: DispatchPlan,
        sources: Mapping[str, JobSource],
        idle: Collection[str],
        number: int,
    ) -> str | None:
        name = plan.sequence.at(number) if plan.sequence.counted else None
        if name is not None and name not in idle:
            return name
        left = [name for name in plan.sequence.queues if name not in idle]
        if not left:
            return None
        if name is None or not plan.sequence.weights:
            return plan.prefer(left, sources)
        return plan.sequence.instead(number, self._likely(left))

    def _claimable(
        self, plan: DispatchPlan, sources: Mapping[str, JobSource], idle: set[str], wanted: int
    ) -> int:
        """Return how many jobs are known to be claimable, up to `wanted`."""
        left = [name for name in plan.sequence.queues if name not in idle]
        likely = self._likely(left)
        order = [*plan.ahead(likely), *(name for name in left if name not in likely)]
        found = 0
        for name in order:
            claimable = sources[name].peek()
            found += claimable
            if not claimable:
                idle.add(name)
            self._seen(name, empty=not claimable)
            # Read every queue to find the one with most jobs.
            if found >= wanted and plan.strategy != DispatchStrategy.LEAST_LOADED:
                return wanted
        if plan.strategy == DispatchStrategy.LEAST_LOADED:
            whole = [name for name in order if sources[name].peek() >= _DEEP]
            if unknown := [name for name in whole if name not in plan.deep]:
                plan.deep |= self._depths(unknown)
        return min(found, wanted)

    def _overdue(
        self, plan: DispatchPlan, sources: Mapping[str, JobSource]
    ) -> tuple[StarvationOverride | None, list[str]]:
        """Return the starved queue to serve next, if any.

        Also returns the queues that were due earlier but have no jobs.
        """
        pool = plan.permits.pool
        if pool is None or pool.prevention is None or len(sources) < 2:
            return None, []
        limit_ms = self._clock.now_ms() - pool.prevention.interval_ms
        last = {name: plan.state.overrides.get(keys.override(name)) for name in sources}
        since = {name: pool.configured_ms if at is None else at for name, at in last.items()}
        empty: list[str] = []
        for name in sorted(sources, key=lambda name: since[name]):
            if since[name] > limit_ms:
                break
            if sources[name].peek():
                return StarvationOverride(name, last[name]), empty
            empty.append(name)
        return None, empty

    # --- permits and sequence numbers -------------------------------------------------------------

    def _expected(
        self,
        plan: DispatchPlan,
        sources: Mapping[str, JobSource],
        idle: Collection[str],
        count: int,
    ) -> list[str]:
        """Return the jobs to acquire permits for.

        These are the jobs that the next `count` numbers dispatch, unless another fetch interferes.
        """
        jobs: list[str] = []
        lines: dict[str, deque[str]] = {}
        over = set(idle)
        number = plan.next_number
        while len(jobs) < count:
            name = self._whose(plan, sources, over, number)
            if name is None:
                break
            if name not in lines:
                sources[name].peek()
                lines[name] = deque(sources[name].known)
            if lines[name]:
                jobs.append(lines[name].popleft())
                number += 1
            else:
                over.add(name)
        return jobs

    def _next_numbers(
        self,
        plan: DispatchPlan,
        count: int,
        override: StarvationOverride | None,
        empty: Sequence[str],
    ) -> SequenceRange:
        """Return sequence numbers for `count` jobs, or none if the order of the queues needs no
        numbers.
        """
        pool, numbered = plan.permits.pool, plan.sequence.counted
        if pool is None:
            return self._own_numbers(plan, count)
        # Without numbers, the sequencer is written only for a starved queue: once per interval.
        if not numbered and override is None and not empty:
            return SequenceRange(count)
        numbers = self._sequencer.next_numbers(
            pool.name, count, now_ms=self._clock.now_ms(), override=override, empty=empty
        )
        if numbered:
            plan.next_number = numbers.first + numbers.count
        return numbers

    def _own_numbers(self, plan: DispatchPlan, count: int) -> SequenceRange:
        """Return sequence numbers that this container counts."""
        first = self._own.update(_key(plan), lambda before: (before or 0) + count) or 0
        plan.next_number = first + count
        return SequenceRange(count, first)

    # --- empty queues -----------------------------------------------------------------------------

    def _seen(self, name: str, *, empty: bool) -> None:
        if empty:
            self._empty.put(name, self._clock.now_ms())
        else:
            self._empty.forget(name)

    def _likely(self, names: Iterable[str]) -> list[str]:
        """Return the queues that were not found empty in the last second, or
        all if none remains.
        """
        since_ms = self._clock.now_ms() - _EMPTY_MS
        known = list(names)
        likely = [name for name in known if self._empty.get(name, since_ms) <= since_ms]
        return likely or known


def _key(plan: DispatchPlan) -> tuple[object, ...]:
    return plan.sequence.queues, plan.strategy, plan.sequence.weights
