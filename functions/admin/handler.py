"""Health, manifest, dead letter, queues, workers as an operator sees them, and unknown routes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ojs import runtime
from ojs.domain import times
from ojs.domain.dead_letter import filter as dead_letter_filter
from ojs.domain.dead_letter.bulk import Action
from ojs.domain.dead_letter.filter import DeadLetterFilter
from ojs.domain.errors import InvalidRequest, OjsError, Unsupported, ValidationFailed
from ojs.domain.job import envelope
from ojs.domain.job.states import State
from ojs.domain.page import Page
from ojs.domain.pool import pool as pools
from ojs.domain.stats import QueueSummary
from ojs.http.binding import paging, query
from ojs.http.binding.access import Guard
from ojs.http.binding.application import Answer, Application
from ojs.http.binding.request import Request
from ojs.http.contract import manifest as manifests
from ojs.http.contract import models
from ojs.http.contract.operations import BASE
from ojs.http.views import access_keys as key_views
from ojs.http.views import bulk as bulk_views
from ojs.http.views import events, metrics
from ojs.http.views import jobs as views
from ojs.http.views import pools as pool_views
from ojs.http.views import queue_config as queue_configs
from ojs.http.views import rate_limits as limits_views
from ojs.http.views import statistics as stats_views

if TYPE_CHECKING:
    from ojs.domain.pool.pool import Pool
    from ojs.services.dead_letter.bulk import Done

app = Application("admin", Guard(runtime.current))

# A request leaves the rest of a deletion to the sweep when less than this is left to it.
_DELETION_SPARE_MS = 8_000
# And of a bulk operation.
_BULK_SPARE_MS = 8_000
_RETRY_AFTER = {"Retry-After": "5"}


# --- system -----------------------------------------------------------------------------------


@app.operation("manifest")
def manifest(_request: Request) -> Answer:
    """What this server offers."""
    settings = runtime.current().settings
    return Answer(manifests.manifest(settings.version, settings.authorizer))


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
    from ojs.http.contract import openapi as descriptions

    settings = runtime.current().settings
    return Answer(descriptions.document(settings.version, settings.authorizer))


# --- dead letter ------------------------------------------------------------------------------


@app.operation("list_dead_letters", "admin_list_dead_letters")
def list_dead_letters(request: Request) -> Answer:
    """A page of dead letters."""
    query.check_known(request.operation, request.query)
    current = runtime.current()
    asked = paging.window(request.query)
    if (state := request.query.get("state")) not in (None, "", State.DISCARDED):
        raise InvalidRequest("state", f"must be {State.DISCARDED}", value=state)
    wanted = dead_letter_filter.from_query(request.query, now_ms=current.clock.now_ms())
    # Not through paging.collect: what is skipped need not be loaded.
    page = current.dead_letter.list(
        wanted, limit=asked.limit, cursor=asked.cursor, skip=asked.offset
    )
    total = None
    if wanted.everything and (page.next_cursor is not None or asked.cursor is not None):
        seen = asked.offset + len(page.items) + (page.next_cursor is not None)
        total = current.dead_letter_stats.total(wanted.queue, least=seen)
    return Answer(views.jobs_page(asked, page, total))


@app.operation("dead_letter_stats", "admin_dead_letter_stats")
def dead_letter_stats(request: Request) -> Answer:
    """How many dead letters there are, of what, and since when."""
    query.check_known(request.operation, request.query)
    return Answer(stats_views.dead_letters(runtime.current().dead_letter_stats.read()))


@app.operation("get_dead_letter", "admin_get_dead_letter")
def get_dead_letter(request: Request) -> Answer:
    """One dead letter with its history."""
    return Answer(views.detail(runtime.current().dead_letter.get(request.named)))


@app.operation("retry_dead_letter", "admin_retry_dead_letter")
def retry_dead_letter(request: Request) -> Answer:
    """Make a dead letter available again."""
    override = request.parsed(models.RetryDeadLetterRequest).changes()
    if override.queue is not None:
        request.touches(override.queue)
    return Answer(views.wrapped(runtime.current().redrive.retry(request.named, override)))


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


@app.operation("retry_dead_letters", "admin_retry_dead_letters")
def retry_dead_letters(request: Request) -> Answer:
    """Make many dead letters available again."""
    query.check_known(request.operation, request.query)
    wanted = bulk_views.to_retry(request, now_ms=runtime.current().clock.now_ms())
    request.touches(wanted.queue)
    done = _begun(request, Action.RETRY, wanted)
    return Answer(bulk_views.retried(done.operation, done.job_ids, done.errors))


@app.operation("purge_dead_letters", "admin_purge_dead_letters")
def purge_dead_letters(request: Request) -> Answer:
    """Delete many dead letters for good."""
    query.check_known(request.operation, request.query)
    wanted = bulk_views.to_purge(request, now_ms=runtime.current().clock.now_ms())
    request.touches(wanted.queue)
    done = _begun(request, Action.PURGE, wanted)
    return Answer(bulk_views.purged(done.operation, done.job_ids))


@app.operation("purge_old_dead_letters", "admin_purge_old_dead_letters")
def purge_old_dead_letters(request: Request) -> Answer:
    """Delete dead letters that were discarded before a time."""
    query.check_known(request.operation, request.query)
    wanted = bulk_views.older(request, now_ms=runtime.current().clock.now_ms())
    done = _begun(request, Action.PURGE, wanted)
    return Answer(bulk_views.purged(done.operation, done.job_ids))


def _begun(request: Request, action: Action, wanted: DeadLetterFilter) -> Done:
    return runtime.current().bulk.begin(
        action, wanted, go_on=lambda: request.remaining_ms() > _BULK_SPARE_MS
    )


@app.operation("list_dead_letter_operations", "admin_list_dead_letter_operations")
def list_dead_letter_operations(request: Request) -> Answer:
    """A page of bulk operations."""
    query.check_known(request.operation, request.query)
    asked = paging.window(request.query)
    page = paging.collect(
        asked, lambda limit, cursor: runtime.current().bulk.list(limit=limit, cursor=cursor)
    )
    return Answer(bulk_views.page(page, paging.described(asked, page)))


@app.operation("get_dead_letter_operation", "admin_get_dead_letter_operation")
def get_dead_letter_operation(request: Request) -> Answer:
    """One bulk operation."""
    query.check_known(request.operation, request.query)
    return Answer(bulk_views.wrapped(runtime.current().bulk.get(request.named)))


@app.operation("stop_dead_letter_operation", "admin_stop_dead_letter_operation")
def stop_dead_letter_operation(request: Request) -> Answer:
    """Have a bulk operation end."""
    request.parsed(models.NoOptions)
    return Answer(bulk_views.wrapped(runtime.current().bulk.stop(request.named)))


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


@app.operation("create_queue")
def create_queue(request: Request) -> Answer:
    """Make a queue before its first job."""
    name, config, prefix = queue_configs.to_create(request.object())
    request.touches(name, *queue_configs.named(config))
    queue = runtime.current().queues.create(name, config, prefix=prefix)
    return Answer(queue_configs.shown(queue), 201, {"Location": f"{BASE}/queues/{queue.name}"})


@app.operation("delete_queue")
def delete_queue(request: Request) -> Answer:
    """End a queue, and see to its jobs."""
    query.check_known(request.operation, request.query)
    given = request.parsed(models.DeleteQueueRequest)
    target = given.target_queue or request.query.get("target_queue") or None
    if target is not None:
        request.touches(target)
    ending, gone = runtime.current().ending.delete(
        request.named,
        given.strategy or request.query.get("strategy") or None,
        target,
        go_on=lambda: request.remaining_ms() > _DELETION_SPARE_MS,
    )
    return Answer(queue_configs.deleted(request.named, ending, gone=gone), 202)


@app.operation("get_queue_config", "admin_get_queue_config")
def get_queue_config(request: Request) -> Answer:
    """What holds for a queue."""
    query.check_known(request.operation, request.query)
    return Answer(queue_configs.shown(runtime.current().queues.get(request.named)))


@app.operation("configure_queue", "admin_configure_queue")
def configure_queue(request: Request) -> Answer:
    """Change what is named of a queue's configuration; makes a queue not seen yet."""
    name, config = request.named, request.object()
    request.touches(*queue_configs.named(config))
    return Answer(queue_configs.shown(runtime.current().queues.configure(name, config)))


