"""Queues and their statistics: reading requests and building answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ojs.domain import times
from ojs.domain.dead_letter.statistics import DeadLetterStats
from ojs.domain.errors import InvalidRequest
from ojs.domain.job.states import State
from ojs.domain.page import Page
from ojs.domain.queue import config, queue
from ojs.domain.queue.config import Layers
from ojs.domain.queue.order import QueueOrder
from ojs.domain.queue.queue import Queue
from ojs.domain.stats import (
    DAY_MS,
    HOUR_MS,
    Activity,
    Levels,
    Period,
    Point,
    QueueDay,
    QueueStats,
    QueueSummary,
    Rates,
    Totals,
)
from ojs.http.binding import paging
from ojs.http.binding import query as queries
from ojs.http.contract.operations import MAX_QUEUES_LIMIT, MAX_QUEUES_OFFSET

if TYPE_CHECKING:
    from ojs.http.contract import answers

# How far back a history goes by default: twelve points or more.
_DEFAULT_SPAN_MS = {
    Period.MINUTE: HOUR_MS,
    Period.FIVE_MINUTES: HOUR_MS,
    Period.HOUR: DAY_MS,
    Period.DAY: 30 * DAY_MS,
}


# --- what a query requests ------------------------------------------------------------------------


def queues_window(query: Mapping[str, str], *, shown: int = MAX_QUEUES_LIMIT) -> paging.PageWindow:
    """Read which part of the list of queues a query asks for; a page has at most `shown` of them.
    Raises InvalidRequest.
    """
    return paging.window(query, largest=MAX_QUEUES_LIMIT, shown=shown, farthest=MAX_QUEUES_OFFSET)


def queue_order(query: Mapping[str, str]) -> QueueOrder | None:
    """Read what a list of queues is to be in order of; None: of their names. Raises
    InvalidRequest.
    """
    wanted = queries.choice(query, "sort", ("name", *QueueOrder), default="name")
    return None if wanted == "name" else QueueOrder(wanted)


def detailed(query: Mapping[str, str]) -> bool:
    """Read whether totals are to show each queue. Raises InvalidRequest, also for a page of queues
    that are not to be shown.
    """
    wanted = queries.choice(query, "detail", ("true", "false"), default="false") == "true"
    for name in ("limit", "cursor"):
        if not wanted and query.get(name):
            raise InvalidRequest(name, "needs detail=true", value=query[name])
    return wanted


def period(query: Mapping[str, str]) -> Period:
    """Read the length of a history's points. Raises InvalidRequest."""
    return Period(queries.choice(query, "period", tuple(Period), default=Period.FIVE_MINUTES))


def span_of(
    period: Period, since_ms: int | None, until_ms: int | None, *, now_ms: int
) -> tuple[int, int]:
    """The start and end (ms) of a history, defaults filled in."""
    end_ms = now_ms + 1 if until_ms is None else until_ms
    return (max(0, end_ms - _DEFAULT_SPAN_MS[period]) if since_ms is None else since_ms), end_ms


# --- queues ---------------------------------------------------------------------------------------


def queues_page(page: Page[QueueSummary], pagination: answers.Pagination) -> answers.QueuesAnswer:
    """A page of queues, under both names that clients know."""
    queues = [_summary(found) for found in page.items]
    return {"queues": queues, "items": queues, **paging.with_total(pagination)}


def admin_queues_page(
    page: Page[QueueSummary], pagination: answers.Pagination
) -> answers.AdminQueuesAnswer:
    """A page of queues as the admin API shows them."""
    queues = [_admin_queue(found) for found in page.items]
    return {"items": queues, **paging.with_total(pagination)}


def queue_detail(stats: QueueStats) -> answers.QueueDetailAnswer:
    """One queue: its own fields at the top level and wrapped, configuration and statistics."""
    state, layers = _state(stats.queue, stats.name), _layers(stats.queue)
    return {
        **state,
        **_updated(state),
        "depth": stats.levels.depth,
        "running": stats.levels.of(State.ACTIVE),
        "config": _in_force(layers),
        "config_sources": cast("answers.ConfigSources", config.sources(layers)),
        "stats": _statistics(stats, {}),
        "queue": state,
    }


def _updated(state: answers.QueueState) -> answers.LastUpdate:
    names = ("configured_at", "paused_at", "resumed_at", "created_at")
    # Times in this format sort as text.
    moments: Mapping[str, Any] = state
    last = max(filter(None, map(moments.get, names)), default=None)
    return {} if last is None else {"updated_at": last}


def queue_stats(stats: QueueStats) -> answers.QueueStatsAnswer:
    """A queue's statistics in the three places where clients look for them."""
    state = _state(stats.queue, stats.name)
    counts: answers.QueueCounts = {
        "name": stats.name,
        "state": state["state"],
        "status": state["status"],
        "paused": state["paused"],
        **_counts(stats.levels),
        "depth": stats.levels.depth,
    }
    return {
        **counts,
        "queue": counts,
        "stats": _statistics(stats, {"queue": stats.name}),
        "computed_at": times.format_ms(stats.now_ms),
    }


def priority_stats(stats: QueueStats) -> answers.PriorityStatsAnswer:
    """Available jobs by priority, the highest first."""
    ordered = sorted(stats.priorities.items(), reverse=True)
    return {
        "queue": stats.name,
        "distribution": [{"priority": priority, "count": count} for priority, count in ordered],
        "computed_at": times.format_ms(stats.now_ms),
    }


