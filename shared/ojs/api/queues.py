"""Queues: configuration, policy for new queues, pause, and deletion."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from ojs import runtime
from ojs.api import backpressure
from ojs.api.queue_config import ConfigSources, QueueConfig, in_force, sources
from ojs.domain.access import Scope
from ojs.domain.edits import make_version
from ojs.domain.errors import InvalidRequest
from ojs.domain.queue import queue as domain
from ojs.domain.queue.config import DEFAULT_QUEUE_POLICY, Layers
from ojs.domain.queue.queue import DeletionStrategy, QueueState
from ojs.domain.requests import MAX_SHOWN, Field, not_known
from ojs.http import models
from ojs.http.answer import Answer, if_true, made, moment, shown, source, unless_empty
from ojs.http.answers import Count, Etag, Moment, Positive
from ojs.http.binding.request import Request
from ojs.http.endpoint import BASE, Parameter, Permission, QueueScope, Reply, Resource, Success
from ojs.http.models import NoOptions
from ojs.http.parameters import one_of
from ojs.records import record

# With less time than this, the request stops. The sweep continues the deletion.
_DELETION_SPARE_MS = 8_000

Own = Annotated[dict[str, Any], Field(description="the fields that are set here, as PUT has them")]

_q: domain.Queue = source()
_set: tuple[domain.Queue, bool] = source()
_inherited: Layers = source()


class QueueStatus(Answer[domain.Queue]):
    """Whether the jobs of a queue are dispatched."""

    name: str = _q.name
    state: QueueState = _q.state
    status: QueueState = state
    paused: bool = _q.paused


class Queue(QueueStatus):
    """A queue's state."""

    created_at: Moment = moment(_q.created_ms)
    configured_at: Moment = shown(moment(_q.configured_ms), absent=True)
    paused_at: Moment = shown(
        moment(made(lambda queue: queue.changed_ms if queue.paused else None, _q)), absent=True
    )
    resumed_at: Moment = shown(
        moment(made(lambda queue: None if queue.paused else queue.changed_ms, _q)), absent=True
    )


class QueueAnswer(Answer[tuple[domain.Queue, bool]]):
    """A queue, at the top level and wrapped. `created`: whether the request created it."""

    queue: Queue = Queue.of(_set[0])
    _top: Queue = queue
    created: Literal[True] = shown(if_true(_set[1]), absent=True)


class QueueConfigAnswer(Answer[domain.Queue]):
    """A queue's configuration."""

    name: str = _q.name
    state: QueueState = _q.state
    config: QueueConfig = in_force(_q.layers)
    config_sources: ConfigSources = sources(_q.layers)
    own: Own = made(lambda layers: dict(layers.own), _q.layers)
    etag: Etag = made(lambda layers: make_version(layers.own), _q.layers)
    created_at: Moment = moment(_q.created_ms)
    updated_at: Moment = shown(
        moment(made(lambda queue: queue.configured_ms or queue.created_ms, _q)),
        says="when it was configured last, or made",
    )


class QueuePolicyAnswer(Answer[Layers]):
    """The configuration that new queues inherit."""

    name: Literal["_default"] = DEFAULT_QUEUE_POLICY
    config: QueueConfig = in_force(_inherited)
    config_sources: ConfigSources = sources(_inherited)
    own: Own = made(lambda layers: dict(layers.document), _inherited)
    etag: Etag = made(lambda layers: make_version(layers.document), _inherited)


@record(frozen=True)
class _Deleted:
    """The deletion of a queue. `gone`: whether it is completed."""

    name: str
    deletion: domain.Deletion
    gone: bool


_d: _Deleted = source()
_refused: int = source()


class DeletionDetails(Answer[int]):
    """Jobs that a deletion leaves in the queue."""

    refused: Positive = shown(_refused, says="jobs of a type that the target does not allow")


