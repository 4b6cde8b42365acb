"""The local server calls the handlers from many threads at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from ojs.api import workers
from ojs.http.binding.application import Application
from ojs.http.binding.request import Request
from ojs.http.endpoint import Implementation, Reply
from tests.unit.functions.client import OPEN, event_of


def test_requests_in_threads_do_not_mix() -> None:
    """Each of many simultaneous requests gets the answer to itself."""
    threads = 16
    together = threading.Barrier(threads)
    app = Application("workers", OPEN).serve(workers)

    def slow(request: Request) -> Reply:
        before = request.named
        together.wait()
        return Reply({"before": before, "after": request.named})

    def other(request: Request) -> Reply:
        together.wait()
        return Reply({"before": request.named, "after": request.named, "removed": True})

    implementations: dict[str, Implementation] = {"worker_health": slow, "remove_worker": other}
    for name, implementation in implementations.items():
        app._bound[name] = replace(app._bound[name], implementation=implementation)

    def call(number: int) -> None:
        path, method = f"/ojs/v1/workers/w{number}", "DELETE"
        if number % 2:
            path, method = f"{path}/health", "GET"
        event = event_of(method, path, headers={"x-request-id": f"r{number}"})
        for _ in range(50):
            answer: dict[str, Any] = app(event, None)
            assert answer["statusCode"] == 200
            assert f'"before":"w{number}","after":"w{number}"' in answer["body"]
            assert ("removed" in answer["body"]) == (method == "DELETE")
            assert answer["headers"]["X-Request-Id"] == f"r{number}"

    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(call, number) for number in range(threads)]:
            future.result(timeout=60)
