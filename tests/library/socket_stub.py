"""A WebSocket server that does what a test tells it to."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

Message = dict[str, Any]


class SocketStub:
    """It answers `hello`, `ping` and `subscribe`. What it got, in order, is in `got`."""

    def __init__(self) -> None:
        self.url = ""
        self.open: list[ServerConnection] = []
        self.subscribed: list[ServerConnection] = []
        self.names: list[str] = []
        self.tickets: list[str] = []
        self.got: list[Message] = []
        self.more_of_subscribed: Message = {}
        # What it answers to a message beyond that, or instead (None: nothing).
        self.answers: Callable[[Message], list[Message] | None] = lambda _message: []

    def serve(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.tickets += parse_qs(urlsplit(connection.request.path).query)["ticket"]
        name = f"c{len(self.names)}"
        self.names.append(name)
        self.open.append(connection)
        with suppress(ConnectionClosed):
            for text in connection:
                message = json.loads(text)
                self.got.append(message)
                if message["action"] == "subscribe":
                    self.subscribed.append(connection)
                more = self.answers(message)
                if more is not None:
                    for each in [*self._usual(message, name), *more]:
                        connection.send(json.dumps(each))
        self.open.remove(connection)
        while connection in self.subscribed:
            self.subscribed.remove(connection)

    def _usual(self, message: Message, name: str) -> list[Message]:
        usual: dict[str, Message] = {
            "hello": {"type": "hello", "connection": name},
            "ping": {"type": "pong"},
            "subscribe": {
                "type": "subscribed",
                "channel": message.get("channel"),
                **self.more_of_subscribed,
            },
        }
        return [usual[message["action"]]] if message["action"] in usual else []

    def send(self, *messages: Message) -> None:
        """Send messages to the latest connection."""
        for message in messages:
            self.open[-1].send(json.dumps(message))

    def tell_all(self, message: Message) -> None:
        """Send a message to each connection that is subscribed."""
        for each in list(self.subscribed):
            with suppress(ConnectionClosed):
                each.send(json.dumps(message))

    def drop(self) -> None:
        """End all connections, as a network does."""
        for each in list(self.open):
            with suppress(OSError):
                each.socket.shutdown(socket.SHUT_RDWR)

    def to(self, action: str) -> list[Message]:
        """The messages with an action."""
        return [message for message in list(self.got) if message.get("action") == action]


@contextmanager
def sockets() -> Iterator[SocketStub]:
    """A server on a free port."""
    stub = SocketStub()
    with serve(stub.serve, "127.0.0.1", 0, subprotocols=["ojs.v1"]) as server:  # type: ignore[list-item]
        stub.url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}/ojs/v1/ws"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield stub
        finally:
            for each in list(stub.open):
                each.close()
            server.shutdown()
            thread.join()


def changed(number: int, to: str = "active", **data: Any) -> Message:
    """A message about a job."""
    told = {"job_id": "j", "queue": "q", "type": "t", "from": "available", "to": to, **data}
    return {
        "type": "event", "channel": "queue:q", "event": "job.state_changed", "data": told,
        "id": f"evt_{number}", "timestamp": "2026-11-28T09:00:00.000Z",
    }  # fmt: skip
