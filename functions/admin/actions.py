"""Who asks, and what operators did."""

from __future__ import annotations

from functions.admin.app import app
from ojs import runtime
from ojs.http.binding import paging
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.views import actions as views


@app.operation("get_caller", strict_query=True)
def get_caller(request: Request) -> Answer:
    """Who asks, and what they may do."""
    settings = runtime.current().settings
    return Answer(
        views.caller(
            request.principal,
            authorizer=settings.authorizer,
            version=settings.version,
            service=settings.service,
        )
    )


@app.operation("list_actions", strict_query=True)
def list_actions(request: Request) -> Answer:
    """A page of what operators did, latest first."""
    page, pagination = paging.read(request.query, runtime.current().actions.list)
    return Answer(views.page(page, pagination))
