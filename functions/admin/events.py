"""The event log."""

from __future__ import annotations

from functions.admin.app import app
from ojs import runtime
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.views import events


@app.operation("list_events", strict_query=True)
def list_events(request: Request) -> Answer:
    """Lifecycle events."""
    current = runtime.current()
    read = events.read(request.query, now_ms=current.clock.now_ms())
    found = current.events.list(
        read.wanted,
        limit=read.window.limit,
        skip=read.window.offset,
        after=read.after,
        cursor=read.cursor,
    )
    return Answer(events.answer(read, found))
