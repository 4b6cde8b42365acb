"""Repairs what semaphores count: permits that no job runs with, and jobs that run without one.

Permits have names, so those that no job runs with are found out by the records of their jobs
(`ojs.store.permits.semaphore`), by a fetch that is refused or by the sweep here.

Jobs that ran before there was a limit have no permits. Before the limit applies they are given one
(`PermitRepair.count_running`). From then on there is no difference between them and the others. The
operator's request is answered when fetches that could not know of the limit have ended (`wait`).
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

# How long to wait for fetches that began before they could know of a limit, in seconds.
GRACE_S = 1.0
_ROUNDS = 4
# For so long after that, the sweep looks for fetches that took longer, and for jobs that the index
# did not list.
_CONFIGURED_MS = 180_000
# Running jobs of one queue that are read one by one; each costs a read unit or half of one.
MOST_COUNTED = 20_000
# Running jobs that one request gives a permit, two writes each.
MOST_TAKEN = 1_000


@record(frozen=True)
class CountedPermits:
    """What a semaphore counts: the running jobs of a queue, or those that a pool has of its queues.

    `kind` is how job records name its permits, `stats` the name under which the running jobs are
    projected, `configured_ms` when the limit was changed.
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
        """The running jobs of a queue; with the limit that it is about to get."""
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
        """The running jobs of a pool with these queues; with the limit that it is about to get."""
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
        """Whether a running job has a permit of this semaphore."""
        return self.has_unnamed(job) or (
            job.permits is not None and self.kind in job.permits.shards
        )

    def has_unnamed(self, job: Job) -> bool:
        """Whether it is one without a name, of version 0.2."""
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
        """As `CountedPermits.of_queue`, for callers that import this module on first use."""
        return CountedPermits.of_queue(queue, limit)

    def count_running(self, counted: CountedPermits, *, now_ms: int) -> int:
        """Give all running jobs a permit, before a limit is set on them; how many had none.

        Fetches must acquire permits by now. Raises BackendUnavailable when too many jobs run for
        one request: a repeated request continues.
        """
        given, running = self._give_all(counted, now_ms, most=MOST_TAKEN)
        if running is None:
            raise BackendUnavailable(
                "More jobs run than can be counted at once; try again.", retry_after_s=5
            )
        return given

    def wait(self, counted: CountedPermits, *, now_ms: int, again: bool) -> None:
        """Wait until every fetch applies a limit that was set or lowered.

        Fetches under way may have acquired permits under the old limit, and be about to claim jobs
        with them. With `again` there was no limit before: then some may acquire no permits, and the
        jobs they claim are given one.
        """
        for _ in range(_ROUNDS):
            self._sleep(GRACE_S)
            if not again or not self._give_all(counted, now_ms, most=MOST_TAKEN)[0]:
                return

    def check(self, those: Sequence[CountedPermits], now_ms: int, counts: Counter[str]) -> None:
        """Repair these semaphores.

        Counts: slotted (semaphores checked), slots_taken (permits for jobs that had none), and
        slots_freed (semaphores). Raises OjsError.
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
        """Repair the semaphores of a pool's workers, which have these limits. Raises OjsError."""
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
        """Give up to `most` running jobs a permit that have none; how many got one, and the jobs
        that run, None if there are too many.
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
        """Give a running job a permit, whether one is free or not; False if it needs none."""
        if job.lease is None:
            return False
        had = job.permits or RunPermits(self._semaphores.new_run())
        name = permit_name(job.id, had.run)
        # The permit first, then the note on the job: if we die in between, it is found out that
        # the job does not run with it.
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