def admin_queue(stats: QueueStats) -> answers.AdminQueueAnswer:
    """One queue as the admin API shows it."""
    return {**_admin_queue(stats), "computed_at": times.format_ms(stats.now_ms)}


def _summary(found: QueueSummary) -> answers.QueueSummary:
    return {
        **_state(found.queue, found.name),
        **_counts(found.levels),
        "depth": found.levels.depth,
        "throughput": _throughput(found.rates),
        **_oldest(found),
        "config": _in_force(_layers(found.queue)),
    }


def _admin_queue(found: QueueSummary) -> answers.AdminQueue:
    return {
        **_state(found.queue, found.name),
        "counts": _counts(found.levels),
        "throughput": _throughput(found.rates),
        **_oldest(found),
        "configuration": _in_force(_layers(found.queue)),
    }


def _in_force(layers: Layers) -> answers.QueueConfig:
    return cast("answers.QueueConfig", config.shown(layers))


def _layers(known: Queue | None) -> Layers:
    return known.layers if known else Layers()


def _state(known: Queue | None, name: str) -> answers.QueueState:
    state = cast("answers.QueueState", queue.to_dict(known or Queue(name)))
    if known is None or not known.created_ms:
        # The queue is registered, but its item is not there (yet).
        del state["created_at"]
    return state


def _counts(levels: Levels) -> answers.JobCounts:
    return cast("answers.JobCounts", {state.value: levels.of(state) for state in State})


def _statistics(stats: QueueStats, named: answers.NamedQueue) -> answers.Statistics:
    return {
        **named,
        "depth": stats.levels.depth,
        **_max_depth(stats.queue),
        **_counts(stats.levels),
        "dead_letter": stats.levels.dead,
        "dead": stats.levels.dead,
        "enqueued_today": stats.today.enqueued,
        "completed_today": stats.today.completed,
        "failed_today": stats.today.failed,
        "completed_last_hour": stats.last_hour.completed,
        "failed_last_hour": stats.last_hour.failed,
        "throughput": _throughput(stats.rates),
        "throughput_per_second": round(stats.rates.processed / 60, 4),
        **_averages(stats.today),
        **_oldest(stats),
    }


def _max_depth(known: Queue | None) -> answers.MaxDepth:
    bound = known.config.max_size if known else None
    return {} if bound is None else {"max_depth": bound}


def _averages(activity: Activity) -> answers.Averages:
    averages: answers.Averages = {}
    if activity.average_wait_ms is not None:
        averages["avg_wait_ms"] = activity.average_wait_ms
    if activity.average_run_ms is not None:
        averages["avg_duration_ms"] = activity.average_run_ms
    return averages


def _oldest(stats: QueueSummary) -> answers.OldestAvailable:
    since_ms = stats.oldest_available_ms
    if since_ms is None:
        return {}
    return {
        "oldest_available_at": times.format_ms(since_ms),
        # The clocks of two machines may differ by a little.
        "oldest_available_age_seconds": max(0, stats.now_ms - since_ms) / 1_000,
    }


def _throughput(found: Rates) -> answers.Throughput:
    return {
        "processed_per_minute": round(found.processed, 2),
        "failed_per_minute": round(found.failed, 2),
    }


# --- all queues together --------------------------------------------------------------------------


def totals(found: Totals, uptime_s: int) -> answers.StatsAnswer:
    """All queues and workers together (ojs-admin-api section 10.1)."""
    answer: answers.StatsAnswer = {
        "queues": found.queues,
        # Stale workers are listed, but not counted.
        "workers": found.workers.running + found.workers.quiet,
        "jobs": _counts(found.levels),
        "dead_letter": found.levels.dead,
        "throughput": _throughput(found.rates),
        "uptime_seconds": uptime_s,
    }
    if found.at_ms is not None:
        answer["computed_at"] = times.format_ms(found.at_ms)
    if found.oldest_ms is not None:
        answer["oldest_available_at"] = times.format_ms(found.oldest_ms)
    return answer


def detailed_totals(
    found: Totals, uptime_s: int, page: Page[QueueDay], pagination: answers.Pagination
) -> answers.StatsAnswer:
    """The same, with a page of queues: each as of today."""
    answer = totals(found, uptime_s)
    answer["queues"] = [_day(each) for each in page.items]
    answer["queue_count"] = found.queues
    answer["pagination"] = pagination
    return answer


def _day(of: QueueDay) -> answers.QueueDay:
    return {
        "name": of.name,
        "depth": of.levels.depth,
        "active": of.levels.of(State.ACTIVE),
        **_averages(of.today),
        **_error_rate(of.today),
    }


def _error_rate(activity: Activity) -> answers.ErrorRate:
    rate = activity.error_rate
    return {} if rate is None else {"error_rate": round(rate, 4)}


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


def history(period: Period, points: Sequence[Point]) -> answers.StatsHistoryAnswer:
    """Points in time (ojs-admin-api section 10.2), under both names that clients know."""
    shown: list[answers.HistoryPoint] = [
        {
            "timestamp": times.format_ms(point.start_ms),
            "processed": point.activity.completed,
            "completed": point.activity.completed,
            "failed": point.activity.failed,
            "enqueued": point.activity.enqueued,
            **_averages(point.activity),
        }
        for point in points
    ]
    return {"period": period.value, "data": shown, "data_points": shown}
