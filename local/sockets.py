"""WebSocket connections, as API Gateway's WebSocket API has them.

The deployed function processes their messages. Each connection uses a thread, the one of its HTTP
connection. The hub sends messages of other threads to them.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import secrets
import select
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, Pong, TextMessage
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import generate_accept_token

from local.events import split_target
from local.gateway import refused
from local.http_server import Request, Response
from local.lambda_context import LambdaContext
from ojs.domain import jsontext
from ojs.domain.errors import (
    BackendUnavailable,
    InvalidRequest,
    OjsError,
    PermissionDenied,
)
from ojs.domain.realtime import MAX_SENT, Posted

if TYPE_CHECKING:
    from local.gateway import Handler
    from ojs.clock import Clock
    from ojs.domain.access import Principal

_RECEIVE_BYTES = 64 * 1024
_VERSION = "13"
_KEY_BYTES = 16
_GET_TICKET = "Create one for each connection: POST /ojs/v1/realtime/tickets."


class _NoTicket(OjsError):
    """The request has no ticket."""

    code = "unauthenticated"


@dataclass(frozen=True)
class SocketLimits:
    """Limits of connections: time in seconds, and size in bytes."""

    sockets: int = 256
    # API Gateway closes a connection with a larger frame, or after this age.
    message_bytes: int = MAX_SENT
    age_s: float = 2 * 3_600
    # A ping is sent this long after the last pong. The client must answer it in time.
    ping_s: float = 30.0
    pong_s: float = 10.0
    send_s: float = 1.0
    # Time for clients to answer a close frame.
    close_s: float = 1.0


class Hub:
    """The open connections. Thread-safe. Posts messages to them: see `Connections`."""

    def __init__(
        self,
        handler: Handler,
        redeem: Callable[[str], Principal | None],
        clock: Clock,
        limits: SocketLimits | None = None,
    ) -> None:
        """`handler` is the function of the WebSocket API. `redeem` returns the caller of a ticket,
        or None.
        """
        self.limits = limits or SocketLimits()
        self._handler = handler
        self._redeem = redeem
        self._clock = clock
        self._free = threading.BoundedSemaphore(self.limits.sockets)
        self._sockets: dict[str, _Socket] = {}
        self._changed = threading.Condition()
        self._stopping = False

    @property
    def connected(self) -> bool:
        """Whether there are open connections."""
        return bool(self._sockets)

    def open(self, request: Request) -> Response:
        """Accept a connection, or return an error."""
        try:
            headers = {"upgrade": "websocket", "connection": "Upgrade"}
            headers["sec-websocket-accept"] = _accept_token(request)
        except InvalidRequest as error:
            response = refused(error, 426)
            response.headers.append(("upgrade", "websocket"))
            response.headers.append(("sec-websocket-version", _VERSION))
            return response
        if self._stopping or not self._free.acquire(blocking=False):
            most = f"The server has {self.limits.sockets} WebSocket connections, its limit."
            return refused(BackendUnavailable("The server stops." if self._stopping else most), 503)
        accepted = None
        try:
            accepted = self._connect(request)
        except OjsError as error:
            return refused(error, 401 if isinstance(error, _NoTicket) else 403)
        finally:
            if accepted is None:
                self._free.release()
        connection, answered = accepted
        return Response(101, [*(headers | answered).items()], take_over=connection.run)

    def post(self, connection: str, text: str) -> Posted:
        """Send a message to a client.

        FAILED if the client receives too slowly: this message is not sent.
        """
        found = self._sockets.get(connection)
        return Posted.GONE if found is None else found.post(text)

    def close_old(self) -> None:
        """Close the connections that have reached their age, for example by a test's clock."""
        for each in self._all():
            each.close_if_old()

    def close_all(self) -> None:
        """Close all connections. Their clients connect again."""
        self._close_all(CloseReason.SERVICE_RESTART)

    def stop(self) -> None:
        """Accept no more connections, announce the shutdown to the open ones, and close them."""
        self._stopping = True
        grace = {"reason": "shutdown", "grace_period_ms": round(1_000 * self.limits.close_s)}
        message = {"type": "event", "event": "server.shutdown", "data": grace}
        text = jsontext.dumps(message)
        for each in self._all():
            each.post(text)
        self._close_all(CloseReason.GOING_AWAY)

    def _close_all(self, reason: CloseReason) -> None:
        every = self._all()
        for each in every:
            each.close(reason)
        self._await_end(every)
        for each in every:
            each.hang_up()
        self._await_end(every)

    def _await_end(self, connections: Sequence[_Socket]) -> None:
        ids = {each.id for each in connections}
        with self._changed:
            self._changed.wait_for(lambda: not ids & self._sockets.keys(), self.limits.close_s)

    def _all(self) -> list[_Socket]:
        with self._changed:
            return list(self._sockets.values())

    # --- for connections ------------------------------------------------------------------------

    def began(self, connection: _Socket) -> None:
        """Add a connection."""
        with self._changed:
            self._sockets[connection.id] = connection
        if self._stopping:  # since it was accepted
            connection.close(CloseReason.GOING_AWAY)

    def ended(self, connection: _Socket) -> None:
        """Remove a connection."""
        try:
            self._call("$disconnect", connection.id)
        except Exception:  # noqa: BLE001 - as on AWS, the client has left
            traceback.print_exc(file=sys.stderr)
        with self._changed:
            self._sockets.pop(connection.id, None)
            self._changed.notify_all()
        self._free.release()

    def answer(self, connection: str, message: str | bytes) -> str:
        """Return the answer to a message."""
        binary = isinstance(message, bytes)
        body = base64.b64encode(message).decode() if isinstance(message, bytes) else message
        return str(self._call("$default", connection, body=body, isBase64Encoded=binary)["body"])

    def too_old(self, opened_ms: int) -> bool:
        """Whether a connection has reached its age."""
        return self._clock.now_ms() - opened_ms >= 1_000 * self.limits.age_s

    def _connect(self, request: Request) -> tuple[_Socket, dict[str, str]]:
        """Return a new connection, and headers. Raises _NoTicket, PermissionDenied."""
        tickets = parse_qs(split_target(request.target)[1]).get("ticket")
        if not tickets:
            raise _NoTicket(f"The query parameter 'ticket' is missing. {_GET_TICKET}")
        principal = self._redeem(tickets[0])
        if principal is None:
            raise PermissionDenied(f"The ticket is unknown, used, or too old. {_GET_TICKET}")
        connection = _Socket(self, opened_ms=self._clock.now_ms())
        # The origin is already checked (`local.origins`).
        headers = {name: value for name, value in request.headers if name != "origin"}
        context = principal.context()
        answer = self._call("$connect", connection.id, context, headers=headers)
        if answer["statusCode"] != 200:
            raise PermissionDenied("The server rejects the connection.")
        return connection, {k.lower(): v for k, v in (answer.get("headers") or {}).items()}

    def _call(
        self, route: str, connection: str, authorizer: dict[str, Any] | None = None, **more: Any
    ) -> dict[str, Any]:
        context = {"routeKey": route, "connectionId": connection, "authorizer": authorizer or {}}
        event = {"isBase64Encoded": False, **more, "requestContext": context}
        answer: dict[str, Any] = self._handler(event, LambdaContext("socket"))
        return answer