@app.operation("get_queue_policy")
def get_queue_policy(request: Request) -> Answer:
    """What holds for queues that are made from now on."""
    query.check_known(request.operation, request.query)
    return Answer(queue_configs.policy(runtime.current().queues.policy()))


@app.operation("set_queue_policy")
def set_queue_policy(request: Request) -> Answer:
    """Change what holds for queues that are made from now on."""
    return Answer(queue_configs.policy(runtime.current().queues.set_policy(request.object())))


# --- rate limits ------------------------------------------------------------------------------


@app.operation("list_rate_limits")
def list_rate_limits(request: Request) -> Answer:
    """A page of keys."""
    query.check_known(request.operation, request.query)
    asked = paging.window(request.query)
    page = paging.collect(
        asked, lambda limit, cursor: runtime.current().limits.list(limit=limit, cursor=cursor)
    )
    return Answer(limits_views.page(page, paging.described(asked, page)))


@app.operation("get_rate_limit")
def get_rate_limit(request: Request) -> Answer:
    """How a key stands."""
    query.check_known(request.operation, request.query)
    return Answer(limits_views.shown(runtime.current().limits.get(request.named)))


@app.operation("put_rate_limit", "put_rate_limit_override")
def override_rate_limit(request: Request) -> Answer:
    """Hold a key's jobs against other bounds than their own."""
    current = runtime.current()
    override = limits_views.override(request.object(), now_ms=current.clock.now_ms())
    return Answer(limits_views.shown(current.limits.override(request.named, override)))


@app.operation("delete_rate_limit", "delete_rate_limit_override")
def lift_rate_limit(request: Request) -> Answer:
    """Hold a key's jobs against their own bounds again."""
    return Answer(limits_views.shown(runtime.current().limits.lift(request.named)))


