"""An HTTP/1.1 server for one machine: one thread per connection, h11 for the protocol.

It is independent of jobs and Lambda. The application is a function from a Request to a Response.
Each wait on a connection has a deadline: the next request, the rest of a header or a body, and the
client's receipt of the response. So a slow client uses one thread for a limited time, and delays no
other client. The application can also send a response in parts, and take over a connection after
status 101: `stop` expects it to end both.
"""

from __future__ import annotations

import contextlib
import email.utils
import http.client
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field

import h11

_RECEIVE_BYTES = 64 * 1024
_MAX_HEADER_BYTES = 64 * 1024
_NO_BODY = frozenset({204, 304})
# Time in seconds that a stopping server waits for one more connection.
_ACCEPT_S = 0.1

# Prefixes of h11's error messages. The complete messages quote the input in Python notation.
_COMPLAINTS = {
    "illegal request line": "the request line must be METHOD TARGET HTTP/1.1",
    "no request line": "the request line is missing",
    "illegal method": "the method must be an HTTP token",
    "illegal target": "the request target has characters that must be percent-encoded",
    "illegal header": "a header line must be NAME: VALUE in printable characters",
    "continuation line": "the headers start with a continuation line",
    "missing mandatory host": "the Host header is missing",
    "found multiple host": "the Host header is duplicated",
    "conflicting content-length": "the Content-Length headers contradict each other",
    "bad content-length": "Content-Length must be a number of bytes",
    "multiple transfer-encoding": "the Transfer-Encoding header is duplicated",
    "only transfer-encoding": "Transfer-Encoding must be chunked",
    "illegal chunk header": "a chunk must start with its length in hexadecimal digits",
    "malformed chunk footer": "a chunk is longer than its length",
    "receive buffer too long": f"the headers exceed {_MAX_HEADER_BYTES} bytes",
    "peer ": "the connection was closed before the request was complete",
}


@dataclass(frozen=True)
class Request:
    """A complete request. `target` is unchanged. Header names are in lower case."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    http_version: str
    client: str


@dataclass(frozen=True)
class Response:
    """A response. The server adds Content-Length, Date, and Connection.

    Attributes:
        status: Status code.
        headers: Names and values.
        body: The complete body.
        parts: The body in parts, instead of `body`. The server sends each when it is there. After
            an empty one it checks whether the client has disconnected, and closes the generator.
        take_over: Runs the connection after status 101. It receives the socket, the header of the
            response, which it sends first, and what the client has sent after its request.
    """

    status: int
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytes = b""
    parts: Generator[bytes] | None = None
    take_over: Callable[[socket.socket, bytes, bytes], None] | None = None


Refusal = Callable[[int, str, Mapping[str, int]], Response]


@dataclass(frozen=True)
class Limits:
    """Limits of time (in seconds) and size (in bytes)."""

    idle_s: float = 75.0
    header_s: float = 10.0
    body_s: float = 60.0
    send_s: float = 30.0
    body_bytes: int = 10 * 1024 * 1024
    connections: int = 512


def listen(host: str, port: int) -> socket.socket:
    """Open a port, 0 for any free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=1024)


class HttpServer:
    """Serves `application`. `refuse` formats the server's own error responses."""

    def __init__(
        self,
        listener: socket.socket,
        application: Callable[[Request], Response],
        *,
        refuse: Refusal,
        limits: Limits,
        hang_up: Callable[[], None] = lambda: None,
    ) -> None:
        """Create a server for a socket from `listen`. `start` begins to serve, `stop` closes it.

        `refuse` receives the status, a message, and details. For a body that is too large, these
        are its `limit` and its `size` in bytes (without a declared length: the size that was read).
        `hang_up` ends the connections that the application has taken over.
        """
        self._hang_up = hang_up
        self.application = application
        self.refuse = refuse
        self.limits = limits
        self._stopping = threading.Event()
        self._connections: set[_Connection] = set()
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(limits.connections)
        self._listener = listener
        self._listener.settimeout(_ACCEPT_S)
        self.host, self.port = listener.getsockname()[:2]
        self._acceptor = threading.Thread(target=self._accept, name="http-accept", daemon=True)

    @property
    def url(self) -> str:
        """URL of the server, without a trailing slash."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def stopping(self) -> bool:
        """Whether the server accepts no more requests."""
        return self._stopping.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait for this time, or until the server stops. Returns `stopping`."""
        return self._stopping.wait(seconds)

    def start(self) -> None:
        """Accept connections in separate threads."""
        self._acceptor.start()

    def stop(self, grace_s: float = 10.0) -> bool:
        """Stop accepting requests, and wait for running ones.

        Returns whether all of them finished within `grace_s`. A second call does nothing.
        """
        if self.stopping:
            return True
        self._stopping.set()
        if self._acceptor.is_alive():
            self._acceptor.join()
        self._listener.close()
        deadline = time.monotonic() + grace_s
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.hang_up_if_idle()
        self._hang_up()
        for connection in connections:
            connection.thread.join(max(0.0, deadline - time.monotonic()))
        finished = not any(connection.thread.is_alive() for connection in connections)
        for connection in connections:
            connection.close()
        return finished

    def forget(self, connection: _Connection) -> None:
        """Remove an ended connection."""
        with self._lock:
            self._connections.discard(connection)
        self._free.release()

    def _accept(self) -> None:
        while not self.stopping:
            if not self._free.acquire(timeout=_ACCEPT_S):
                continue
            try:
                accepted, address = self._listener.accept()
            except OSError as error:
                self._free.release()
                if not isinstance(error, TimeoutError):
                    # The client left before the accept, or no file descriptor is free.
                    self._stopping.wait(0.01)
                continue
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(self, accepted, str(address[0]))
            with self._lock:
                self._connections.add(connection)
            connection.thread.start()