class _Socket:
    """One connection."""

    def __init__(self, hub: Hub, *, opened_ms: int) -> None:
        self.id = secrets.token_urlsafe(12)
        self._hub = hub
        self._limits = hub.limits
        self._opened_ms = opened_ms
        self._protocol = Connection(ConnectionType.SERVER)
        # Guards the protocol and `_writer`, a second handle of the socket with its own timeout.
        self._lock = threading.Lock()
        self._writer: socket.socket | None = None
        # When the next ping is due, or the client's answer to one or to a close frame.
        self._due_s = time.monotonic() + self._limits.ping_s
        self._asked = False
        self._message: list[str | bytes] = []

    def run(self, accepted: socket.socket, head: bytes, received: bytes) -> None:
        """Send `head`, and speak WebSocket until one side closes. Raises OSError."""
        try:
            with accepted.dup() as writer:
                writer.settimeout(self._limits.send_s)
                writer.sendall(head)
                self._writer = writer
                try:
                    self._hub.began(self)
                    self._speak(accepted, received)
                finally:
                    with self._lock:
                        self._writer = None
        finally:
            self._hub.ended(self)

    def post(self, text: str) -> Posted:
        """Send a text, unless the client receives too slowly."""
        with self._lock:
            if self._writer is None:
                return Posted.GONE
            poll = select.poll()
            poll.register(self._writer, select.POLLOUT)
            if not poll.poll(0):
                return Posted.FAILED
            return Posted.POSTED if self._send(TextMessage(data=text)) else Posted.GONE

    def close(self, reason: CloseReason, text: str | None = None) -> None:
        """Send a close frame. The client answers it, and the connection ends."""
        with self._lock:
            self._send(CloseConnection(code=reason, reason=text))

    def close_if_old(self) -> None:
        """Close a connection that has reached its age."""
        if self._hub.too_old(self._opened_ms):
            self.close(CloseReason.GOING_AWAY)

    def hang_up(self) -> None:
        """End the connection immediately."""
        with self._lock:
            self._shut()

    # --- in the connection's thread -------------------------------------------------------------

    def _speak(self, accepted: socket.socket, received: bytes) -> None:
        while True:
            with self._lock:
                self._protocol.receive_data(received)
                events = list(self._protocol.events())
            for event in events:
                self._react(event)
            if self._protocol.state is ConnectionState.CLOSED:
                return
            received = self._receive(accepted)
            if not received:
                return

    def _receive(self, accepted: socket.socket) -> bytes:
        """Return the next bytes, or none if the connection has ended or is half open."""
        while True:
            left_s = self._due_s - time.monotonic()
            if left_s <= 0:
                if self._asked:
                    return b""
                with self._lock:
                    self._ask(self._limits.pong_s)
                    self._send(Ping())
                self.close_if_old()
                continue
            accepted.settimeout(left_s)
            with contextlib.suppress(TimeoutError):
                return accepted.recv(_RECEIVE_BYTES)

    def _react(self, event: Event) -> None:
        match event:
            case Ping() | CloseConnection():
                with self._lock:
                    self._send(event.response())
            case Pong():
                with self._lock:
                    if self._protocol.state is ConnectionState.OPEN:
                        self._asked = False
                        self._due_s = time.monotonic() + self._limits.ping_s
            case Message():
                self._collect(event)

    def _collect(self, event: Message[Any]) -> None:
        """Process a message when it is complete."""
        if self._protocol.state is not ConnectionState.OPEN:
            return  # the client reads no more answers
        self._message.append(event.data)
        limit = self._limits.message_bytes
        if sum(map(len, self._message)) > limit:
            self.close(CloseReason.MESSAGE_TOO_BIG, f"A message can have {limit} bytes.")
        elif event.message_finished:
            empty = b"" if isinstance(event, BytesMessage) else ""
            message = empty.join(self._message)  # type: ignore[arg-type]
            answer = self._hub.answer(self.id, message)
            with self._lock:
                self._send(TextMessage(data=answer))
        else:
            return
        self._message = []

    # --- with the lock --------------------------------------------------------------------------

    def _send(self, event: Event) -> bool:
        """Send an event. Returns False if the connection has ended, or is closing."""
        closing = isinstance(event, CloseConnection)
        state = self._protocol.state
        if self._writer is None or not (
            state is ConnectionState.OPEN or (closing and state is ConnectionState.REMOTE_CLOSING)
        ):
            return False
        if closing:
            self._ask(self._limits.close_s)
        try:
            self._writer.sendall(self._protocol.send(event))
        except OSError:
            # Part of the frame may be sent. So nothing else can be.
            self._shut()
            return False
        return True

    def _ask(self, answer_s: float) -> None:
        """End the connection unless the client answers within this time."""
        self._asked = True
        self._due_s = time.monotonic() + answer_s

    def _shut(self) -> None:
        if self._writer is not None:
            with contextlib.suppress(OSError):  # already closed
                self._writer.shutdown(socket.SHUT_RDWR)


def _accept_token(request: Request) -> str:
    """Return the value of Sec-WebSocket-Accept. Raises InvalidRequest."""
    headers: dict[str, str] = {"sec-websocket-key": ""}
    for name, value in request.headers:
        headers[name] = f"{headers[name]}, {value}" if headers.get(name) else value
    tokens = headers.get("connection", "").lower().split(",")
    key = headers["sec-websocket-key"]
    for name, fits, rule in (
        ("Upgrade", headers.get("upgrade", "").lower() == "websocket", "websocket"),
        ("Connection", "upgrade" in map(str.strip, tokens), "Upgrade"),
        ("Sec-WebSocket-Version", headers.get("sec-websocket-version") == _VERSION, _VERSION),
        ("Sec-WebSocket-Key", _is_key(key), f"{_KEY_BYTES} bytes in base64"),
        ("method", request.method == "GET", "GET"),
    ):
        if not fits:
            raise InvalidRequest(name, f"must be {rule}. Use a WebSocket client (RFC 6455)")
    return generate_accept_token(key.encode("ascii")).decode("ascii")


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        return False
