"""Tenants that know all of each other, side by side (`isolation`), and mutants."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ojs import runtime
from ojs.api import operations as contract
from ojs.domain import tenant_names
from ojs.domain.access import Principal
from ojs.domain.job import idempotency, unique
from ojs.domain.rate_limit import limiter
from ojs.http.binding import request as requests
from ojs.http.binding import tenancy
from ojs.http.binding.access import Authorizer
from ojs.runtime import Runtime
from ojs.store.queues import queues, registry, workers
from ojs.store.table import keys
from tests.unit.functions import isolation

# With more tenants in a table, a list of active jobs ends earlier, with a cursor: its page reads a
# bounded number of lease notes.
FEW, MANY, A_TABLE = 12, 2_000, 20


@pytest.fixture
def built(make_runtime: Callable[..., Runtime]) -> Runtime:
    made = make_runtime()
    runtime.use(made)
    return made


def _isolated(built: Runtime, seeds: range, rows: Counter[str] | None = None) -> None:
    told = isolation.alone(built, "alone").told
    there = isolation.items(built, "alone")
    for seed in seeds:
        mine = f"acme{seed}"
        caller = isolation.beside(built, mine, f"beta{seed}", seed, rows)
        for own, expected in zip(caller.told, told, strict=True):
            assert own == expected, seed
        if seed == seeds[-1]:
            assert isolation.items(built, mine) == there, seed


def test_tenants_are_isolated(built: Runtime) -> None:
    _isolated(built, range(FEW))


@pytest.mark.exhaustive
@pytest.mark.parametrize("many", [60, pytest.param(MANY, marks=pytest.mark.whole)])
def test_many_sequences_of_tenants(make_runtime: Callable[..., Runtime], many: int) -> None:
    rows = Counter[str]()
    for first in range(0, many, A_TABLE):
        made = make_runtime()
        runtime.use(made)
        _isolated(made, range(first, first + A_TABLE), rows)
    # Fewer sequences don't contain each operation.
    assert many < MANY or rows.keys() == {operation.id for operation in contract.OPERATIONS}


def test_a_tenant_is_told_what_a_deployment_without_tenants_is_told(
    make_runtime: Callable[..., Runtime],
) -> None:
    """But for the field `tenant_id`: each name is local, in each answer."""
    found = []
    for tenant in (None, "acme"):
        made = make_runtime()
        runtime.use(made)
        told = isolation.alone(made, tenant).told
        found.append([_plain(each) for each in told])
    for plain, own in zip(*found, strict=True):
        assert own == plain


def _plain(told: str) -> str:
    # No counter has the jobs of a tenant's queues together.
    told = re.sub(r', "total(_unknown)?": (true|\d+)|"total": \d+, ', "", told)
    told = re.sub(r'"queues": \d+, ', "", told)
    # Nor has an index their oldest dead letter.
    told = re.sub(r'"(old|new)est_at": "TIME", ', "", told)
    told = told.replace('{"tenant_id": ""}', "{}")
    for part in (', "tenant_id": ""', '"tenant": "", ', '"queues": ["*"], '):
        told = told.replace(part, "")
    return told


@pytest.mark.parametrize("seed", range(3))
def test_the_default_tenant_is_isolated(seed: int, make_runtime: Callable[..., Runtime]) -> None:
    """Its callers are operators, who see all queues: lists and totals are left out."""
    made = make_runtime()
    runtime.use(made)
    told = isolation.alone(made, None).told
    other = make_runtime()
    runtime.use(other)
    caller = isolation.beside(other, None, "beta", seed)
    wide = (
        "GET jobs", "GET queues", "GET admin", "GET cron", "GET workflows", "GET unique-jobs",
        "GET dead-letter", "GET events",
    )  # fmt: skip
    for own, expected in zip(caller.told, told, strict=True):
        assert own == expected or own.startswith(wide)


# --- mutants --------------------------------------------------------------------------------------


def _no_tenant(name: str) -> None:
    return None


def _forget(field: str) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(tenancy, "QUEUE_FIELDS", tenant_names.QUEUE_FIELDS - {field})


def _plain_key(tenant: str | None, key: str) -> str:
    return key


def _one_caller(old: Any) -> Callable[..., Any]:
    def of(header: str, *, caller: Principal, **more: Any) -> Any:
        return old(header, caller=replace(caller, tenant=None), **more)

    return of


def _any_queue(self: Principal, queue: str) -> bool:
    return True


def _all_names(name: str, tenant: str | None, after: str | None = None) -> Any:
    return registry.build_registry_condition(name, None, after)


def _all_operations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Authorizer, "permit", lambda *_: None)


def _one_record(worker_id: str, caller: Any = None) -> tuple[str, str]:
    return keys.worker(f"{workers.shard_of(worker_id):02d}"), worker_id


def _without(field: str, empty: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(tenancy, field, empty)


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "locks": lambda patch: patch.setattr(unique, "get_tenant", _no_tenant),
    "limiters": lambda patch: patch.setattr(limiter, "format_tenant_key", _plain_key),
    "idempotency keys": lambda patch: patch.setattr(
        idempotency.IdempotencyKey, "of", staticmethod(_one_caller(idempotency.IdempotencyKey.of))
    ),
    "reach": lambda patch: patch.setattr(Principal, "reaches", _any_queue),
    "lists of queues": lambda patch: (
        patch.setattr(queues, "build_registry_condition", _all_names),
        patch.setattr(queues, "get_tenant", lambda name: "alone"),
    )[0],
    "worker records": lambda patch: patch.setattr(workers, "key_of", _one_record),
    "operations of the deployment": _all_operations,
    "jobs in paths": lambda patch: patch.setattr(
        requests.Request, "check_job_reach", lambda *_: None
    ),
    "names in paths": _without("_SUBJECTS", frozenset()),
    "names of queues to create": _without("NAMED_REQUESTS", frozenset()),
    "steps": _without("_STEPS", ()),
    **{f"field {field}": _forget(field) for field in ("queue", "queues", "dead_letter_queue")},
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: str, built: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[mutant](monkeypatch)
    with pytest.raises(AssertionError):
        _isolated(built, range(FEW))