class QueueDeletedAnswer(Answer[_Deleted]):
    """The strategy of a deletion, and the number of jobs that it affects."""

    queue: str = _d.name
    strategy: DeletionStrategy = _d.deletion.strategy
    target_queue: str = shown(_d.deletion.target, absent=True)
    jobs_affected: Count = _d.deletion.affected
    state: Literal["draining", "deleted"] = made(
        lambda gone: "deleted" if gone else "draining", _d.gone
    )
    details: DeletionDetails = shown(
        DeletionDetails.of(unless_empty(_d.deletion.refused)), absent=True
    )


# --- endpoints ------------------------------------------------------------------------------------

# For clients that send DELETE without a body. A body must have the same values.
_DELETION = (
    Parameter(
        "strategy",
        one_of(*DeletionStrategy),
        "what happens to its jobs; required, here or in the body",
    ),
    Parameter("target_queue", {"type": "string"}, "with `move`, the queue they go to"),
)
_POLICY = Success(QueuePolicyAnswer, "What holds for queues made from now on.")
_STATE = Success(QueueAnswer, "The queue's state.")
_PAYMENTS = {
    "max_size": 100_000,
    "concurrency": 20,
    "visibility_timeout": 300,
    "default_timeout": 1_800,
    "retention": {"completed": "P3D", "discarded": "P30D"},
    "allowed_job_types": ["payment.*"],
    "default_retry": {
        "max_attempts": 5,
        "initial_interval": "PT5S",
        "backoff_coefficient": 3.0,
    },
}
_LOOK = Permission(Scope.ADMIN_READ, QueueScope.PATH)
_MANAGE = Permission(Scope.ADMIN_WRITE, QueueScope.PATH)

queues = Resource("queues", "queues")
both = Resource("queues/{name}", "queues", also={"admin_{}": "admin/queues/{name}"})
policy = Resource("queues/_default/config", "queues")


def to_create(raw: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], str]:
    """Read the name and the configuration of a new queue.

    The configuration is under `config` (ojs-queue-config section 9.2). The official CLI sends it at
    the same level as the name.

    Returns:
        The name, the configuration, and the prefix of its fields in errors.

    Raises:
        InvalidRequest: A field is malformed, unknown, or at both levels.
        Unsupported: The request has a field that this server does not support.
    """
    name = models.parse(models.CreateQueueRequest, raw).name
    config = raw.get("config")
    if config is None:
        return name, {key: value for key, value in raw.items() if key not in ("name", "config")}, ""
    if not isinstance(config, Mapping):
        raise InvalidRequest("config", "must be an object", value=config)
    known = ("name", "config", *models.QUEUE_FIELDS)
    for field, value in raw.items():
        if field not in known:
            raise InvalidRequest(field[:MAX_SHOWN], not_known(field, known))
        if field in models.QUEUE_FIELDS and value is not None:
            # The field could contradict `config`.
            raise InvalidRequest(field, "must be inside config if config is set")
    return name, config, "config."


def _named(config: Mapping[str, Any]) -> list[str]:
    """Return the other queues that a requested configuration moves jobs to."""
    target = config.get("dead_letter_queue")
    return [target] if isinstance(target, str) else []


@queues.endpoint(
    "POST",
    Permission(Scope.ADMIN_WRITE, QueueScope.NAMED),
    {201: Success(QueueConfigAnswer, "The queue and its configuration.", ("Location",))},
    errors=(409, 429),
    request=models.CreateQueueRequest,
    example={"name": "payments", "config": _PAYMENTS},
    strict_query=False,
)
def create_queue(request: Request) -> Reply:
    """Create a queue."""
    name, config, prefix = to_create(request.object())
    request.touches(name, *_named(config))
    queue = runtime.current().queues.create(name, config, prefix=prefix)
    return Reply(QueueConfigAnswer.of(queue), 201, {"Location": f"{BASE}/queues/{queue.name}"})


@both.endpoint("GET /config", _LOOK, QueueConfigAnswer, errors=(404,), versioned=True)
def get_queue_config(request: Request) -> Reply:
    """Read a queue's configuration.

    The effective values, and their sources.
    """
    return Reply(QueueConfigAnswer.of(runtime.current().queues.get(request.named)))


