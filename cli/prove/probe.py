"""A client that times its requests, and percentiles of durations."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import httpx

from ojs_aws import Client, RetryPolicy, Unreachable
from ojs_aws.client.operations import worker_call

if TYPE_CHECKING:
    from ojs_aws.client.signing import Signer


@dataclass(frozen=True)
class Sent:
    """A request: its path, duration, and status. The status is 0 without a response."""

    path: str
    ms: float
    status: int


class TimedTransport(httpx.BaseTransport):
    """Passes requests on, and notes how long their responses took."""

    def __init__(self, inner: httpx.BaseTransport | None = None) -> None:
        """Create a transport. `inner` sends the requests. Default: a transport of httpx."""
        limits = httpx.Limits(max_connections=256, max_keepalive_connections=256)
        self._inner = inner or httpx.HTTPTransport(limits=limits)
        self.inner = self._inner
        self.sent: list[Sent] = []
        self.server_time_s: float | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and read its response."""
        began, status = time.perf_counter(), 0
        try:
            response = self._inner.handle_request(request)
            response.read()
            status = response.status_code
            if date := response.headers.get("date"):
                self.server_time_s = parsedate_to_datetime(date).timestamp()
            return response
        finally:
            ms = 1_000 * (time.perf_counter() - began)
            self.sent.append(Sent(request.url.path, ms, status))

    def close(self) -> None:
        """Close all connections."""
        self._inner.close()


class Probe(Client):
    """A client whose requests are timed. It sends each request at most `tries` times."""

    def __init__(
        self,
        url: str,
        key: str | None,
        signer: Signer | None = None,
        inner: httpx.BaseTransport | None = None,
        tries: int = 1,
    ) -> None:
        self.transport = TimedTransport(inner)
        self.url, self.key, self.signer = url, key, signer
        super().__init__(
            url, key=key, iam=signer or False, retry=RetryPolicy(tries=tries),
            transport=self.transport,
        )  # fmt: skip

    def other(self, key: str | None, *, tries: int = 1) -> Probe:
        """Return a client of the same server with another key, or None to sign requests."""
        signer = self.signer if key is None else None
        return Probe(self.url, key, signer, self.transport.inner, tries)

    def status(self, path: str, *, authenticated: bool = True) -> int:
        """Read a path, and return the status of the response."""
        request = self._http.build_request("GET", self._base + path, timeout=30.0)
        if not authenticated:
            request.headers.pop("Authorization", None)
        try:
            signer = self.signer if authenticated else None
            return self._http.send(request, auth=signer).status_code
        except httpx.HTTPError as error:
            raise Unreachable(f"GET {path}: {error}") from None

    # --- requests of a worker ------------------------------------------------------------------

    def fetch(self, queue: str, count: int = 1, **more: Any) -> list[dict[str, Any]]:
        """Fetch jobs of a queue. Returns them as JSON objects."""
        body = {"queues": [queue], "count": count, **more}
        jobs: list[dict[str, Any]] = self.run(worker_call("workers/fetch", body))["jobs"]
        return jobs

    def ack(self, job: dict[str, Any], how: str = "ack", **more: Any) -> None:
        """Complete a fetched job, or with `nack` fail or suspend it."""
        body = {"job_id": job["id"], "lease_token": job["lease_token"], **more}
        self.run(worker_call(f"workers/{how}", body))

    def beat(self, worker: str, jobs: Sequence[dict[str, Any]], queue: str) -> dict[str, Any]:
        """Send a heartbeat."""
        held = [job["id"] for job in jobs]
        body = {"worker_id": worker, "active_jobs": held, "queues": [queue]}
        return self.run(worker_call("workers/heartbeat", body))


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return `count`, `p50`, `p90`, `p99`, and `max` of durations. Empty without any."""
    if not values:
        return {}
    ordered = sorted(values)

    def at(part: float) -> float:
        return ordered[math.ceil(part * len(ordered)) - 1]

    found = {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": ordered[-1]}
    return {"count": len(ordered), **{name: round(value, 1) for name, value in found.items()}}
