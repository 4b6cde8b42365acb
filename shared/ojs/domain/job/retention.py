"""Retention: how long finished jobs are stored (ojs-queue-config, section 6.3).

The table's TTL deletes them. Dead letters are pruned by age and number instead.
"""

from __future__ import annotations

from enum import StrEnum

from ojs.records import record

_DAY_S = 86_400


@record(frozen=True)
class Retention:
    """Seconds from the end of a job to its deletion, by final state. System defaults."""

    completed_s: int = 7 * _DAY_S
    cancelled_s: int = 7 * _DAY_S
    discarded_s: int = 30 * _DAY_S

    def with_minimum(self, seconds: int | None) -> Retention:
        """Return a retention that keeps results and errors for at least this time, if it is set."""
        if seconds is None:
            return self
        completed_s, discarded_s = max(self.completed_s, seconds), max(self.discarded_s, seconds)
        return Retention(completed_s, self.cancelled_s, discarded_s)


RETENTION = Retention()

# Dead letters are pruned at multiples of this interval.
PRUNED_EVERY_MS = 300_000


def next_pruning_ms(now_ms: int) -> int:
    """Return the next time (ms) at which dead letters are pruned."""
    return now_ms - now_ms % PRUNED_EVERY_MS + PRUNED_EVERY_MS


class PruningPolicy(StrEnum):
    """The action on a dead letter that is pruned."""

    DELETE = "delete"
    ARCHIVE = "archive"


@record(frozen=True)
class DeadLetterRetention:
    """Retention of dead letters: the most recent `max_count`, at most `max_age_ms` old.

    `pruning_policy` applies to all others (ojs-dead-letter, sections 5.1 and 8.2).
    """

    max_age_ms: int = 180 * _DAY_S * 1_000
    max_count: int = 10_000
    pruning_policy: PruningPolicy = PruningPolicy.DELETE


DEAD_LETTERS = DeadLetterRetention()
