"""Sweeps that repair the counters of queues and the semaphores of queues and worker pools.

A depth counter has a tracked part, for jobs that were counted one by one, and an untracked part,
for jobs stored before the queue had a size limit. An untracked job that finishes is not
subtracted. The untracked part is recounted each minute.

If a function crashes between the write of a job and the write of its counter, the tracked part is
too high. It is repaired while clients create and finish jobs:

1. For periods that ended SETTLED_MS ago, no further jobs are stored. The counter's values for
   these periods and the number of their jobs can only decrease.
2. The sweep counts the jobs of these periods by their records. The counter can be higher: it
   includes jobs that had finished and are about to be subtracted.
3. SETTLED_MS later, all of these are subtracted. Each remaining unit of the counter for these
   periods belongs to a job of the first count, or to no job. So the excess over both the first and
   the current count belongs to no job, and the sweep subtracts it.

The sweep doesn't subtract more than the projection allows: the stream can know jobs that the index
misses. Functions of version 0.2 count jobs without a period. While they do, nothing is subtracted.
The counter of a queue with more than MOST_COUNTED jobs stays unchanged.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial

from ojs.clock import Clock
from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.pool.pool import DEFAULT_POOL, Pool
from ojs.services.permits.repair import CountedPermits, PermitRepair
from ojs.services.sweeps import (
    GoOn,
    SweepCounts,
    SweepQueues,
    SweepReport,
    always,
    counting_failures,
)
from ojs.store.bounds.depth_counter import (
    KEPT_PERIODS,
    PERIOD_MS,
    DepthCounter,
    DepthValue,
    LastRecount,
    period_of,
)
from ojs.store.derived.recount import Occupancy, Recount, RecountedQueue
from ojs.store.queues.pools import PoolStore
from ojs.store.queues.queues import QueueStore
from ojs.store.queues.workers import WorkerStore

# Longer than any function needs from reserving space to the last write of its jobs, and from the
# end of a job to the release of its space. A request ends after 29 s. Other functions do both
# immediately, for each job or batch. The rest of the time covers clock differences.
SETTLED_MS = 50_000
# Minimum time between two recounts, per job in the queue.
_PAUSE_MS = 100
# Time after a size limit was set in which untracked jobs might still be stored. The sweep counts
# them.
_CONFIGURED_MS = 600_000
# Maximum number of jobs of one queue that are read. Each costs up to one read unit.
MOST_COUNTED = 5_000
_DRAIN_MINUTES = 5
# Number of attempts to count the jobs of a queue that gets a size limit, if a sweep stores its
# count first.
_RECOUNTS = 5
_QUEUES = 33  # one call
_PAGE = 100


class ReconcileSweep:
    """Repairs the depth counters of bounded queues, and the semaphores of all limited queues."""

    name = "reconcile"

    def __init__(
        self,
        *,
        sweep_queues: SweepQueues,
        depth: DepthCounter,
        recount: Recount,
        permit_repair: PermitRepair,
        clock: Clock,
    ) -> None:
        self._every = sweep_queues
        self._clock = clock
        self._depth = depth
        self._recount = recount
        self._repair = permit_repair

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Check every bounded queue, starting at a random queue.

        The random start ensures that every queue is checked eventually if runs end early.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Maximum number of queues whose jobs are counted.
            go_on: Returns whether enough time is left to continue.

        Returns:
            Numbers of queues: unbounded (not checked), bounded (checked), counted (jobs were
            counted), recounted, suspected, healed. The counts of `PermitRepair.check`. And failed
            and `more` (1 if the run ended early and another run should follow).
        """
        counts = SweepCounts()
        staged = cache(partial(self._recount.staged, (_last_closed_period(now_ms) + 1) * PERIOD_MS))
        for part in self._counted(counts):
            found: Sequence[RecountedQueue] = ()
            read_ms = self._clock.now_ms()
            # One failure must not stop the others; the next run checks these queues again.
            with counting_failures(counts, f"queues {part[0]} to {part[-1]}"):
                found = self._recount.known(part, counts.fail)
            if not self._check_permits(found, now_ms, counts, go_on):
                return SweepReport(counts, failures=counts.failures)
            for known in found:
                if not known.queue.tracks_depth:
                    continue
                if counts["counted"] >= limit or not go_on():
                    counts["more"] = 1
                    return SweepReport(counts, failures=counts.failures)
                with counting_failures(counts, f"depth of queue {known.queue.name}"):
                    self._check(known, staged, now_ms, read_ms, counts)
        return SweepReport(counts, failures=counts.failures)

    def _counted(self, counts: SweepCounts) -> Iterator[list[str]]:
        """Yield the names of the queues that have counters, in groups that one call can read."""
        # Idle queues have no size limit.
        plan = self._every.plan()
        counts["unbounded"] += len(plan.queues) - len(plan.names)
        for part in self._every.parts(counts, plan):
            counts.update("unbounded" for queue in part if not queue.config.bounded)
            names = [each.name for each in part if each.tracks_depth or each.limits_concurrency]
            for at in range(0, len(names), _QUEUES):
                yield names[at : at + _QUEUES]

    def count_untracked(self, name: str) -> None:
        """Count the jobs of a queue into its depth counter, before the queue gets a size limit.

        The sweep finds jobs of requests that are still in progress. Raises OjsError.
        """
        for _ in range(_RECOUNTS):
            for known in self._recount.known([name]):
                counted, _ = self._recount.count(known.queue, most=MOST_COUNTED, noted=True)
                untracked, size = _most_untracked(counted, known.projected)
                if self._depth.recount(
                    name, known.value, untracked=untracked, untracked_bytes=size, drain=None
                ):
                    return

    def _check_permits(
        self,
        found: Sequence[RecountedQueue],
        now_ms: int,
        counts: SweepCounts,
        go_on: GoOn,
    ) -> bool:
        """Repair the semaphores of these queues. Return false if the time is up."""
        limited = [
            CountedPermits.of_queue(known.queue)
            for known in found
            if known.queue.limits_concurrency
        ]
        if limited and not go_on():
            counts["more"] = 1
            return False
        names = " ".join(counted.semaphore for counted in limited)
        with counting_failures(counts, f"permits of {names}"):
            self._repair.check(limited, now_ms, counts)
        return True

    # --- one queue ----------------------------------------------------------------------------

    def _check(
        self,
        known: RecountedQueue,
        staged: Callable[[], Collection[str] | None],
        now_ms: int,
        read_ms: int,
        counts: Counter[str],
    ) -> None:
        counts["bounded"] += 1
        value, name = known.value, known.queue.name
        suspected = self._looks_wrong(known, now_ms, read_ms)
        counted = None
        in_batches: Collection[str] | None = None
        if suspected or self._may_have_untracked(known, now_ms):
            counts["counted"] += 1
            # The configuration of the queue does not have the new limit yet. All active untracked
            # jobs are in lease notes, regardless of their lease duration.
            noted = (
                not known.queue.config.bounded
                or now_ms - (known.queue.configured_ms or 0) < _CONFIGURED_MS
                or value.untracked > 0
            )
            # Read before the jobs are counted.
            in_batches = staged()
            counted = self._recount.count(known.queue, most=MOST_COUNTED, noted=noted)
        untracked = self._untracked(known, counted, now_ms)
        drain = self._recount.drain(name, now_ms=now_ms, minutes=_DRAIN_MINUTES)
        same = untracked == (value.untracked, value.untracked_bytes)
        if not same or drain != (value.drain or 0):
            self._depth.recount(
                name, value, untracked=untracked[0], untracked_bytes=untracked[1], drain=drain
            )
            counts["recounted"] += not same
        if counted is None or not counted[1]:
            return
        # A batch that is undone releases all its space, whether its jobs were stored or not. Until
        # then the counter includes jobs that the recount doesn't find. That is correct.
        if in_batches is None or name in in_batches:
            return
        missed = _minus(_minus(counted[0].tracked_room, counted[0].undone), value.tracked_room)
        if any(missed):
            counts["healed"] += self._depth.add(name, value, count=missed[0], size=missed[1])
        elif suspected:
            self._subtract(known, counted[0], now_ms, read_ms, counts)

    @staticmethod
    def _looks_wrong(known: RecountedQueue, now_ms: int, read_ms: int) -> bool:
        """Return whether to count the tracked jobs.

        True if the counter differs from the projection, and enough time has passed since the last
        recount.
        """
        value, projected = known.value, known.projected
        shown, others = value.tracked_room, projected.tracked_room
        if shown == others:
            return False
        if max(value.until(_last_closed_period(now_ms))) <= 0:
            # Under traffic, the projection has a short delay. In an idle queue, it includes all
            # jobs.
            at_rest = read_ms - value.changed_ms >= SETTLED_MS
            return at_rest and any(_minus(others, shown))
        last = value.recount
        if last is None:
            return True
        more = _minus(value.until(last.period), (last.count, last.size))
        if _comparable(last, value, read_ms) and any(more):
            return True
        return read_ms - last.at_ms >= max(SETTLED_MS, _PAUSE_MS * value.count)

    @staticmethod
    def _may_have_untracked(known: RecountedQueue, now_ms: int) -> bool:
        """Return whether untracked jobs might exist, or the counter still includes jobs that were
        deleted.
        """
        configured_ms = known.queue.configured_ms or known.queue.created_ms
        value = known.value
        if value.untracked or value.untracked_bytes or known.projected.untracked:
            return True
        return now_ms - configured_ms < _CONFIGURED_MS

    @staticmethod
    def _untracked(
        known: RecountedQueue, counted: tuple[Occupancy, bool] | None, now_ms: int
    ) -> tuple[int, int]:
        """Return the number of untracked jobs and their bytes that the counter should have."""
        value = known.value
        if counted is None:
            return value.untracked, value.untracked_bytes
        found, whole = counted
        untracked, size = _most_untracked(found, known.projected)
        configured_ms = known.queue.configured_ms or 0
        if not whole and now_ms - configured_ms < SETTLED_MS:
            # The projection might not include all of these jobs yet.
            return max(untracked, value.untracked), max(size, value.untracked_bytes)
        return untracked, size

    def _subtract(
        self,
        known: RecountedQueue,
        counted: Occupancy,
        now_ms: int,
        read_ms: int,
        counts: Counter[str],
    ) -> None:
        """Subtract the excess that this recount and the last one confirm, and store this recount.

        `read_ms` is when the counter was read.
        """
        value, last = known.value, known.value.recount
        excess = 0, 0
        if (
            last is not None
            and _comparable(last, value, read_ms)
            and counted.undated_ms < last.period * PERIOD_MS
        ):
            there = counted.reserved.until(last.period)
            of_both = max(last.count, there.count), max(last.size, there.size)
            excess = _minus(value.until(last.period), of_both)
            at_most = _minus(value.tracked_room, known.projected.tracked_room)
            excess = min(excess[0], at_most[0]), min(excess[1], at_most[1])
        period = _last_closed_period(now_ms)
        there = counted.reserved.until(period)
        noted = LastRecount(period, there.count, there.size, self._clock.now_ms())
        if self._depth.subtract(known.queue.name, value, noted, count=excess[0], size=excess[1]):
            found_more = any(_minus(value.until(period), (there.count, there.size)))
            counts["healed" if any(excess) else "suspected"] += found_more


