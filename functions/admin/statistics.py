"""Queues with their counts, statistics and metrics."""

from __future__ import annotations

from functions.admin.app import app
from ojs import runtime
from ojs.domain.job import envelope
from ojs.domain.page import Page
from ojs.domain.stats import QueueSummary
from ojs.http.binding import paging, query
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.views import metrics
from ojs.http.views import statistics as stats_views


@app.operation("list_queues")
def list_queues(request: Request) -> Answer:
    """A page of queues with their counts."""
    asked = _queues_asked(request)
    return Answer(stats_views.queues_page(asked, _queues_page(asked)))


@app.operation("admin_list_queues")
def admin_list_queues(request: Request) -> Answer:
    """A page of queues with their counts."""
    asked = _queues_asked(request)
    return Answer(stats_views.admin_queues_page(asked, _queues_page(asked)))


def _queues_asked(request: Request) -> paging.PageWindow:
    query.check_known(request.operation, request.query)
    return stats_views.queues_window(request.query)


def _queues_page(asked: paging.PageWindow) -> Page[QueueSummary]:
    return runtime.current().stats.list(limit=asked.limit, skip=asked.offset, cursor=asked.cursor)


@app.operation("get_queue")
def get_queue(request: Request) -> Answer:
    """One queue."""
    query.check_known(request.operation, request.query)
    return Answer(stats_views.queue_detail(runtime.current().stats.existing(request.named)))


@app.operation("admin_get_queue")
def admin_get_queue(request: Request) -> Answer:
    """One queue with its counts and throughput."""
    query.check_known(request.operation, request.query)
    return Answer(stats_views.admin_queue(runtime.current().stats.existing(request.named)))


@app.operation("queue_stats")
def queue_stats(request: Request) -> Answer:
    """A queue's statistics."""
    query.check_known(request.operation, request.query)
    return Answer(stats_views.queue_stats(runtime.current().stats.queue(request.named)))


@app.operation("priority_stats")
def priority_stats(request: Request) -> Answer:
    """A queue's available jobs by priority."""
    query.check_known(request.operation, request.query)
    return Answer(stats_views.priority_stats(runtime.current().stats.queue(request.named)))


@app.operation("admin_stats")
def admin_stats(request: Request) -> Answer:
    """The statistics of all queues together."""
    query.check_known(request.operation, request.query)
    return Answer(stats_views.totals(runtime.current().stats.totals(), app.uptime_s()))


@app.operation("admin_stats_history")
def admin_stats_history(request: Request) -> Answer:
    """The history of activity, in points of time."""
    query.check_known(request.operation, request.query)
    current = runtime.current()
    now_ms = current.clock.now_ms()
    period = stats_views.period(request.query)
    since_ms, until_ms = stats_views.span_of(
        period, *query.span(request.query, now_ms=now_ms), now_ms=now_ms
    )
    points = current.stats.history(
        period,
        since_ms=since_ms,
        until_ms=until_ms,
        queue=query.single(request.query, "queue", envelope.check_queue),
    )
    return Answer(stats_views.history(period, points))


@app.operation("metrics")
def read_metrics(request: Request) -> Answer:
    """Metrics, as JSON or as text."""
    query.check_known(request.operation, request.query)
    if metrics.wanted_format(request.query) == "prometheus":
        return _metrics_text()
    return Answer(metrics.body(runtime.current().stats.metrics()))


@app.operation("root_metrics")
def root_metrics(_request: Request) -> Answer:
    """Metrics, as Prometheus scrapes them."""
    return _metrics_text()


def _metrics_text() -> Answer:
    text = metrics.text(runtime.current().stats.metrics())
    return Answer(text, headers={"Content-Type": metrics.TEXT_TYPE})
