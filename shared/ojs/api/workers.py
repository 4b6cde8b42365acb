"""Workers: registration, state, and directives of operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from ojs import runtime
from ojs.domain.access import Scope
from ojs.domain.job.job import DEFAULT_VISIBILITY_MS
from ojs.domain.pool import worker as domain
from ojs.domain.pool.worker import DEAD_AFTER_MS, HEARTBEAT_INTERVAL_S, Directive
from ojs.domain.requests import Field
from ojs.http import models
from ojs.http.answer import Answer, AsIs, absent, derived, made, moment, shown, source
from ojs.http.answers import Count, Moment
from ojs.http.binding import paging
from ojs.http.binding.paging import Listed, Paged
from ojs.http.binding.request import Request
from ojs.http.endpoint import Permission, QueueScope, Reply, Resource
from ojs.http.parameters import PAGING
from ojs.records import record


@record(frozen=True)
class _Known:
    """A worker and its state at a time."""

    worker: domain.Worker
    now_ms: int

    @property
    def shown(self) -> Mapping[str, Any]:
        return self.worker.to_dict(self.now_ms)


@derived
def _states(listed: Listed[_Known]) -> list[str] | None:
    """Return the states of all workers, or None if the page doesn't have all workers."""
    if listed.total is None or listed.window.offset:
        return None
    return [known.shown["state"] for known in listed.items]


_k: _Known = source()
_l: Listed[_Known] = source()
_states_of: list[str] = source()
_registered: tuple[str, int] = source()
_id: str = source()


class RegisterAnswer(Answer[tuple[str, int]]):
    """The settings for a worker that starts. Times are in seconds."""

    ok: Literal[True] = True
    worker_id: str = _registered[0]
    server_time: Moment = moment(_registered[1])
    heartbeat_interval: int = HEARTBEAT_INTERVAL_S
    heartbeat_timeout: int = DEAD_AFTER_MS // 1_000
    visibility_timeout_default: int = DEFAULT_VISIBILITY_MS // 1_000


class Worker(AsIs):
    """A worker: its registration, and its state."""

    id: str
    worker_id: str
    state: Annotated[str, Field(description="running, stale, or how it is stopping")]
    directive: Directive
    active_jobs: Count
    first_seen_at: Moment
    last_heartbeat: Moment
    last_heartbeat_at: Moment
    hostname: str = absent()
    pid: int = absent()
    queues: Annotated[list[str], Field(description="empty when it did not say")]
    concurrency: int = absent()
    labels: list[str] | dict[str, str] = absent()
    started_at: str = absent()
    version: str = absent()
    pool: str = absent()
    strategy: str = absent()
    weights: dict[str, int] = absent()


class WorkerAnswer(Answer[_Known]):
    """A worker, at the top level and wrapped."""

    worker: Worker = Worker.of(_k.shown)
    _top: Worker = worker


class WorkerRemovedAnswer(Answer[str]):
    """The worker that was removed."""

    deleted: Literal[True] = True
    worker_id: str = _id


class WorkerHealthAnswer(Answer[_Known]):
    """Whether a worker fetches jobs."""

    worker_id: str = _k.worker.id
    state: str = _k.shown["state"]
    accepting_jobs: bool = _k.worker.may_fetch
    active_jobs: Count = _k.worker.active_jobs
    last_heartbeat: Moment = moment(_k.worker.last_seen_ms)


class WorkersSummary(Answer[list[str]]):
    """Workers by state."""

    total: Count = made(len, _states_of)
    running: Count = _states_of.count("running")
    quiet: Count = made(
        lambda states: sum(state not in ("running", "stale") for state in states), _states_of
    )
    stale: Count = _states_of.count("stale")


class WorkersAnswer(Paged[_Known]):
    """A page of workers."""

    items: list[Worker] = made(
        lambda items: Worker.each([known.shown for known in items]), _l.items
    )
    workers: list[Worker] = items
    summary: WorkersSummary = shown(
        WorkersSummary.of(_states(_l)), absent=True, says="when all are here"
    )


# --- endpoints ------------------------------------------------------------------------------------

