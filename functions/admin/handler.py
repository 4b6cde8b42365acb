"""The admin function: what operators use. Each module here binds the operations of one subject."""

from __future__ import annotations

from functions.admin import (  # noqa: F401 (imported for the operations that they bind)
    actions,
    dead_letter,
    deliveries,
    events,
    jobs,
    keys,
    pools,
    queues,
    rate_limits,
    statistics,
    system,
    workers,
    workflows,
)
from functions.admin.app import app
from ojs import runtime
from ojs.api import crons

__all__ = ["app", "handler"]

handler = app.serve(crons).complete()
runtime.prepare()