@both.endpoint(
    "PUT /config",
    _MANAGE,
    QueueConfigAnswer,
    errors=(429,),
    request=models.ConfigureQueueRequest,
    example={"max_size": 50_000, "overflow_policy": "block", "concurrency": 40},
    strict_query=False,
    versioned=True,
)
def configure_queue(request: Request) -> Reply:
    """Change a queue's configuration.

    Returns the effective values. Creates an unknown queue.
    """
    name, config = request.named, request.object()
    request.touches(*_named(config))
    queue = runtime.current().queues.configure(name, config, request.edit)
    return Reply(QueueConfigAnswer.of(queue))


@queues.endpoint(
    "DELETE /{name}",
    _MANAGE,
    {
        202: Success(
            QueueDeletedAnswer, "The queue is deleted, or is deleted after its jobs are processed."
        )
    },
    errors=(404, 409),
    request=models.DeleteQueueRequest,
    example={"strategy": "move", "target_queue": "email"},
    body_required=False,
    query=_DELETION,
)
def delete_queue(request: Request) -> Reply:
    """Delete a queue and see to its jobs."""
    body = request.parsed(models.DeleteQueueRequest)
    if body.target_queue is not None:
        request.moves_to(body.target_queue)
    deletion, gone = runtime.current().deletion.delete(
        request.named,
        body.strategy,
        body.target_queue,
        producer=backpressure.producer(request.headers, request.principal),
        go_on=lambda: request.remaining_ms() > _DELETION_SPARE_MS,
    )
    return Reply(QueueDeletedAnswer.of(_Deleted(request.named, deletion, gone)), 202)


@policy.endpoint("GET", Permission(Scope.ADMIN_READ, QueueScope.TENANT), _POLICY, versioned=True)
def get_queue_policy(request: Request) -> Reply:
    """Read the policy for new queues, or that of the caller's tenant."""
    return _policy(runtime.current().queues.policy(request.principal.tenant))


@policy.endpoint(
    "PUT",
    Permission(Scope.ADMIN_WRITE, QueueScope.TENANT),
    _POLICY,
    request=models.ConfigureQueueRequest,
    example={
        "concurrency": 10,
        "retention": {"completed": "P7D", "discarded": "P30D"},
        "dead_letter": {"retention": {"max_age": "P365D", "max_count": 50_000}},
        "replay_rules": [
            {
                "name": "retry-connection-errors",
                "filter": {"error_type": "ConnectionError"},
                "delay": "PT1H",
                "max_replays": 3,
            }
        ],
        "default_retry": {
            "max_attempts": 3,
            "initial_interval": "PT1S",
            "backoff_coefficient": 2.0,
        },
    },
    strict_query=False,
    versioned=True,
)
def set_queue_policy(request: Request) -> Reply:
    """Change the policy for new queues, or that of the caller's tenant."""
    config, tenant = request.object(), request.principal.tenant
    return _policy(runtime.current().queues.set_policy(config, request.edit, tenant))


def _policy(layers: Layers) -> Reply:
    # New queues inherit the policy, so its fields come from `_default`, not from the queue.
    return Reply(QueuePolicyAnswer.of(Layers(inherited=layers.document)))


@both.endpoint(
    "POST /pause", _MANAGE, _STATE, errors=(404, 409), request=NoOptions, strict_query=False
)
def pause_queue(request: Request) -> Reply:
    """Pause a queue."""
    return _state(request, QueueState.PAUSED)


@both.endpoint(
    "POST /resume", _MANAGE, _STATE, errors=(404, 409), request=NoOptions, strict_query=False
)
def resume_queue(request: Request) -> Reply:
    """Resume a queue."""
    return _state(request, QueueState.ACTIVE)


def _state(request: Request, state: QueueState) -> Reply:
    set_state = runtime.current().queues.set_state
    return Reply(QueueAnswer.of(set_state(request.named, state, request.edit)))
