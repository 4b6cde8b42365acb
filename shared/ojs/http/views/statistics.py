"""Statistics of dead letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ojs.domain import times
from ojs.domain.dead_letter.statistics import DeadLetterStats

if TYPE_CHECKING:
    from ojs.http.contract import answers


def dead_letters(found: DeadLetterStats) -> answers.DeadLetterStatsAnswer:
    """Dead letters of all queues together (ojs-dead-letter section 10.1)."""
    counts = found.counts
    answer: answers.DeadLetterStatsAnswer = {
        "total": counts.total,
        "by_queue": dict(counts.by_queue),
        "by_error_type": dict(counts.by_error_type),
        "by_type": dict(counts.by_type),
        "retention": {
            "max_age": found.max_age,
            "max_count": found.max_count,
            "next_prune_at": times.format_ms(found.next_prune_ms),
        },
    }
    if found.oldest_ms is not None:
        answer["oldest_at"] = times.format_ms(found.oldest_ms)
    if found.newest_ms is not None:
        answer["newest_at"] = times.format_ms(found.newest_ms)
    if counts.at_ms is not None:
        answer["computed_at"] = times.format_ms(counts.at_ms)
    return answer
