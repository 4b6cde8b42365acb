"""The blocking client."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ojs_aws.client.call import Answer, Call, server_of
from ojs_aws.client.exchange import Failure, Outcome, Reply, RetryPolicy, Send, exchange
from ojs_aws.client.method import Blocking
from ojs_aws.client.methods import Operations

if TYPE_CHECKING:
    import httpx

    from ojs_aws.client.event import Event
    from ojs_aws.client.job import Job
    from ojs_aws.client.signing import Signer
    from ojs_aws.client.subscription import Subscription

T = TypeVar("T")
USER_AGENT = "ojs-aws-python"


class Client(Blocking, Operations):
    """A client of one server. Threads can share it.

    Close it with `close`, or use it as a `with` block.
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
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], object] = time.sleep,
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
        import httpx

        root, self._base = server_of(url)
        self._policy = retry or RetryPolicy()
        self._polls: dict[str, float] = {}
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=root, headers=common_headers(key, iam, tenant), transport=transport,
            limits=_limits(httpx), verify=needs_tls(root), auth=signer(key, iam),
        )  # fmt: skip

    def run(self, call: Call[T]) -> T:
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
        return self.try_call(call, self._policy, self._timeout_s)

    def try_call(self, call: Call[T], policy: RetryPolicy, timeout_s: float) -> T:
        """Send a request with its own retry policy and timeout.

        Args:
            call: A request from `ojs_aws.client.operations`.
            policy: Retry policy of this request.
            timeout_s: Timeout of one attempt in seconds.

        Returns:
            The result of the request, as `run` returns it.

        Raises:
            ApiError: The server rejected the request.
            Unreachable: No attempt got a valid response.
        """
        content, steps = call.content(), exchange(call, policy)
        outcome: Outcome = None
        try:
            while True:
                step = steps.send(outcome)
                if isinstance(step, Send):
                    outcome = self._send(call, content, timeout_s + call.takes_s)
                else:
                    self._sleep(step.seconds)
                    outcome = None
        except StopIteration as done:
            value: T = done.value
            return value

    def _send(self, call: Call[Any], content: bytes | None, timeout_s: float) -> Reply | Failure:
        import httpx

        try:
            got = self._http.request(
                call.method, call.target(self._base), content=content,
                headers=sent_headers(call, content), timeout=timeout_s,
            )  # fmt: skip
        except httpx.HTTPError as error:
            return failed(error, httpx, self._http.base_url)
        return Reply(got.status_code, got.headers, got.content)

    def pages(self, listing: Callable[..., Answer], /, **filters: Any) -> Iterator[Answer]:
        """Iterate over the pages of a list: `client.pages(client.list_jobs, queue="q")`.

        Args:
            listing: A list method of this client.
            **filters: Parameters of that method.

        Yields:
            The response of each page.

        Raises:
            ApiError: The server rejected the request.
            Unreachable: No attempt got a valid response.
        """
        while True:
            page = listing(**filters)
            yield page
            if not (cursor := cursor_of(page)):
                return
            filters = {**filters, "cursor": cursor}

    def each(self, listing: Callable[..., Answer], /, **filters: Any) -> Iterator[dict[str, Any]]:
        """Iterate over the items of all pages of a list: `client.each(client.list_jobs)`.

        Args:
            listing: A list method of this client.
            **filters: Parameters of that method.

        Yields:
            Each item as a JSON object.

        Raises:
            ApiError: The server rejected the request.
            Unreachable: No attempt got a valid response.
        """
        for page in self.pages(listing, **filters):
            yield from items_of(page)

    def subscribe(
        self, channel: str, *, types: Sequence[str] | None = None, detail: bool = False
    ) -> Subscription:
        """Subscribe to events. Use the subscription as a `with` block, and iterate over it.

        Args:
            channel: `job:{id}`, `queue:{name}`, or `all`.
            types: Types of events: `job.state_changed`, `job.completed`, `job.failed`,
                `job.progress`, `queue.paused`, `queue.resumed`. Default: all.
            detail: Whether events contain the events of the event log (`Event.envelopes`).

        Returns:
            The subscription. It isn't open yet.
        """
        from ojs_aws.client.subscription import AsyncSubscription, Subscription

        return Subscription(AsyncSubscription(self._ask, channel, types, detail=detail))

    def subscribe_job(self, job_id: str, callback: Callable[[Event], Any]) -> Subscription:
        """Call a function with each event of a job, until `unsubscribe` of the subscription.

        Args:
            job_id: ID of the job.
            callback: Called in a separate thread. Its errors are logged.

        Returns:
            The open subscription.

        Raises:
            NotFound: The job doesn't exist, or was deleted.
            Unsupported: The server sends no events.
        """
        return self.subscribe(f"job:{job_id}").start(callback)

    def subscribe_queue(self, name: str, callback: Callable[[Event], Any]) -> Subscription:
        """Call a function with each event of a queue, until `unsubscribe` of the subscription.

        Args:
            name: Name of the queue.
            callback: Called in a separate thread. Its errors are logged.

        Returns:
            The open subscription.

        Raises:
            NotFound: The queue doesn't exist.
            Unsupported: The server sends no events.
        """
        return self.subscribe(f"queue:{name}").start(callback)

    def wait_for(self, job_id: str, timeout_s: float = 60.0) -> Job:
        """Wait until a job is completed, cancelled, or discarded.

        The client subscribes to the job. It also reads the job each 20 seconds, or each 4 seconds
        if the server sends no events.

        Args:
            job_id: ID of the job.
            timeout_s: Time to wait in seconds. Default: 60.

        Returns:
            The job in its final state.

        Raises:
            WaitTimeout: The job isn't in a final state after `timeout_s`.
            NotFound: The job doesn't exist, or was deleted.
        """
        from ojs_aws.client import background
        from ojs_aws.client.subscription import waited

        return background.result(waited(self._ask, job_id, timeout_s, self._polls))

    async def _ask(self, call: Call[Any]) -> Any:
        from ojs_aws.client.background import in_thread

        return await in_thread(self.try_call, call, self._policy, self._timeout_s)

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def __enter__(self) -> Client:  # noqa: PYI034 - Self is not in Python 3.10
        """Return the client."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the client."""
        self.close()


