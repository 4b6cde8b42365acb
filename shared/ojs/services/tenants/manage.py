"""Creates, changes, lists, and deletes tenants, and reads their statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ojs.clock import Clock
from ojs.domain import tenant_limits as domain
from ojs.domain.access import AccessKey
from ojs.domain.errors import BAD_CURSOR, Conflict, NotFound, naming_field
from ojs.domain.job.permits import TENANT_PERMIT
from ojs.domain.page import Page
from ojs.domain.stats import DAY_MS, MINUTE_MS, Activity, QueueSummary
from ojs.domain.tenant_limits import Tenant, TenantChange
from ojs.records import record
from ojs.services.permits.repair import CountedPermits, PermitRepair
from ojs.store.deployment.access_keys import AccessKeyStore
from ojs.store.derived.statistics import StatisticsStore
from ojs.store.permits.semaphore import ConcurrencySemaphore
from ojs.store.queues.queues import QueueStore
from ojs.store.queues.tenants import TenantStore
from ojs.store.table import keys
from ojs.store.table.races import retry_on_race

if TYPE_CHECKING:
    from ojs.domain.edits import Edit

_BUSY = "Concurrent requests changed this tenant."
_KEYS = 100


@record(frozen=True)
class TenantStatus:
    """A tenant with its jobs. A list doesn't count its queues, and only `stats` its activity."""

    tenant: Tenant
    jobs: QueueSummary
    queues: int | None = None
    # The last 24 hours, and the last full minute.
    day: Activity = Activity()
    minute: Activity = Activity()


class Tenants:
    """Manages tenants."""

    def __init__(
        self,
        *,
        tenants: TenantStore,
        queues: QueueStore,
        keys: AccessKeyStore,
        statistics: StatisticsStore,
        semaphore: ConcurrencySemaphore,
        permit_repair: PermitRepair,
        clock: Clock,
    ) -> None:
        self._tenants = tenants
        self._queues = queues
        self._keys = keys
        self._statistics = statistics
        self._semaphore = semaphore
        self._repair = permit_repair
        self._clock = clock

    def put(
        self, name: str, body: Mapping[str, Any], edit: Edit | None = None
    ) -> tuple[TenantStatus, bool]:
        """Create or replace a tenant. Return it, and whether it is new.

        Other containers apply it within 10 seconds.

        Raises:
            InvalidRequest: A field is invalid.
            Unsupported: The request has a fairness weight.
            PreconditionFailed: The precondition of `edit` fails.
        """
        wanted = domain.parse(name, body)
        return self._save(name, lambda _: wanted, edit)

    def change(
        self, name: str, change: TenantChange, edit: Edit | None = None
    ) -> tuple[TenantStatus, bool]:
        """Change the limits of a tenant as `put` does, and create the tenant if it is missing."""
        return self._save(name, lambda it: domain.change(it or Tenant(name), change), edit)

    def _save(
        self, name: str, after: Callable[[Tenant | None], Tenant], edit: Edit | None
    ) -> tuple[TenantStatus, bool]:
        def make_attempt() -> tuple[Tenant, Tenant | None]:
            before = self._tenants.get(name)
            wanted = replace(after(before), configured_ms=self._clock.now_ms())
            if edit is not None:
                seen = None if before is None else before.configuration
                edit.change("tenant", name, seen, wanted.configuration)
            return self._tenants.save(before, wanted), before

        stored, before = retry_on_race(make_attempt, busy=_BUSY)
        limit, now_ms = stored.max_concurrency, self._clock.now_ms()
        if limit is not None:
            # Running jobs count too. A repeated request counts those that an earlier one missed.
            semaphore = keys.tenant_name(name)
            found, _ = self._queues.get_many(self._queues.all_names(name))
            running = CountedPermits(
                semaphore, TENANT_PERMIT, limit, semaphore, tuple(found.values()), now_ms
            )
            self._repair.count_running(running, now_ms=now_ms)
            self._semaphore.set_limit(semaphore, limit=limit, version=stored.version, now_ms=now_ms)
        return self._status(stored), before is None

    def get(self, name: str) -> TenantStatus:
        """Return a tenant. Raises NotFound."""
        return self._status(self._existing(name))

    def list(self, *, limit: int, cursor: str | None = None) -> Page[TenantStatus]:
        """Return a page of tenants, ordered by ID. Raises InvalidRequest for an invalid cursor."""
        if cursor is not None:
            with naming_field("cursor", cursor, BAD_CURSOR):
                domain.check_configurable(cursor)
        page = self._tenants.list(limit=limit, after=cursor)
        jobs = self._jobs(page.items)
        there = zip(page.items, jobs, strict=True)
        return Page([TenantStatus(tenant, of) for tenant, of in there], page.next_cursor)

    def count_stats(self, name: str) -> TenantStatus:
        """Return the statistics of a tenant. All values are zero if the tenant is unknown."""
        tenant = self._tenants.get(name) or Tenant(name)
        (jobs,), now_ms = self._jobs([tenant]), self._clock.now_ms()
        counters, begin_ms = keys.tenant_name(name), now_ms - now_ms % MINUTE_MS
        points = self._statistics.points(counters, MINUTE_MS, now_ms - DAY_MS, now_ms + 1)
        last = (each.activity for each in points if each.start_ms == begin_ms - MINUTE_MS)
        day = sum((each.activity for each in points), Activity())
        there = len(self._queues.all_names(name))
        return TenantStatus(tenant, jobs, there, day, next(last, Activity()))

    def delete(self, name: str, edit: Edit | None = None) -> None:
        """Delete a tenant's record. Its queues stay, without limits.

        Raises:
            NotFound: The tenant has no record.
            Conflict: A queue of the tenant has jobs, or a key of the tenant is active.
            PreconditionFailed: The precondition of `edit` fails.
        """

        def make_attempt() -> None:
            tenant = self._existing(name)
            if edit is not None:
                edit.change("tenant", name, tenant.configuration, None)
            depth = self._jobs([tenant])[0].levels.depth
            if depth:
                raise Conflict(
                    f"Tenant '{name}' has {depth} unfinished jobs. Finish or delete them first.",
                    details={"tenant_id": name, "jobs": depth},
                )
            if (key := self._active_key(name)) is not None:
                raise Conflict(
                    f"Tenant '{name}' has the active key '{key.id}'. Revoke it first.",
                    details={"tenant_id": name, "key": key.id},
                )
            self._tenants.remove(tenant)

        retry_on_race(make_attempt, busy=_BUSY)

    def _active_key(self, name: str) -> AccessKey | None:
        now_ms, after = self._clock.now_ms(), None
        while True:
            page = self._keys.list(limit=_KEYS, after=after)
            for key in page.items:
                if key.tenant == name and key.state(now_ms) == "active":
                    return key
            if (after := page.next_cursor) is None:
                return None

    def _existing(self, name: str) -> Tenant:
        tenant = self._tenants.get(name)
        if tenant is None:
            raise NotFound("tenant", name)
        return tenant

    def _status(self, tenant: Tenant) -> TenantStatus:
        (jobs,) = self._jobs([tenant])
        return TenantStatus(tenant, jobs, len(self._queues.all_names(tenant.id)))

    def _jobs(self, tenants: Sequence[Tenant]) -> Sequence[QueueSummary]:
        """Return the projected counts and rates of tenants. Makes one or two calls."""
        names = [keys.tenant_name(tenant.id) for tenant in tenants]
        return self._statistics.summaries(names, now_ms=self._clock.now_ms())
