"""`/ojs/v1/workers…`."""

from __future__ import annotations

from ojs import runtime
from ojs.api import work, workers
from ojs.http.binding.access import Authorizer
from ojs.http.binding.application import Application

app = Application("workers", Authorizer(runtime.current))
handler = app.serve(work, workers)
runtime.prepare("fetch", "batch_finish", "jobs", "workers")
