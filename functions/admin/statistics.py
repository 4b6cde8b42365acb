"""Queues with their counts, statistics and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from functions.admin.app import app
from ojs import runtime
from ojs.domain.job import envelope
from ojs.domain.page import Page
from ojs.domain.stats import QueueSummary
from ojs.http.binding import paging, query
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.contract.operations import METRIC_FORMATS
from ojs.http.views import metrics
from ojs.http.views import statistics as views

if TYPE_CHECKING:
    from ojs.http.contract import answers


def _queues(request: Request) -> tuple[Page[QueueSummary], answers.Pagination]:
    stats = runtime.current().stats
    window = views.queues_window(request.query, shown=stats.most_listed())
    page = stats.list(limit=window.limit, skip=window.offset, cursor=window.cursor)
    total = None
    # The last sweep has counted them, and a new one may be on the page.
    if (window.cursor or page.next_cursor) and (counted := stats.totals().queues):
        seen = window.offset + len(page.items) + (page.next_cursor is not None)
        total = max(counted, seen)
    return page, paging.described(window, page, total, always=True)


@app.operation("list_queues", strict_query=True)
def list_queues(request: Request) -> Answer:
    """A page of queues with their counts."""
    return Answer(views.queues_page(*_queues(request)))


@app.operation("admin_list_queues", strict_query=True)
def admin_list_queues(request: Request) -> Answer:
    """A page of queues with their counts."""
    order = views.queue_order(request.query)
    if order is None:
        return Answer(views.admin_queues_page(*_queues(request)))
    stats = runtime.current().stats
    window = views.queues_window(request.query, shown=stats.most_listed())
    page, total = stats.list_by(order, limit=window.limit, skip=window.offset, cursor=window.cursor)
    return Answer(views.admin_queues_page(page, paging.described(window, page, total)))


@app.operation("get_queue", strict_query=True)
def get_queue(request: Request) -> Answer:
    """One queue."""
    return Answer(views.queue_detail(runtime.current().stats.existing(request.named, hour=True)))


@app.operation("admin_get_queue", strict_query=True)
def admin_get_queue(request: Request) -> Answer:
    """One queue with its counts and throughput."""
    return Answer(views.admin_queue(runtime.current().stats.existing(request.named)))


@app.operation("queue_stats", strict_query=True)
def queue_stats(request: Request) -> Answer:
    """A queue's statistics."""
    return Answer(views.queue_stats(runtime.current().stats.queue(request.named, hour=True)))


@app.operation("priority_stats", strict_query=True)
def priority_stats(request: Request) -> Answer:
    """A queue's available jobs by priority."""
    return Answer(views.priority_stats(runtime.current().stats.queue(request.named)))


@app.operation("admin_stats", strict_query=True)
def admin_stats(request: Request) -> Answer:
    """The statistics of all queues together, or of each."""
    stats, uptime_s = runtime.current().stats, app.uptime_s()
    if not views.detailed(request.query):
        return Answer(views.totals(stats.totals(), uptime_s))
    window = views.queues_window(request.query, shown=stats.most_listed(days=True))
    page = stats.days(limit=window.limit, cursor=window.cursor)
    pagination = paging.described(window, page)
    return Answer(views.detailed_totals(stats.totals(), uptime_s, page, pagination))


@app.operation("admin_stats_history", strict_query=True)
def admin_stats_history(request: Request) -> Answer:
    """The history of activity, in points of time."""
    current = runtime.current()
    now_ms = current.clock.now_ms()
    period = views.period(request.query)
    since_ms, until_ms = views.span_of(
        period, *query.span(request.query, now_ms=now_ms), now_ms=now_ms
    )
    points = current.stats.history(
        period,
        since_ms=since_ms,
        until_ms=until_ms,
        queue=query.single(request.query, "queue", envelope.check_queue),
    )
    return Answer(views.history(period, points))


@app.operation("metrics", strict_query=True)
def read_metrics(request: Request) -> Answer:
    """Metrics, as JSON or as text."""
    formats = METRIC_FORMATS
    if query.choice(request.query, "format", formats, default=formats[0]) == "prometheus":
        return _metrics_text()
    return Answer(metrics.body(runtime.current().stats.metrics()))


@app.operation("root_metrics")
def root_metrics(_request: Request) -> Answer:
    """Metrics, as Prometheus scrapes them."""
    return _metrics_text()


def _metrics_text() -> Answer:
    text = metrics.text(runtime.current().stats.metrics())
    return Answer(text, headers={"Content-Type": metrics.TEXT_TYPE})
