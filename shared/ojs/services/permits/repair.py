"""Repairs counters that have drifted: depth counters, and semaphores of queues, pools and workers.

A counter is raised before the write that it counts, and lowered after the write that ends it. So it
drifts only when a function dies in between, and only upwards: it never shows too few. It must not
do so after a repair either, so a counter is lowered only when no function can be about to make a
write that it counts, or to lower it:

1. it has not changed for SETTLED_MS, which is longer than any function runs: everything counted is
   stored, or never will be
2. the jobs are counted, by their records and by the projection. The larger number counts
3. the number is recorded, and nothing else happens for SETTLED_MS: a job that had ended when it was
   counted, but was not yet subtracted, is subtracted by then, which changes the counter
4. if the counter did not change in that time, it was too high already: it is set to the recorded
   number, or to the number counted now if that is larger, on condition that it is still unchanged

Under constant traffic drift stays: a full queue or pool gets its permits back when it is at rest.

Jobs that ran before there was a limit have no permits. Before the limit applies they are given one
(`PermitRepair.count_running`). From then on there is no difference between them and the others. The
operator's request is answered when fetches that could not know of the limit have ended (`wait`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from ojs.domain.errors import BackendUnavailable
from ojs.domain.job.job import POOL_PERMIT, WORKER_PERMIT, Job
from ojs.domain.pool.pool import Pool, worker_semaphore
from ojs.domain.queue.queue import Queue
from ojs.store.jobs.records import JobStore
from ojs.store.permits.counter_items import ANY_VERSION, CounterStore, CounterValue
from ojs.store.permits.recount import Recount
from ojs.store.permits.semaphore import ConcurrencySemaphore
from ojs.store.table import keys

# The sweep runs for 55 s, a request for 29 s; the index is late by less than the rest.
SETTLED_MS = 60_000
# How long to wait for fetches that began before they could know of a limit, in seconds.
GRACE_S = 1.0
_ROUNDS = 4
# For so long after that, the sweep looks for fetches that took longer, and for jobs that the index
# did not list.
_CONFIGURED_MS = 180_000
# Running jobs of one queue that are read one by one; each costs a read unit or half of one.
MOST_COUNTED = 20_000
# Running jobs that one request gives a permit, a write each.
MOST_TAKEN = 1_000


class Repair(Enum):
    """What was done about a counter that differs from a recount."""

    NOTHING = auto()
    SUSPECTED = auto()
    RAISED = auto()
    LOWERED = auto()


def at_rest(value: CounterValue, now_ms: int) -> bool:
    """Whether every function that changed the counter has ended by now."""
    return now_ms - value.changed_ms >= SETTLED_MS


def larger(recounted: int, projected: int, shown: int) -> int:
    """The larger of two counts; but the projection may be late, so that it alone is no reason to
    count more than the counter shows.
    """
    return max(recounted, min(projected, shown))


def repair(
    store: CounterStore, name: str, value: CounterValue, count: int, size: int, now_ms: int
) -> Repair:
    """Set the tracked part of a counter at rest to what was recounted: at once when it is too low,
    otherwise when a second recount, SETTLED_MS later, finds it too high as well. Raises OjsError.
    """
    tracked = (value.tracked, value.tracked_bytes)
    if (count, size) == tracked:
        return Repair.NOTHING
    done = Repair.LOWERED
    if count > value.tracked or size > value.tracked_bytes:
        done = Repair.RAISED
        count, size = max(count, value.tracked), max(size, value.tracked_bytes)
    elif value.drift is None:
        store.record_drift(name, value, count=count, size=size, now_ms=now_ms)
        return Repair.SUSPECTED
    elif now_ms - value.drift.at_ms < SETTLED_MS:
        return Repair.NOTHING
    else:
        count, size = max(count, value.drift.count), max(size, value.drift.size)
    if (count, size) == tracked or not store.repair(name, value, count=count, size=size):
        return Repair.NOTHING
    return done


@dataclass(frozen=True)
class CountedPermits:
    """What a semaphore counts: the running jobs of a queue, or those that a pool has of its queues.

    `stats` is the name they are projected under, `configured_ms` when their limit was changed.
    """

    semaphore: str
    stats: str
    queues: Sequence[Queue]
    configured_ms: int
    pool: str | None = None

    @classmethod
    def of_queue(cls, queue: Queue) -> CountedPermits:
        """The running jobs of a queue."""
        return cls(queue.name, queue.name, (queue,), queue.configured_ms or queue.created_ms)

    @classmethod
    def of_pool(cls, pool: Pool, queues: Sequence[Queue]) -> CountedPermits:
        """The running jobs of a pool with these queues."""
        stats = keys.pool_stats(pool.name)
        return cls(pool.semaphore, stats, tuple(queues), pool.configured_ms, pool.name)

    def has_permit(self, job: Job) -> bool:
        """Whether a running job has a permit of this semaphore."""
        return job.queue_permit if self.pool is None else POOL_PERMIT in job.pool_permits


class PermitRepair:
    """Repairs semaphores."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        semaphore: ConcurrencySemaphore,
        recount: Recount,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._jobs = jobs
        self._semaphore = semaphore
        self._recount = recount
        self._sleep = sleep

    @staticmethod
    def of_queue(queue: Queue) -> CountedPermits:
        """The running jobs of a queue."""
        return CountedPermits.of_queue(queue)

    def count_running(self, counted: CountedPermits, *, now_ms: int) -> int:
        """Give all running jobs a permit, before a limit is set on them; how many had none.

        Fetches must acquire permits by now. Raises BackendUnavailable when too many jobs run for
        one request: a repeated request continues.
        """
        taken, running = self._take_all(counted, now_ms, most=MOST_TAKEN)
        if running is None:
            raise BackendUnavailable(
                "More jobs run than can be counted at once; try again.", retry_after_s=5
            )
        return taken

    def wait(self, counted: CountedPermits, *, now_ms: int, again: bool) -> None:
        """Wait until every fetch applies a limit that was set or lowered.

        Fetches under way may have acquired permits under the old limit, and be about to claim jobs
        with them. With `again` there was no limit before: then some may acquire no permits, and the
        jobs they claim are given one.
        """
        for _ in range(_ROUNDS):
            self._sleep(GRACE_S)
            if not again or not self._take_all(counted, now_ms, most=MOST_TAKEN)[0]:
                return

    def check(self, those: Sequence[CountedPermits], now_ms: int, counts: Counter[str]) -> None:
        """Repair these semaphores.

        Counts: slotted (semaphores checked), slots_taken (permits for jobs that had none),
        slots_suspected and slots_freed (semaphores). Raises OjsError.
        """
        if not those:
            return
        values = self._semaphore.values([counted.semaphore for counted in those])
        active = self._recount.active([counted.stats for counted in those])
        for counted in those:
            counts["slotted"] += 1
            value = values[counted.semaphore]
            self._check(counted, value, active[counted.stats], now_ms, counts)

    def check_workers(
        self,
        counted: CountedPermits,
        workers: Sequence[str],
        now_ms: int,
        counts: Counter[str],
    ) -> None:
        """Repair the semaphores of a pool's workers, by the jobs they run. Raises OjsError."""
        assert counted.pool is not None
        names = {worker: worker_semaphore(counted.pool, worker) for worker in workers}
        values = self._semaphore.values(list(names.values()))
        resting = {
            worker: values[name]
            for worker, name in names.items()
            if values[name].count and at_rest(values[name], now_ms)
        }
        if not resting:
            return
        running: Counter[str | None] = Counter()
        for at, job in enumerate(self._running(counted)):
            if at == MOST_COUNTED:
                return
            running[job.worker_id] += WORKER_PERMIT in job.pool_permits
        for worker, value in resting.items():
            self._compare(names[worker], value, running[worker], now_ms, counts)

    def _check(
        self,
        counted: CountedPermits,
        value: CounterValue,
        active: int,
        now_ms: int,
        counts: Counter[str],
    ) -> None:
        lately = now_ms - counted.configured_ms < _CONFIGURED_MS
        rests = at_rest(value, now_ms)
        if not lately and (active == value.count or (active < value.count and not rests)):
            return
        taken, running = self._take_all(counted, now_ms, most=MOST_COUNTED)
        if taken:
            counts["slots_taken"] += taken
        if running is not None and not taken and rests:
            count = larger(running, active, value.count)
            self._compare(counted.semaphore, value, count, now_ms, counts)

    def _compare(
        self, name: str, value: CounterValue, count: int, now_ms: int, counts: Counter[str]
    ) -> None:
        match repair(self._semaphore, name, value, count, 0, now_ms):
            case Repair.SUSPECTED:
                counts["slots_suspected"] += 1
            case Repair.LOWERED:
                counts["slots_freed"] += 1

    def _running(self, counted: CountedPermits) -> Iterator[Job]:
        for queue in counted.queues:
            for job in self._recount.running(queue):
                if counted.pool in (None, job.pool):
                    yield job

    def _take_all(
        self, counted: CountedPermits, now_ms: int, *, most: int
    ) -> tuple[int, int | None]:
        """Give up to `most` running jobs a permit that have none; how many got one, and how many
        run, None if that is not known.
        """
        taken = tried = count = 0
        for job in self._running(counted):
            count += 1
            if not counted.has_permit(job):
                if tried == most:
                    return taken, None
                tried += 1
                taken += self._take(counted, job, now_ms)
            if count == MOST_COUNTED:
                return taken, None
        return taken, count

    def _take(self, counted: CountedPermits, job: Job, now_ms: int) -> bool:
        """Give a running job a permit, whether one is free or not; False if it needs none."""
        if job.lease is None:
            return False
        # The permit first, then the note on the job: if we die in between, one too many is counted.
        self._semaphore.acquire(
            counted.semaphore, count=1, limit=None, version=ANY_VERSION, now_ms=now_ms
        )
        if counted.pool is None:
            taken = self._jobs.note_queue_permit(job.id, job.lease.token)
        else:
            taken = self._jobs.note_pool_permit(job.id, job.lease.token, job.pool_permits)
        if not taken:
            self._semaphore.release(counted.semaphore, count=1, now_ms=now_ms)
        return taken
