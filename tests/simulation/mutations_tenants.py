"""Defects put into the code on purpose: of tenants, their limits, and what is theirs alone."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

from ojs.domain.job.permits import TENANT_PERMIT
from ojs.services.permits import kinds
from ojs.store.permits.counter_items import PermitGrant
from tests.simulation.mutations_late import Mutation, dropped

_NO_PERMITS = kinds.KINDS[TENANT_PERMIT]._replace(use=lambda *_: None)
_QUOTAS = "ojs.services.tenants.quotas"


def _granted(*_: Any, count: int, **_how: Any) -> PermitGrant:
    return PermitGrant(count, count, 0)


def _constant(target: str, value: Any) -> Mutation:
    return partial(mock.patch, target, value)


_DEFECTS: dict[str, Mutation] = {
    "a tenant runs any number of jobs": dropped(":room", of="G|%"),
    "a tenant's jobs take no permits": lambda: mock.patch.dict(
        kinds.KINDS, {TENANT_PERMIT: _NO_PERMITS}
    ),
    "tenants are counted together": _constant("ojs.store.table.keys.tenant_name", lambda _: "%"),
    "counts of a tenant are remembered for long": _constant(f"{_QUOTAS}.COUNTED_MS", 60_000),
    "the depth of a tenant is not checked": _constant(
        f"{_QUOTAS}.TenantLimiter._check_counts", lambda *_: None
    ),
    "enqueues of a slice come later": _constant(
        f"{_QUOTAS}.find_step_end", lambda now_ms, _: now_ms + 60_000
    ),
    "any rate of a tenant is granted": _constant(
        "ojs.store.permits.rate_window.RateWindowStore.acquire", _granted
    ),
    "tenants share locks": _constant("ojs.domain.job.unique.get_tenant", lambda _: None),
    "tenants share limiters": _constant(
        "ojs.domain.rate_limit.limiter.format_tenant_key", lambda _, key: key
    ),
}
TENANTED = {name: (mutation, "tenanted") for name, mutation in _DEFECTS.items()}
