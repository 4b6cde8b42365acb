"""A WebSocket client that does only what a test says: it answers no ping by itself."""

from __future__ import annotations

import json
import socket
import time
from typing import Any
from urllib.parse import urlsplit

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)


class Rejected(Exception):
    """The server accepts no connection."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"{status} {body!r}")
        self.status = status
        self.body = body


class WebSocket:
    """One connection."""

    def __init__(
        self,
        url: str,
        *,
        subprotocols: list[str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        """Connect. Raises Rejected."""
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=60)
        self._protocol = WSConnection(ConnectionType.CLIENT)
        self._events: list[Event] = []
        named = [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
        self.send_event(
            Request(
                host=parts.netloc,
                target=f"{parts.path}?{parts.query}",
                subprotocols=subprotocols or [],
                extra_headers=named,
            )
        )
        answer = self.event()
        if isinstance(answer, RejectConnection):
            body = b""
            while isinstance(part := self.event(), RejectData):
                body += part.data
                if part.body_finished:
                    break
            self.socket.close()
            raise Rejected(answer.status_code, body)
        assert isinstance(answer, AcceptConnection)
        self.subprotocol = answer.subprotocol

    def send_event(self, event: Event) -> None:
        self.socket.sendall(self._protocol.send(event))

    def send(self, message: Any) -> None:
        text = message if isinstance(message, str) else json.dumps(message)
        self.send_event(TextMessage(data=text))

    def event(self) -> Event | None:
        """The next event; None if the server has closed the connection."""
        while not self._events:
            received = self.socket.recv(65536)
            if not received:
                return None
            self._protocol.receive_data(received)
            self._events = list(self._protocol.events())
        return self._events.pop(0)

    def text(self) -> str:
        """The next text. Pings are answered before."""
        found = ""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            event = self.event()
            if isinstance(event, Ping):
                self.send_event(event.response())
                continue
            assert isinstance(event, TextMessage), event
            found += event.data
            if event.message_finished:
                return found
        raise AssertionError("only pings came")

    def message(self) -> Any:
        """The next message."""
        return json.loads(self.text())

    def ask(self, message: Any) -> Any:
        """Send a message; its answer. Events that come before it are dropped."""
        self.send(message)
        while (answer := self.message()).get("type") == "event":
            pass
        return answer

    def closed(self) -> int:
        """Answer the server's close frame, which comes next; its code."""
        event = self.event()
        assert isinstance(event, CloseConnection), event
        self.send_event(event.response())
        assert self.socket.recv(1) == b""
        self.socket.close()
        return int(event.code)

    def close(self) -> None:
        self.socket.close()
