"""A server that stores jobs and workflows in memory, for producers of typed jobs."""

from __future__ import annotations

import json
from typing import Any

import httpx

from ojs_aws import AsyncClient, Client

URL = "http://stub"


class JobsApi:
    """`sent` has the path, body, and headers of each request. Answers are what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[str, Any], httpx.Headers]] = []
        self.results: list[dict[str, Any]] = []  # the next answers to GET …/result

    def client(self) -> Client:
        return Client(URL, transport=httpx.MockTransport(self), sleep=lambda _s: None)

    def asynchronous(self) -> AsyncClient:
        async def handle(request: httpx.Request) -> httpx.Response:
            return self(request)

        return AsyncClient(URL, transport=httpx.MockTransport(handle))

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for asked, body, _ in self.sent if asked == path]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/ojs/v1/")
        body = json.loads(request.content) if request.content else {}
        self.sent.append((path, body, request.headers))
        if path.endswith("/result"):
            answer = self.results.pop(0) if self.results else {"state": "available"}
            return httpx.Response(200, json=answer)
        if path == "jobs/batch":
            return httpx.Response(
                201, json={"jobs": [{"id": "made", **each} for each in body["jobs"]]}
            )
        return httpx.Response(201, json={"id": "made", **body})
