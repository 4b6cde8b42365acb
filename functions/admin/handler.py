"""Health, manifest, dead letter, queues, workers as an operator sees them, and unknown routes."""

from __future__ import annotations

from ojs import runtime
from ojs.domain import envelope
from ojs.domain.errors import InvalidRequest, OjsError
from ojs.domain.page import Page
from ojs.domain.stats import QueueSummary
from ojs.http import events, metrics, models, paging, query, stats_views, views
from ojs.http import manifest as manifests
from ojs.http.application import Answer, Application
from ojs.http.request import Request

app = Application("admin")

_RETRY_AFTER = {"Retry-After": "5"}
_UNSUPPORTED_FILTERS = ("error_type", "since", "until", "before", "args", "state")


# --- system -----------------------------------------------------------------------------------


@app.operation("manifest")
def manifest(_request: Request) -> Answer:
    """What this server offers."""
    return Answer(manifests.manifest(runtime.current().settings.version))


@app.operation("health", "root_health")
def health(_request: Request) -> Answer:
    """Whether the store answers, and how quickly."""
    current = runtime.current()
    shown = {
        "version": manifests.SPECVERSION,
        "server_version": current.settings.version,
        "uptime_seconds": app.uptime_s(),
    }
    started_ms = current.clock.now_ms()
    try:
        current.table.ping()
    except OjsError as error:
        backend = {"type": manifests.BACKEND, "status": "unhealthy", "error": error.message}
        return Answer({"status": "degraded", **shown, "backend": backend}, 503, _RETRY_AFTER)
    latency_ms = current.clock.now_ms() - started_ms
    backend_ok = {"type": manifests.BACKEND, "status": "ok", "latency_ms": latency_ms}
    return Answer({"status": "ok", **shown, "backend": backend_ok})


@app.operation("ready", "root_ready")
def ready(_request: Request) -> Answer:
    """Whether requests can be served."""
    try:
        runtime.current().table.ping()
    except OjsError:
        return Answer({"status": "unavailable"}, 503, _RETRY_AFTER)
    return Answer({"status": "ready"})


@app.operation("openapi")
def openapi(_request: Request) -> Answer:
    """The description of all this."""
    # Imported here: nobody should pay for it but who asks.
    from ojs.http import openapi as descriptions

    return Answer(descriptions.document(runtime.current().settings.version))


# --- dead letter ------------------------------------------------------------------------------


@app.operation("list_dead_letters", "admin_list_dead_letters")
def list_dead_letters(request: Request) -> Answer:
    """A page of dead letters."""
    for name in _UNSUPPORTED_FILTERS:
        if name in request.query:
            raise manifests.not_offered(name, "filtering by it is not offered by this server.")
    asked = paging.window(request.query)
    queue = _checked(request, "queue")
    kind = _checked(request, "type")
    # Not through paging.collect: what is skipped need not be loaded.
    page = runtime.current().dead_letter.list(
        queue=queue, type=kind, limit=asked.limit, cursor=asked.cursor, skip=asked.offset
    )
    return Answer(views.jobs_page(asked, page))


def _checked(request: Request, name: str) -> str | None:
    value = request.query.get(name)
    if not value:
        return None
    try:
        return (envelope.check_queue if name == "queue" else envelope.check_type)(value)
    except ValueError as error:
        raise InvalidRequest(name, str(error), value=value) from None


@app.operation("get_dead_letter", "admin_get_dead_letter")
def get_dead_letter(request: Request) -> Answer:
    """One dead letter with its history."""
    return Answer(views.detail(runtime.current().dead_letter.get(request.named)))


@app.operation("retry_dead_letter", "admin_retry_dead_letter")
def retry_dead_letter(request: Request) -> Answer:
    """Make a dead letter available again."""
    request.parsed(models.RetryDeadLetterRequest)
    return Answer(views.wrapped(runtime.current().dead_letter.retry(request.named)))


@app.operation("delete_dead_letter")
def delete_dead_letter(request: Request) -> Answer:
    """Delete a dead letter for good."""
    runtime.current().dead_letter.delete(request.named)
    return Answer({"deleted": True, "job_id": request.named})


