"""Statistics of all dead letters. Times in milliseconds since the epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import field

from ojs.domain.job.retention import DEAD_LETTERS
from ojs.domain.stats import OTHER_TYPES
from ojs.records import record

# Maximum number of queues that are listed by name: those with the most dead letters. The others are
# counted together under a name that no queue can have. `MAX_NAMES` is the same for job types and
# error types.
MAX_QUEUES = 1_000
OTHER_QUEUES = "_other"
MAX_NAMES = 100


@record(frozen=True)
class Counts:
    """Number of dead letters by queue, error type, and job type. Counted at `at_ms`."""

    total: int = 0
    by_queue: Mapping[str, int] = field(default_factory=dict)
    by_error_type: Mapping[str, int] = field(default_factory=dict)
    by_type: Mapping[str, int] = field(default_factory=dict)
    at_ms: int | None = None


@record(frozen=True)
class DeadLetterStats:
    """The counts, the oldest and newest discard times, and the default retention."""

    counts: Counts
    oldest_ms: int | None
    newest_ms: int | None
    next_prune_ms: int
    max_age: str
    max_count: int = DEAD_LETTERS.max_count


def together(
    by_queue: Mapping[str, int],
    by_error_type: Iterable[Mapping[str, int]],
    by_type: Iterable[Mapping[str, int]],
) -> Counts:
    """Combine the counts of all queues.

    Args:
        by_queue: Dead letters by queue.
        by_error_type: For each queue, dead letters by error type.
        by_type: For each queue, dead letters by job type.
    """
    return Counts(
        total=sum(by_queue.values()),
        by_queue=_most(by_queue, MAX_QUEUES, OTHER_QUEUES),
        by_error_type=_most(_sum(by_error_type), MAX_NAMES, OTHER_TYPES),
        by_type=_most(_sum(by_type), MAX_NAMES, OTHER_TYPES),
    )


def _sum(parts: Iterable[Mapping[str, int]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for part in parts:
        # The stream can deliver changes out of order, so a count can briefly be negative.
        found.update({name: count for name, count in part.items() if count > 0})
    return found


def _most(counts: Mapping[str, int], most: int, rest: str) -> dict[str, int]:
    """Return the `most` largest counts, in descending order, and the sum of
    the others as `rest`.
    """
    ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
    shown = Counter({name: count for name, count in ordered[:most] if count > 0})
    if left := sum(count for _, count in ordered[most:] if count > 0):
        shown[rest] += left
    return dict(shown)
