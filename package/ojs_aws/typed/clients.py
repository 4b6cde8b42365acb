"""The clients of typed jobs, made when they are needed: one a process, and one an event loop."""

from __future__ import annotations

import os
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from ojs_aws.client.asynchronous import AsyncClient
from ojs_aws.client.background import in_thread
from ojs_aws.client.blocking import Client
from ojs_aws.client.call import Call

T = TypeVar("T")


class Clients:
    """The clients of one server. Default: `OJS_URL` and `OJS_KEY`."""

    # The clients of a test. They replace all others.
    override: Clients | None = None

    def __init__(self, url: str | None = None, key: str | None = None) -> None:
        self._server = url, key
        self._bound: Client | AsyncClient | None = None
        self._made: tuple[int, Client] | None = None
        self._by_loop: WeakKeyDictionary[Any, AsyncClient] = WeakKeyDictionary()

    def bind(self, client: Client | AsyncClient) -> None:
        """Use this client from now on."""
        self._bound = client

    def run(self, call: Call[T]) -> T:
        """Send a request."""
        used = Clients.override or self
        return used._blocking().run(call)  # noqa: SLF001 - of the same class

    async def arun(self, call: Call[T]) -> T:
        """Send a request without blocking the event loop."""
        used = Clients.override or self
        if isinstance(client := used._awaiting(), AsyncClient):  # noqa: SLF001
            return await client.run(call)
        return await in_thread(client.run, call)

    def _blocking(self) -> Client:
        if self._bound is not None and not isinstance(self._bound, AsyncClient):
            return self._bound
        # A forked process must not use the connections of its parent.
        if self._made is None or self._made[0] != os.getpid():
            self._made = os.getpid(), Client(self._server[0], key=self._server[1])
        return self._made[1]

    def _awaiting(self) -> Client | AsyncClient:
        import asyncio

        if self._bound is not None:
            return self._bound
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = AsyncClient(self._server[0], key=self._server[1])
        return self._by_loop[loop]

    async def aclose(self) -> None:
        """Close the client of this event loop."""
        import asyncio

        client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()


DEFAULT = Clients()