class _Hangup(Exception):
    """The client closed the connection, or exceeded a deadline."""


@dataclass(eq=False)
class _Refused(Exception):
    """A request that the server rejects before it closes the connection."""

    status: int
    message: str
    details: Mapping[str, int] = field(default_factory=dict)


class _Connection:
    """One client: processes requests one after the other, until one side closes."""

    def __init__(self, server: HttpServer, accepted: socket.socket, client: str) -> None:
        self._server = server
        self._limits = server.limits
        self._socket = accepted
        self._client = client
        self._protocol = h11.Connection(h11.SERVER, _MAX_HEADER_BYTES)
        self._idle = True
        self._hung_up = False
        self._lock = threading.Lock()
        self.thread = threading.Thread(target=self._run, name="http-connection", daemon=True)

    def hang_up_if_idle(self) -> None:
        """Close the connection if no request is running."""
        with self._lock:
            if self._idle:
                self._hung_up = True
                self.close()

    def close(self) -> None:
        """Close the connection immediately."""
        with contextlib.suppress(OSError):  # already closed
            self._socket.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            while self._one():
                pass
        except (_Hangup, OSError):
            pass  # the client has disconnected
        finally:
            self._socket.close()
            self._server.forget(self)

    def _one(self) -> bool:
        """Process one request. Returns whether the connection stays open."""
        try:
            request = self._read()
        except _Refused as refused:
            self._refuse(refused)
            return False
        except h11.RemoteProtocolError as error:
            if self._protocol.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                message = f"Invalid HTTP: {_complaint(error)}."
                self._refuse(_Refused(error.error_status_hint or 400, message))
            return False
        if request is None:
            return False
        response = self._server.application(request)
        if response.take_over is not None:
            self._switch(response, response.take_over)
            return False
        self._send(response, close=self._server.stopping, bodiless=request.method == "HEAD")
        if self._protocol.our_state is not h11.DONE:  # this was the last request
            return False
        self._protocol.start_next_cycle()
        with self._lock:
            self._idle = True
            return not self._server.stopping

    # --- reading --------------------------------------------------------------------------

    def _read(self) -> Request | None:
        """Return the next complete request, or None if the client has closed."""
        head = self._request_head()
        if head is None:
            return None
        if head.method == b"CONNECT":
            raise _Refused(405, "This server is not a proxy.")
        declared = next((int(v) for k, v in head.headers if k == b"content-length"), 0)
        if declared > self._limits.body_bytes:
            raise self._too_large(declared)
        if self._protocol.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
            self._write(self._protocol.send(go_on) or b"")
        return Request(
            method=head.method.decode("ascii"),
            target=head.target.decode("ascii"),
            headers=[(k.decode("ascii"), v.decode("latin-1")) for k, v in head.headers],
            body=self._body(),
            http_version=head.http_version.decode("ascii"),
            client=self._client,
        )

    def _request_head(self) -> h11.Request | None:
        deadline = time.monotonic() + self._limits.idle_s
        begun = False
        while True:
            event = self._protocol.next_event()
            if isinstance(event, h11.Request):
                self._busy()
                return event
            if isinstance(event, h11.ConnectionClosed):
                return None
            if not begun and self._protocol.trailing_data[0]:
                begun = True
                deadline = time.monotonic() + self._limits.header_s
            try:
                self._receive(deadline)
            except TimeoutError:
                if begun:
                    raise _Refused(
                        408, "The request header took too long. Send it again."
                    ) from None
                raise _Hangup from None
            self._busy()

    def _body(self) -> bytes:
        deadline = time.monotonic() + self._limits.body_s
        body = bytearray()
        while not isinstance(event := self._protocol.next_event(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                body += event.data
                if len(body) > self._limits.body_bytes:
                    raise self._too_large(len(body))
            elif event is h11.NEED_DATA:
                try:
                    self._receive(deadline)
                except TimeoutError:
                    raise _Refused(408, "The request body took too long. Send it again.") from None
            else:
                raise _Hangup
        return bytes(body)

    def _receive(self, deadline: float) -> None:
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        self._protocol.receive_data(self._socket.recv(_RECEIVE_BYTES))

    def _busy(self) -> None:
        with self._lock:
            if self._hung_up:
                # The request arrived while the server stops. Its response can't be sent, so it must
                # not be processed.
                raise _Hangup
            self._idle = False

    def _too_large(self, size: int) -> _Refused:
        limit = self._limits.body_bytes
        message = f"The request body exceeds {limit} bytes."
        return _Refused(413, message, {"limit": limit, "size": size})

    # --- responding -----------------------------------------------------------------------

    def _send(self, response: Response, *, close: bool, bodiless: bool = False) -> None:
        headers = list(_answer_headers(response))
        if close:
            headers.append(("connection", "close"))
        message = h11.Response(
            status_code=response.status,
            headers=[(k.encode("latin-1"), v.encode("latin-1", "replace")) for k, v in headers],
            reason=http.client.responses.get(response.status, "").encode("ascii"),
            http_version=b"1.1",
        )
        raw = self._protocol.send(message) or b""
        if response.parts is not None:
            self._write(raw)
            with contextlib.closing(response.parts) as parts:
                self._send_parts(parts)
            raw = b""
        elif response.body and not bodiless and response.status not in _NO_BODY:
            raw += self._protocol.send(h11.Data(data=response.body)) or b""
        self._write(raw + (self._protocol.send(h11.EndOfMessage()) or b""))

    def _send_parts(self, parts: Iterable[bytes]) -> None:
        for part in parts:
            if part:
                self._write(self._protocol.send(h11.Data(data=part)) or b"")
            elif self._has_left():
                raise _Hangup

    def _has_left(self) -> bool:
        self._socket.settimeout(0)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False

    def _write(self, raw: bytes) -> None:
        self._socket.settimeout(self._limits.send_s)
        self._socket.sendall(raw)

    def _switch(
        self, response: Response, take_over: Callable[[socket.socket, bytes, bytes], None]
    ) -> None:
        """Let the application run the connection."""
        message = h11.InformationalResponse(
            status_code=response.status,
            headers=[(k.encode("latin-1"), v.encode("latin-1")) for k, v in response.headers],
            reason=http.client.responses[response.status].encode("ascii"),
        )
        head = self._protocol.send(message) or b""
        take_over(self._socket, head, self._protocol.trailing_data[0])

    def _refuse(self, refused: _Refused) -> None:
        """Send a response and close the connection, so that the client receives it.

        Closing with unread input would reset the connection, and could discard the response.
        """
        answer = self._server.refuse(refused.status, refused.message, refused.details)
        self._send(answer, close=True)
        deadline = time.monotonic() + 2.0
        with contextlib.suppress(OSError):  # a disconnected client needs no wait
            self._socket.shutdown(socket.SHUT_WR)
            while (left_s := deadline - time.monotonic()) > 0:
                self._socket.settimeout(left_s)
                if not self._socket.recv(_RECEIVE_BYTES):
                    return


def _answer_headers(response: Response) -> Iterable[tuple[str, str]]:
    names = {name.lower() for name, _ in response.headers}
    # The server decides about the framing, so drop the application's headers for it.
    dropped = {"content-length", "transfer-encoding", "connection"}
    if response.status == 204:
        dropped.add("content-type")  # without a body it has no meaning
    for name, value in response.headers:
        if name.lower() not in dropped:
            yield name, value
    if response.status not in _NO_BODY and response.parts is None:
        yield "content-length", str(len(response.body))
    if "date" not in names:
        yield "date", email.utils.formatdate(usegmt=True)


def _complaint(error: h11.RemoteProtocolError) -> str:
    """Return the reason why a request is invalid, as text for the client."""
    text = str(error).lower()
    found = (words for start, words in _COMPLAINTS.items() if text.startswith(start))
    return next(found, "it is not HTTP/1.1")
