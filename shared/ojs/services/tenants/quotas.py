"""Checks the pushes of tenants: their state and their limits.

A container remembers the projected counts of a tenant for COUNTED_MS, and adds the jobs that it
pushed since. So a tenant can exceed a limit of counts by the jobs that are pushed during the delay
of the stream and this time. The rate is never exceeded: each container takes starts in slices. The
rest of a slice counts as used.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain.errors import BackendContended, TenantLimitExceeded, TenantSuspended
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.rate_limit.limiter import Rate
from ojs.domain.rate_limit.window import find_step_end
from ojs.domain.tenant_limits import Tenant
from ojs.domain.tenants import get_tenant
from ojs.records import record
from ojs.store.derived.statistics import StatisticsStore
from ojs.store.permits.rate_window import RateWindowStore
from ojs.store.queues.tenants import TenantStore
from ojs.store.table import keys

COUNTED_MS = 1_000
# A slice has this part (1/_PART) of the limit, or the jobs of a push if these are more.
_PART = 100
_REMEMBERED = 1_000


@record
class _Counts:
    """The jobs of a tenant as read at `at_ms`, and those that were pushed since."""

    at_ms: int
    available: int
    scheduled: int


class TenantLimiter:
    """Checks pushes, for one container."""

    def __init__(
        self,
        *,
        tenants: TenantStore,
        statistics: StatisticsStore,
        rate_windows: RateWindowStore,
        clock: Clock,
    ) -> None:
        self._tenants = tenants
        self._statistics = statistics
        self._windows = rate_windows
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: BoundedMap[str, _Counts] = BoundedMap(_REMEMBERED)
        # By tenant: the end of a slice (ms), and its remaining starts.
        self._slices: BoundedMap[str, tuple[int, int]] = BoundedMap(_REMEMBERED)

    def check(self, tenants: Mapping[str, Tenant], jobs: Sequence[Job], counted: set[str]) -> None:
        """Check the jobs of a push against the limits of their tenants.

        Args:
            tenants: The tenants with a record, by ID.
            jobs: The jobs to store.
            counted: The tenants whose limits have counted this push. Updated.

        Raises:
            TenantSuspended: A tenant is suspended.
            TenantLimitExceeded: The push exceeds a limit.
            BackendContended: Too many containers count pushes of a tenant at the same time.
            OjsError: A read or a write failed.
        """
        suspended = [tenant for tenant in tenants.values() if tenant.suspended]
        if suspended:
            raise TenantSuspended(suspended[0].id)
        for tenant in tenants.values():
            if tenant.id in counted:
                continue
            coming = [job for job in jobs if get_tenant(job.queue) == tenant.id]
            with self._tenants.note_exceeded():
                self._check_counts(tenant, coming)
                if tenant.max_enqueue_rate is not None:
                    self._take(tenant, tenant.max_enqueue_rate, len(coming))
            counted.add(tenant.id)

    def _check_counts(self, tenant: Tenant, coming: Sequence[Job]) -> None:
        if tenant.max_queue_depth is None and tenant.max_scheduled is None:
            return
        scheduled = sum(job.state is State.SCHEDULED for job in coming)
        with self._lock:
            now_ms = self._clock.now_ms()
            found = self._counts.get(tenant.id)
            if found is None or not 0 <= now_ms - found.at_ms < COUNTED_MS:
                name = keys.tenant_name(tenant.id)
                (day,) = self._statistics.days([name], now_ms=now_ms)
                levels = day.levels
                found = _Counts(now_ms, levels.of(State.AVAILABLE), levels.of(State.SCHEDULED))
                self._counts.put(tenant.id, found)
            depth = found.available + found.scheduled
            for limit, most, there, more in (
                ("max_queue_depth", tenant.max_queue_depth, depth, len(coming)),
                ("max_scheduled", tenant.max_scheduled, found.scheduled, scheduled),
            ):
                if most is not None and more and there + more > most:
                    raise TenantLimitExceeded(tenant.id, limit, current=there, maximum=most)
            found.available += len(coming) - scheduled
            found.scheduled += scheduled

    def _take(self, tenant: Tenant, rate: Rate, count: int) -> None:
        """Take the starts of a push from the slice of this container, or from a new one."""
        with self._lock:
            now_ms = self._clock.now_ms()
            until_ms, left = self._slices.get(tenant.id, (0, 0))
            left = left if now_ms < until_ms else 0
            used = rate.limit
            # The window counts starts by step. Starts of a slice must not move to a later step.
            if left < count:
                grant = self._windows.acquire(
                    keys.tenant_name(tenant.id),
                    rate.limit,
                    rate.period_ms,
                    count=max(count - left, rate.limit // _PART),
                    now_ms=now_ms,
                )
                if grant.count == 0 and grant.current < rate.limit:
                    raise BackendContended("Too many concurrent requests for this tenant.")
                left, used = left + grant.count, grant.current
                until_ms = find_step_end(now_ms, rate.period_ms)
            if left < count:
                self._slices.put(tenant.id, (until_ms, left))
                raise TenantLimitExceeded(
                    tenant.id, "max_enqueue_rate", current=used, maximum=rate.limit
                )
            self._slices.put(tenant.id, (until_ms, left - count))
