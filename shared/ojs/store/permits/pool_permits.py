"""Places that running jobs take in the worker pool they were handed out to: one of the pool's,
where it has a limit, and one of its worker's, where jobs go to who has the least to do.

A fetch takes them before it claims (`ojs.services.pools.dispatch`); here is what becomes of them afterwards.
"""

from __future__ import annotations

from ojs.domain.job.job import POOL_SEAT, WORKER_SEAT, Job
from ojs.domain.pool.dispatch import LEAST_LOADED
from ojs.domain.pool.pool import SEATS_KEPT_S, gate_of, seat_of
from ojs.store.permits.counters import ANY_VERSION, Gates
from ojs.store.queues.pools import PoolStore
from ojs.store.table.table import Table


class PoolPermits:
    """Gives places back, and takes them for jobs that go on."""

    def __init__(self, table: Table, gates: Gates) -> None:
        self._pools = PoolStore(table)
        self._gates = gates

    def free(self, job: Job, *, now_ms: int) -> None:
        """Give back those that a job took. Should it fail, too many count until healed."""
        if job.pool is None:
            return
        if POOL_SEAT in job.seats:
            self._gates.free_slots(gate_of(job.pool), count=1, now_ms=now_ms)
        if WORKER_SEAT in job.seats and job.worker_id is not None:
            seat = seat_of(job.pool, job.worker_id)
            self._gates.free_slots(seat, count=1, now_ms=now_ms)

    def take_again(self, job: Job, *, now_ms: int) -> str | None:
        """The places of a job that goes on with an attempt whose lease had run out; None when the
        pool has none left.
        """
        pool = self._pools.get(job.pool) if job.pool is not None else None
        if pool is None:
            return ""
        seats = ""
        if pool.seated:
            granted = self._gates.take_slots(
                pool.gate, count=1, limit=pool.concurrency, version=pool.version, now_ms=now_ms
            )
            if not granted.count:
                return None
            seats += POOL_SEAT
        if pool.strategy == LEAST_LOADED and job.worker_id is not None:
            # The worker runs it, whether it has room or not.
            seat = seat_of(pool.name, job.worker_id)
            self._gates.take_slots(
                seat,
                count=1,
                limit=None,
                version=ANY_VERSION,
                now_ms=now_ms,
                kept_s=SEATS_KEPT_S,
            )
            seats += WORKER_SEAT
        return seats