@app.operation("set_queue_limits")
def set_queue_limits(request: Request) -> Answer:
    """Change a queue's own limits; makes a queue not seen yet."""
    query.check_known(request.operation, request.query)
    current, name = runtime.current(), request.named
    try:
        config = request.parsed(models.QueueLimitsRequest).config()
    except ValidationFailed as error:
        # The rate of a queue is no policy of a job: as in the rest of its configuration, 400.
        raise InvalidRequest(error.field, error.reason, details=error.details) from None
    queue = current.queues.configure(name, config)
    return Answer(limits_views.of_queue(current.queues.standing(queue)))


@app.operation("admin_get_job")
def admin_get_job(request: Request) -> Answer:
    """One job, as an operator reads it."""
    return Answer(views.detail(runtime.current().jobs.get(request.named)))


# --- scheduling -------------------------------------------------------------------------------


@app.operation("list_pools")
def list_pools(request: Request) -> Answer:
    """A page of worker pools."""
    query.check_known(request.operation, request.query)
    current = runtime.current()
    asked = paging.window(request.query)
    page = paging.collect(
        asked, lambda limit, cursor: current.pools.list(limit=limit, cursor=cursor)
    )
    standings = current.scheduling.standings(page.items)
    return Answer(pool_views.page(standings, paging.described(asked, page)))


@app.operation("put_pool")
def put_pool(request: Request) -> Answer:
    """Make or replace a worker pool."""
    query.check_known(request.operation, request.query)
    name, body = request.named, request.object()
    pool, created = runtime.current().pools.put(name, body)
    answer = _pool(pool)
    if created:
        return Answer(answer, 201, {"Location": f"{BASE}/admin/pools/{name}"})
    return Answer(answer)


@app.operation("get_pool")
def get_pool(request: Request) -> Answer:
    """One worker pool."""
    query.check_known(request.operation, request.query)
    return Answer(_pool(runtime.current().pools.get(request.named)))


def _pool(pool: Pool) -> dict[str, Any]:
    (standing,) = runtime.current().scheduling.standings([pool])
    return pool_views.detail(standing)


@app.operation("delete_pool")
def delete_pool(request: Request) -> Answer:
    """Remove a worker pool."""
    query.check_known(request.operation, request.query)
    runtime.current().pools.delete(request.named)
    return Answer({"deleted": True, "name": request.named})


@app.operation("scheduling_stats")
def scheduling_stats(request: Request) -> Answer:
    """What queues were given in the last minute."""
    asked = _queues_asked(request)
    found = runtime.current().scheduling.stats(
        limit=asked.limit,
        skip=asked.offset,
        cursor=asked.cursor,
        pool=query.single(request.query, "pool", pools.check_pool),
    )
    page = Page(list(found.queues), found.next_cursor)
    return Answer(pool_views.stats(found, paging.described(asked, page)))


# --- access keys ------------------------------------------------------------------------------


@app.operation("create_key")
def create_key(request: Request) -> Answer:
    """Make a key, and show it this once."""
    query.check_known(request.operation, request.query)
    given = request.parsed(models.CreateKeyRequest)
    current = _with_keys()
    now_ms = current.clock.now_ms()
    expires_ms = None
    if given.expires_at is not None:
        expires_ms = times.timestamp_ms(given.expires_at, now_ms=now_ms)
    key, credential = current.access_keys.create(
        request.principal, given.name, given.scopes, queues=given.queues, expires_ms=expires_ms
    )
    headers = {"Location": f"{BASE}/admin/keys/{key.id}"}
    return Answer(key_views.made(key, credential, now_ms), 201, headers)


@app.operation("list_keys")
def list_keys(request: Request) -> Answer:
    """A page of keys."""
    query.check_known(request.operation, request.query)
    current = _with_keys()
    asked = paging.window(request.query)
    page = paging.collect(
        asked, lambda limit, cursor: current.access_keys.list(limit=limit, cursor=cursor)
    )
    return Answer(key_views.page(page, paging.described(asked, page), current.clock.now_ms()))


@app.operation("get_key")
def get_key(request: Request) -> Answer:
    """One key."""
    query.check_known(request.operation, request.query)
    current = _with_keys()
    key = current.access_keys.get(request.named)
    return Answer(key_views.wrapped(key, current.clock.now_ms()))


@app.operation("revoke_key")
def revoke_key(request: Request) -> Answer:
    """Have a key be of no use any more."""
    query.check_known(request.operation, request.query)
    current = _with_keys()
    key = current.access_keys.revoke(request.principal, request.named)
    return Answer(key_views.wrapped(key, current.clock.now_ms()))


def _with_keys() -> runtime.Runtime:
    current = runtime.current()
    if current.settings.authorizer not in ("keys", "none"):
        # They would open nothing.
        raise Unsupported("This deployment knows its callers by other means than keys.")
    return current


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
        period,
        since_ms=since_ms,
        until_ms=until_ms,
        queue=query.single(request.query, "queue", envelope.check_queue),
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