def needs_tls(root: str) -> bool:
    """Return whether to load certificates, which takes 0.1 s. `root` is the server's URL.

    The client doesn't follow redirects, so an HTTP URL needs no certificates.
    """
    return root.startswith("https:")


def signer(key: str | None, iam: bool | Signer | None) -> Signer | None:
    """Return the request signer, or None if requests are not signed.

    `iam` selects signing. Without `iam` and `key`, `OJS_AUTH=iam` selects it. Without all of them
    and `OJS_KEY`, requests have the access key of the secret `OJS_KEY_SECRET`.

    Raises:
        ValueError: Both `key` and `iam` are set.
    """
    if iam and key:
        raise ValueError("key can't be combined with iam. Pass one of them")
    if iam is None and not key:
        iam = os.environ.get("OJS_AUTH") == "iam"
        secret = os.environ.get("OJS_KEY_SECRET")
        if secret and not iam and not os.environ.get("OJS_KEY"):
            from ojs_aws.client.secret_key import SecretKey

            return SecretKey(secret)
    if not iam:
        return None
    from ojs_aws.client.signing import Signer

    return iam if isinstance(iam, Signer) else Signer()


def common_headers(
    key: str | None, iam: bool | Signer | None = None, tenant: str | None = None
) -> dict[str, str]:
    """Return the headers of all requests."""
    key = key or (None if iam else os.environ.get("OJS_KEY"))
    found = {"Accept": "application/json", "User-Agent": USER_AGENT}
    found |= {"Authorization": f"Bearer {key}"} if key else {}
    return found | ({} if tenant is None else {"X-OJS-Tenant": tenant})


def sent_headers(call: Call[Any], content: bytes | None) -> Mapping[str, str]:
    """Return the headers of one request."""
    kind = {} if content is None else {"Content-Type": "application/json"}
    return {**kind, **call.headers}


def failed(error: Exception, httpx: Any, url: httpx.URL) -> Failure:
    """Convert an error of httpx to Unreachable. `sent` is false if no connection was opened."""
    unsent = (
        httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol,
        httpx.LocalProtocolError,
    )  # fmt: skip
    # The text shows the URL, so that a wrong OJS_URL is visible. It has no user name or password.
    where = f"{url.scheme}://{url.netloc.decode('ascii')}"
    reason = f"No response from {where}: {str(error) or type(error).__name__}"
    return Failure(reason, sent=not isinstance(error, unsent))


def items_of(page: Answer) -> list[dict[str, Any]]:
    """Return the items of a page. The field name depends on the operation."""
    found: list[dict[str, Any]] | None = page.get("items")
    return found or next((value for value in page.values() if isinstance(value, list)), [])


def cursor_of(page: Answer) -> str | None:
    """Return the cursor of the next page.

    In the history of a job, the cursor is a top-level field.
    """
    cursor: str | None = page.get("pagination", page).get("next_cursor")
    return cursor


def _limits(httpx: Any) -> Any:
    return httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=60.0)
