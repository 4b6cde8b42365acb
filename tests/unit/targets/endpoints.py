"""Endpoints that answer byte by byte what a test says, on this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

# Is given the connection when the whole request was read.
Answering = Callable[[socket.socket], None]


@dataclass
class Seen:
    """What an endpoint was asked: head and body of each request."""

    port: int = 0
    requests: list[tuple[str, bytes]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://localhost:{self.port}/jobs?x=1"

    def headers(self) -> dict[str, str]:
        """Those of the last request, by lower-case names."""
        lines = self.requests[-1][0].split("\r\n")[1:]
        pairs = (line.split(": ", 1) for line in lines if line)
        return {name.lower(): value for name, value in pairs}


def answer(
    status: int = 200, body: bytes = b'{"status":"completed"}', headers: str = ""
) -> Answering:
    text = f"HTTP/1.1 {status} So\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body

    def send(connection: socket.socket) -> None:
        connection.sendall(text)

    return send


@contextmanager
def endpoint(
    answering: Answering, wrap: Callable[..., socket.socket] | None = None
) -> Iterator[Seen]:
    """An endpoint that reads each request whole and then has it answered."""
    listener = socket.create_server(("127.0.0.1", 0))
    seen = Seen(listener.getsockname()[1])
    serving = threading.Thread(target=_serve, args=(listener, seen, answering, wrap), daemon=True)
    serving.start()
    try:
        yield seen
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        serving.join(5)


def _serve(
    listener: socket.socket,
    seen: Seen,
    answering: Answering,
    wrap: Callable[..., socket.socket] | None,
) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        try:
            with connection if wrap is None else wrap(connection, server_side=True) as talking:
                _read(talking, seen)
                answering(talking)
        except OSError:
            continue  # the other side has had enough


def _read(connection: socket.socket, seen: Seen) -> None:
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65_536)
    head, body = data.split(b"\r\n\r\n", 1)
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < length:
        body += connection.recv(65_536)
    seen.requests.append((head.decode(), body))
