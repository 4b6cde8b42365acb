"""Statistics of dead letters. The cost does not depend on how many there are."""

from __future__ import annotations

from dataclasses import replace

from ojs.clock import Clock
from ojs.domain.dead_letter.statistics import DeadLetterStats, together
from ojs.domain.job.retention import next_pruning_ms
from ojs.store.dead_letter.counters import BY_ERROR, BY_TYPE, DeadLetterCounters
from ojs.store.queues.queues import QueueStore


class DeadLetterStatistics:
    """Reads statistics of dead letters; changes nothing."""

    def __init__(self, dead_letters: DeadLetterCounters, queues: QueueStore, clock: Clock) -> None:
        self._store = dead_letters
        self._queues = queues
        self._clock = clock

    def read(self, tenant: str | None = None) -> DeadLetterStats:
        """Return the counts of all queues together, as of the last metrics sweep.

        Makes three calls. With a tenant, return the current counts of its queues, without the times
        of the oldest and newest ones. Makes two calls, and one for each 100 queues.

        The retention is that of new queues (`_default`). A queue can have its own.
        """
        counts, policy = self._store.counts()
        if tenant is None:
            oldest_ms, newest_ms = self._store.ends()
        else:
            found, _ = self._store.named(self._queues.all_names(tenant))
            parts = {one.queue: one.of(BY_TYPE) for one in found}
            by_queue = {queue: sum(types.values()) for queue, types in parts.items()}
            by_error = (one.of(BY_ERROR) for one in found)
            counts = replace(together(by_queue, by_error, parts.values()), at_ms=counts.at_ms)
            oldest_ms = newest_ms = None
        return DeadLetterStats(
            counts=counts,
            oldest_ms=oldest_ms,
            newest_ms=newest_ms,
            next_prune_ms=next_pruning_ms(self._clock.now_ms()),
            max_age=policy.max_age,
            max_count=policy.in_force().dead_letter.max_count,
        )

    def total(self, queue: str | None, *, least: int = 0) -> int:
        """Return the number of dead letters of a queue, or of all queues. Makes one call.

        The number of a queue comes from the projection, that of all queues from the last metrics
        sweep. The result is at least `least`, the number that the caller has seen.
        """
        return max(least, self._store.total(queue))
