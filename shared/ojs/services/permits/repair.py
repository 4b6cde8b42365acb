"""Repairs semaphores: releases leaked permits, and gives permits to active jobs that have none.

Each permit has a name, so the job records show which permits no job runs with
(`ojs.store.permits.semaphore`). A fetch that finds no free permit checks the permits. The sweep
here checks them as well.

Jobs that started before a limit was set have no permits. They get one before the limit applies
(`PermitRepair.count_running`). After that, they are like other jobs. The operator's request returns
after all fetches have ended that started before the limit was set (`wait`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from ojs.domain.errors import BackendUnavailable
from ojs.domain.job.job import Job
from ojs.domain.job.permits import POOL_PERMIT, QUEUE_PERMIT, WORKER_PERMIT, RunPermits, permit_name
from ojs.domain.pool.pool import Pool, worker_semaphore
from ojs.domain.queue.queue import Queue
from ojs.records import record
from ojs.services.permits.semaphore_permits import SemaphorePermits
from ojs.store.derived.recount import Recount
from ojs.store.jobs.records import JobStore
from ojs.store.permits.counter_items import ANY_VERSION
from ojs.store.permits.semaphore import taken, unnamed_permits
from ojs.store.table import keys
from ojs.store.table.values import Item

# Time to wait for fetches that started before the limit was set, in seconds.
GRACE_S = 1.0
_ROUNDS = 4
# Time after the limit was set in which the sweep searches for jobs of slower fetches, and for jobs
# that the index did not list.
_CONFIGURED_MS = 180_000
# Maximum number of running jobs of one queue that are read. Each costs up to one read unit.
MOST_COUNTED = 20_000
# Maximum number of active jobs to which one request gives a permit. Two writes each.
MOST_TAKEN = 1_000


@record(frozen=True)
class CountedPermits:
    """The active jobs that a semaphore counts: those of a queue, or those of a pool in its queues.

    `kind` identifies the permits in job records. `stats` is the name under which the projection
    counts the active jobs. `configured_ms` is when the limit was changed.
    """

    semaphore: str
    kind: str
    limit: int | None
    stats: str
    queues: Sequence[Queue]
    configured_ms: int
    pool: str | None = None

    @classmethod
    def of_queue(cls, queue: Queue, limit: int | None = None) -> CountedPermits:
        """Return the running jobs of a queue. `limit` is a limit that is about to be set."""
        return cls(
            queue.name,
            QUEUE_PERMIT,
            queue.config.concurrency if limit is None else limit,
            queue.name,
            (queue,),
            queue.configured_ms or queue.created_ms,
        )

    @classmethod
    def of_pool(
        cls, pool: Pool, queues: Sequence[Queue], limit: int | None = None
    ) -> CountedPermits:
        """Return the running jobs of a pool in its queues.

        Args:
            pool: The pool.
            queues: The pool's queues.
            limit: A limit that is about to be set. Default: the pool's limit.

        Returns:
            The counted permits.
        """
        return cls(
            pool.semaphore,
            POOL_PERMIT,
            pool.concurrency if limit is None else limit,
            keys.pool_stats(pool.name),
            tuple(queues),
            pool.configured_ms,
            pool.name,
        )

    def has_permit(self, job: Job) -> bool:
        """Return whether a running job has a permit of this semaphore."""
        return self.has_unnamed(job) or (
            job.permits is not None and self.kind in job.permits.shards
        )

    def has_unnamed(self, job: Job) -> bool:
        """Return whether the job has a permit without a name, of version 0.2."""
        return self.kind in job.unnamed_permits


class PermitRepair:
    """Repairs semaphores."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        semaphores: SemaphorePermits,
        recount: Recount,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._jobs = jobs
        self._semaphores = semaphores
        self._store = semaphores.store
        self._recount = recount
        self._sleep = sleep

    @staticmethod
    def of_queue(queue: Queue, limit: int | None = None) -> CountedPermits:
        """Return `CountedPermits.of_queue`, for callers that import this module on first use."""
        return CountedPermits.of_queue(queue, limit)

    def count_running(self, counted: CountedPermits, *, now_ms: int) -> int:
        """Give each running job a permit before a limit is set. Return how many had none.

        Fetches must already acquire permits. Raises BackendUnavailable if too many jobs run for
        one request. A repeated request continues.
        """
        given, running = self._give_all(counted, now_ms, most=MOST_TAKEN)
        if running is None:
            raise BackendUnavailable(
                "There are too many active jobs to count in one request. Repeat the request.",
                retry_after_s=5,
            )
        return given

    def wait(self, counted: CountedPermits, *, now_ms: int, again: bool) -> None:
        """Wait until every fetch applies a limit that was set or lowered.

        Fetches in progress may have acquired permits under the old limit, and may be about to
        claim jobs with them.

        Args:
            counted: The running jobs that the limit applies to.
            now_ms: Current time in milliseconds since the epoch.
            again: Whether there was no limit before. Some fetches then acquire no permits, and the
                jobs they claim are given permits here.

        Raises:
            OjsError: A read or a write failed.
        """
        for _ in range(_ROUNDS):
            self._sleep(GRACE_S)
            if not again or not self._give_all(counted, now_ms, most=MOST_TAKEN)[0]:
                return

    def check(self, those: Sequence[CountedPermits], now_ms: int, counts: Counter[str]) -> None:
        """Repair these semaphores.

        Args:
            those: The semaphores with their running jobs.
            now_ms: Current time in milliseconds since the epoch.
            counts: Receives slotted (semaphores checked), slots_taken (permits given to jobs that
                had none), and slots_freed (semaphores).

        Raises:
            OjsError: A read or a write failed.
        """
        if not those:
            return
        found = self._store.read({counted.semaphore: counted.limit for counted in those})
        active = self._recount.active([counted.stats for counted in those])
        for counted in those:
            counts["slotted"] += 1
            items = found[counted.semaphore]
            self._heal(counted.semaphore, items, now_ms, counts)
            lately = now_ms - counted.configured_ms < _CONFIGURED_MS
            nameless = unnamed_permits(items[0]) > 0
            if lately or nameless or active[counted.stats] > taken(items):
                given, running = self._give_all(counted, now_ms, most=MOST_COUNTED)
                if given:
                    counts["slots_taken"] += given
                if (
                    nameless
                    and running is not None
                    and not any(counted.has_unnamed(job) for job in running)
                ):
                    self._drop_unnamed(counted.semaphore, items[0], now_ms, counts)

    def check_workers(
        self,
        counted: CountedPermits,
        workers: Mapping[str, int | None],
        now_ms: int,
        counts: Counter[str],
    ) -> None:
        """Repair the semaphores of a pool's workers.

        Args:
            counted: The running jobs of the pool.
            workers: Concurrency limit of each worker, by ID. None: no limit.
            now_ms: Current time in milliseconds since the epoch.
            counts: Receives the counts of `check`.

        Raises:
            OjsError: A read or a write failed.
        """
        assert counted.pool is not None
        names = {worker: worker_semaphore(counted.pool, worker) for worker in workers}
        found = self._store.read({names[worker]: limit for worker, limit in workers.items()})
        for name, items in found.items():
            self._heal(name, items, now_ms, counts)
        nameless = {worker for worker, name in names.items() if unnamed_permits(found[name][0]) > 0}
        if not nameless:
            return
        for at, job in enumerate(self._running(counted)):
            if at == MOST_COUNTED:
                return
            if WORKER_PERMIT in job.pool_permits:
                nameless.discard(job.worker_id or "")
        for worker in nameless:
            self._drop_unnamed(names[worker], found[names[worker]][0], now_ms, counts)

    def _heal(self, name: str, items: Sequence[Item], now_ms: int, counts: Counter[str]) -> None:
        """Release the permits that no job runs with."""
        for shard, item in enumerate(items):
            counts["slots_freed"] += self._store.heal(name, shard, item, now_ms=now_ms)

    def _drop_unnamed(self, name: str, item: Item, now_ms: int, counts: Counter[str]) -> None:
        counts["slots_freed"] += self._store.drop_unnamed(name, item, now_ms=now_ms)

    def _running(self, counted: CountedPermits) -> Iterator[Job]:
        for queue in counted.queues:
            for job in self._recount.running(queue):
                if counted.pool in (None, job.pool):
                    yield job

    def _give_all(
        self, counted: CountedPermits, now_ms: int, *, most: int
    ) -> tuple[int, list[Job] | None]:
        """Give permits to up to `most` active jobs that have none.

        Return the number of jobs that got one, and the active jobs. The list is None if there are
        too many.
        """
        given = tried = 0
        running: list[Job] = []
        for job in self._running(counted):
            running.append(job)
            if not counted.has_permit(job):
                if tried == most:
                    return given, None
                tried += 1
                given += self._give(counted, job, now_ms)
            if len(running) == MOST_COUNTED:
                return given, None
        return given, running

    def _give(self, counted: CountedPermits, job: Job, now_ms: int) -> bool:
        """Give an active job a permit even if none is free. Return false if the job needs none."""
        if job.lease is None:
            return False
        had = job.permits or RunPermits(self._semaphores.new_run())
        name = permit_name(job.id, had.run)
        # The permit is acquired first, and then stored in the job record. After a crash in between,
        # a check detects that the job does not run with the permit.
        acquired = self._store.acquire(
            counted.semaphore,
            [name],
            limit=counted.limit,
            version=ANY_VERSION,
            now_ms=now_ms,
            limited=False,
        )
        shard = acquired.permits[name]
        permits = RunPermits(had.run, {**had.shards, counted.kind: shard})
        if self._jobs.note_permits(job, permits):
            return True
        self._store.release(counted.semaphore, shard, [name], now_ms=now_ms)
        return False
