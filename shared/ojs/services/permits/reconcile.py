"""The sweeps that repair counters (`ojs.services.permits.repair`): of queues, and of worker pools.

A depth counter has a tracked part, for jobs that were counted one by one, and an untracked part,
for jobs stored before the queue had a bound. An untracked job that is done is not subtracted: the
untracked part is recounted each minute. The tracked part is repaired as all counters are, when no
batch has room that is yet to be committed or undone. In a queue with more than MOST_COUNTED jobs
drift stays.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence

from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.pool.pool import DEFAULT_POOL, Pool
from ojs.services.permits.repair import (
    SETTLED_MS,
    CountedPermits,
    PermitRepair,
    Repair,
    at_rest,
    larger,
    repair,
)
from ojs.services.sweeps import (
    GoOn,
    SweepCounts,
    SweepQueues,
    SweepReport,
    always,
    counting_failures,
)
from ojs.store.permits.depth_counter import DepthCounter
from ojs.store.permits.recount import Occupancy, Recount, RecountedQueue
from ojs.store.queues.pools import PoolStore
from ojs.store.queues.queues import QueueStore
from ojs.store.queues.workers import WorkerStore

# For so long after a bound was set, untracked jobs may still be stored, and are looked for.
_CONFIGURED_MS = 600_000
# Jobs of one queue that are read one by one; each costs a read unit or half of one.
MOST_COUNTED = 5_000
_DRAIN_MINUTES = 5
_QUEUES = 33  # one call
_PAGE = 100


class ReconcileSweep:
    """Repairs the depth counters of bounded queues, and the semaphores of all limited queues."""

    name = "reconcile"

    def __init__(
        self,
        *,
        every: SweepQueues,
        depth: DepthCounter,
        recount: Recount,
        repair: PermitRepair,
    ) -> None:
        self._every = every
        self._depth = depth
        self._recount = recount
        self._repair = repair

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Check every bounded queue, counting the jobs of at most `limit` of them.

        Counts: unbounded (queues not checked), bounded (queues checked), counted (queues whose jobs
        were counted), recounted, suspected, healed, those of `PermitRepair.check`, failed, and
        `more` (1 when it ended early and another run should follow). Begins at a random queue, so
        that every queue gets its turn when runs end early.
        """
        counts = SweepCounts()
        staged: Collection[str] | None = None
        asked = False
        for part in self._counted(counts):
            found: Sequence[RecountedQueue] = ()
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
                    if not asked:
                        staged, asked = self._recount.staged(), True
                    self._check(known, staged, now_ms, counts)
        return SweepReport(counts, failures=counts.failures)

    def _counted(self, counts: SweepCounts) -> Iterator[list[str]]:
        """The names of the queues that have counters, in parts that one call can read."""
        for part in self._every.parts(counts):
            counts.update("unbounded" for queue in part if not queue.config.bounded)
            names = [each.name for each in part if each.tracks_depth or each.limits_concurrency]
            for at in range(0, len(names), _QUEUES):
                yield names[at : at + _QUEUES]

    def count_untracked(self, name: str) -> None:
        """Count the jobs in a queue into its depth counter, before the queue gets a bound.

        A push that is under way is found by the sweep. Raises OjsError.
        """
        for known in self._recount.known([name]):
            counted, _ = self._recount.count(known.queue, most=MOST_COUNTED)
            untracked, size = _most_untracked(counted, known.projected)
            self._depth.recount(
                name, known.value, untracked=untracked, untracked_bytes=size, drain=None
            )

    def _check_permits(
        self,
        found: Sequence[RecountedQueue],
        now_ms: int,
        counts: SweepCounts,
        go_on: GoOn,
    ) -> bool:
        """Repair the semaphores of these queues; False when there is no time left to do so."""
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
        staged: Collection[str] | None,
        now_ms: int,
        counts: Counter[str],
    ) -> None:
        counts["bounded"] += 1
        value, name = known.value, known.queue.name
        counted = self._count(known, now_ms, counts)
        untracked = self._untracked(known, counted, now_ms)
        drain = self._recount.drain(name, now_ms=now_ms, minutes=_DRAIN_MINUTES)
        same = untracked == (value.untracked, value.untracked_bytes)
        if not same or drain != (value.drain or 0):
            self._depth.recount(
                name, value, untracked=untracked[0], untracked_bytes=untracked[1], drain=drain
            )
            counts["recounted"] += not same
        if not same or counted is None or not counted[1] or not at_rest(value, now_ms):
            return
        # A batch that is undone releases all its room, whether its jobs were stored or not. Until
        # then fewer jobs are in line than were counted, and nothing is wrong.
        if staged is not None and name not in staged:
            self._repair_tracked(known, counted[0], now_ms, counts)

    def _count(
        self, known: RecountedQueue, now_ms: int, counts: Counter[str]
    ) -> tuple[Occupancy, bool] | None:
        """The queue's jobs, and whether all were counted; None if there is no need to count."""
        value, projected = known.value, known.projected
        looks_wrong = (value.tracked, value.tracked_bytes) != (
            projected.tracked,
            projected.tracked_bytes,
        )
        if not self._may_have_untracked(known, now_ms) and not (
            looks_wrong and at_rest(value, now_ms)
        ):
            return None
        counts["counted"] += 1
        return self._recount.count(known.queue, most=MOST_COUNTED)

    @staticmethod
    def _may_have_untracked(known: RecountedQueue, now_ms: int) -> bool:
        """Whether there may be untracked jobs, or the counter shows some that are gone."""
        configured_ms = known.queue.configured_ms or known.queue.created_ms
        value = known.value
        if value.untracked or value.untracked_bytes or known.projected.untracked:
            return True
        return now_ms - configured_ms < _CONFIGURED_MS

    @staticmethod
    def _untracked(
        known: RecountedQueue, counted: tuple[Occupancy, bool] | None, now_ms: int
    ) -> tuple[int, int]:
        """The number of untracked jobs and their bytes that the counter should show."""
        value = known.value
        if counted is None:
            return value.untracked, value.untracked_bytes
        found, whole = counted
        untracked, size = _most_untracked(found, known.projected)
        configured_ms = known.queue.configured_ms or 0
        if not whole and now_ms - configured_ms < SETTLED_MS:
            # The projection may not have seen all of them yet.
            return max(untracked, value.untracked), max(size, value.untracked_bytes)
        return untracked, size

    def _repair_tracked(
        self, known: RecountedQueue, counted: Occupancy, now_ms: int, counts: Counter[str]
    ) -> None:
        value, projected = known.value, known.projected
        count = larger(counted.tracked, projected.tracked, value.tracked)
        size = larger(counted.tracked_bytes, projected.tracked_bytes, value.tracked_bytes)
        match repair(self._depth, known.queue.name, value, count, size, now_ms):
            case Repair.SUSPECTED:
                counts["suspected"] += 1
            case Repair.RAISED | Repair.LOWERED:
                counts["healed"] += 1


