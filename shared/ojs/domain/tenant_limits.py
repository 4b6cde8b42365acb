"""The record of a tenant: its state, and the limits of all its queues together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Annotated, Any

from ojs.domain import tenants, times
from ojs.domain.errors import InvalidRequest, Unsupported
from ojs.domain.fields import NumberRange, Printable
from ojs.domain.rate_limit.limiter import Number, Rate, StartsRequest
from ojs.domain.requests import Field, Model
from ojs.records import record

# Fields of a response that are not configuration. UIs send them back.
SHOWN_BACK = frozenset({"tenant_id", "id", "etag", "created_at", "configured_at", "stats"})
MAX_JOBS = 1_000_000_000
MAX_CONCURRENCY = 1_000_000
MAX_QUEUES = 100_000
MAX_BOOST = 100
_SECOND_MS = 1_000


class TenantState(StrEnum):
    """Whether the jobs of a tenant are pushed and fetched."""

    ACTIVE = "active"
    SUSPENDED = "suspended"


Concurrency = Annotated[int, NumberRange(1, MAX_CONCURRENCY)]
Jobs = Annotated[int, NumberRange(1, MAX_JOBS)]


class TenantLimitsRequest(Model):
    """The limits of a tenant. Null removes a limit."""

    max_concurrency: Concurrency | None = Field(
        None, description="maximum number of jobs that run at a time"
    )
    max_concurrent_jobs: Concurrency | None = Field(None, description="as max_concurrency")
    max_enqueue_rate: StartsRequest | None = Field(
        None, description="maximum number of jobs that are enqueued in each period"
    )
    max_jobs_per_second: Number | None = Field(
        None, description="as max_enqueue_rate, with a period of one second"
    )
    max_queue_depth: Jobs | None = Field(
        None, description="maximum number of available and scheduled jobs"
    )
    max_scheduled: Jobs | None = Field(None, description="maximum number of scheduled jobs")
    max_queues: Annotated[int, NumberRange(1, MAX_QUEUES)] | None = None

    def agree(self) -> None:
        for one, other in _TWINS:
            if {one, other} <= self.model_fields_set and self._bound(one) != self._bound(other):
                raise ValueError(f"can't have different {one} and {other}. Send one of them")

    def _bound(self, name: str) -> int | Rate | None:
        value: Any = getattr(self, name)
        if isinstance(value, StartsRequest):
            return value.rate()
        each_second = name == "max_jobs_per_second" and value is not None
        return Rate(value, _SECOND_MS) if each_second else value

    def find_bounds(self) -> dict[str, Any]:
        """Return the limits that the request has, by field of `Tenant`."""
        pairs = (*_TWINS, *((name, name) for name in LIMITS))
        return {one: self._bound(name) for one, name in pairs if name in self.model_fields_set}


_TWINS = (
    ("max_concurrency", "max_concurrent_jobs"), ("max_enqueue_rate", "max_jobs_per_second"),
)  # fmt: skip
LIMITS = (
    "max_concurrency", "max_enqueue_rate", "max_queue_depth", "max_scheduled", "max_queues",
)  # fmt: skip


class TenantChange(TenantLimitsRequest):
    """The fields of a tenant to change. Absent fields keep their values."""

    state: TenantState | None = None
    priority_boost: Annotated[int, NumberRange(-MAX_BOOST, MAX_BOOST)] | None = Field(
        None, description="added to the priority of each new job, up to ±100"
    )
    fairness_weight: float | None = Field(
        None, description="422 unless 1 or null: weigh the queues in a worker pool"
    )


class TenantRequest(TenantChange):
    """A tenant. Replaces the whole record: omitted fields get their defaults. The limits are in
    `limits`, or at the top level.
    """

    name: Annotated[Printable, Field(min_length=1, max_length=255)] | None = None
    limits: TenantLimitsRequest | None = None


@record(frozen=True)
class Tenant:
    """A tenant as configured. Times in milliseconds since the epoch. A limit of None: no limit."""

    id: str
    name: str | None = None
    state: TenantState = TenantState.ACTIVE
    max_concurrency: int | None = None
    max_enqueue_rate: Rate | None = None
    max_queue_depth: int | None = None
    max_scheduled: int | None = None
    max_queues: int | None = None
    priority_boost: int = 0
    created_ms: int = 0
    configured_ms: int = 0
    # Number of changes.
    changes: int = 0

    @property
    def configuration(self) -> dict[str, Any]:
        """The request that configures the tenant like this."""
        rate, limits = self.max_enqueue_rate, {name: getattr(self, name) for name in LIMITS}
        if rate is not None:
            period = times.round_duration(rate.period_ms)
            limits["max_enqueue_rate"] = {"limit": rate.limit, "period": period}
        found = {
            "state": self.state.value,
            "limits": {name: value for name, value in limits.items() if value is not None},
            "priority_boost": self.priority_boost,
        }
        return found if self.name is None else {"name": self.name, **found}

    @property
    def suspended(self) -> bool:
        """Whether pushes and fetches of the tenant are rejected."""
        return self.state is TenantState.SUSPENDED

    @property
    def version(self) -> int:
        """A number that increases with each change, even if the tenant is created again."""
        return self.created_ms + self.changes

    def find_priority(self, given: int) -> int:
        """Return the priority of a job that was pushed with the `given` one."""
        return max(-MAX_BOOST, min(MAX_BOOST, given + self.priority_boost))


def parse(tenant: str, raw: Mapping[str, Any]) -> Tenant:
    """Parse the body of a request that creates or replaces a tenant.

    Raises InvalidRequest that names the field, and Unsupported for a fairness weight.
    """
    for same in ("tenant_id", "id"):
        if raw.get(same) not in (None, tenant):
            raise InvalidRequest(same, "must equal the ID in the path", value=raw[same])
    wanted = {name: value for name, value in raw.items() if name not in SHOWN_BACK}
    given = TenantRequest.model_validate(wanted)
    inner = {} if given.limits is None else given.limits.find_bounds()
    beside = given.find_bounds()
    for name in inner.keys() & beside.keys():
        if inner[name] != beside[name]:
            raise InvalidRequest(name, "must equal the field inside limits. Send only that one")
    return replace(Tenant(tenant, given.name), **_changed(given), **{**inner, **beside})


def change(tenant: Tenant, given: TenantChange) -> Tenant:
    """Return the tenant after a change of its limits. Raises Unsupported."""
    return replace(tenant, **_changed(given), **given.find_bounds())


def _changed(given: TenantChange) -> dict[str, Any]:
    if given.fairness_weight not in (None, 1):
        raise Unsupported(
            "A tenant has no weight. Set weights of its queues in a worker pool.",
            field="fairness_weight",
        )
    found: dict[str, Any] = {} if given.state is None else {"state": given.state}
    if "priority_boost" in given.model_fields_set:
        found["priority_boost"] = given.priority_boost or 0
    return found


def check_configurable(value: str) -> str:
    """Return `value` if it is the ID of a tenant that can have a record. Raises ValueError."""
    if value == tenants.DEFAULT:
        raise ValueError("must not be _default, which has no limits")
    return tenants.check_tenant(value)
