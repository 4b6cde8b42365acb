"""A worker and a server that is away, slow, busy or talks nonsense: nothing lost or twice."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import httpx
import pytest

from ojs_aws import ApiError, BadRequest, JobContext
from ojs_aws.worker.trouble import Trouble
from tests.library.stub import Fault, StubServer, made, until, working


@pytest.fixture
def stub() -> StubServer:
    return StubServer()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses are as many as in life, but short."""
    note = Trouble.note
    monkeypatch.setattr(Trouble, "note", lambda self, error: note(self, error) / 1_000)


def away(_request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


def lost(_request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("slow")


def says(status: int, body: Any = None, **headers: str) -> Fault:
    content = {"content": body} if isinstance(body, str) else {"json": body or {}}
    return lambda _request: httpx.Response(status, headers=headers, **content)


def body_of(stub: StubServer) -> dict[str, Any]:
    """Of the request that is being answered."""
    return stub.asked[-1][1]


FAULTS = {
    "away": away,
    "slow": lost,
    "401": says(401, {"message": "Unauthorized"}),
    "403": says(403, {"error": {"code": "permission_denied", "message": "no"}}),
    "429": says(429, {"error": {"code": "too_many"}}, **{"Retry-After": "1"}),
    "503": says(503, {"error": {"code": "backend_unavailable", "message": "busy"}}),
    "a page": says(200, "<html>"),
    "a page that fails": says(502, "<html>"),
    "a list": says(200, [1]),
    "no jobs": says(200, {"jobs": 3}),
    "no job": says(200, {"jobs": [{"id": 1}]}),
    "a job without arguments": says(200, {"jobs": [{"id": "a", "type": "t", "args": {}}]}),
    "odd meta": says(200, {"jobs": [{"id": "a", "type": "t", "args": [], "meta": []}]}),
    "404": says(404, {"message": "Not Found"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_server_that_fails_for_a_while_costs_one_line(
    name: str, stub: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ojs_aws")
    worker = made(stub, heartbeat_s=0.05, idle_heartbeat_s=0.05)
    worker.handler("t")(lambda job: job.args)
    job_ids = [stub.push("t", n) for n in range(3)]
    with working(worker, stub):
        until(lambda: len(stub.done) == 3)
        stub.fail("workers/fetch", *[FAULTS[name]] * 5)
        stub.fail("workers/heartbeat", *[FAULTS[name]] * 3)
        last = stub.push("t", 4)
        until(lambda: last in stub.done)
        until(lambda: not stub.faults["workers/heartbeat"])
    assert stub.acked == dict.fromkeys([*job_ids, last], 1)
    lines = [r.getMessage() for r in caplog.records if "Server request" in r.message]
    assert len([line for line in lines if "failed" in line]) == 1
    assert len([line for line in lines if "recovered" in line]) == 1
    beats = [r for r in caplog.records if "Heartbeat failed" in r.getMessage()]
    assert len(beats) == 1


@pytest.mark.parametrize("name", ["away", "401", "503", "a page"])
def test_a_worker_waits_for_its_server(name: str, stub: StubServer) -> None:
    worker = made(stub)
    worker.handler("t")(lambda job: job.args)
    stub.fail("workers/register", *[FAULTS[name]] * 3)
    job_id = stub.push("t")
    with working(worker, stub):
        until(lambda: job_id in stub.done)


def test_a_worker_that_the_server_never_takes_ends(stub: StubServer) -> None:
    worker = made(stub)
    worker.handler("t")(lambda job: job.args)
    stub.fail("workers/register", says(400, {"error": {"code": "invalid_request", "message": "q"}}))
    with pytest.raises(BadRequest, match="400 invalid_request: q"), working(worker, stub):
        pass


def test_a_worker_can_be_stopped_while_it_waits_for_its_server(stub: StubServer) -> None:
    worker = made(stub)
    worker.handler("t")(lambda job: job.args)
    stub.always = lambda _path: away
    with working(worker, stub):
        until(lambda: len(stub.asked) > 2)
    assert {path for path, _ in stub.asked} == {"workers/register"}


def test_an_ack_whose_answer_was_lost_is_told_again(stub: StubServer) -> None:
    worker = made(stub)
    worker.handler("t")(lambda _job: "done")
    carried: list[Any] = []

    def settled_but_lost(request: httpx.Request) -> httpx.Response:
        stub(request)  # the server has done it
        raise httpx.ReadError("lost")

    def look(path: str) -> Fault | None:
        body = stub.asked[-1][1]
        if path == "workers/fetch" and "acks" in body and not carried:
            carried.append(body)
            return settled_but_lost
        return None

    stub.always = look
    job_id = stub.push("t")
    with working(worker, stub):
        until(lambda: job_id in stub.done)
        until(lambda: len([b for _, b in list(stub.asked) if "acks" in b]) > 1)
    assert stub.acked == {job_id: 1}


@pytest.mark.parametrize("how", ["503 for the entry", "no outcomes", "the wrong one", "away"])
def test_what_was_not_heard_is_told_until_it_is(how: str, stub: StubServer) -> None:
    worker = made(stub)
    fault: dict[str, Fault] = {
        "no outcomes": says(200, {"jobs": []}),
        "the wrong one": says(200, {"jobs": [], "acks": [{"job_id": "x", "status": 200}]}),
        "away": away,
    }
    worker.handler("t")(lambda _job: None)
    tried: list[int] = []

    def look(path: str) -> Fault | None:
        told = path in ("workers/fetch", "workers/ack") and "acks" in stub.asked[-1][1]
        if told and how in fault and len(tried) < 3:
            tried.append(1)
            return fault[how]
        return None

    stub.always = look
    job_id = stub.push("t")
    if how not in fault:
        stub.statuses[job_id] = 503
    with working(worker, stub):
        until(lambda: len([b for _, b in list(stub.asked) if "acks" in b]) > 2)
        stub.statuses.clear()
        until(lambda: job_id in stub.done)
    assert stub.acked == {job_id: 1}


def test_outcomes_that_say_later_make_no_flood(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.undo()  # pauses as they are
    caplog.set_level(logging.INFO, "ojs_aws")
    worker = made(stub)
    worker.handler("t")(lambda _job: None)
    job_id = stub.push("t")
    stub.statuses[job_id] = 503
    with working(worker, stub):
        until(lambda: "Server request failed" in caplog.text)
        began = time.monotonic()
        time.sleep(0.1)  # long for what is tried at once
        told = len([b for _, b in list(stub.asked) if "acks" in b])
        paused_s = time.monotonic() - began
        stub.statuses.clear()
        until(lambda: job_id in stub.done)
    # The first pause is a quarter of a second or more.
    assert told <= 1 + paused_s / 0.25
    assert "recovered" in caplog.text


def test_jobs_that_come_after_the_stop_are_given_back(stub: StubServer) -> None:
    worker = made(stub)
    ran: list[str] = []
    worker.handler("t")(lambda job: ran.append(job.id))

    def late(request: httpx.Request) -> httpx.Response:
        worker.stop()
        return stub(request)

    stub.fail("workers/fetch", late)
    ids = [stub.push("t"), stub.push("t")]
    with working(worker, stub) as thread:
        thread.join(60)
    assert sorted(stub.given_back) == sorted(ids)
    assert ran == []


def test_a_server_that_hangs_does_not_hold_up_the_end(stub: StubServer) -> None:
    worker = made(stub, grace_s=0.0, settle_s=0.1)
    worker.handler("t")(lambda _job: None)
    go_on = threading.Event()

    def hangs(request: httpx.Request) -> httpx.Response:
        # As with a socket: the deregistration ends after its own timeout.
        if not go_on.wait(request.extensions["timeout"]["read"]):
            raise httpx.ReadTimeout("timed out", request=request)
        return stub(request)

    with working(worker, stub) as thread:
        until(lambda: stub.to("workers/fetch"))
        stub.always = lambda _path: None if go_on.is_set() else hangs
        asked = len(stub.asked)
        until(lambda: len(stub.asked) > asked)
        worker.stop()
        thread.join(worker.settings.longest_end_s + 30)
        assert not thread.is_alive()
        assert not go_on.is_set()
        go_on.set()


def test_a_report_that_is_refused_for_itself_is_told_once(
    stub: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    worker = made(stub)
    worker.handler("t")(lambda _job: None)
    job_id = stub.push("t")
    stub.statuses[job_id] = 409
    with working(worker, stub):
        until(lambda: "Report rejected by the server" in caplog.text)
        last = stub.push("t")
        until(lambda: last in stub.done)
    assert len([b for _, b in stub.asked if "acks" in b]) == 2
    assert caplog.text.count("Report rejected by the server") == 1


def test_a_result_that_the_server_cannot_take_fails_its_job_alone(stub: StubServer) -> None:
    worker = made(stub, report_s=0.3, first_poll_s=0.3)
    together = threading.Barrier(3)

    @worker.handler("t")
    def handle(job: JobContext) -> Any:
        together.wait(60)
        if len(job.args[0]) < 10:
            time.sleep(0.02)  # the other one ends first, and is told first
        return job.args[0]

    def too_large(path: str) -> Fault | None:
        body = stub.asked[-1][1]
        entries = [body, *body.get("acks", [])]
        if path.startswith("workers/") and any(e.get("result") == "large" for e in entries):
            return says(413, {"error": {"code": "payload_too_large", "message": "6 MB"}})
        return None

    stub.always = too_large
    # One that the key may not ack is no reason to wait, either.
    other = stub.push("t", "of a queue that is not ours")
    stub.statuses[other] = 403
    good, bad = stub.push("t", "small"), stub.push("t", "large")
    with working(worker, stub):
        until(lambda: good in stub.done and bad in stub.failed)
    assert stub.failed[bad]["code"] == "report_refused"
    assert "6 MB" in stub.failed[bad]["message"]
    assert stub.acked == {good: 1}


def test_a_fetch_that_fails_tells_the_outcomes_all_the_same(
    stub: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    """As the server answers when claiming fails after acks were settled."""
    worker = made(stub)
    worker.handler("t")(lambda _job: None)
    answered: list[int] = []

    def half(request: httpx.Request) -> httpx.Response:
        answer: dict[str, Any] = stub(request).json()
        error = {"code": "backend_unavailable", "message": "busy"}
        return httpx.Response(200, json={**answer, "jobs": [], "fetch_error": error})

    def look(path: str) -> Fault | None:
        if path == "workers/fetch" and len(answered) < 5 and (answered or "acks" in body_of(stub)):
            answered.append(1)
            return half
        return None

    stub.always = look
    first = stub.push("t")
    with working(worker, stub):
        until(lambda: first in stub.done)
        second = stub.push("t")
        until(lambda: second in stub.done)
    assert stub.acked == {first: 1, second: 1}
    assert caplog.text.count("Server request failed") == 1


def test_reports_that_are_not_heard_do_not_keep_a_worker_from_ending(
    stub: StubServer, caplog: pytest.LogCaptureFixture
) -> None:
    worker = made(stub, grace_s=0.0, settle_s=0.1)
    worker.handler("t")(lambda _job: None)
    stub.push("t")
    told = ("workers/ack", "workers/fetch")

    def deaf(path: str) -> Fault | None:
        return away if path in told and "acks" in stub.asked[-1][1] else None

    stub.always = deaf
    with working(worker, stub):
        until(lambda: any("acks" in body for _, body in list(stub.asked)))
    assert "Reports were not confirmed in time: 1." in caplog.text
    assert not stub.done
    # Nothing of the worker is left that asks the server: the process may go on without it.
    until(lambda: "ojs-server" not in {each.name for each in threading.enumerate()})


def test_a_key_that_is_refused_is_not_tried_again_at_once() -> None:
    logger = logging.getLogger("ojs_aws.test")
    refused = ApiError(401, {"message": "Unauthorized"})
    assert Trouble(logger, "it", {}).note(refused) == pytest.approx(0.03)  # 30 s: see `quick`
    busy = Trouble(logger, "it", {})
    pauses = [busy.note(ApiError(503, {})) * 1_000 for _ in range(12)]
    assert 0.25 <= pauses[0] <= 0.5
    assert all(15 <= each <= 30 for each in pauses[-4:])
