"""Tenants: their limits, and statistics (ojs-multi-tenancy, section 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from ojs import runtime
from ojs.api.statistics import JobCounts
from ojs.domain.access import Scope
from ojs.domain.edits import make_version
from ojs.domain.job.states import State
from ojs.domain.tenant_limits import TenantChange, TenantRequest, TenantState
from ojs.http.answer import Answer, derived, length, made, maybe, moment, shown, source
from ojs.http.answers import Count, Etag, Moment, Positive, Rate
from ojs.http.binding import paging
from ojs.http.binding.paging import Listed, Paged
from ojs.http.binding.request import Request
from ojs.http.endpoint import BASE, Permission, QueueScope, Reply, Resource, Success
from ojs.http.parameters import PAGING
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain import rate_limit
    from ojs.domain.tenant_limits import Tenant as Record
    from ojs.services.tenants.manage import TenantStatus

_SECOND_MS = 1_000


@record(frozen=True)
class _Use:
    limit: int
    current: int


@derived
def _each_second(rate: rate_limit.limiter.Rate | None) -> int | None:
    return rate.limit if rate is not None and rate.period_ms == _SECOND_MS else None


@derived
def _use(limit: int | None, *current: int) -> _Use | None:
    return None if limit is None else _Use(limit, sum(current))


_s: TenantStatus = source()
_t = _s.tenant
_of: Record = source()
_rate: rate_limit.limiter.Rate = source()
_l: Listed[TenantStatus] = source()
_u: _Use = source()
_n: str = source()
_levels = _s.jobs.levels
_available, _scheduled = _levels.of(State.AVAILABLE), _levels.of(State.SCHEDULED)


class EnqueueRate(Answer["rate_limit.limiter.Rate"]):
    """Maximum number of enqueued jobs in each period."""

    limit: Positive = _rate.limit
    period: str = length(_rate.period_ms)


class TenantLimits(Answer["Record"]):
    """The limits of a tenant. Absent: no limit."""

    max_concurrency: Positive = shown(_of.max_concurrency, absent=True)
    max_concurrent_jobs: Positive = max_concurrency
    max_enqueue_rate: EnqueueRate = shown(EnqueueRate.of(_of.max_enqueue_rate), absent=True)
    max_jobs_per_second: Positive = shown(
        _each_second(_of.max_enqueue_rate), absent=True, says="if the period is one second"
    )
    max_queue_depth: Positive = shown(_of.max_queue_depth, absent=True)
    max_scheduled: Positive = shown(_of.max_scheduled, absent=True)
    max_queues: Positive = shown(_of.max_queues, absent=True)


class TenantUse(Answer["TenantStatus"]):
    """The queues and jobs of a tenant, as the projection counts them."""

    queues: Count = shown(_s.queues, absent=True, says="absent in a list")
    jobs: JobCounts = JobCounts.of(_levels)


class Tenant(Answer["TenantStatus"]):
    """A tenant."""

    tenant_id: str = _t.id
    id: str = tenant_id
    name: str = shown(_t.name, absent=True)
    state: TenantState = _t.state
    limits: TenantLimits = TenantLimits.of(_t)
    priority_boost: int = _t.priority_boost
    fairness_weight: Literal[1] = 1
    etag: Etag = made(lambda tenant: make_version(tenant.configuration), _t)
    created_at: Moment = moment(_t.created_ms)
    configured_at: Moment = moment(_t.configured_ms)
    stats: TenantUse = TenantUse.of(_s)


class TenantsAnswer(Paged["TenantStatus"]):
    """A page of tenants."""

    items: list[Tenant] = Tenant.each(_l.items)
    tenants: list[Tenant] = items


class TenantDeletedAnswer(Answer[str]):
    """The ID of the tenant that was deleted."""

    deleted: Literal[True] = True
    id: str = _n


class TenantJobs(Answer["TenantStatus"]):
    """The jobs of a tenant."""

    available: Count = _available
    active: Count = _levels.of(State.ACTIVE)
    scheduled: Count = _scheduled
    retryable: Count = _levels.of(State.RETRYABLE)
    pending: Count = _levels.of(State.PENDING)
    completed_24h: Count = _s.day.completed
    failed_24h: Count = _s.day.failed


class TenantThroughput(Answer["TenantStatus"]):
    """Jobs of a tenant in a minute."""

    processed_per_minute: Rate = _s.jobs.rates.processed
    enqueued_per_minute: Count = shown(_s.minute.enqueued, says="in the last full minute")


class LimitUse(Answer[_Use]):
    """A limit, and how much of it is used."""

    limit: Positive = _u.limit
    current: Count = _u.current


class TenantUsage(Answer["TenantStatus"]):
    """The limits of a tenant that can be compared with counts."""

    max_concurrency: LimitUse = shown(
        LimitUse.of(_use(_t.max_concurrency, _levels.of(State.ACTIVE))), absent=True
    )
    max_queue_depth: LimitUse = shown(
        LimitUse.of(_use(_t.max_queue_depth, _available, _scheduled)), absent=True
    )
    max_scheduled: LimitUse = shown(LimitUse.of(_use(_t.max_scheduled, _scheduled)), absent=True)
    max_queues: LimitUse = shown(LimitUse.of(_use(_t.max_queues, maybe(_s.queues))), absent=True)


class TenantStatsAnswer(Answer["TenantStatus"]):
    """The statistics of a tenant, as the projection counts them. Zeros for an unknown tenant."""

    tenant_id: str = _t.id
    total_jobs: Count = shown(_levels.depth, says="jobs that are not final")
    queues: Count = made(lambda queues: queues or 0, _s.queues)
    jobs: TenantJobs = TenantJobs.of(_s)
    throughput: TenantThroughput = TenantThroughput.of(_s)
    limits: TenantUsage = TenantUsage.of(_s)


# --- endpoints ------------------------------------------------------------------------------------

_LOOK = Permission(Scope.ADMIN_READ, QueueScope.ALL)
_MANAGE = Permission(Scope.ADMIN_WRITE, QueueScope.ALL)
_SAVED = {
    200: Success(Tenant, "The changed tenant."),
    201: Success(Tenant, "The new tenant.", ("Location",)),
}

tenants = Resource("admin/tenants", "tenants")


def _saved(saved: tuple[TenantStatus, bool]) -> Reply:
    status, created = saved
    if created:
        place = f"{BASE}/admin/tenants/{status.tenant.id}"
        return Reply(Tenant.of(status), 201, {"Location": place})
    return Reply(Tenant.of(status))


@tenants.endpoint("GET", _LOOK, TenantsAnswer, query=PAGING, derived=True)
def list_tenants(request: Request) -> Reply:
    """List tenants.

    One page of tenants, in order of ID.
    """
    return Reply(TenantsAnswer.of(paging.asked(request.query, runtime.current().tenants.list)))


@tenants.endpoint("GET /{id}", _LOOK, Tenant, errors=(404,), derived=True, versioned=True)
def get_tenant(request: Request) -> Reply:
    """Read a tenant."""
    return Reply(Tenant.of(runtime.current().tenants.get(request.named)))


@tenants.endpoint(
    "PUT /{id}",
    _MANAGE,
    _SAVED,
    request=TenantRequest,
    example={
        "name": "Acme",
        "limits": {
            "max_concurrency": 20,
            "max_enqueue_rate": {"limit": 1000, "period": "PT1M"},
            "max_queue_depth": 50000,
        },
        "priority_boost": 10,
    },
    versioned=True,
)
def put_tenant(request: Request) -> Reply:
    """Create or replace a tenant."""
    return _saved(runtime.current().tenants.put(request.named, request.object(), request.edit))


@tenants.endpoint(
    "PUT /{id}/limits",
    _MANAGE,
    _SAVED,
    request=TenantChange,
    example={"max_concurrency": 5, "max_scheduled": None},
    versioned=True,
)
def put_tenant_limits(request: Request) -> Reply:
    """Change the limits or the state of a tenant."""
    change = TenantChange.model_validate(request.object())
    return _saved(runtime.current().tenants.change(request.named, change, request.edit))


@tenants.endpoint("GET /{id}/stats", _LOOK, TenantStatsAnswer, derived=True)
def tenant_stats(request: Request) -> Reply:
    """Read the statistics of a tenant."""
    return Reply(TenantStatsAnswer.of(runtime.current().tenants.count_stats(request.named)))


@tenants.endpoint("DELETE /{id}", _MANAGE, TenantDeletedAnswer, errors=(404, 409), versioned=True)
def delete_tenant(request: Request) -> Reply:
    """Delete the record of a tenant.

    Its queues stay, without the limits of the tenant.
    """
    runtime.current().tenants.delete(request.named, request.edit)
    return Reply(TenantDeletedAnswer.of(request.named))
