"""The shapes of statistics (requirements sections 1.4 and 1.8), built from domain objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ojs.domain import times
from ojs.domain.dead_letter.statistics import DeadLetterStats
from ojs.domain.errors import InvalidRequest
from ojs.domain.job.states import State
from ojs.domain.page import Page
from ojs.domain.queue import config as queue_config
from ojs.domain.queue import queue
from ojs.domain.queue.queue import Queue
from ojs.domain.stats import (
    DAY_MS,
    HOUR_MS,
    Activity,
    Levels,
    Period,
    Point,
    QueueStats,
    QueueSummary,
    Rates,
    Totals,
)
from ojs.http.binding import paging
from ojs.http.contract.operations import MAX_QUEUES_LIMIT

# How far back a history goes when not told: twelve points or more.
_DEFAULT_SPAN_MS = {
    Period.MINUTE: HOUR_MS,
    Period.FIVE_MINUTES: HOUR_MS,
    Period.HOUR: DAY_MS,
    Period.DAY: 30 * DAY_MS,
}


# --- what was asked for ---------------------------------------------------------------------------


def queues_window(query: Mapping[str, str]) -> paging.PageWindow:
    """The part of the list of queues that is asked for. Raises InvalidRequest."""
    asked = paging.window(query)
    if asked.limit > MAX_QUEUES_LIMIT:
        name = "limit" if query.get("limit") else "per_page"
        rule = f"must be an integer from 1 to {MAX_QUEUES_LIMIT}"
        raise InvalidRequest(name, rule, value=query.get(name))
    return asked


def period(query: Mapping[str, str]) -> Period:
    """The length of a history's points. Raises InvalidRequest."""
    text = query.get("period") or Period.FIVE_MINUTES
    try:
        return Period(text)
    except ValueError:
        rule = f"must be one of {', '.join(Period)}"
        raise InvalidRequest("period", rule, value=text) from None


def span_of(
    asked: Period, since_ms: int | None, until_ms: int | None, *, now_ms: int
) -> tuple[int, int]:
    """From when until when a history goes, with what is left open filled in."""
    end_ms = now_ms + 1 if until_ms is None else until_ms
    return (max(0, end_ms - _DEFAULT_SPAN_MS[asked]) if since_ms is None else since_ms), end_ms


# --- queues ---------------------------------------------------------------------------------------


def config(known: Queue | None) -> dict[str, Any]:
    """What is in force for a queue (requirements section 5.9)."""
    return queue_config.shown(_layers(known))


def _layers(known: Queue | None) -> queue_config.Layers:
    return known.layers if known else queue_config.Layers()


def queues_page(asked: paging.PageWindow, page: Page[QueueSummary]) -> dict[str, Any]:
    """A page of queues under both names that clients know."""
    shown = [_summary(found) for found in page.items]
    return _paged({"queues": shown, "items": shown}, asked, page)


def admin_queues_page(asked: paging.PageWindow, page: Page[QueueSummary]) -> dict[str, Any]:
    """A page of queues as the admin API shows them."""
    return _paged({"items": [_admin_summary(found) for found in page.items]}, asked, page)


def _paged(
    answer: dict[str, Any], asked: paging.PageWindow, page: Page[QueueSummary]
) -> dict[str, Any]:
    pagination = paging.described(asked, page)
    answer["pagination"] = pagination
    if "total" in pagination:
        answer["total"] = pagination["total"]
    return answer


def queue_detail(stats: QueueStats) -> dict[str, Any]:
    """One queue: its own fields at the top level and wrapped, configuration and statistics."""
    state = _state(stats.queue, stats.name)
    last = max(
        (
            state[name]
            for name in ("configured_at", "paused_at", "resumed_at", "created_at")
            if name in state
        ),
        default=None,
    )
    return {
        **state,
        **({"updated_at": last} if last else {}),
        "depth": stats.levels.depth,
        "running": stats.levels.of(State.ACTIVE),
        "config": config(stats.queue),
        "config_sources": queue_config.sources(_layers(stats.queue)),
        "stats": _statistics(stats),
        "queue": state,
    }


def queue_stats(stats: QueueStats) -> dict[str, Any]:
    """A queue's statistics in the three places where clients look for them."""
    counts = _counts(stats.levels)
    state = _state(stats.queue, stats.name)
    shown = {name: state[name] for name in ("state", "status", "paused")}
    return {
        "name": stats.name,
        **shown,
        **counts,
        "depth": stats.levels.depth,
        "queue": {"name": stats.name, **counts, "depth": stats.levels.depth, **shown},
        "stats": {"queue": stats.name, **_statistics(stats)},
        "computed_at": times.format_ms(stats.now_ms),
    }


