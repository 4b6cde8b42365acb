"""The client for coroutines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ojs_aws.client.blocking import (
    common_headers,
    cursor_of,
    failed,
    items_of,
    needs_tls,
    sent_headers,
    signer,
)  # fmt: skip
from ojs_aws.client.call import Answer, Call, server_of
from ojs_aws.client.exchange import Failure, Outcome, Reply, RetryPolicy, Send, exchange
from ojs_aws.client.method import Awaiting
from ojs_aws.client.methods import Operations

if TYPE_CHECKING:
    import httpx

    from ojs_aws.client.signing import Signer

T = TypeVar("T")


class AsyncClient(Awaiting, Operations):
    """Asks one server; its methods are those of Client, to be awaited. `aclose` it, or use it in
    an `async with`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        iam: bool | Signer | None = None,
        timeout_s: float = 30.0,
        retry: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        """As for Client. Raises ValueError."""
        import asyncio

        import httpx

        root, self._base = server_of(url)
        self._policy = retry or RetryPolicy()
        self._timeout_s = timeout_s
        self._sleep = sleep or asyncio.sleep
        self._http = httpx.AsyncClient(
            base_url=root, headers=common_headers(key, iam), transport=transport,
            verify=needs_tls(root), auth=signer(key, iam),
        )  # fmt: skip

    async def run(self, call: Call[T]) -> T:
        """The answer to a call of `ojs_aws.client.operations`. Raises ApiError, Unreachable."""
        content, steps = call.content(), exchange(call, self._policy)
        outcome: Outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                value: T = done.value
                return value
            if isinstance(step, Send):
                outcome = await self._send(call, content, self._timeout_s + call.takes_s)
            else:
                await self._sleep(step.seconds)
                outcome = None

    async def _send(
        self, call: Call[Any], content: bytes | None, timeout_s: float
    ) -> Reply | Failure:
        import httpx

        try:
            got = await self._http.request(
                call.method, call.target(self._base), content=content,
                headers=sent_headers(call, content), timeout=timeout_s,
            )  # fmt: skip
        except httpx.HTTPError as error:
            return failed(error, httpx, self._http.base_url)
        return Reply(got.status_code, got.headers, got.content)

    async def pages(
        self, listing: Callable[..., Awaitable[Answer]], /, **filters: Any
    ) -> AsyncIterator[Answer]:
        """Every page of a listing."""
        while True:
            page = await listing(**filters)
            yield page
            if not (cursor := cursor_of(page)):
                return
            filters = {**filters, "cursor": cursor}

    async def each(
        self, listing: Callable[..., Awaitable[Answer]], /, **filters: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Every item of a listing, page after page."""
        async for page in self.pages(listing, **filters):
            for item in items_of(page):
                yield item

    async def aclose(self) -> None:
        """End the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:  # noqa: PYI034 - as for Client
        """The client itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        await self.aclose()
