"""Many small jobs: what the worker itself adds to each."""

from __future__ import annotations

import time

import pytest

from ojs_aws import Worker
from tests.library.stub import StubServer, until, working


@pytest.mark.exhaustive
@pytest.mark.parametrize("asynchronous", [False, True])
def test_five_hundred_empty_jobs_a_second(asynchronous: bool) -> None:
    """Measured: 1 000 (coroutines) to 2 000. With the settings that users have. The time is that of
    this process, stub included: what others do on the machine does not count.
    """
    stub = StubServer()
    worker = Worker(queues=["q"], client=stub.client(), concurrency=50)

    async def coroutine(_job: object) -> None: ...

    worker.handler("t")(coroutine if asynchronous else lambda _job: None)
    for _ in range(3_000):
        stub.push("t")
    began = time.process_time()
    with working(worker, stub):
        until(lambda: len(stub.done) == 3_000)
        took_s = time.process_time() - began
    assert 3_000 / took_s >= 500, f"{3_000 / took_s:.0f} jobs/s"
    assert set(stub.acked.values()) == {1}
