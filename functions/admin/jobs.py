"""Jobs as an operator reads them."""

from __future__ import annotations

from functions.admin.app import app
from ojs import runtime
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.views import jobs as views


@app.operation("admin_get_job")
def admin_get_job(request: Request) -> Answer:
    """One job, as an operator reads it."""
    return Answer(views.detail(runtime.current().jobs.get(request.named)))
