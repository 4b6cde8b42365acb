"""The event log."""

from __future__ import annotations

from functions.admin.app import app
from ojs import runtime
from ojs.http.binding import query
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.views import events


@app.operation("list_events")
def list_events(request: Request) -> Answer:
    """Lifecycle events."""
    query.check_known(request.operation, request.query)
    current = runtime.current()
    asked = events.asked(request.query, now_ms=current.clock.now_ms())
    found = current.events.list(
        asked.wanted, limit=asked.limit, skip=asked.skip, after=asked.after, cursor=asked.cursor
    )
    return Answer(events.answer(asked, found))
