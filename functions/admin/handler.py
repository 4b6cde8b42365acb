"""The admin function: what operators use. Each module here binds the operations of one subject."""

from __future__ import annotations

from functions.admin import (  # noqa: F401 (imported for the operations that they bind)
    dead_letter,
    description,
    workers,
)
from functions.admin.app import app
from ojs import runtime
from ojs.api import (
    actions,
    bulk,
    crons,
    deliveries,
    events,
    jobs,
    keys,
    listing,
    maintenance,
    metrics,
    pools,
    queues,
    rate_limits,
    statistics,
    system,
    workflows,
)

__all__ = ["app", "handler"]

handler = app.serve(
    actions,
    bulk,
    crons,
    deliveries,
    events,
    jobs,
    keys,
    listing,
    maintenance,
    metrics,
    pools,
    queues,
    rate_limits,
    statistics,
    system,
    workflows,
).complete()
runtime.prepare("dead_letter", "queues")
