"""The admin function: operations for operators."""

from __future__ import annotations

from ojs import runtime
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
    workers,
    workflows,
)
from ojs.http.binding.access import Authorizer
from ojs.http.binding.actions import ActionLog
from ojs.http.binding.application import Application

app = Application(
    "admin", Authorizer(runtime.current), ActionLog(runtime.current), after=runtime.flush
)
handler = (
    app.serve(actions, bulk, crons, dead_letter, deliveries, durable, events, jobs, keys, listing)
    .serve(maintenance, metrics, pools, queues, rate_limits, realtime, schemas, statistics)
    .serve(system, tenants, webhooks, workers, workflows)
)
runtime.prepare("dead_letter", "queues")
