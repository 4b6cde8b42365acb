"""A worker against a stub: what becomes of jobs, whatever handlers do."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from ojs_aws import (
    JobCancelled,
    JobContext,
    JobFailed,
    JsonFormatter,
    Worker,
    WorkerStuck,
    current_job,
)
from ojs_aws.worker.session import Session
from tests.library.stub import StubServer, made, until, working


@pytest.fixture
def stub() -> StubServer:
    return StubServer()


def done(stub: StubServer, *ids: str) -> Callable[[], bool]:
    return lambda: set(ids) <= stub.done.keys()


def test_functions_and_coroutines_are_done_and_their_results_told(stub: StubServer) -> None:
    worker = made(stub)

    @worker.handler("add")
    def add(job: JobContext) -> int:
        here = current_job()
        assert here is not None
        assert here.id == job.id
        return sum(job.args)

    @worker.handler("later")
    async def later(job: JobContext) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"attempt": job.attempt}

    @worker.handler("nothing")
    def nothing(_job: JobContext) -> None: ...

    ids = [stub.push("add", 1, 2), stub.push("later"), stub.push("nothing")]
    with working(worker, stub):
        until(done(stub, *ids))
    assert [stub.done[each] for each in ids] == [3, {"attempt": 1}, None]
    assert set(stub.acked.values()) == {1}
    assert stub.to("workers/register")[0]["concurrency"] == 10
    assert stub.asked[-1][0].startswith("workers/worker-")  # it signs off
    assert current_job() is None


def test_acks_are_carried_by_the_next_fetch(stub: StubServer) -> None:
    worker = made(stub, concurrency=5, report_s=5.0)

    @worker.handler("t")
    def handle(_job: JobContext) -> None: ...

    ids = [stub.push("t") for _ in range(50)]
    with working(worker, stub):
        until(done(stub, *ids))
    assert stub.to("workers/ack") == []
    fetches = stub.to("workers/fetch")
    # Ten times five jobs, and the last ones with a fetch that finds nothing.
    assert len([body for body in fetches if "acks" in body]) <= 26
    assert {body["count"] for body in fetches} <= set(range(1, 6))
    assert all(e["lease_token"] and e["attempt"] == 1 for b in fetches for e in b.get("acks", ()))
    assert {body["visibility_timeout_ms"] for body in fetches} == {60_000}


def test_a_long_job_does_not_hold_up_what_is_to_be_told(stub: StubServer) -> None:
    worker = made(stub, concurrency=2)
    go_on = threading.Event()

    @worker.handler("long")
    def long(_job: JobContext) -> None:
        go_on.wait(20)

    @worker.handler("short")
    def short(_job: JobContext) -> None: ...

    first, second = stub.push("long"), stub.push("short")
    with working(worker, stub):
        until(done(stub, second))
        assert first not in stub.done
        go_on.set()
        until(done(stub, first))


class Strange(BaseException):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (ValueError("bad \ud800"), {"code": "handler_error", "type": "ValueError"}),
        (SystemExit(3), {"type": "SystemExit", "message": "3"}),
        (KeyboardInterrupt(), {"type": "KeyboardInterrupt"}),
        (Strange(), {"type": "Strange", "message": "Strange"}),
        (asyncio.CancelledError(), {"type": "CancelledError", "retryable": True}),
        (JobCancelled("tired"), {"code": "job_cancelled", "retryable": True}),
        (
            JobFailed("full", code="smtp", type="Smtp", retryable=False, details={"at": object}),
            {"code": "smtp", "type": "Smtp", "message": "full", "retryable": False},
        ),
    ],
)
@pytest.mark.parametrize("asynchronous", [False, True])
def test_whatever_a_handler_raises_is_its_jobs_failure(
    raised: BaseException, expected: dict[str, Any], asynchronous: bool, stub: StubServer
) -> None:
    worker = made(stub)

    def function(_job: JobContext) -> None:
        raise raised

    async def coroutine(_job: JobContext) -> None:
        raise raised

    worker.handler("t")(coroutine if asynchronous else function)
    ending = worker.perform(_job(stub))
    assert ending.how == "nacks"
    assert ending.entry["error"].items() >= expected.items()
    # And it leaves the worker at work.
    job_id = stub.push("t")
    if not asynchronous:
        with working(worker, stub):
            until(lambda: job_id in stub.failed)


def _job(stub: StubServer, kind: str = "t") -> Any:
    from ojs_aws import Job

    job_id = stub.push(kind)
    stub.waiting.clear()
    return Job(job_id, kind, attempt=1)


@pytest.mark.parametrize("result", [object(), float("nan"), {1: {2}}, "\ud800", b"raw"])
def test_what_is_no_json_is_a_failure_and_no_ack(result: object, stub: StubServer) -> None:
    worker = made(stub)
    worker.handler("t")(lambda _job: result)
    job_id = stub.push("t")
    with working(worker, stub):
        until(lambda: job_id in stub.failed)
    assert stub.failed[job_id]["code"] == "result_not_json"
    assert stub.failed[job_id]["retryable"] is False
    assert not stub.acked


def test_a_type_without_a_handler_fails_and_is_told_once(
    stub: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    worker = made(stub)
    worker.handler("t")(lambda _job: None)
    ids = [stub.push("other") for _ in range(3)]
    with working(worker, stub):
        until(lambda: len(stub.failed) == 3)
    assert {stub.failed[each]["code"] for each in ids} == {"no_handler"}
    assert len([r for r in caplog.records if r.getMessage().startswith("no handler")]) == 1


def test_a_time_out_reaches_the_handler(stub: StubServer) -> None:
    worker = made(stub, timeout_s=60.0)
    reasons = []

    @worker.handler("polite")
    def polite(job: JobContext) -> None:
        try:
            job.sleep(60)
        finally:
            reasons.append(job.cancelled)

    @worker.handler("later")
    async def later(_job: JobContext) -> None:
        await asyncio.sleep(60)

    ids = [stub.push("polite", timeout_ms=1_000), stub.push("later", timeout_ms=1_000)]
    with working(worker, stub):
        until(lambda: len(stub.failed) == 2)
    assert {stub.failed[each]["code"] for each in ids} == {"timeout"}
    assert reasons == ["timeout"]


def test_a_handler_that_hangs_is_left_alone_and_its_slot_stays_taken(
    stub: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    worker = made(stub, concurrency=2)
    release = threading.Event()

    @worker.handler("hangs")
    def hangs(_job: JobContext) -> None:
        release.wait(120)

    @worker.handler("t")
    def quick(_job: JobContext) -> None: ...

    # Long enough to begin, be the machine as busy as it may.
    hung = stub.push("hangs", timeout_ms=1_000)
    with working(worker, stub):
        until(lambda: hung in stub.failed)
        last = stub.push("t")
        until(done(stub, last))
        assert stub.to("workers/fetch")[-1]["count"] == 1
        release.set()
        until(lambda: "ended after it was given up" in caplog.text)
        until(lambda: stub.to("workers/fetch")[-1]["count"] == 2)
    assert stub.failed[hung]["code"] == "timeout"
    assert hung not in stub.done
    assert caplog.text.count("does not stop") == 1


def test_a_worker_all_of_whose_handlers_hang_ends_with_an_error(stub: StubServer) -> None:
    worker = made(stub, concurrency=1)
    release = threading.Event()
    worker.handler("hangs")(lambda _job: release.wait(120))
    stub.push("hangs", timeout_ms=1_000)
    with pytest.raises(WorkerStuck), working(worker, stub) as thread:
        thread.join(60)
    release.set()
    assert len(stub.failed) == 1


def test_a_coroutine_that_blocks_the_loop_is_told_and_beats_go_on(
    stub: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    worker = made(stub, heartbeat_s=0.05)
    go_on = threading.Event()

    @worker.handler("blocks")
    async def blocks(_job: JobContext) -> None:
        go_on.wait(20)

    job_id = stub.push("blocks")
    with working(worker, stub):
        until(lambda: "the event loop stands still" in caplog.text)
        beats = len(stub.to("workers/heartbeat"))
        until(lambda: len(stub.to("workers/heartbeat")) > beats + 1)
        go_on.set()
        until(done(stub, job_id))
    assert caplog.text.count("the event loop stands still") == 1


@pytest.mark.parametrize("how", ["lost", "cancelled"])
def test_a_job_that_is_not_ours_any_more_is_left(how: str, stub: StubServer) -> None:
    worker = made(stub, heartbeat_s=0.05)
    reasons: list[str] = []

    @worker.handler("t")
    def handle(job: JobContext) -> None:
        try:
            job.sleep(20)
        finally:
            reasons.append(job.cancelled)

    @worker.handler("later")
    async def later(job: JobContext) -> None:
        try:
            await asyncio.sleep(20)
        finally:
            reasons.append(job.cancelled)

    ids = {stub.push("t"), stub.push("later")}
    with working(worker, stub):
        until(lambda: ids <= stub.leased.keys())
        getattr(stub, how).update(ids)
        until(lambda: len(reasons) == 2)
    assert reasons == [how, how]
    assert (stub.acked, stub.failed, stub.given_back) == ({}, {}, [])


def test_progress_is_sent_in_the_background(stub: StubServer) -> None:
    worker = made(stub, heartbeat_s=1.0)
    go_on = threading.Event()

    @worker.handler("t")
    def handle(job: JobContext) -> None:
        for step in range(100):
            job.progress(step / 100, "on it", {"step": step})
        go_on.wait(20)

    stub.push("t")
    with working(worker, stub):
        until(lambda: stub.progress)
        go_on.set()
    assert stub.progress[0]["progress"] == 0.99
    assert stub.progress[0].items() >= {"message": "on it", "data": {"step": 99}}.items()
    assert len(stub.progress) == 1


def test_a_worker_that_stops_gives_its_jobs_back(stub: StubServer) -> None:
    worker = made(stub, grace_s=0.0)
    go_on = threading.Event()

    @worker.handler("t")
    def handle(job: JobContext) -> None:
        job.sleep(60)

    @worker.handler("later")
    async def later(_job: JobContext) -> None:
        await asyncio.sleep(60)

    @worker.handler("hangs")
    def hangs(_job: JobContext) -> None:
        go_on.wait(60)

    ids = {stub.push("t"), stub.push("later"), stub.push("hangs")}
    with working(worker, stub) as thread:
        until(lambda: ids <= stub.leased.keys())
        worker.stop()
        thread.join(30)
        assert not thread.is_alive()  # it does not wait for what hangs
        go_on.set()
    assert set(stub.given_back) == ids
    assert not stub.acked
    states = [body.get("state") for body in stub.to("workers/heartbeat")]
    assert states[-1] == "terminate"


def test_jobs_may_end_within_the_grace_time(stub: StubServer) -> None:
    worker = made(stub, grace_s=20.0)
    go_on = threading.Event()

    @worker.handler("t")
    def handle(_job: JobContext) -> str:
        go_on.wait(20)
        return "whole"

    job_id = stub.push("t")
    with working(worker, stub) as thread:
        until(lambda: stub.leased)
        worker.stop()
        until(lambda: any(body.get("state") for body in stub.to("workers/heartbeat")))
        fetches = len(stub.to("workers/fetch"))
        go_on.set()
        thread.join(60)
    assert stub.done == {job_id: "whole"}
    assert len(stub.to("workers/fetch")) == fetches


def test_it_does_as_the_server_says(stub: StubServer) -> None:
    worker = made(stub, heartbeat_s=0.05, idle_heartbeat_s=0.05)
    worker.handler("t")(lambda _job: None)
    with working(worker, stub) as thread:
        stub.directive = "quiet"
        until(lambda: any(b.get("state") == "quiet" for b in stub.to("workers/heartbeat")))
        waiting, fetches = stub.push("t"), len(stub.to("workers/fetch"))
        beats = len(stub.to("workers/heartbeat"))
        until(lambda: len(stub.to("workers/heartbeat")) > beats + 2)
        assert len(stub.to("workers/fetch")) <= fetches + 1
        stub.directive = "running"
        until(done(stub, waiting))
        stub.directive = "terminate"
        thread.join(60)
        assert not thread.is_alive()


def test_middleware_is_around_handlers_of_its_sort(stub: StubServer) -> None:
    worker = made(stub)
    seen: list[str] = []

    @worker.middleware
    def outer(job: JobContext, following: Callable[[JobContext], Any]) -> Any:
        seen.append(f"outer {job.job.type}")
        result = following(job)
        seen.append("outer ends")
        return [result]

    @worker.middleware
    def inner(job: JobContext, following: Callable[[JobContext], Any]) -> Any:
        seen.append("inner")
        return following(job)

    @worker.middleware
    async def awaited(job: JobContext, following: Callable[[JobContext], Any]) -> Any:
        return {"awaited": await following(job)}

    worker.handler("t")(lambda _job: 1)

    @worker.handler("later")
    async def later(_job: JobContext) -> int:
        return 2

    assert worker.perform(_job(stub)).entry == {"result": [1]}
    assert worker.perform(_job(stub, "later")).entry == {"result": {"awaited": 2}}
    assert seen == ["outer t", "inner", "outer ends"]


def test_the_same_job_again_is_told_apart_by_its_token(stub: StubServer) -> None:
    """Its lease ended while the handler ran, and it came back to this worker."""
    worker = made(stub)
    first_on, second_on = threading.Event(), threading.Event()

    @worker.handler("t")
    def handle(job: JobContext) -> str:
        (first_on if job.attempt == 1 else second_on).wait(20)
        return f"attempt {job.attempt}"

    job_id = stub.push("t")
    with working(worker, stub):
        until(lambda: job_id in stub.leased)
        stub.waiting.append(stub.leased[job_id])
        until(lambda: stub.leased[job_id]["attempt"] == 2)
        first_on.set()
        until(lambda: any("acks" in body for body in stub.to("workers/fetch")))
        assert not stub.done
        second_on.set()
        until(done(stub, job_id))
    assert stub.done == {job_id: "attempt 2"}
    assert stub.acked == {job_id: 1}


@pytest.mark.parametrize(
    "options",
    [
        {"queues": None}, {"queues": "q"}, {"concurrency": 0}, {"lease_s": 0.5},
        {"lease_s": 20.0, "heartbeat_s": 7.0}, {"poll_s": 0},
        {"grace_s": -1}, {"timeout_s": 0}, {"queues": []},
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(options: dict[str, Any], stub: StubServer) -> None:
    with pytest.raises(ValueError, match=r"queues|concurrency|heartbeat|lease_s|poll_s|timeout"):
        made(stub, **options)


def test_a_worker_needs_handlers_a_url_and_one_handler_for_a_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OJS_URL", raising=False)
    worker = Worker(queues=["q"])
    with pytest.raises(ValueError, match="handlers"):
        worker.run()
    worker.handler("t")(lambda _job: None)
    with pytest.raises(ValueError, match="already"):
        worker.handler("t")(lambda _job: None)
    with pytest.raises(ValueError, match="OJS_URL"):
        worker.run()


def test_fifty_jobs_wait_at_once(stub: StubServer) -> None:
    worker = made(stub, concurrency=50)
    together = threading.Barrier(51)

    @worker.handler("t")
    def handle(_job: JobContext) -> None:
        together.wait(20)

    ids = [stub.push("t") for _ in range(50)]
    with working(worker, stub):
        together.wait(20)
        until(done(stub, *ids))


def test_each_job_has_one_line_in_the_log(
    stub: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ojs_aws")
    worker = made(stub)
    worker.handler("t")(lambda job: job.args[0])
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    good, bad = stub.push("t", 1, meta={"traceparent": trace}), stub.push("t")
    with working(worker, stub):
        until(lambda: good in stub.done and bad in stub.failed)
    (done_line,) = [r for r in caplog.records if getattr(r, "job_id", None) == good]
    (failed_line,) = [r for r in caplog.records if getattr(r, "job_id", None) == bad]
    assert done_line.levelname == "INFO"
    assert vars(done_line).items() >= {
        "job_type": "t", "queue": "q", "attempt": 1, "state": "completed",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    }.items()  # fmt: skip
    assert (failed_line.levelname, failed_line.error_code) == ("WARNING", "handler_error")  # type: ignore[attr-defined]


def test_lines_of_json(stub: StubServer) -> None:
    handler = logging.StreamHandler(written := io.StringIO())
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("ojs_aws")
    logger.addHandler(handler)
    try:
        worker = made(stub)
        worker.handler("t")(lambda job: job.args[0])
        job_id = stub.push("t")
        with working(worker, stub):
            until(lambda: job_id in stub.failed)
    finally:
        logger.removeHandler(handler)
    (line,) = [json.loads(each) for each in written.getvalue().splitlines()]
    assert line.items() >= {
        "level": "WARNING", "logger": "ojs_aws.worker", "job_id": job_id, "job_type": "t",
        "queue": "q", "attempt": 1, "error_code": "handler_error",
    }.items()  # fmt: skip
    assert line["message"].endswith("failed: IndexError: list index out of range")
    assert line["time"].endswith("Z")
    try:
        int("x")
    except ValueError:
        record = logger.makeRecord("n", 40, "f", 1, "m %s", (1,), sys.exc_info())
    shown = json.loads(JsonFormatter().format(record))
    assert (shown["message"], "ValueError" in shown["exception"]) == ("m 1", True)


@pytest.mark.parametrize(
    ("lease_s", "heartbeat_s", "asked_ms", "every_s"),
    [
        (60, None, None, 20.0),
        (60, None, 20_000, 20.0),
        (60, None, 7_000, 7.0),
        (30, None, 20_000, 10.0),
        (60, 4.0, 20_000, 4.0),
        (60, None, 0, 1.0),
    ],
)
def test_the_next_heartbeat_is_sent_when_the_server_asks_within_a_third_of_the_lease(
    stub: StubServer,
    lease_s: float,
    heartbeat_s: float | None,
    asked_ms: int | None,
    every_s: float,
) -> None:
    worker = made(stub, lease_s=lease_s, heartbeat_s=heartbeat_s)
    worker.handler("t")(lambda _job: None)
    if asked_ms is not None:
        stub.more_of_heartbeat["heartbeat_interval_ms"] = asked_ms
    session = Session(worker.settings, worker.handlers, stub.client(), "w")
    assert session._beat() is None
    assert session._beat_s == every_s
