"""Retention: how long finished jobs are kept (ojs-queue-config, section 6.3).

The table's TTL removes them, except dead letters, which are pruned by age and number.
"""

from __future__ import annotations

from enum import StrEnum

from ojs.records import record

_DAY_S = 86_400


@record(frozen=True)
class Retention:
    """Seconds from a job's end to its removal, by final state. Defaults are the system's."""

    completed_s: int = 7 * _DAY_S
    cancelled_s: int = 7 * _DAY_S
    discarded_s: int = 30 * _DAY_S


RETENTION = Retention()

# Dead letters are pruned at multiples of this.
PRUNED_EVERY_MS = 300_000


def next_pruning_ms(now_ms: int) -> int:
    """When dead letters are pruned next, in ms."""
    return now_ms - now_ms % PRUNED_EVERY_MS + PRUNED_EVERY_MS


class PruningPolicy(StrEnum):
    """What happens to a dead letter that is pruned."""

    DELETE = "delete"
    ARCHIVE = "archive"


@record(frozen=True)
class DeadLetterRetention:
    """Which dead letters are kept: the latest `max_count` that are not older than `max_age_ms`.

    `pruning_policy` says what happens to the others (ojs-dead-letter, sections 5.1 and 8.2).
    """

    max_age_ms: int = 180 * _DAY_S * 1_000
    max_count: int = 10_000
    pruning_policy: PruningPolicy = PruningPolicy.DELETE


DEAD_LETTERS = DeadLetterRetention()
