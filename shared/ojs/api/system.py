"""The server: caller, manifest, health, and configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ojs import runtime
from ojs.domain.access import Scope
from ojs.domain.cron import schedule
from ojs.domain.errors import OjsError
from ojs.domain.requests import Field
from ojs.http.answer import Answer, AsIs, derived, given, made, shown, source
from ojs.http.answers import Count, Positive
from ojs.http.binding.request import Request
from ojs.http.endpoint import Permission, QueueScope, Reply, Resource, Success
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain.access import Principal
    from ojs.settings import Settings

SPECVERSION = "1.0"
BACKEND = "dynamodb"

# The server fully supports this level and all lower levels.
CONFORMANCE_LEVEL = 4

CAPABILITIES = {
    "batch_enqueue": True,
    # The admin UI requires this name to show its page of cron jobs.
    "cron": True,
    "cron_jobs": True,
    "dead_letter": True,
    "delayed_jobs": True,
    "events": True,
    "fair_scheduling": True,
    "job_ttl": True,
    "multi_tenancy": True,
    "pause_resume": True,
    "priority_queues": True,
    "rate_limiting": True,
    "schema_validation": True,
    "unique_jobs": True,
    # `True` in a deployment that has them.
    "webhooks": False,
    "workflows": True,
}

# Extensions that the server implements with all recommendations. Exception: the metrics that
# section 12.2 of bulk operations recommends. The events of bulk operations have the same numbers.
EXTENSIONS = (
    "admin-api", "backpressure", "bulk-operations", "dead-letter", "durable-execution",
    "fair-scheduling", "queue-config", "rate-limiting", "schema-registry",
)  # fmt: skip
# Extensions of this server. `batch-acks`: several acks and nacks in one request, or with a fetch.
# `push-delivery`: the server sends jobs to functions and endpoints.
# `durable-steps`: outcomes of steps, sleeps, signals, and child jobs.
OWN_EXTENSIONS = ("batch-acks", "durable-steps", "push-delivery")

# ojs-disaster-recovery, section 4.3. DynamoDB acknowledges a write when it is stored in two of the
# three zones of the region, and all zones serve requests.
DISASTER_RECOVERY = {
    "durability_level": 2,
    "replication_mode": "synchronous",
    "ha_mode": "active-active",
    "backup_format": "dynamodb-pitr",
}

# Authorizer → authentication methods (ojs-http-binding section 5).
AUTHENTICATION: dict[str, list[Literal["api-key", "jwt", "aws-sigv4"]]] = {
    "none": [],
    "keys": ["api-key"],
    "jwt": ["jwt"],
    "iam": ["aws-sigv4"],
}
AuthorizerName = Literal["keys", "jwt", "iam", "none"]
_RETRY_AFTER = {"Retry-After": "5"}
_ANYBODY = Permission(None, QueueScope.NONE)
_LOOK = Permission(Scope.ADMIN_READ, QueueScope.ALL)


@derived
def _extensions(names: Sequence[str], space: str, version: str) -> list[dict[str, str]]:
    return [{"name": name, "uri": f"urn:{space}:ext:{name}", "version": version} for name in names]


_c: Settings = source()


class Implementation(Answer["Settings"]):
    """Which software this is."""

    name: str = "ojs-backend-aws"
    version: str = _c.version
    language: str = "python"


class Realtime(Answer["Settings"]):
    """How clients receive events as they happen (ojs-realtime)."""

    sse: bool = True
    websocket: str = shown(
        _c.socket_url, absent=True, says="address; absent without a WebSocket API"
    )


def _official(webhook_queue: str | None) -> list[dict[str, str]]:
    names = EXTENSIONS if webhook_queue is None else (*EXTENSIONS, "webhooks")
    return _extensions(names, "ojs", "1.0.0-rc.1")


class ConformanceExtensions(Answer["Settings"]):
    """Extensions that are offered as a whole, and the bindings of realtime."""

    realtime: Realtime = Realtime.of(_c)
    disaster_recovery: dict[str, Any] = DISASTER_RECOVERY
    official: list[dict[str, str]] = made(_official, _c.webhook_queue)
    experimental: list[dict[str, str]] = _extensions(OWN_EXTENSIONS, "ojs-aws", "1.0.0")


class Authentication(Answer["Settings"]):
    """The ways in which callers authenticate."""

    required: bool = made(lambda name: name != "none", _c.authorizer)
    methods: list[Literal["api-key", "jwt", "aws-sigv4"]] = made(
        AUTHENTICATION.__getitem__, _c.authorizer
    )


class ManifestAnswer(Answer["Settings"]):
    """The conformance manifest."""

    specversion: str = SPECVERSION
    ojs_version: str = SPECVERSION
    implementation: Implementation = Implementation.of(_c)
    conformance_level: Annotated[int, Field(ge=0, le=4)] = CONFORMANCE_LEVEL
    protocols: list[str] = ["http"]
    backend: str = BACKEND
    capabilities: dict[str, bool] = made(
        lambda queue: {**CAPABILITIES, "webhooks": queue is not None}, _c.webhook_queue
    )
    extensions: ConformanceExtensions = ConformanceExtensions.of(_c)
    authentication: Authentication = Authentication.of(_c)
    # One transaction writes the lock and the job.
    unique_job_strength: str = "strong"
    endpoints: dict[str, str] = {
        "base_path": "/ojs/v1",
        "manifest": "/ojs/manifest",
        "health": "/ojs/v1/health",
        "openapi": "/ojs/v1/openapi.json",
    }


class SystemConfigAnswer(Answer["Settings"]):
    """The configuration of the server."""

    version: str = _c.version
    service: str = shown(_c.service, says="its name in the source of events")
    authorizer: AuthorizerName = _c.authorizer
    strict_queues: bool = shown(_c.strict_queues, says="jobs need a queue that an operator made")
    event_bus: bool = shown(given(_c.bus), says="whether events go to a bus")
    bus_types: list[str] = shown(
        made(list, _c.bus_types), says="in addition to the types that are always published"
    )
    time_zone_data: str = shown(
        made(lambda _: schedule.zone_data_version(), _c), says="version of the rules of time zones"
    )


@record(frozen=True)
class _Caller:
    who: Principal
    settings: Settings


_w: _Caller = source()


class PrincipalAnswer(Answer[_Caller]):
    """The caller and its permissions."""

    name: str = shown(
        _w.who.name, absent=True, says="on the key, of the token, of the role; absent if open"
    )
    key: str = shown(_w.who.key, absent=True, says="id of the key")
    scopes: list[str] = made(sorted, _w.who.scopes)
    queues: list[str] = shown(
        made(lambda queues: None if queues is None else [*queues], _w.who.queues),
        absent=True,
        says="the only ones it may touch; absent: all",
    )
    tenant: str = shown(_w.who.tenant, absent=True, says="that it acts for; absent: `_default`")
    authorizer: AuthorizerName = _w.settings.authorizer
    version: str = shown(_w.settings.version, says="of the server")
    service: str = shown(_w.settings.service, says="its name in the source of events")


@record(frozen=True)
class _Health:
    """The health of the store. `error` is its error."""

    version: str
    uptime_s: int
    latency_ms: int | None = None
    error: str | None = None
    maintenance: bool | None = None

    @property
    def status(self) -> Literal["ok", "degraded"]:
        return "ok" if self.error is None else "degraded"

    @property
    def store(self) -> Literal["ok", "unhealthy"]:
        return "ok" if self.error is None else "unhealthy"


_h: _Health = source()


class Backend(Answer[_Health]):
    """The store behind the server."""

    type: str = BACKEND
    status: Literal["ok", "unhealthy"] = _h.store
    latency_ms: Count = shown(_h.latency_ms, absent=True)
    error: str = shown(_h.error, absent=True)


class HealthAnswer(Answer[_Health]):
    """Whether the server and the store work."""

    status: Literal["ok", "degraded"] = _h.status
    version: str = shown(SPECVERSION, says="of the specification")
    server_version: str = _h.version
    uptime_seconds: Count = _h.uptime_s
    backend: Backend = Backend.of(_h)
    maintenance: bool = shown(_h.maintenance, absent=True, says="whether maintenance mode is on")


_ready: bool = source()


class ReadyAnswer(Answer[bool]):
    """Whether the server can process requests."""

    status: Literal["ready", "unavailable"] = made(
        lambda ready: "ready" if ready else "unavailable", _ready
    )


_step: tuple[int, str] = source()
_names: list[str] = source()


class MiddlewareEntry(Answer[tuple[int, str]]):
    """One step that jobs go through."""

    name: str = _step[1]
    phase: Literal["enqueue"] = "enqueue"
    order: Positive = shown(_step[0], says="its place in the chain")


class MiddlewareAnswer(Answer[list[str]]):
    """The enqueue middleware. Execution middleware runs in workers."""

    enqueue: list[MiddlewareEntry] = MiddlewareEntry.each(
        made(lambda names: [*enumerate(names, start=1)], _names)
    )
    execution: Annotated[list[MiddlewareEntry], Field(max_length=0)] = []


system = Resource("", "system")
_probes = Resource("", "system", also={"root_{}": "/"})
config = Resource("admin/system/config", "system", also={"{}_alias": "admin/config"})
_manifest = Resource("/ojs/manifest", "system")


@system.endpoint("GET /me", _ANYBODY, PrincipalAnswer)
def get_caller(request: Request) -> Reply:
    """Read the identity and scopes of the caller.

    Your name, scopes and queues.
    """
    return Reply(PrincipalAnswer.of(_Caller(request.principal, runtime.current().settings)))


@_manifest.endpoint("GET", _ANYBODY, ManifestAnswer, strict_query=False)
def manifest(_request: Request) -> Reply:
    """Read the manifest of the server.

    The conformance manifest.
    """
    return Reply(ManifestAnswer.of(runtime.current().settings))


@_probes.endpoint(
    "GET /health",
    _ANYBODY,
    {
        200: Success(HealthAnswer, "The server and DynamoDB work."),
        503: Success(HealthAnswer, "DynamoDB does not respond.", ("Retry-After",)),
    },
    strict_query=False,
)
def health(request: Request) -> Reply:
    """Read whether the server and its store work."""
    current = runtime.current()
    found = _Health(current.settings.version, request.uptime_s)
    started_ms = current.clock.now_ms()
    try:
        maintenance = current.maintenance.read(consistent=False) is not None
    except OjsError as error:
        return Reply(HealthAnswer.of(replace(found, error=error.message)), 503, _RETRY_AFTER)
    latency_ms = current.clock.now_ms() - started_ms
    return Reply(HealthAnswer.of(replace(found, latency_ms=latency_ms, maintenance=maintenance)))


@_probes.endpoint(
    "GET /ready",
    _ANYBODY,
    {
        200: Success(ReadyAnswer, "They can."),
        503: Success(ReadyAnswer, "They cannot.", ("Retry-After",)),
    },
    strict_query=False,
)
def ready(_request: Request) -> Reply:
    """Read whether the server is ready."""
    try:
        runtime.current().table.ping()
    except OjsError:
        return Reply(ReadyAnswer.of(False), 503, _RETRY_AFTER)
    return Reply(ReadyAnswer.of(True))


@config.endpoint("GET", _LOOK, SystemConfigAnswer)
def system_config(_request: Request) -> Reply:
    """Read the server's configuration.

    The configuration, without secrets.
    """
    return Reply(SystemConfigAnswer.of(runtime.current().settings))


@system.endpoint("GET /middleware", _LOOK, MiddlewareAnswer)
def list_middleware(_request: Request) -> Reply:
    """List the middleware that processes enqueued jobs.

    The names, in order.
    """
    chain = runtime.current().middleware
    return Reply(MiddlewareAnswer.of([] if chain is None else chain.names))


class OpenApiAnswer(AsIs, kept=True):
    """An OpenAPI document."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
    components: dict[str, Any]


@system.endpoint("GET /openapi.json", _ANYBODY, OpenApiAnswer, strict_query=False)
def openapi(_request: Request) -> Reply:
    """Read the OpenAPI document.

    The OpenAPI 3.1 document.
    """
    # Imported here, because the document needs all operations and only this one needs the document.
    document = import_module("ojs.api.openapi").document
    settings = runtime.current().settings
    return Reply(document(settings.version, settings.authorizer))
