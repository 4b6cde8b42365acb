"""Limits that hold jobs back, looked at each minute: what no fetch notices.

A fetch that finds a limit reached tells so, and one that lets a job pass tells when that is over
(`ojs.store.permits.throttle_state`). If the jobs that waited are cancelled, moved, or taken elsewhere, or the limit
is lifted, nobody may come by for long: then this sweep tells. It also counts who waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from ojs.domain.errors import OjsError
from ojs.domain.rate_limit.limiter import CONCURRENCY, LimitBounds, cell_name
from ojs.services.permits.rate_limits import RateLimits
from ojs.store.jobs.records import JobStore
from ojs.store.permits.counters import Gates
from ojs.store.permits.key_limits import KeyLimits
from ojs.store.permits.throttle_state import ThrottleState, ThrottleStates
from ojs.store.queues.queues import QueueStore
from ojs.store.table import keys

_PAGE = 100


class ThrottleSweep:
    """Looks after limits that hold jobs back."""

    def __init__(
        self,
        edges: ThrottleStates,
        limits: KeyLimits,
        gates: Gates,
        queues: QueueStore,
        jobs: JobStore,
        lines: RateLimits,
    ) -> None:
        self._edges = edges
        self._limits = limits
        self._gates = gates
        self._queues = queues
        self._jobs = jobs
        self._lines = lines

    def run_once(
        self, now_ms: int, limit: int, go_on: Callable[[], bool] = lambda: True
    ) -> dict[str, int]:
        """One look at up to `limit` of them, those first that have held jobs back for longest.

        Counts: holding (looked at), released, failed, and `more` (1 when it ended early).
        """
        counts: Counter[str] = Counter()
        for edge in self._edges.holding(limit=limit):
            if not go_on():
                counts["more"] = 1
                break
            counts["holding"] += 1
            try:
                counts["released"] += self._look(edge, now_ms)
            except OjsError:
                # One must not hold up the others; the next minute finds it again.
                counts["failed"] += 1
        return {name: count for name, count in counts.items() if count}

    def _look(self, edge: ThrottleState, now_ms: int) -> bool:
        if edge.limiter.queue is None:
            waiting, room = self._of_key(edge, now_ms)
        else:
            waiting, room = self._of_queue(edge, edge.limiter.queue, now_ms)
        if waiting and not room:
            if waiting != edge.waiting:
                self._edges.save_waiting(edge, waiting)
            return False
        since_ms = edge.since_ms
        return self._edges.end(edge.limiter, job_id=None, since_ms=since_ms, now_ms=now_ms)

    def _of_key(self, edge: ThrottleState, now_ms: int) -> tuple[int, bool]:
        """How many jobs wait, as far as one looks, and whether one of them may start now."""
        name = cell_name(edge.limiter.key)
        cell = self._limits.get(name)
        if cell is None:
            return 0, True
        waiting, _ = self._lines.waiting(name, cell.queues)
        # Under what is in force now, of the bound that stood in the way.
        bounds = cell.bounds
        if edge.strategy == CONCURRENCY:
            bounds = replace(LimitBounds(), concurrency=edge.limit)
        return waiting, bool(cell.room(bounds, now_ms, 1).count)

    def _of_queue(self, edge: ThrottleState, name: str, now_ms: int) -> tuple[int, bool]:
        queue = self._queues.get(name)
        if queue is None:
            return 0, True
        waiting = sum(
            len(self._jobs.ready(name, lane, limit=_PAGE)[0]) for lane in range(queue.lanes)
        )
        level, passed = self._gates.standing(name)
        config = queue.config
        if edge.limiter.counts == keys.SLOTS:
            return waiting, config.concurrency is None or level.count < config.concurrency
        if config.rate_limit is None:
            return waiting, True
        window = passed.window(config.rate_period_ms, now_ms)
        room = window.room(now_ms, limit=config.rate_limit, period_ms=config.rate_period_ms)
        return waiting, bool(room)
