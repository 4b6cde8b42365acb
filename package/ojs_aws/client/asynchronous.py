"""The client for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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

    from ojs_aws.client.event import Event
    from ojs_aws.client.job import Job
    from ojs_aws.client.signing import Signer
    from ojs_aws.client.subscription import AsyncSubscription

T = TypeVar("T")


class AsyncClient(Awaiting, Operations):
    """An asynchronous client of one server. Has the methods of `Client`; await each call.

    Close it with `aclose`, or use it as an `async with` block.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        iam: bool | Signer | None = None,
        tenant: str | None = None,
        timeout_s: float = 30.0,
        retry: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[object]] | None = None,
    ) -> None:
        """Create a client. Opens no connection.

        Args:
            url: URL of the server, with or without `/ojs/v1`. Default: `OJS_URL`.
            key: Access key. Default: `OJS_KEY`, unless requests are signed.
            iam: True to sign requests with AWS credentials, or a `Signer`. Default: true if
                `OJS_AUTH` is `iam` and no key is given.
            tenant: Tenant to act for. Default: the tenant of the key, or none.
            timeout_s: Timeout of one attempt in seconds. Default: 30.
            retry: Retry policy. Default: `RetryPolicy()`.
            transport: HTTP transport, for tests.
            sleep: Waits between attempts, for tests.

        Raises:
            ValueError: No HTTP or HTTPS URL is given, or both `key` and `iam` are set.
        """
        import asyncio

        import httpx

        root, self._base = server_of(url)
        self._policy = retry or RetryPolicy()
        self._polls: dict[str, float] = {}
        self._timeout_s = timeout_s
        self._sleep = sleep or asyncio.sleep
        self._http = httpx.AsyncClient(
            base_url=root, headers=common_headers(key, iam, tenant), transport=transport,
            verify=needs_tls(root), auth=signer(key, iam),
        )  # fmt: skip

    async def run(self, call: Call[T]) -> T:
        """Send a request and return its result.

        Args:
            call: A request from `ojs_aws.client.operations`.

        Returns:
            The result of the request: a `Job`, or the JSON object of the response.

        Raises:
            ApiError: The server rejected the request.
            Unreachable: No attempt got a valid response. Its `sent` is false if nothing was sent.
            ValueError: The body contains a value that JSON can't represent, for example NaN.
            TypeError: The body contains an object that JSON can't represent.
        """
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
        """Iterate over the pages of a list.

        Args:
            listing: A list method of this client, for example `client.list_jobs`.
            **filters: Parameters of that method.

        Yields:
            The response of each page.

        Raises:
            ApiError: The server rejected the request.
            Unreachable: No attempt got a valid response.
        """
        while True:
            page = await listing(**filters)
            yield page
            if not (cursor := cursor_of(page)):
                return
            filters = {**filters, "cursor": cursor}

    async def each(
        self, listing: Callable[..., Awaitable[Answer]], /, **filters: Any
    ) -> AsyncIterator[dict[str, Any]]:
        """Iterate over the items of all pages of a list.

        Args:
            listing: A list method of this client, for example `client.list_jobs`.
            **filters: Parameters of that method.

        Yields:
            Each item as a JSON object.

        Raises:
            ApiError: The server rejected the request.
            Unreachable: No attempt got a valid response.
        """
        async for page in self.pages(listing, **filters):
            for item in items_of(page):
                yield item

    def subscribe(
        self, channel: str, *, types: Sequence[str] | None = None, detail: bool = False
    ) -> AsyncSubscription:
        """Subscribe to events, as `Client.subscribe`. Use it as an `async with` block."""
        from ojs_aws.client.subscription import AsyncSubscription

        return AsyncSubscription(self.run, channel, types, detail=detail)

    async def subscribe_job(
        self, job_id: str, callback: Callable[[Event], Any]
    ) -> AsyncSubscription:
        """Call a function or a coroutine function with each event, as `Client.subscribe_job`."""
        return await self.subscribe(f"job:{job_id}").start(callback)

    async def subscribe_queue(
        self, name: str, callback: Callable[[Event], Any]
    ) -> AsyncSubscription:
        """Call a function or a coroutine function with each event, as `Client.subscribe_queue`."""
        return await self.subscribe(f"queue:{name}").start(callback)

    async def wait_for(self, job_id: str, timeout_s: float = 60.0) -> Job:
        """Wait until a job is in a final state, as `Client.wait_for`."""
        from ojs_aws.client.subscription import waited

        return await waited(self.run, job_id, timeout_s, self._polls)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:  # noqa: PYI034 - as for Client
        """Return the client."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the client."""
        await self.aclose()