def priority_stats(stats: QueueStats) -> dict[str, Any]:
    """Available jobs by priority, the highest first."""
    ordered = sorted(stats.priorities.items(), reverse=True)
    return {
        "queue": stats.name,
        "distribution": [{"priority": priority, "count": count} for priority, count in ordered],
        "computed_at": times.format_ms(stats.now_ms),
    }


def admin_queue(stats: QueueStats) -> dict[str, Any]:
    """One queue as the admin API shows it."""
    return {
        **_admin_summary(stats),
        "throughput": _throughput(stats.rates),
        **_oldest(stats),
        "computed_at": times.format_ms(stats.now_ms),
    }


def _summary(found: QueueSummary) -> dict[str, Any]:
    return {
        **_state(found.queue, found.name),
        **_counts(found.levels),
        "depth": found.levels.depth,
        "config": config(found.queue),
    }


def _admin_summary(found: QueueSummary) -> dict[str, Any]:
    state = _state(found.queue, found.name)
    return {**state, "counts": _counts(found.levels), "configuration": config(found.queue)}


def _state(known: Queue | None, name: str) -> dict[str, Any]:
    shown = queue.to_dict(known or Queue(name))
    if known is None or not known.created_ms:
        # Registered, but its own item is not there (yet).
        del shown["created_at"]
    return shown


def _counts(levels: Levels) -> dict[str, int]:
    return {state.value: levels.of(state) for state in State}


def _statistics(stats: QueueStats) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "depth": stats.levels.depth,
        **_bound(stats.queue),
        **_counts(stats.levels),
        "dead_letter": stats.levels.dead,
        "enqueued_today": stats.today.enqueued,
        "completed_today": stats.today.completed,
        "failed_today": stats.today.failed,
        "throughput": _throughput(stats.rates),
    }
    return shown | _averages(stats.today) | _oldest(stats)


def _bound(known: Queue | None) -> dict[str, int]:
    most = known.config.max_size if known else None
    return {} if most is None else {"max_depth": most}


def _averages(activity: Activity) -> dict[str, int]:
    averages = {
        "avg_wait_ms": activity.average_wait_ms,
        "avg_duration_ms": activity.average_run_ms,
    }
    return {name: ms for name, ms in averages.items() if ms is not None}


def _oldest(stats: QueueStats) -> dict[str, Any]:
    if stats.oldest_available_ms is None:
        return {}
    return {
        "oldest_available_at": times.format_ms(stats.oldest_available_ms),
        # Two clocks may differ by a little.
        "oldest_available_age_seconds": max(0, stats.now_ms - stats.oldest_available_ms) / 1_000,
    }


def _throughput(found: Rates) -> dict[str, float]:
    return {
        "processed_per_minute": round(found.processed, 2),
        "failed_per_minute": round(found.failed, 2),
    }


# --- all queues together --------------------------------------------------------------------------


def totals(found: Totals, uptime_s: int) -> dict[str, Any]:
    """All queues and workers together (ojs-admin-api section 10.1)."""
    shown: dict[str, Any] = {
        "queues": found.queues,
        # Those that are gone are no workers, though they are still listed.
        "workers": found.workers.running + found.workers.quiet,
        "jobs": _counts(found.levels),
        "dead_letter": found.levels.dead,
        "throughput": _throughput(found.rates),
        "uptime_seconds": uptime_s,
    }
    return shown | ({} if found.at_ms is None else {"computed_at": times.format_ms(found.at_ms)})


def dead_letters(found: DeadLetterStats) -> dict[str, Any]:
    """Dead letters of all queues together (dead-letter seed, section 10.1)."""
    counts = found.counts
    ends = {"oldest_at": found.oldest_ms, "newest_at": found.newest_ms}
    shown: dict[str, Any] = {
        "total": counts.total,
        "by_queue": dict(counts.by_queue),
        "by_error_type": dict(counts.by_error_type),
        "by_type": dict(counts.by_type),
        **{name: times.format_ms(ms) for name, ms in ends.items() if ms is not None},
        "retention": {
            "max_age": found.max_age,
            "max_count": found.max_count,
            "next_prune_at": times.format_ms(found.next_prune_ms),
        },
    }
    return shown | ({} if counts.at_ms is None else {"computed_at": times.format_ms(counts.at_ms)})


def history(asked: Period, points: Sequence[Point]) -> dict[str, Any]:
    """Points in time (ojs-admin-api section 10.2), under both names that clients know."""
    shown = [
        {
            "timestamp": times.format_ms(point.start_ms),
            "processed": point.activity.completed,
            "failed": point.activity.failed,
            "enqueued": point.activity.enqueued,
            **_averages(point.activity),
        }
        for point in points
    ]
    return {"period": asked.value, "data": shown, "data_points": shown}
