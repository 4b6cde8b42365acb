"""A queue's own limits on the jobs it hands out: concurrency and rate.

Unlimited queues cost nothing here.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from ojs.clock import Clock
from ojs.domain.errors import OjsError
from ojs.domain.job.job import Job
from ojs.domain.queue.queue import Queue
from ojs.domain.rate_limit.limiter import CONCURRENCY, RATE
from ojs.store.permits.counter_items import PermitGrant
from ojs.store.permits.rate_window import RateWindowStore
from ojs.store.permits.semaphore import ConcurrencySemaphore
from ojs.store.permits.throttle_state import LimitName, ThrottleStates
from ojs.store.queues.queues import QueueStore
from ojs.store.table import keys

_COUNTS = {CONCURRENCY: keys.SEMAPHORE, RATE: keys.RATE}


@dataclass
class QueuePermitUse:
    """What one fetch was granted by a queue's limits, and used.

    `closed` says that the queue has granted less than was wanted, and will not be asked again.
    """

    queue: Queue
    granted: int = 0
    used: int = 0
    closed: bool = False
    # By strategy: the last grant, and the job that had to wait, if one had.
    grants: dict[str, PermitGrant] = field(default_factory=dict)
    blocked: dict[str, str] = field(default_factory=dict)
    # Candidates seen by the fetch that were granted nothing.
    waiting: int = 0
    started: str | None = None


class QueuePermits:
    """Acquires and releases permits of limited queues."""

    def __init__(
        self,
        *,
        semaphore: ConcurrencySemaphore,
        rate_windows: RateWindowStore,
        states: ThrottleStates,
        queues: QueueStore,
        clock: Clock,
    ) -> None:
        self._semaphore = semaphore
        self._rate_windows = rate_windows
        self._states = states
        self._queues = queues
        self._clock = clock

    def acquire(
        self,
        uses: dict[str, QueuePermitUse],
        queue: Queue,
        job_id: str,
        *,
        wanted: int,
        waiting: int,
    ) -> bool:
        """Acquire permits for up to `wanted` jobs, once per queue and fetch.

        Returns whether this job may be claimed. `waiting` is how many candidates the fetch has
        seen, for the throttle event. `close` releases what was not used.
        """
        if not queue.limits_concurrency and queue.config.rate_limit is None:
            return True
        use = uses.setdefault(queue.name, QueuePermitUse(queue))
        if use.used < use.granted:
            return True
        if use.closed:
            return False
        granted = self._grant(use, job_id, wanted)
        use.granted += granted
        use.closed = granted < wanted
        use.waiting = max(0, waiting - granted)
        return granted > 0

    @staticmethod
    def commit(uses: dict[str, QueuePermitUse], queue: Queue, job_id: str) -> None:
        """Take a permit for a job that is about to be claimed."""
        if queue.name in uses:
            uses[queue.name].used += 1
            uses[queue.name].started = job_id

    @staticmethod
    def rollback(uses: dict[str, QueuePermitUse], queue: Queue) -> None:
        """Take the permit back: the job was not claimed."""
        if queue.name in uses:
            uses[queue.name].used -= 1

    def release(self, job: Job, *, now_ms: int) -> None:
        """Release the permit of a job that stopped running."""
        if job.queue_permit:
            self._semaphore.release(job.queue, count=1, now_ms=now_ms)

    def reacquire(self, job: Job, *, now_ms: int) -> bool | None:
        """Whether a job that goes on after its lease ended has a permit again; None when it needs
        one and none is left.
        """
        queue = self._queues.get(job.queue)
        if queue is None or not queue.limits_concurrency:
            return False
        return True if self._acquire(queue, 1, now_ms).count else None

    def close(self, uses: dict[str, QueuePermitUse]) -> None:
        """Release unused permits, and record limits that start or stop throttling."""
        for use in uses.values():
            # A failure here must not lose the jobs that were claimed.
            with suppress(OjsError):
                self._record_throttling(use)
            if unused := use.granted - use.used:
                self._release_unused(use.queue, permits=unused, starts=unused)

    def _record_throttling(self, use: QueuePermitUse) -> None:
        now_ms = self._clock.now_ms()
        for strategy, grant in use.grants.items():
            limiter = LimitName.of_queue(use.queue.name, _COUNTS[strategy])
            blocked = use.blocked.get(strategy)
            since_ms = grant.throttled_since_ms
            if blocked is not None and grant.full and since_ms is None:
                self._states.mark_throttled(
                    limiter,
                    strategy=strategy,
                    limit=grant.limit,
                    current=grant.current,
                    job_id=blocked,
                    now_ms=now_ms,
                    unchanged=grant.unchanged,
                )
            # Still throttled: do not emit another event.
            still = blocked is not None or (grant.full and use.waiting > 0)
            if since_ms is not None and use.started is not None and not still:
                self._states.clear(limiter, job_id=use.started, since_ms=since_ms, now_ms=now_ms)

    def _grant(self, use: QueuePermitUse, job_id: str, wanted: int) -> int:
        queue, config, now_ms = use.queue, use.queue.config, self._clock.now_ms()
        permits = wanted
        if queue.limits_concurrency:
            grant = self._acquire(queue, wanted, now_ms)
            permits = grant.count
            _note(use, CONCURRENCY, grant, job_id, missing=wanted - permits)
        if config.rate_limit is None or permits == 0:
            return permits
        grant = self._rate_windows.acquire(
            queue.name, config.rate_limit, config.rate_period_ms, count=permits, now_ms=now_ms
        )
        starts = grant.count
        _note(use, RATE, grant, job_id, missing=permits - starts)
        if starts < permits:
            self._release_unused(queue, permits=permits - starts, starts=0)
        return starts

    def _acquire(self, queue: Queue, count: int, now_ms: int) -> PermitGrant:
        limit, version = queue.config.concurrency, queue.version
        return self._semaphore.acquire(
            queue.name, count=count, limit=limit, version=version, now_ms=now_ms
        )

    def _release_unused(self, queue: Queue, *, permits: int, starts: int) -> None:
        config, now_ms = queue.config, self._clock.now_ms()
        if permits and queue.limits_concurrency:
            self._semaphore.release(queue.name, count=permits, now_ms=now_ms)
        if starts and config.rate_limit is not None:
            # If this fails, they count until their period is over.
            with suppress(OjsError):
                self._rate_windows.acquire(
                    queue.name,
                    config.rate_limit,
                    config.rate_period_ms,
                    count=-starts,
                    now_ms=now_ms,
                )


def _note(
    use: QueuePermitUse, strategy: str, grant: PermitGrant, job_id: str, *, missing: int
) -> None:
    use.grants[strategy] = grant
    if missing:
        use.blocked[strategy] = job_id
