"""A queue's own limits on the jobs it hands out: concurrency and rate.

Unlimited queues cost nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import field

from ojs.clock import Clock
from ojs.domain.errors import OjsError
from ojs.domain.queue.queue import Queue
from ojs.domain.rate_limit.limiter import CONCURRENCY, RATE
from ojs.records import record
from ojs.services.permits.semaphore_permits import SemaphorePermits, SemaphoreUse
from ojs.store.permits.counter_items import PermitGrant
from ojs.store.permits.rate_window import RateWindowStore
from ojs.store.permits.throttle_state import LimitName, ThrottleStates
from ojs.store.table import keys

_COUNTS = {CONCURRENCY: keys.SEMAPHORE, RATE: keys.RATE}


@record
class QueuePermitUse:
    """What one fetch was granted by a queue's limits, and used.

    `closed` says that the queue has granted less than was wanted, and will not be asked again.
    """

    queue: Queue
    semaphore: SemaphoreUse | None = None
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
    """Acquires permits of limited queues."""

    def __init__(
        self,
        *,
        semaphores: SemaphorePermits,
        rate_windows: RateWindowStore,
        throttle_states: ThrottleStates,
        clock: Clock,
    ) -> None:
        self._semaphores = semaphores
        self._rate_windows = rate_windows
        self._states = throttle_states
        self._clock = clock

    def acquire(
        self,
        uses: dict[str, QueuePermitUse],
        queue: Queue,
        job_ids: Sequence[str],
        *,
        run: Callable[[], str],
        wanted: int,
    ) -> bool:
        """Acquire permits for up to `wanted` of these jobs, once per queue and fetch.

        Returns whether the first of them may be claimed. `run` returns the token of the fetch.
        `close` releases what was not used.
        """
        if not queue.limits_concurrency and queue.config.rate_limit is None:
            return True
        if queue.name not in uses:
            uses[queue.name] = QueuePermitUse(queue, semaphore_use(queue, run))
        use = uses[queue.name]
        if use.used == use.granted:
            if use.closed:
                return False
            granted = self._grant(use, job_ids[:wanted])
            use.granted += granted
            use.closed = granted < min(wanted, len(job_ids))
            use.waiting = max(0, len(job_ids) - granted)
        if use.used == use.granted:
            return False
        if use.semaphore is None or self._semaphores.ensure(use.semaphore, job_ids[0]):
            return True
        # Its permit was taken away, as this fetch was slow, and there is none left.
        use.granted, use.closed = use.used, True
        return False

    @staticmethod
    def commit(uses: dict[str, QueuePermitUse], queue: Queue, job_id: str) -> None:
        """Take the permit of a job that is about to be claimed."""
        if queue.name in uses:
            use = uses[queue.name]
            use.used += 1
            use.started = job_id
            if use.semaphore is not None:
                use.semaphore.used.add(job_id)

    @staticmethod
    def rollback(uses: dict[str, QueuePermitUse], queue: Queue, job_id: str) -> None:
        """Take the permit back: the job was not claimed."""
        if queue.name in uses:
            use = uses[queue.name]
            use.used -= 1
            if use.semaphore is not None:
                use.semaphore.used.discard(job_id)

    def close(self, uses: dict[str, QueuePermitUse]) -> None:
        """Release unused permits, and record limits that start or stop throttling."""
        for use in uses.values():
            # A failure here must not lose the jobs that were claimed.
            with suppress(OjsError):
                self._record_throttling(use)
            if use.semaphore is not None:
                self._semaphores.release_unused(use.semaphore)
            if unused := use.granted - use.used:
                self._give_back_starts(use.queue, unused)

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
                    counted_at=grant.counted_at,
                )
            # Still throttled: do not emit another event.
            still = blocked is not None or (grant.full and use.waiting > 0)
            if since_ms is not None and use.started is not None and not still:
                self._states.clear(
                    limiter,
                    job_id=use.started,
                    since_ms=since_ms,
                    now_ms=now_ms,
                    counted_at=grant.counted_at,
                )

    def _grant(self, use: QueuePermitUse, job_ids: Sequence[str]) -> int:
        config, permits = use.queue.config, len(job_ids)
        if use.semaphore is not None:
            grant = self._semaphores.acquire(use.semaphore, job_ids)
            permits = grant.count
            _note(use, CONCURRENCY, grant, job_ids[0], missing=len(job_ids) - permits)
        if config.rate_limit is None or permits == 0:
            return permits
        grant = self._rate_windows.acquire(
            use.queue.name,
            config.rate_limit,
            config.rate_period_ms,
            count=permits,
            now_ms=self._clock.now_ms(),
        )
        starts = grant.count
        _note(use, RATE, grant, job_ids[0], missing=permits - starts)
        if starts < permits and use.semaphore is not None:
            self._semaphores.release_unused(use.semaphore, most=permits - starts)
        return starts

    def _give_back_starts(self, queue: Queue, count: int) -> None:
        config = queue.config
        if config.rate_limit is not None:
            # If this fails, they count until their period is over.
            with suppress(OjsError):
                self._rate_windows.acquire(
                    queue.name,
                    config.rate_limit,
                    config.rate_period_ms,
                    count=-count,
                    now_ms=self._clock.now_ms(),
                )


def semaphore_use(queue: Queue, run: Callable[[], str]) -> SemaphoreUse | None:
    """A fetch's use of a queue's semaphore; None for a queue without."""
    if not queue.limits_concurrency:
        return None
    return SemaphoreUse(queue.name, queue.config.concurrency, queue.version, run())


def _note(
    use: QueuePermitUse, strategy: str, grant: PermitGrant, job_id: str, *, missing: int
) -> None:
    use.grants[strategy] = grant
    if missing:
        use.blocked[strategy] = job_id
