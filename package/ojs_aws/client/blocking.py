"""The client that waits for its answers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from ojs_aws.client.call import Answer, Call, server_of
from ojs_aws.client.exchange import Failure, Outcome, Reply, RetryPolicy, Send, exchange
from ojs_aws.client.method import Blocking
from ojs_aws.client.methods import Operations

if TYPE_CHECKING:
    import httpx

    from ojs_aws.client.signing import Signer

T = TypeVar("T")
USER_AGENT = "ojs-aws-python"


class Client(Blocking, Operations):
    """Asks one server. It may be used by many threads; `close` it, or use it in a `with`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        iam: bool | Signer | None = None,
        timeout_s: float = 30.0,
        retry: RetryPolicy | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """`url` is the server's, with or without `/ojs/v1`; `key` the access key that a deployed
        server asks for: OJS_URL and OJS_KEY of the environment when not given. With `iam`, or
        OJS_AUTH=iam, requests are signed with the AWS credentials of the environment instead. A
        `Signer` has credentials of its own. Raises ValueError.

        `transport` and `sleep` are for tests.
        """
        import httpx

        root, self._base = server_of(url)
        self._policy = retry or RetryPolicy()
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._http = httpx.Client(
            base_url=root, headers=common_headers(key, iam), transport=transport,
            limits=_limits(httpx), verify=needs_tls(root), auth=signer(key, iam),
        )  # fmt: skip

    def run(self, call: Call[T]) -> T:
        """The answer to a call of `ojs_aws.client.operations`. Raises ApiError, Unreachable."""
        return self.try_call(call, self._policy, self._timeout_s)

    def try_call(self, call: Call[T], policy: RetryPolicy, timeout_s: float) -> T:
        """As `run`, with tries and a time-out (seconds) of its own."""
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
        """Every page of a listing: `client.pages(client.list_jobs, queue="q")`."""
        while True:
            page = listing(**filters)
            yield page
            if not (cursor := cursor_of(page)):
                return
            filters = {**filters, "cursor": cursor}

    def each(self, listing: Callable[..., Answer], /, **filters: Any) -> Iterator[dict[str, Any]]:
        """Every item of a listing, page after page: `client.each(client.list_jobs, queue="q")`."""
        for page in self.pages(listing, **filters):
            yield from items_of(page)

    def close(self) -> None:
        """End the connections."""
        self._http.close()

    def __enter__(self) -> Client:  # noqa: PYI034 - Self is not in Python 3.10
        """The client itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()


def needs_tls(root: str) -> bool:
    """Whether certificates are needed. To load them takes a tenth of a second, and redirections to
    another server are not followed.
    """
    return root.startswith("https:")


def signer(key: str | None, iam: bool | Signer | None) -> Signer | None:
    """What signs requests with AWS credentials, if they are to be signed: `iam`, or OJS_AUTH of the
    environment without a key. Raises ValueError for both.
    """
    if iam and key:
        raise ValueError("key and iam: only one of them can count")
    if not (iam or (iam is None and not key and os.environ.get("OJS_AUTH") == "iam")):
        return None
    from ojs_aws.client.signing import Signer

    return iam if isinstance(iam, Signer) else Signer()


def common_headers(key: str | None, iam: bool | Signer | None = None) -> dict[str, str]:
    """Headers of all requests."""
    key = key or (None if iam else os.environ.get("OJS_KEY"))
    found = {"Accept": "application/json", "User-Agent": USER_AGENT}
    return found | ({"Authorization": f"Bearer {key}"} if key else {})


def sent_headers(call: Call[Any], content: bytes | None) -> Mapping[str, str]:
    """Headers of one request."""
    kind = {} if content is None else {"Content-Type": "application/json"}
    return {**kind, **call.headers}


def failed(error: Exception, httpx: Any, url: httpx.URL) -> Failure:
    """What an error of httpx means; `url` is the server's. Not connected is: nothing was sent."""
    unsent = (
        httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol,
        httpx.LocalProtocolError,
    )  # fmt: skip
    # Who has set another OJS_URL than they think sees it. Without a name and password in it.
    where = f"{url.scheme}://{url.netloc.decode('ascii')}"
    reason = f"{where} does not answer: {str(error) or type(error).__name__}"
    return Failure(reason, sent=not isinstance(error, unsent))


def items_of(page: Answer) -> list[dict[str, Any]]:
    """The items of one page, whatever the listing calls them."""
    found: list[dict[str, Any]] | None = page.get("items")
    return found or next((value for value in page.values() if isinstance(value, list)), [])


def cursor_of(page: Answer) -> str | None:
    """What asks for the page after this one. The cursor of a job's history is beside its events."""
    cursor: str | None = page.get("pagination", page).get("next_cursor")
    return cursor


def _limits(httpx: Any) -> Any:
    return httpx.Limits(max_connections=100, max_keepalive_connections=20, keepalive_expiry=60.0)
