"""Keeps a WebSocket connection to the server open, on an event loop."""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, Protocol
from urllib.parse import quote

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.typing import Subprotocol

from ojs_aws.client.call import Answer, Call, json_object
from ojs_aws.errors import ApiError, OjsError

Ask = Callable[[Call[Any]], Awaitable[Any]]
Message = dict[str, Any]

TICKET: Call[Answer] = Call("POST", "realtime/tickets", json_object, {})
# Time in seconds that the server has for its first message, and a connection to open or to close.
_GREETED_S = 10.0
_CLOSED_S = 0.5
# API Gateway closes a connection after 2 hours, and after 10 minutes without a message.
_RENEWED_S = (105 * 60.0, 115 * 60.0)
_PING_S = 9 * 60.0
# Bounds of the pause before a reconnection in seconds.
_PAUSES_S = (1.0, 60.0)
_MAX_BYTES = 1_048_576


class Lost(Exception):
    """The server ended the connection, or its messages are invalid."""


_LOST = (Lost, OjsError, WebSocketException, OSError, EOFError, asyncio.TimeoutError)


def refused(error: BaseException) -> bool:
    """Whether the server rejects the request, so that a retry has the same outcome."""
    return isinstance(error, ApiError) and error.status < 500 and error.status not in {408, 429}


@cache
def _certificates() -> ssl.SSLContext:
    """Return the certificates that requests trust, which takes 0.1 s."""
    return httpx.create_ssl_context()


class Owner(Protocol):
    """What uses a connection."""

    # Type of the message after which the connection is in use.
    ready: str

    def greeting(self) -> Message:
        """Return the first message of a new connection."""

    async def heard(self, message: Message) -> None:
        """Process a message of the server."""

    def lost(self, error: Exception) -> float | None:
        """Note that the connection is lost.

        Returns:
            The pause in seconds before the next connection. None for the default.

        Raises:
            Exception: `error`, to end the link.
        """


class Link:
    """One connection, opened again when it is lost."""

    def __init__(self, ask: Ask, owner: Owner) -> None:
        """Create a link. `ask` sends a request to the server."""
        self._ask = ask
        self._owner = owner
        self._socket: ClientConnection | None = None
        self._is_ready = False
        self._failures = 0
        # Messages to send at a time of the monotonic clock, in order.
        self.later: list[tuple[float, Message]] = []

    @property
    def connected(self) -> bool:
        """Whether the connection is in use."""
        return self._socket is not None and self._is_ready

    async def run(self) -> None:
        """Keep a connection open. Ends with an error of the owner, or if it is cancelled."""
        while True:
            began = time.monotonic()
            try:
                await self._serve()
            except _LOST as error:
                if time.monotonic() - began >= _PAUSES_S[1]:
                    self._failures = 0
                self._failures += 1
                self.later.clear()
                chosen_s = self._owner.lost(error)
            await asyncio.sleep(self._pause_s() if chosen_s is None else chosen_s)

    def _pause_s(self) -> float:
        """Return a random pause in seconds. Its upper bound doubles with each failure."""
        shortest, longest = _PAUSES_S
        bound = min(longest, shortest * 2 ** min(self._failures, 10))
        return random.uniform(shortest, bound)  # noqa: S311 - not a secret

    async def drop(self) -> None:
        """Close the connection. Another one is opened after a pause."""
        if self._socket is not None:
            await self._socket.close()

    async def say(self, message: Message) -> None:
        """Send a message."""
        if self._socket is not None:
            await self._socket.send(json.dumps(message))

    async def _serve(self) -> None:
        """Open a connection, and receive messages until it is lost."""
        earlier: ClientConnection | None = None
        try:
            while True:
                await self._open()
                if earlier is not None:
                    await self._end(earlier)
                earlier = self._socket
                await self._receive(random.uniform(*_RENEWED_S))  # noqa: S311
        finally:
            sockets, self._socket = {earlier, self._socket}, None
            for each in sockets - {None}:
                await each.close()  # type: ignore[union-attr]

    async def _open(self) -> None:
        """Open a connection, and wait for the server's first message."""
        ticket = await self._ask(TICKET)
        try:
            url = f"{ticket['url']}?ticket={quote(ticket['ticket'])}"
        except (KeyError, TypeError) as error:
            raise Lost(f"the response to a request for a ticket is invalid: {error!r}") from error
        self._socket = await connect(
            url, subprotocols=[Subprotocol("ojs.v1")], compression=None, max_size=_MAX_BYTES,
            ping_interval=30, ping_timeout=20, open_timeout=_GREETED_S, close_timeout=_CLOSED_S,
            ssl=_certificates() if url.startswith("wss:") else None,
        )  # fmt: skip
        self._is_ready = False
        await self.say(self._owner.greeting())
        until = time.monotonic() + _GREETED_S
        while not self._is_ready:
            await self._take(await self._text(until - time.monotonic()))

    async def _receive(self, lasts_s: float) -> None:
        """Receive messages for a time, and send those of `later`."""
        until = time.monotonic() + lasts_s
        while (now := time.monotonic()) < until:
            if self.later and now >= self.later[0][0]:
                await self.say(self.later.pop(0)[1])
                continue
            due = min(until, now + _PING_S, *(at for at, _ in self.later[:1]))
            try:
                text = await self._text(due - now)
            except asyncio.TimeoutError:
                if due >= now + _PING_S:
                    await self.say({"action": "ping"})
            else:
                await self._take(text)

    async def _end(self, socket: ClientConnection) -> None:
        """Close a connection, and process the messages that it has received."""
        await socket.close()
        try:
            while True:
                await self._take(await socket.recv())
        except ConnectionClosed:
            pass

    async def _text(self, within_s: float) -> str | bytes:
        assert self._socket is not None
        return await asyncio.wait_for(self._socket.recv(), within_s)

    async def _take(self, text: str | bytes) -> None:
        try:
            message = json.loads(text)
        except ValueError:
            return
        if isinstance(message, dict):
            self._is_ready = self._is_ready or message.get("type") == self._owner.ready
            await self._owner.heard(message)
