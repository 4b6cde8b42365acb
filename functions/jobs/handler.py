"""`/ojs/v1/jobs…`."""

from __future__ import annotations

from ojs import runtime
from ojs.api import bulk, jobs, listing, work
from ojs.http.binding.access import Authorizer
from ojs.http.binding.application import Application

app = Application("jobs", Authorizer(runtime.current))
handler = app.serve(bulk, jobs, listing, work)
runtime.prepare("enqueue", "batch_finish", "jobs")