class PoolPermitSweep:
    """Repairs the semaphores of pools and of their workers."""

    name = "pool_permits"

    def __init__(
        self, *, pools: PoolStore, queues: QueueStore, workers: WorkerStore, repair: PermitRepair
    ) -> None:
        self._pools = pools
        self._queues = queues
        self._workers = workers
        self._repair = repair

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Check every pool with permits, and the permits of about `limit` workers.

        Counts: those of `PermitRepair.check`, failed (pools), and `more` (1 when it ended early).
        """
        counts = SweepCounts()
        workers: Mapping[str, Sequence[str]] | None = None
        after: str | None = None
        while True:
            names, after = self._pools.names(limit=_PAGE, after=after)
            for pool in self._pools.get_many(names, counts.fail):
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
                    self._one(pool, (workers or {}).get(pool.name, ()), now_ms, counts)
            if after is None:
                return SweepReport(counts, failures=counts.failures)

    def _one(self, pool: Pool, workers: Sequence[str], now_ms: int, counts: Counter[str]) -> None:
        found, _ = self._queues.get_many(pool.queues)
        counted = CountedPermits.of_pool(
            pool, [found[name] for name in pool.queues if name in found]
        )
        if pool.limits_concurrency:
            self._repair.check([counted], now_ms, counts)
        if workers:
            self._repair.check_workers(counted, workers, now_ms, counts)

    def _by_pool(self, limit: int) -> Mapping[str, Sequence[str]]:
        """About `limit` workers that have a record, by the pool they belong to."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        after: str | None = None
        seen = 0
        while seen < limit:
            page, after = self._workers.page(limit=_PAGE, after=after)
            seen += len(page)
            for worker in page:
                found[worker.pool or DEFAULT_POOL].append(worker.id)
            if after is None:
                break
        return found


def _most_untracked(counted: Occupancy, projected: Occupancy) -> tuple[int, int]:
    """Untracked jobs and their bytes, by the source that knows of more."""
    return (
        max(counted.untracked, projected.untracked),
        max(counted.untracked_bytes, projected.untracked_bytes),
    )
