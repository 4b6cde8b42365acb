"""Worker pools, and scheduling statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from ojs import runtime
from ojs.api.queue_config import TenantFairness
from ojs.domain.access import Scope
from ojs.domain.edits import make_version
from ojs.domain.fair_queue import tags as tenants
from ojs.domain.page import Page
from ojs.domain.pool import pool as domain
from ojs.domain.pool.dispatch import DispatchStrategy
from ojs.domain.pool.statistics import WINDOW, PoolStatus
from ojs.domain.requests import Field
from ojs.http.answer import Answer, AsIs, made, moment, shown, source, unless_empty
from ojs.http.answers import Count, Etag, Fraction, Moment, Positive
from ojs.http.binding import paging, query
from ojs.http.binding.paging import Listed, Paged, Pagination
from ojs.http.binding.request import Request
from ojs.http.endpoint import BASE, Parameter, Permission, QueueScope, Reply, Resource, Success
from ojs.http.parameters import PAGING, POOL_SCHEMA, QUEUES_PAGING

if TYPE_CHECKING:
    from ojs.domain.pool.statistics import QueueShare as Share
    from ojs.domain.pool.statistics import SchedulingStats

_p: PoolStatus = source()
_c = _p.pool
_l: Listed[PoolStatus] = source()
_name: str = source()
_q: Share = source()
_s: tuple[SchedulingStats, Listed[Any]] = source()


def _tenants(given: Mapping[str, Any]) -> TenantFairness | None:
    return cast("TenantFairness", tenants.shown(given)) if given else None


class StarvationPrevention(AsIs):
    """The share of dispatches that each queue of a pool gets at least, while it has jobs."""

    enabled: bool
    rotation_interval: Annotated[str, Field(description="ISO 8601; so often it has a turn")]
    min_dispatch_ratio: Annotated[
        float, Field(ge=0, le=1, description="part of all dispatches that it has at least")
    ]


class Pool(Answer[PoolStatus]):
    """A worker pool, its workers and active jobs."""

    name: str = _c.name
    id: str = name
    queues: list[str] = made(list, _c.queues)
    concurrency: Positive = shown(_c.concurrency, absent=True, says="most jobs that run at a time")
    strategy: DispatchStrategy = _c.strategy
    weights: dict[str, Positive] = shown(unless_empty(made(dict, _c.weights)), absent=True)
    isolated: bool = shown(_c.isolated, says="whether others get nothing of its queues")
    starvation_prevention: StarvationPrevention = shown(
        StarvationPrevention.of(unless_empty(made(dict, _c.prevention_config))), absent=True
    )
    tenant_fairness: TenantFairness = shown(made(_tenants, _c.tenants), absent=True)
    etag: Etag = made(lambda pool: make_version(pool.configuration), _c)
    created_at: Moment = moment(_c.created_ms)
    configured_at: Moment = moment(_c.configured_ms)
    active_workers: Count = shown(_p.active_workers, says="workers with a recent heartbeat")
    workers: Count = active_workers
    active_jobs: Count = _p.active_jobs


class PoolAnswer(Answer[PoolStatus]):
    """A worker pool, at the top level and wrapped."""

    pool: Pool = Pool.of(_p)
    _top: Pool = pool


class PoolsAnswer(Paged[PoolStatus]):
    """A page of worker pools."""

    items: list[Pool] = Pool.each(_l.items)
    pools: list[Pool] = items


class PoolDeletedAnswer(Answer[str]):
    """The name of the worker pool that was deleted."""

    deleted: Literal[True] = True
    name: str = _name


class QueueShare(Answer["Share"]):
    """The dispatches of a queue in the last minute."""

    name: str = _q.name
    dispatch_count_1m: Count = _q.dispatches
    dispatch_ratio_1m: Fraction = shown(
        made(lambda ratio: round(ratio, 4), _q.ratio),
        says="share of the jobs started from these queues",
    )
    avg_wait_ms: Count = shown(_q.average_wait_ms, says="0 when nothing was started")
    active_jobs: Count = _q.active_jobs
    weight: Positive = shown(_q.weight, says="in its pool; 1 when it has none")
    dispatched: Count = shown(_q.dispatched, says="jobs ever started from it")
    starved: bool = shown(_q.starved, says="as a sweep found it, each minute")
    pool: str = shown(_q.pool, absent=True, says="the worker pool it is in")


class QueueShares(Answer["tuple[SchedulingStats, Listed[Any]]"]):
    """The dispatches of queues in the last minute."""

    queues: list[QueueShare] = QueueShare.each(_s[0].queues)
    window: Literal["PT1M"] = WINDOW


class SchedulingStatsAnswer(Answer["tuple[SchedulingStats, Listed[Any]]"]):
    """Scheduling statistics, at the top level and under `stats`."""

    stats: QueueShares = QueueShares.of(_s)
    _top: QueueShares = stats
    strategy: DispatchStrategy = shown(
        _s[0].strategy, says="of the pool asked for, or of the only one there is"
    )
    pagination: Pagination = Pagination.of(_s[1])


# --- endpoints ------------------------------------------------------------------------------------

_LOOK = Permission(Scope.ADMIN_READ, QueueScope.ALL)
_MANAGE = Permission(Scope.ADMIN_WRITE, QueueScope.ALL)

pools = Resource("admin/pools", "scheduling")
scheduling = Resource("admin/scheduling", "scheduling")


@pools.endpoint("GET", _LOOK, PoolsAnswer, query=PAGING, derived=True)
def list_pools(request: Request) -> Reply:
    """List worker pools.

    One page of pools, in order of name.
    """
    current = runtime.current()
    found = paging.asked(request.query, current.pools.list)
    return Reply(PoolsAnswer.of(found.of(current.scheduling.statuses(found.items))))


@pools.endpoint(
    "PUT /{name}",
    _MANAGE,
    {
        200: Success(PoolAnswer, "The updated pool."),
        201: Success(PoolAnswer, "The new pool.", ("Location",)),
    },
    errors=(404, 409),
    request=domain.PoolRequest,
    example={
        "queues": ["critical", "default", "low"],
        "concurrency": 50,
        "strategy": "weighted",
        "weights": {"critical": 5, "default": 3, "low": 1},
        "isolated": False,
        "starvation_prevention": {
            "enabled": True,
            "rotation_interval": "PT30S",
            "min_dispatch_ratio": 0.05,
        },
    },
    versioned=True,
)
def put_pool(request: Request) -> Reply:
    """Create or replace a worker pool."""
    name, body = request.named, request.object()
    pool, created = runtime.current().pools.put(name, body, request.edit)
    if created:
        return Reply(_answer(pool), 201, {"Location": f"{BASE}/admin/pools/{name}"})
    return Reply(_answer(pool))


@pools.endpoint("GET /{name}", _LOOK, PoolAnswer, errors=(404,), derived=True, versioned=True)
def get_pool(request: Request) -> Reply:
    """Read a worker pool.

    The pool, and how many workers and jobs it has.
    """
    return Reply(_answer(runtime.current().pools.get(request.named)))


def _answer(pool: domain.Pool) -> PoolAnswer:
    (status,) = runtime.current().scheduling.statuses([pool])
    return PoolAnswer.of(status)


@pools.endpoint("DELETE /{name}", _MANAGE, PoolDeletedAnswer, errors=(404, 409), versioned=True)
def delete_pool(request: Request) -> Reply:
    """Delete a worker pool.

    Its queues and jobs are kept.
    """
    runtime.current().pools.delete(request.named, request.edit)
    return Reply(PoolDeletedAnswer.of(request.named))


@scheduling.endpoint(
    "GET /stats",
    _LOOK,
    SchedulingStatsAnswer,
    errors=(404,),
    query=(Parameter("pool", POOL_SCHEMA, "only queues of this worker pool"), *QUEUES_PAGING),
    derived=True,
)
def scheduling_stats(request: Request) -> Reply:
    """Read the share of each queue in the last minute.

    One page of queues, in order of name.
    """
    window = paging.queues_window(request.query)
    found = runtime.current().scheduling.stats(
        limit=window.limit,
        skip=window.offset,
        cursor=window.cursor,
        pool=query.single(request.query, "pool", domain.check_pool),
    )
    page = Page([*found.queues], found.next_cursor)
    return Reply(SchedulingStatsAnswer.of((found, paging.listed(window, page))))
