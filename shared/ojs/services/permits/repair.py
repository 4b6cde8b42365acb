"""Places of running jobs: sets right what the gate of a queue, or of a worker pool, with
`concurrency` counts, and those of workers that are given jobs by how many they have.

Every job that is handed out takes a place before it is claimed, notes so on its head, and gives the
place back after it has stopped running. So the gate never counts too few, but for jobs that ran
before there was a limit; and it counts too many when somebody died in between.

- Before a limit holds, running jobs that take no place are given one (`begin`). From then on there
  is no difference between them and the others. Whoever sets it gets an answer when fetches that
  could not know of it are over (`wait`).
- A place that no job takes is free again when the gate was at rest for SETTLED_MS, twice, and the
  running jobs were counted both times, as `ojs.services.permits.reconcile` has it for bounds: nobody can be
  about to claim a job with it, nor to give it back.

Under constant traffic a lost place stays lost; at the latest when all are, the gate is at rest.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ojs.domain.errors import BackendUnavailable
from ojs.domain.job.job import POOL_SEAT, WORKER_SEAT
from ojs.domain.pool.pool import Pool, seat_of
from ojs.domain.queue.queue import Queue
from ojs.store.jobs.records import JobStore
from ojs.store.permits.counters import ANY_VERSION, CounterValue, Gates
from ojs.store.permits.recount import Recount, RunningJobs
from ojs.store.table import keys

# The sweep runs for 55 s, a request for 29 s.
SETTLED_MS = 60_000
# Fetches that began before they could know of a limit are waited for; seconds.
GRACE_S = 1.0
_ROUNDS = 4
# Those that take longer than that, and what the index did not show, are looked for so long.
_CONFIGURED_MS = 180_000
# Running jobs of one queue that are looked at one by one; each costs a read unit or half of one.
MOST_COUNTED = 20_000
# Those that one request gives a place, a write each.
MOST_TAKEN = 1_000


@dataclass(frozen=True)
class CountedPermits:
    """What a gate counts: the running jobs of a queue, or those of its queues that a pool has.

    `stats` is what they are projected under, `configured_ms` when the limit on them was changed.
    """

    gate: str
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

    def takes_place(self, job: RunningJobs) -> bool:
        """Whether a running job takes a place at this gate."""
        return job.slot if self.pool is None else POOL_SEAT in job.seats


class PermitRepair:
    """Looks after the places of running jobs."""

    def __init__(
        self,
        gates: Gates,
        census: Recount,
        jobs: JobStore,
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._gates = gates
        self._census = census
        self._jobs = jobs
        self._sleep = sleep

    @staticmethod
    def of(queue: Queue) -> CountedPermits:
        """The running jobs of a queue."""
        return CountedPermits.of_queue(queue)

    def begin(self, counted: CountedPermits, *, now_ms: int) -> int:
        """Give all running jobs a place, before a limit is set on them; how many had none.

        Whatever a fetch hands out must take one by now. Raises BackendUnavailable when too many run
        to be dealt with at once: asked again, it goes on.
        """
        taken, running = self._take_all(counted, now_ms, most=MOST_TAKEN)
        if running is None:
            raise BackendUnavailable(
                "More jobs run than can be counted at once; try again.", retry_after_s=5
            )
        return taken

    def wait(self, counted: CountedPermits, *, now_ms: int, again: bool) -> None:
        """Wait until a limit that was set or lowered is heeded by all.

        Fetches are under way that took places under the old one, and are about to claim jobs with
        them. With `again` there was none before: then there may also be some that take no places,
        and what they claim gets one.
        """
        for _ in range(_ROUNDS):
            self._sleep(GRACE_S)
            if not again or not self._take_all(counted, now_ms, most=MOST_TAKEN)[0]:
                return

    def look(self, those: Sequence[CountedPermits], now_ms: int, counts: Counter[str]) -> None:
        """Set these gates right.

        Counts: slotted (gates looked at), slots_taken (for jobs that had none), slots_suspected
        and slots_freed (gates). Raises OjsError.
        """
        if not those:
            return
        levels = self._gates.slots([counted.gate for counted in those])
        active = self._census.active([counted.stats for counted in those])
        for counted in those:
            counts["slotted"] += 1
            self._one(counted, levels[counted.gate], active[counted.stats], now_ms, counts)

    def look_at_workers(
        self,
        counted: CountedPermits,
        workers: Sequence[str],
        now_ms: int,
        counts: Counter[str],
    ) -> None:
        """Set the gates of a pool's workers right, by the jobs that they run. Raises OjsError."""
        assert counted.pool is not None
        gates = {worker: seat_of(counted.pool, worker) for worker in workers}
        levels = self._gates.slots(list(gates.values()))
        resting = {
            worker: levels[gate]
            for worker, gate in gates.items()
            if levels[gate].count and now_ms - levels[gate].changed_ms >= SETTLED_MS
        }
        if not resting:
            return
        running: Counter[str | None] = Counter()
        for at, job in enumerate(self._running(counted)):
            if at == MOST_COUNTED:
                return
            running[job.worker] += WORKER_SEAT in job.seats
        for worker, level in resting.items():
            self._compare(gates[worker], level, running[worker], now_ms, counts)

    def _one(
        self,
        counted: CountedPermits,
        level: CounterValue,
        active: int,
        now_ms: int,
        counts: Counter[str],
    ) -> None:
        lately = now_ms - counted.configured_ms < _CONFIGURED_MS
        at_rest = now_ms - level.changed_ms >= SETTLED_MS
        if not lately and (active == level.count or (active < level.count and not at_rest)):
            return
        taken, running = self._take_all(counted, now_ms, most=MOST_COUNTED)
        if taken:
            counts["slots_taken"] += taken
        if running is None or taken or not at_rest:
            return
        # The larger counts; but the projection may be late, and what it alone knows of is no reason
        # to count more than there are places taken.
        count = max(running, min(active, level.count))
        self._compare(counted.gate, level, count, now_ms, counts)

    def _compare(
        self, gate: str, level: CounterValue, count: int, now_ms: int, counts: Counter[str]
    ) -> None:
        """Set a gate at rest to what was counted: at once when it counts too few, else when it was
        found the same twice.
        """
        suspicion = level.suspicion
        if count == level.count:
            return
        if count > level.count:
            # Jobs that run must count, at once.
            self._gates.heal(gate, level, count=count, sk=keys.SLOTS)
        elif suspicion is None:
            self._gates.suspect(gate, level, count=count, now_ms=now_ms, sk=keys.SLOTS)
            counts["slots_suspected"] += 1
        elif now_ms - suspicion.at_ms >= SETTLED_MS:
            count = max(count, suspicion.count)
            if count < level.count:
                healed = self._gates.heal(gate, level, count=count, sk=keys.SLOTS)
                counts["slots_freed"] += healed

    def _running(self, counted: CountedPermits) -> Iterator[RunningJobs]:
        for queue in counted.queues:
            for job in self._census.running(queue):
                if counted.pool in (None, job.pool):
                    yield job

    def _take_all(
        self, counted: CountedPermits, now_ms: int, *, most: int
    ) -> tuple[int, int | None]:
        """A place for up to `most` running jobs that have none; how many got one, and how many run,
        None if that is not known.
        """
        taken = asked = count = 0
        for job in self._running(counted):
            count += 1
            if not counted.takes_place(job):
                if asked == most:
                    return taken, None
                asked += 1
                taken += self._take(counted, job, now_ms)
            if count == MOST_COUNTED:
                return taken, None
        return taken, count

    def _take(self, counted: CountedPermits, job: RunningJobs, now_ms: int) -> bool:
        """A place for a running job, whether one is free or not; False if it needs none."""
        # First the place, then the note: if we die in between, a place is taken too many.
        self._gates.take_slots(
            counted.gate, count=1, limit=None, version=ANY_VERSION, now_ms=now_ms
        )
        if counted.pool is None:
            taken = self._jobs.take_slot(job.id, job.lease)
        else:
            taken = self._jobs.take_seat(job.id, job.lease, job.seats)
        if not taken:
            self._gates.free_slots(counted.gate, count=1, now_ms=now_ms)
        return taken
