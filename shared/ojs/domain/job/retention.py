"""How long jobs are kept once they are done (queue-config seed, 6.3), but for dead letters.

Those the pruning takes away, by age and number (dead-letter seed, 5), and not the table.
"""

from __future__ import annotations

from dataclasses import dataclass

_DAY_S = 86_400


@dataclass(frozen=True)
class Retention:
    """Seconds from the end of a job to its removal, by how it ended. Defaults are the system's."""

    completed_s: int = 7 * _DAY_S
    cancelled_s: int = 7 * _DAY_S
    discarded_s: int = 30 * _DAY_S


RETENTION = Retention()

# Dead letters are pruned whenever so much of the day is over (DL section 8.1).
PRUNED_EVERY_MS = 300_000


def next_pruning_ms(now_ms: int) -> int:
    """When dead letters are pruned next."""
    return now_ms - now_ms % PRUNED_EVERY_MS + PRUNED_EVERY_MS


DELETE, ARCHIVE = "delete", "archive"


@dataclass(frozen=True)
class DeadLetterRetention:
    """Which dead letters stay: neither older than `max_age_ms` nor beyond the latest `max_count`
    (DL section 5.1). `pruning_policy` says what becomes of the others (DL section 8.2).
    """

    max_age_ms: int = 180 * _DAY_S * 1_000
    max_count: int = 10_000
    pruning_policy: str = DELETE


DEAD_LETTERS = DeadLetterRetention()