@app.operation("admin_delete_dead_letter")
def admin_delete_dead_letter(request: Request) -> Answer:
    """Delete a dead letter for good."""
    runtime.current().dead_letter.delete(request.named)
    return Answer(None, 204)


# --- queues -----------------------------------------------------------------------------------


@app.operation("pause_queue", "admin_pause_queue")
def pause_queue(request: Request) -> Answer:
    """Hand out no more jobs of a queue."""
    request.parsed(models.NoOptions)
    return Answer(views.queue_state(runtime.current().queues.pause(request.named)))


@app.operation("resume_queue", "admin_resume_queue")
def resume_queue(request: Request) -> Answer:
    """Hand out jobs of a queue again."""
    request.parsed(models.NoOptions)
    return Answer(views.queue_state(runtime.current().queues.resume(request.named)))


# --- statistics and events --------------------------------------------------------------------


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


def _queues_asked(request: Request) -> paging.Window:
    query.check_known(request.operation, request.query)
    return stats_views.queues_window(request.query)


def _queues_page(asked: paging.Window) -> Page[QueueSummary]:
    return runtime.current().stats.list(limit=asked.limit, skip=asked.offset, cursor=asked.cursor)


@app.operation("get_queue")
def get_queue(request: Request) -> Answer:
    """One queue."""
    query.check_known(request.operation, request.query)
    return Answer(stats_views.queue_detail(runtime.current().stats.existing(request.named)))


@app.operation("admin_get_queue")
def admin_get_queue(request: Request) -> Answer:
    """One queue and how it fares."""
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
    """All queues together."""
    query.check_known(request.operation, request.query)
    return Answer(stats_views.totals(runtime.current().stats.totals(), app.uptime_s()))


@app.operation("admin_stats_history")
def admin_stats_history(request: Request) -> Answer:
    """What happened when."""
    query.check_known(request.operation, request.query)
    current = runtime.current()
    now_ms = current.clock.now_ms()
    period = stats_views.period(request.query)
    since_ms, until_ms = stats_views.span_of(
        period, *query.span(request.query, now_ms=now_ms), now_ms=now_ms
    )
    points = current.stats.history(
        period, since_ms=since_ms, until_ms=until_ms, queue=_checked(request, "queue")
    )
    return Answer(stats_views.history(period, points))


@app.operation("list_events")
def list_events(request: Request) -> Answer:
    """Lifecycle events."""
    query.check_known(request.operation, request.query)
    current = runtime.current()
    asked = events.asked(request.query, now_ms=current.clock.now_ms())
    found = current.events.list(
        asked.wanted, limit=asked.limit, skip=asked.skip, after=asked.after, cursor=asked.cursor
    )
    return Answer(events.answer(asked, found))


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


# --- workers ----------------------------------------------------------------------------------


@app.operation("admin_list_workers")
def list_workers(request: Request) -> Answer:
    """A page of workers."""
    current = runtime.current()
    asked = paging.window(request.query)
    page = paging.collect(
        asked, lambda limit, cursor: current.workers.list(limit=limit, cursor=cursor)
    )
    return Answer(views.workers_page(asked, page, current.clock.now_ms()))


@app.operation("get_worker")
def get_worker(request: Request) -> Answer:
    """One worker."""
    current = runtime.current()
    worker = current.workers.get(request.named)
    return Answer(views.worker_detail(worker, current.clock.now_ms()))


@app.operation("quiet_worker")
def quiet_worker(request: Request) -> Answer:
    """Tell a worker to finish what it has and take no more."""
    request.parsed(models.NoOptions)
    return _directed(request.named, "quiet")


@app.operation("direct_worker")
def direct_worker(request: Request) -> Answer:
    """Tell a worker to run, go quiet or terminate."""
    given = request.parsed(models.DirectiveRequest)
    return _directed(given.worker_id, given.directive)


def _directed(worker_id: str, directive: str) -> Answer:
    current = runtime.current()
    worker = current.workers.direct(worker_id, directive)
    return Answer(views.worker_detail(worker, current.clock.now_ms()))


@app.operation("admin_remove_worker")
def remove_worker(request: Request) -> Answer:
    """Forget a worker."""
    runtime.current().workers.remove(request.named)
    return Answer({"deleted": True, "worker_id": request.named})


handler = app.complete()