_LOOK = Permission(Scope.ADMIN_READ, QueueScope.ALL)
_MANAGE = Permission(Scope.ADMIN_WRITE, QueueScope.ALL)
_ITSELF = Permission(Scope.WORK, QueueScope.NONE)

workers = Resource("workers", "workers")
for_operators = Resource("admin/workers", "admin")
both = Resource("workers", "workers", also={"admin_{}": "admin/workers"})


def _answer(worker: domain.Worker) -> Reply:
    return Reply(WorkerAnswer.of(_Known(worker, runtime.current().clock.now_ms())))


@workers.endpoint(
    "POST /register",
    _ITSELF,
    RegisterAnswer,
    errors=(409, 413),
    request=models.RegisterRequest,
    example={
        "worker_id": "worker-1",
        "hostname": "web-server-1",
        "pid": 12_345,
        "queues": ["email"],
        "concurrency": 10,
        "labels": ["canary"],
    },
    strict_query=False,
)
def register_worker(request: Request) -> Reply:
    """Introduce a worker."""
    raw, prefix = models.registration(request.object())
    body = models.parse(models.RegisterRequest, raw, prefix)
    current = runtime.current()
    current.workers.register(body.worker_id, body.info(), body.pool, request.principal)
    return Reply(RegisterAnswer.of((body.worker_id, current.clock.now_ms())))


@workers.endpoint("DELETE /{id}", _ITSELF, WorkerRemovedAnswer, errors=(404,), strict_query=False)
def remove_worker(request: Request) -> Reply:
    """Deregister a worker.

    Removes the worker from the list.
    """
    runtime.current().workers.remove(request.named, request.principal)
    return Reply(WorkerRemovedAnswer.of(request.named))


@workers.endpoint("GET /{id}/health", _ITSELF, WorkerHealthAnswer, errors=(404,))
def worker_health(request: Request) -> Reply:
    """Read whether a worker fetches jobs.

    The worker's state.
    """
    current = runtime.current()
    worker = current.workers.get(request.named, request.principal)
    return Reply(WorkerHealthAnswer.of(_Known(worker, current.clock.now_ms())))


@both.endpoint("GET", _LOOK, WorkersAnswer, query=PAGING)
def list_workers(request: Request) -> Reply:
    """List workers.

    One page of workers.
    """
    current = runtime.current()
    found = paging.asked(request.query, current.workers.list)
    now_ms = current.clock.now_ms()
    return Reply(WorkersAnswer.of(found.of([_Known(worker, now_ms) for worker in found.items])))


@for_operators.endpoint(
    "POST /directive",
    _MANAGE,
    WorkerAnswer,
    errors=(404,),
    request=models.DirectiveRequest,
    example={"worker_id": "worker-1", "directive": "quiet"},
    strict_query=False,
)
def direct_worker(request: Request) -> Reply:
    """Tell a worker to run, go quiet or terminate.

    The worker.
    """
    body = request.parsed(models.DirectiveRequest)
    return _answer(runtime.current().workers.direct(body.worker_id, body.directive))


@for_operators.endpoint("GET /{id}", _LOOK, WorkerAnswer, errors=(404,))
def get_worker(request: Request) -> Reply:
    """Read a worker.

    The worker.
    """
    return _answer(runtime.current().workers.get(request.named))


@for_operators.endpoint(
    "POST /{id}/quiet",
    _MANAGE,
    WorkerAnswer,
    errors=(404,),
    request=models.NoOptions,
    strict_query=False,
)
def quiet_worker(request: Request) -> Reply:
    """Tell a worker to go quiet.

    The worker.
    """
    return _answer(runtime.current().workers.direct(request.named, "quiet"))


@for_operators.endpoint(
    "DELETE /{id}", _MANAGE, WorkerRemovedAnswer, errors=(404,), strict_query=False
)
def admin_remove_worker(request: Request) -> Reply:
    """Remove a worker's record.

    Removes the worker from the list.
    """
    runtime.current().workers.remove(request.named)
    return Reply(WorkerRemovedAnswer.of(request.named))
