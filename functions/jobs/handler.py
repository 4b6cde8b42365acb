"""`/ojs/v1/jobs…`."""

from __future__ import annotations

from ojs import runtime
from ojs.api import bulk, durable, jobs, listing, realtime, work
from ojs.http.binding.access import Authorizer
from ojs.http.binding.actions import ActionLog
from ojs.http.binding.application import Application

app = Application(
    "jobs", Authorizer(runtime.current), ActionLog(runtime.current), after=runtime.flush
)
handler = app.serve(bulk, durable, jobs, listing, realtime, work)
runtime.prepare("enqueue", "batch_finish", "jobs")
