"""Handlers in processes: they die, hang and are told to stop without harm to the worker."""

from __future__ import annotations

import os
import threading

import pytest

from ojs_aws import Job
from ojs_aws.worker.context import Lease
from ojs_aws.worker.execution import Child
from ojs_aws.worker.handlers import GIVEN_BACK, Ending, Handlers
from tests.library import process_handlers
from tests.library.stub import StubServer, made, until, working


def test_handlers_run_in_processes_that_may_die() -> None:
    stub = StubServer()
    worker = made(stub, processes=True, concurrency=2, heartbeat_s=1.0)
    for name in ("add", "dies", "hangs"):
        worker.handler(name)(getattr(process_handlers, name))
    worker.middleware(process_handlers.around)
    dies = stub.push("dies")
    hangs = stub.push("hangs", timeout_ms=50)
    with working(worker, stub):
        until(lambda: {dies, hangs} <= stub.failed.keys())
        added = stub.push("add", 1, 2)
        until(lambda: added in stub.done)
    assert stub.failed[dies]["code"] == "process_died"
    assert stub.failed[hangs]["code"] == "timeout"
    result = stub.done[added]["around"]
    assert result["sum"] == 3
    assert result["pid"] != os.getpid()


def test_processes_hear_of_cancellation_and_end_with_the_worker() -> None:
    stub = StubServer()
    worker = made(stub, processes=True, concurrency=2, grace_s=0.0, heartbeat_s=0.5)
    worker.handler("waits")(process_handlers.waits)
    worker.handler("hangs")(process_handlers.hangs)
    ids = {stub.push("waits"), stub.push("hangs")}
    with working(worker, stub):
        until(lambda: ids <= stub.leased.keys())
    assert set(stub.given_back) == ids


def test_handlers_that_processes_cannot_import_are_refused() -> None:
    worker = made(StubServer(), processes=True)
    worker.handler("t")(lambda _job: None)
    with pytest.raises(ValueError, match="processes require importable"):
        worker.run()


def test_a_cancellation_that_comes_late_is_not_that_of_the_next_job() -> None:
    handlers = Handlers()
    handlers.add("waits", process_handlers.waits)
    child = Child(handlers)
    earlier, now = (Lease(Job(name, "waits", attempt=1), None) for name in ("a", "b"))
    endings: list[Ending] = []
    thread = threading.Thread(target=lambda: endings.append(child.run(now)))
    thread.start()
    until(lambda: child.lease is now)
    earlier.context.cancel("cancelled")
    child.cancel(earlier)
    now.context.cancel("shutdown")
    child.cancel(now)
    thread.join(60)
    assert endings == [GIVEN_BACK]
    child.kill()
