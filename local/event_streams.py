"""Server-sent events without an end.

A deployed function answers with the events up to now, and the client asks again. The local server
asks the same function for it, and sends the new events.
"""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Generator

from local.http_server import Request, Response

_MEDIA_TYPE = "text/event-stream"
_LAST_ID = "last-event-id"
_EVERY_S = 0.2
_HEARTBEAT_S = 15.0
# Further clients receive bounded responses.
_MOST = 128


class EventStreams:
    """Continues responses with events until the client disconnects or the server stops."""

    def __init__(
        self,
        answer: Callable[[Request], Response],
        wait: Callable[[float], bool],
        changes: Callable[[], int],
        time_s: Callable[[], float] = time.monotonic,
        most: int = _MOST,
    ) -> None:
        """Create the streams.

        `wait` waits for a time in seconds, and returns whether the server stops. `changes` counts
        the writes to the table: events come from writes only.
        """
        self._answer = answer
        self._wait = wait
        self._changes = changes
        self._time_s = time_s
        self._free = threading.BoundedSemaphore(most)

    def __call__(self, request: Request) -> Response:
        """Process one request."""
        response = self._answer(request)
        if not _has_events(response) or not self._free.acquire(blocking=False):
            return response
        parts = self._parts(request, response)
        next(parts)  # from here on, closing it releases the place
        return dataclasses.replace(response, body=b"", parts=parts)

    def _parts(self, request: Request, response: Response) -> Generator[bytes]:
        try:
            yield b""
            yield response.body
            last_id = _last_id(response.body)
            # The second request is always sent: it finds that a job is in a final state.
            changes: int | None = None
            sent_s = self._time_s()
            while not self._wait(_EVERY_S):
                part = b""
                if changes != (changes := self._changes()):
                    response = self._answer(_continued(request, last_id))
                    if not _has_events(response):
                        # 204: there will be no more. An error: the client asks again, and sees it.
                        return
                    found = _last_id(response.body) or last_id
                    if found != last_id or b"data:" in response.body:
                        part, last_id = response.body, found
                if not part and self._time_s() - sent_s >= _HEARTBEAT_S:
                    part = b":heartbeat\n\n"
                if part:
                    sent_s = self._time_s()
                yield part
            yield _shutdown(last_id)
        finally:
            self._free.release()


def _has_events(response: Response) -> bool:
    found = dict(response.headers).get("content-type", "")
    return response.status == 200 and found.partition(";")[0].strip() == _MEDIA_TYPE


def _continued(request: Request, last_id: str | None) -> Request:
    """Return the request for the events after this ID."""
    headers = [(name, value) for name, value in request.headers if name != _LAST_ID]
    if last_id is not None:
        headers.append((_LAST_ID, last_id))
    return dataclasses.replace(request, headers=headers)


def _last_id(body: bytes) -> str | None:
    ids = [line for line in body.decode().splitlines() if line.startswith("id:")]
    return ids[-1].removeprefix("id:").strip() if ids else None


def _shutdown(last_id: str | None) -> bytes:
    named = "" if last_id is None else f"id: {last_id}\n"
    data = json.dumps({"reason": "shutdown", "grace_period_ms": 0})
    return f"{named}event: server.shutdown\ndata: {data}\n\n".encode()
