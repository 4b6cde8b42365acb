"""Minute sweep that marks queues without changes as idle, and others as plain.

A plain queue has nothing in its record that sweeps check each minute.

It writes the observed state of a queue into the registry. `ojs.store.queues.registry` explains why
no change is missed. An idle queue is checked once an hour. This check finds changes whose record
was lost. Due notes show which jobs are due in it.
"""

from __future__ import annotations

from ojs.domain.queue.queue import Queue
from ojs.domain.stats import QueueGauges
from ojs.services.sweeps import (
    GoOn,
    SweepPlan,
    SweepQueues,
    SweepReport,
    SweepRun,
    always,
    counting_failures,
)
from ojs.store.derived.statistics import StatisticsStore
from ojs.store.queues.registry import QUIET_MS, QueueRegistry, Rest

_QUEUES = 33  # one call
# How long (ms) a queue has not changed before it becomes idle, where a mark saves little.
_IDLE_MS = 60 * 60_000


class RestSweep:
    """Marks queues as idle."""

    name = "rest"

    def __init__(
        self,
        *,
        sweep_queues: SweepQueues,
        registry: QueueRegistry,
        statistics: StatisticsStore,
    ) -> None:
        self._every = sweep_queues
        self._registry = registry
        self._stats = statistics

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Check those of this minute's queues that have no recent recorded change.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Maximum number of queues.
            go_on: Returns whether enough time is left to continue.

        Returns:
            The counts plain (queues that became plain), quiet (queues checked), rested (queues that
            became idle, or whose gauges changed), failed, and `more` (1 if the run ended early: the
            other queues become idle later).
        """
        run = SweepRun(now_ms, limit, go_on)
        plan = self._every.plan()
        if now_ms < plan.relied_on_ms:
            return SweepReport({})
        needing = self._look(plan, run)
        resting = plan.resting
        # With open shards the metrics sweep does not read a queue that has not changed.
        for_ms = _IDLE_MS if self._stats.shards else QUIET_MS
        quiet = [
            name
            for name, queue in plan.queues.items()
            if queue.quiet(now_ms, for_ms) and name not in resting and name not in needing
        ]
        for at in range(0, len(quiet), _QUEUES):
            if run.stop(run.counts["quiet"]):
                break
            names = quiet[at : at + _QUEUES]
            found: list[QueueGauges] = []
            with counting_failures(run.counts, f"queues {names[0]} to {names[-1]}"):
                found = self._stats.gauges(names, run.counts.fail)
            for gauges in found:
                run.counts["quiet"] += 1
                with counting_failures(run.counts, f"queue {gauges.queue.name}"):
                    self._one(plan, gauges, run)
        return SweepReport(+run.counts, failures=run.counts.failures)

    def _look(self, plan: SweepPlan, run: SweepRun) -> set[str]:
        """Mark queues as plain, or remove their mark. Return those that are not plain."""
        needing = set(plan.names)
        for part in self._every.parts(run.counts, plan):
            for queue in part:
                known = plan.queues[queue.name]
                marked = known.plain_ms is not None and known.plain_ms >= plan.relied_on_ms
                if needs_sweeps(queue):
                    if marked:
                        with counting_failures(run.counts, f"queue {queue.name}"):
                            self._registry.unmark(known)
                    continue
                needing.discard(queue.name)
                if marked or run.counts["plain"] >= run.limit:
                    continue
                with counting_failures(run.counts, f"queue {queue.name}"):
                    run.counts["plain"] += self._registry.mark_plain(known, now_ms=run.now_ms)
        return needing

    def _one(self, plan: SweepPlan, gauges: QueueGauges, run: SweepRun) -> None:
        known = plan.queues[gauges.queue.name]
        # All of this is read after the registry, so each change that it misses is recorded
        # afterwards.
        rest = Rest(run.now_ms, gauges.levels, gauges.changed_ms, gauges.oldest_ms)
        before = known.rest
        if before is None or before.at_ms < plan.relied_on_ms or not rest.same(before):
            run.counts["rested"] += self._registry.let_rest(known, rest)


def needs_sweeps(queue: Queue) -> bool:
    """Return whether a sweep must check the queue every minute."""
    return (
        queue.deletion is not None
        or queue.backfill_since_ms is not None
        or queue.tracks_depth
        or queue.limits_concurrency
        or bool(queue.layers.replay_rules)
    )
