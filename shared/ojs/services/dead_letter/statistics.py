"""Statistics of dead letters. The cost does not depend on how many there are."""

from __future__ import annotations

from ojs.clock import Clock
from ojs.domain.dead_letter.statistics import DeadLetterStats
from ojs.domain.job.retention import next_pruning_ms
from ojs.store.dead_letter.counters import DeadLetterCounters


class DeadLetterStatistics:
    """Reads statistics of dead letters; changes nothing."""

    def __init__(self, dead_letters: DeadLetterCounters, clock: Clock) -> None:
        self._store = dead_letters
        self._clock = clock

    def read(self) -> DeadLetterStats:
        """Return the counts of all queues together, as of the last metrics sweep.

        Makes three calls.

        The retention is that of new queues (`_default`). A queue can have its own.
        """
        counts, policy = self._store.counts()
        oldest_ms, newest_ms = self._store.ends()
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
