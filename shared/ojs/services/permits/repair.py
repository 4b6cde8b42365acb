"""Repairs the semaphores of queues and pools with `concurrency`, and of workers that are given jobs
by their load.

Every job gets a permit before it is claimed, has it noted in its record, and the permit is released
after the job has stopped running. So a semaphore never counts too few, except for jobs that ran
before there was a limit; and it counts too many when a function died in between.

- Before a limit applies, running jobs without a permit are given one (`count_running`). From then
  on there is no difference between them and the others. The operator's request is answered when
  fetches that could not know of the limit have ended (`wait`).
- A leaked permit is reclaimed after two recounts SETTLED_MS apart with no acquire or release in
  between, as `ojs.services.permits.reconcile` does for depth counters: no fetch can be about to
  claim a job with it, nor any function to release it.

Under constant traffic a leaked permit stays lost; when all permits are, the semaphore is at rest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ojs.domain.errors import BackendUnavailable
from ojs.domain.job.job import POOL_PERMIT, WORKER_PERMIT
from ojs.domain.pool.pool import Pool, seat_of
from ojs.domain.queue.queue import Queue
from ojs.store.jobs.job_permits import JobPermits
from ojs.store.permits.counter_items import ANY_VERSION, CounterValue
from ojs.store.permits.recount import Recount, RunningJobs
from ojs.store.permits.semaphore import ConcurrencySemaphore
from ojs.store.table import keys

# The sweep runs for 55 s, a request for 29 s.
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
        return cls(pool.gate, stats, tuple(queues), pool.configured_ms, pool.name)

    def has_permit(self, job: RunningJobs) -> bool:
        """Whether a running job has a permit of this semaphore."""
        return job.slot if self.pool is None else POOL_PERMIT in job.seats


class PermitRepair:
    """Repairs semaphores."""

    def __init__(
        self,
        *,
        permits: JobPermits,
        semaphore: ConcurrencySemaphore,
        recount: Recount,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._permits = permits
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
        names = {worker: seat_of(counted.pool, worker) for worker in workers}
        values = self._semaphore.values(list(names.values()))
        resting = {
            worker: values[name]
            for worker, name in names.items()
            if values[name].count and now_ms - values[name].changed_ms >= SETTLED_MS
        }
        if not resting:
            return
        running: Counter[str | None] = Counter()
        for at, job in enumerate(self._running(counted)):
            if at == MOST_COUNTED:
                return
            running[job.worker] += WORKER_PERMIT in job.seats
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
        at_rest = now_ms - value.changed_ms >= SETTLED_MS
        if not lately and (active == value.count or (active < value.count and not at_rest)):
            return
        taken, running = self._take_all(counted, now_ms, most=MOST_COUNTED)
        if taken:
            counts["slots_taken"] += taken
        if running is None or taken or not at_rest:
            return
        # The larger number counts; but the projection may be late, so that it alone is no reason to
        # count more than the semaphore shows.
        count = max(running, min(active, value.count))
        self._compare(counted.semaphore, value, count, now_ms, counts)

    def _compare(
        self, name: str, value: CounterValue, count: int, now_ms: int, counts: Counter[str]
    ) -> None:
        """Set a semaphore at rest to what was counted: at once when it is too low, otherwise when
        two sweeps found it too high.
        """
        drift = value.drift
        if count == value.count:
            return
        if count > value.count:
            self._semaphore.repair(name, value, count=count)
        elif drift is None:
            self._semaphore.record_drift(name, value, count=count, now_ms=now_ms)
            counts["slots_suspected"] += 1
        elif now_ms - drift.at_ms >= SETTLED_MS:
            count = max(count, drift.count)
            if count < value.count:
                counts["slots_freed"] += self._semaphore.repair(name, value, count=count)

    def _running(self, counted: CountedPermits) -> Iterator[RunningJobs]:
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

    def _take(self, counted: CountedPermits, job: RunningJobs, now_ms: int) -> bool:
        """Give a running job a permit, whether one is free or not; False if it needs none."""
        # The permit first, then the note on the job: if we die in between, one too many is counted.
        self._semaphore.acquire(
            counted.semaphore, count=1, limit=None, version=ANY_VERSION, now_ms=now_ms
        )
        if counted.pool is None:
            taken = self._permits.note_queue_permit(job.id, job.lease)
        else:
            taken = self._permits.note_pool_permit(job.id, job.lease, job.seats)
        if not taken:
            self._semaphore.release(counted.semaphore, count=1, now_ms=now_ms)
        return taken
