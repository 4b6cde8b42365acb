"""The clients of typed jobs, made when they are needed: one a process, and one an event loop."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from ojs_aws.client.call import Call

if TYPE_CHECKING:
    from ojs_aws.client.asynchronous import AsyncClient
    from ojs_aws.client.blocking import Client

T = TypeVar("T")


class Clients:
    """The clients of one server. Default: `OJS_URL` and `OJS_KEY`."""

    # The clients of a test. All others are replaced by them.
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
        if Clients.override not in (None, self):
            return Clients.override.run(call)
        from ojs_aws.client.blocking import Client

        if isinstance(self._bound, Client):
            return self._bound.run(call)
        # A forked process must not use the connections of its parent.
        if self._made is None or self._made[0] != os.getpid():
            url, key = self._server
            self._made = os.getpid(), Client(url, key=key)
        return self._made[1].run(call)

    async def arun(self, call: Call[T]) -> T:
        """Send a request without blocking the event loop."""
        if Clients.override not in (None, self):
            return await Clients.override.arun(call)
        import asyncio

        from ojs_aws.client.asynchronous import AsyncClient
        from ojs_aws.client.background import in_thread

        if isinstance(self._bound, AsyncClient):
            return await self._bound.run(call)
        if self._bound is not None:
            return await in_thread(self._bound.run, call)
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            url, key = self._server
            self._by_loop[loop] = AsyncClient(url, key=key)
        return await self._by_loop[loop].run(call)

    async def aclose(self) -> None:
        """Close the client of this event loop."""
        import asyncio

        client = self._by_loop.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()


DEFAULT = Clients()