class PoolPermitSweep:
    """Repairs the semaphores of pools and of their workers."""

    name = "pool_permits"

    def __init__(
        self,
        *,
        sweep_queues: SweepQueues,
        pools: PoolStore,
        queues: QueueStore,
        workers: WorkerStore,
        permit_repair: PermitRepair,
    ) -> None:
        self._every = sweep_queues
        self._pools = pools
        self._queues = queues
        self._workers = workers
        self._repair = permit_repair

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Check every pool with permits, and the permits of about `limit` workers.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Approximate maximum number of workers.
            go_on: Returns whether enough time is left to continue.

        Returns:
            The counts of `PermitRepair.check`, failed (pools), and `more` (1 if the run ended
            early).
        """
        counts = SweepCounts()
        workers: Mapping[str, Mapping[str, int | None]] | None = None
        names = self._every.pool_names()
        for at in range(0, len(names), _PAGE):
            for pool in self._pools.get_many(names[at : at + _PAGE], counts.fail):
                by_worker = pool.strategy == DispatchStrategy.LEAST_LOADED
                if not pool.limits_concurrency and not by_worker:
                    continue
                if not go_on():
                    counts["more"] = 1
                    return SweepReport(counts, failures=counts.failures)
                # One failure must not stop the others; the next run checks this pool again.
                with counting_failures(counts, f"pool {pool.name}"):
                    if by_worker and workers is None:
                        workers = self._by_pool(limit)
                    self._one(pool, (workers or {}).get(pool.name, {}), now_ms, counts)
        return SweepReport(counts, failures=counts.failures)

    def _one(
        self,
        pool: Pool,
        workers: Mapping[str, int | None],
        now_ms: int,
        counts: Counter[str],
    ) -> None:
        found, _ = self._queues.get_many(pool.queues)
        counted = CountedPermits.of_pool(
            pool, [found[name] for name in pool.queues if name in found]
        )
        if pool.limits_concurrency:
            self._repair.check([counted], now_ms, counts)
        if workers:
            self._repair.check_workers(counted, workers, now_ms, counts)

    def _by_pool(self, limit: int) -> Mapping[str, Mapping[str, int | None]]:
        """Return about `limit` workers with their concurrency, by pool."""
        found: defaultdict[str, dict[str, int | None]] = defaultdict(dict)
        after: str | None = None
        seen = 0
        while seen < limit:
            page, after = self._workers.page(limit=_PAGE, after=after)
            seen += len(page)
            for worker in page:
                found[worker.pool or DEFAULT_POOL][worker.id] = worker.concurrency
            if after is None:
                break
        return found


def _most_untracked(counted: Occupancy, projected: Occupancy) -> tuple[int, int]:
    """Return the untracked jobs and their bytes, from the count or the projection, whichever has
    more.
    """
    return (
        max(counted.untracked, projected.untracked),
        max(counted.untracked_bytes, projected.untracked_bytes),
    )


def _last_closed_period(now_ms: int) -> int:
    """Return the last period for which no process can store jobs now."""
    return period_of(now_ms - SETTLED_MS) - 1


def _comparable(last: LastRecount, value: DepthValue, read_ms: int) -> bool:
    """Return whether the counter can be compared with the last recount.

    True if all subtractions that were pending at the recount are done, and the buckets of newer
    periods are still exact. Buckets are exact for KEPT_PERIODS, or until the counter changes.
    """
    settled = read_ms - last.at_ms >= SETTLED_MS
    return settled and last.period >= period_of(value.changed_ms) - KEPT_PERIODS + 1


def _minus(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    """Return by how many jobs and bytes the first value is larger than the second."""
    return max(0, one[0] - other[0]), max(0, one[1] - other[1])
