"""Health, manifest and the OpenAPI document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from functions.admin.app import app
from ojs import runtime
from ojs.domain.cron import schedule
from ojs.domain.errors import OjsError
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.contract import manifest as manifests
from ojs.http.contract import models
from ojs.http.views import maintenance as views

if TYPE_CHECKING:
    from ojs.http.contract import answers

_RETRY_AFTER = {"Retry-After": "5"}


@app.operation("manifest")
def manifest(_request: Request) -> Answer:
    """What this server offers."""
    settings = runtime.current().settings
    return Answer(manifests.manifest(settings.version, settings.authorizer))


@app.operation("health", "root_health")
def health(_request: Request) -> Answer:
    """Whether the store answers, and how quickly."""
    current = runtime.current()
    body: answers.HealthAnswer = {
        "status": "ok",
        "version": manifests.SPECVERSION,
        "server_version": current.settings.version,
        "uptime_seconds": app.uptime_s(),
        "backend": {"type": manifests.BACKEND, "status": "ok"},
    }
    started_ms = current.clock.now_ms()
    try:
        maintenance = current.maintenance.read(consistent=False)
    except OjsError as error:
        body["status"] = "degraded"
        body["backend"]["status"] = "unhealthy"
        body["backend"]["error"] = error.message
        return Answer(body, 503, _RETRY_AFTER)
    body["backend"]["latency_ms"] = current.clock.now_ms() - started_ms
    body["maintenance"] = maintenance is not None
    return Answer(body)


@app.operation("ready", "root_ready")
def ready(_request: Request) -> Answer:
    """Whether requests can be served."""
    try:
        runtime.current().table.ping()
    except OjsError:
        return Answer({"status": "unavailable"}, 503, _RETRY_AFTER)
    return Answer({"status": "ready"})


@app.operation("system_config", "system_config_alias", strict_query=True)
def system_config(_request: Request) -> Answer:
    """How this server is configured, without names of its resources."""
    settings = runtime.current().settings
    body: answers.SystemConfigAnswer = {
        "version": settings.version,
        "service": settings.service,
        "authorizer": settings.authorizer,
        "strict_queues": settings.strict_queues,
        "event_bus": settings.bus is not None,
        "bus_types": list(settings.bus_types),
        "time_zone_data": schedule.zone_data_version(),
    }
    return Answer(body)


@app.operation("get_maintenance", "get_maintenance_alias", strict_query=True)
def get_maintenance(_request: Request) -> Answer:
    """Whether maintenance mode is on."""
    return Answer(views.shown(runtime.current().maintenance.read()))


@app.operation("set_maintenance", "set_maintenance_alias", strict_query=True)
def set_maintenance(request: Request) -> Answer:
    """Begin or end maintenance mode."""
    body = request.parsed(models.MaintenanceRequest)
    current = runtime.current()
    if not body.enabled:
        current.maintenance.end()
        if current.wake is not None:
            current.wake.maintenance_ended()
        return Answer(views.shown(None))
    now_ms = current.clock.now_ms()
    begun = current.maintenance.begin(body.reason, body.duration_ms, now_ms=now_ms)
    return Answer(views.shown(begun))


@app.operation("list_middleware", strict_query=True)
def list_middleware(_request: Request) -> Answer:
    """What jobs go through when they are pushed."""
    chain = runtime.current().middleware
    names = [] if chain is None else chain.names
    body: answers.MiddlewareAnswer = {
        "enqueue": [
            {"name": name, "phase": "enqueue", "order": order}
            for order, name in enumerate(names, start=1)
        ],
        "execution": [],
    }
    return Answer(body)


@app.operation("openapi")
def openapi(_request: Request) -> Answer:
    """The OpenAPI document."""
    # Imported here: no other operation should wait for it.
    from ojs.api import openapi as descriptions

    settings = runtime.current().settings
    return Answer(descriptions.document(settings.version, settings.authorizer))
