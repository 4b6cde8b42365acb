"""All operations of the API."""

from __future__ import annotations

from ojs.api import (
    actions,
    bulk,
    crons,
    dead_letter,
    deliveries,
    durable,
    events,
    jobs,
    keys,
    listing,
    maintenance,
    metrics,
    pools,
    queues,
    rate_limits,
    realtime,
    schemas,
    statistics,
    system,
    tenants,
    webhooks,
    work,
    workers,
    workflows,
)
from ojs.http.binding.routes import Routes
from ojs.http.endpoint import Operation, declared

OPERATIONS: tuple[Operation, ...] = (
    *declared(actions, bulk, crons, dead_letter, deliveries, durable, events, jobs, keys, listing),
    *declared(maintenance, metrics, pools, queues, rate_limits, realtime, schemas, statistics),
    *declared(system, tenants, webhooks, work, workers, workflows),
)

_ROUTES = Routes(OPERATIONS)
_BY_ID = {each.id: each for each in OPERATIONS}
at = _ROUTES.at
missing = _ROUTES.missing


def get(operation_id: str) -> Operation:
    """Return the operation with an ID. Raise KeyError if there is none."""
    return _BY_ID[operation_id]
