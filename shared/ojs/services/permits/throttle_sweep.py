"""Ends throttle states that no fetch will clear, and counts waiting jobs.

A fetch that finds a limit reached records a throttle state. A fetch that claims a job under the
limit clears it (`ojs.store.permits.throttle_state`). If the waiting jobs are cancelled, moved, or
claimed elsewhere, or if the limit is removed, no fetch clears the state. This sweep then does. It
also releases leaked permits of a key whose jobs wait.
"""

from __future__ import annotations

from dataclasses import replace

from ojs.domain.rate_limit.limiter import CONCURRENCY, LimitBounds, limiter_name
from ojs.services.permits.key_permits import KeyPermits
from ojs.services.permits.rate_limits import RateLimits
from ojs.services.sweeps import GoOn, SweepCounts, SweepReport, always, counting_failures
from ojs.store.jobs.finding import JobIndex
from ojs.store.permits.counter_items import PermitGrant
from ojs.store.permits.key_limits import KeyLimits
from ojs.store.permits.rate_window import RateWindowStore
from ojs.store.permits.throttle_state import ThrottleState, ThrottleStates
from ojs.store.queues.queues import QueueStore
from ojs.store.table import keys

_PAGE = 100


class ThrottleSweep:
    """Checks the limits that throttle jobs."""

    name = "throttle"

    def __init__(
        self,
        *,
        throttle_states: ThrottleStates,
        key_limits: KeyLimits,
        key_permits: KeyPermits,
        rate_windows: RateWindowStore,
        queues: QueueStore,
        index: JobIndex,
        limits: RateLimits,
    ) -> None:
        self._states = throttle_states
        self._key_limits = key_limits
        self._key_permits = key_permits
        self._rate_windows = rate_windows
        self._queues = queues
        self._index = index
        self._rate_limits = limits

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Check the limits that have throttled for longest.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Maximum number of limits.
            go_on: Returns whether enough time is left to continue.

        Returns:
            The counts holding (limits checked), released, failed, and `more` (1 if the run ended
            early).
        """
        counts = SweepCounts()
        for state in self._states.throttled(limit=limit):
            if not go_on():
                counts["more"] = 1
                break
            counts["holding"] += 1
            # One failure must not stop the others; the next run checks this limit again.
            with counting_failures(counts, f"limit of {state.limiter}"):
                counts["released"] += self._check(state, now_ms)
        return SweepReport(+counts, failures=counts.failures)

    def _check(self, state: ThrottleState, now_ms: int) -> bool:
        """Clear the state if the limit stopped throttling. Return whether it was cleared."""
        if state.limiter.queue is None:
            waiting, room = self._of_key(state, now_ms)
        else:
            waiting, room = self._of_queue(state, state.limiter.queue, now_ms)
        if waiting and not room:
            if waiting != state.waiting:
                self._states.save_waiting(state, waiting)
            return False
        grant = PermitGrant(0, 0, 0, state.since_ms)
        return self._states.clear(state.limiter, grant, job_id=None, now_ms=now_ms)

    def _of_key(self, state: ThrottleState, now_ms: int) -> tuple[int, bool]:
        """Count the key's available jobs in the first pages.

        Return whether one of them can start now.
        """
        name = limiter_name(state.limiter.key)
        limiter = self._key_limits.get(name)
        if limiter is None:
            return 0, True
        waiting, _ = self._rate_limits.waiting(name, limiter.queues)
        # Only the limit that throttled is checked, with its current value.
        bounds = limiter.bounds
        if state.strategy == CONCURRENCY:
            bounds = replace(LimitBounds(), concurrency=state.limit)
        room = limiter.room(bounds, now_ms, 1)
        if waiting and not room.count and room.strategy == CONCURRENCY:
            self._key_permits.heal(name, limiter, now_ms=now_ms)
        return waiting, bool(room.count)

    def _of_queue(self, state: ThrottleState, name: str, now_ms: int) -> tuple[int, bool]:
        queue = self._queues.get(name)
        if queue is None:
            return 0, True
        waiting = sum(
            len(self._index.ready(name, lane, limit=_PAGE)[0]) for lane in range(queue.lanes)
        )
        config = queue.config
        permits, use = self._rate_windows.usage(name, config.concurrency)
        if state.limiter.counts == keys.SEMAPHORE:
            return waiting, config.concurrency is None or permits < config.concurrency
        if config.rate_limit is None:
            return waiting, True
        window = use.window(config.rate_period_ms, now_ms)
        room = window.room(now_ms, limit=config.rate_limit, period_ms=config.rate_period_ms)
        return waiting, bool(room)
