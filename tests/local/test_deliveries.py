"""Deliveries of a local server: to handlers in processes, and to endpoints on this machine."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from local.__main__ import _parse
from local.deliveries import LocalDeliveries, Timers, described
from ojs.clock import ManualClock
from tests.local.conftest import RunningServer
from tests.unit.targets import endpoints

HERE = str(Path(__file__).parent)
ONCE = {"retry": {"max_attempts": 1}}


def until(found: Callable[[], Any], seconds: float = 60.0, pause_s: float = 0.05) -> Any:
    """What is found at last; a server's threads take their time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := found():
            return value
        time.sleep(pause_s)
    raise AssertionError("it never came")


class TestTimers:
    """Without the thread: what is due is taken by hand."""

    def made(self) -> tuple[Timers, ManualClock]:
        clock = ManualClock()
        return Timers(clock, lambda _name: None), clock

    def test_a_delivery_that_was_asked_for_twice_is_looked_at_once(self) -> None:
        timers, _ = self.made()
        timers.wake(["a", "b"])
        timers.wake(["a"])
        assert timers._take() == ["a", "b"]
        assert timers._take() == []

    def test_what_is_due_later_waits(self) -> None:
        timers, clock = self.made()
        timers.wake(["a"], delay_s=5)
        timers.wake(["b"], delay_s=3)
        assert timers._take() == []
        clock.advance(3_000)
        assert timers._take() == ["b"]
        clock.advance(2_000)
        assert timers._take() == ["a"]

    def test_the_thread_wakes_and_ends(self) -> None:
        woken = threading.Event()
        timers = Timers(ManualClock(), lambda _name: woken.set())
        timers.start()
        timers.wake(["a"])
        assert woken.wait(60)
        timers.stop()


def test_what_the_option_stands_for() -> None:
    assert described("mail", "worker:handler") == {
        "target": {"handler": "worker:handler"}, "queues": ["mail"],
    }  # fmt: skip
    assert described("mail", "http://localhost:9000/")["target"] == {
        "endpoint": "http://localhost:9000/"
    }


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("mail=worker:handler", ("mail", "worker:handler")),
        ("mail=jobs.mail:handle", ("mail", "jobs.mail:handle")),
        ("mail=http://localhost:9000/a?b=c", ("mail", "http://localhost:9000/a?b=c")),
        ("mail=https://example.com/", ("mail", "https://example.com/")),
        ("mail", None), ("=worker:handler", None), ("mail=worker", None), ("mail=", None),
        ("mail=ftp://example.com/", None), ("mail=worker:handler()", None),
    ],
)  # fmt: skip
def test_what_the_option_takes(
    given: str, read: tuple[str, str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if read is None:
        with pytest.raises(SystemExit):
            _parse(["--deliver", given])
        assert "QUEUE=module:function" in capsys.readouterr().err
    else:
        assert _parse(["--deliver", given]).deliver == [read]


@pytest.mark.parametrize(
    ("loopback", "url", "rule"),
    [
        (False, "http://localhost:9/", "must use https. .*--allow-loopback-endpoints"),
        (False, "https://127.0.0.1/", "must have a public address. .*--allow-loopback-endpoints"),
        (True, "http://example.com/", "must use https"),
        (True, "https://10.0.0.1/", "must have a public address"),
    ],
)
def test_which_endpoints_may_be_named(loopback: bool, url: str, rule: str) -> None:
    check = LocalDeliveries(ManualClock(), loopback=loopback).parts.allowed.check_endpoint
    assert check is not None
    with pytest.raises(ValueError, match=rule):
        check(url)


# --- A whole server ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pushing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("pushing")
    running = RunningServer(
        folder / "data", folder / "printed", "--deliver", "work=pushed:handler",
        "--deliver-folder", HERE, "--allow-loopback-endpoints",
    )  # fmt: skip
    yield running
    assert running.end() == 0
    assert "Traceback" not in running.printed


def ended(server: RunningServer, job: dict[str, Any]) -> dict[str, Any]:
    """The job once it has ended."""

    def final() -> dict[str, Any] | None:
        shown: dict[str, Any] = server.call("GET", f"/ojs/v1/jobs/{job['id']}")[1]
        shown = shown.get("job", shown)
        return shown if shown["state"] in ("completed", "discarded") else None

    found: dict[str, Any] = until(final)
    return found


@pytest.mark.e2e
@pytest.mark.exhaustive
def test_each_job_ends_as_its_handler_does(pushing: RunningServer) -> None:
    answers: dict[str, tuple[list[Any], str]] = {
        "done": (["work", 1], ""),
        "raised": (["raise"], "handler_error"),
        "died": (["exit"], "crash"),
        "said nothing": (["say", None], "invalid_response"),
        "said it of another": (["say", {"status": "completed", "job_id": "x"}], "invalid_response"),
        "said it failed": (["say", {"status": "failed", "error": "no"}], "handler_error"),
        "refused": (["say", {"status": "failed", "error": {"code": "x", "retryable": False}}], "x"),
    }
    jobs = {
        name: pushing.enqueue(queue="work", args=args, options=ONCE)
        for name, (args, _) in answers.items()
    }
    for name, (_, code) in answers.items():
        job = ended(pushing, jobs[name])
        assert job["state"] == ("discarded" if code else "completed"), name
        assert job.get("error", {}).get("code", "") == code, name
        assert job["worker_id"] == "push_worker_work"


@pytest.mark.e2e
@pytest.mark.exhaustive
def test_a_handler_that_hangs_is_ended_and_tried_again(pushing: RunningServer) -> None:
    body = {"target": {"handler": "pushed:handler"}, "queues": ["slow"], "timeout_ms": 1_000}
    assert pushing.call("PUT", "/ojs/v1/admin/deliveries/slow", body)[0] == 201
    retry = {"retry": {"max_attempts": 2, "initial_interval": "PT0.1S"}}
    job = ended(pushing, pushing.enqueue(queue="slow", args=["hang"], options=retry))
    assert (job["state"], job["attempt"], job["error"]["code"]) == ("discarded", 2, "timeout")


@pytest.mark.e2e
@pytest.mark.exhaustive
def test_batches_are_done_and_workers_still_fetch(pushing: RunningServer) -> None:
    body = {
        "target": {"handler": "pushed:handler"}, "queues": ["many"], "form": "sqs",
        "batch_size": 10, "paused": True,
    }  # fmt: skip
    assert pushing.call("PUT", "/ojs/v1/admin/deliveries/many", body)[0] == 201
    jobs = [pushing.enqueue(queue="many", args=["work"]) for _ in range(12)]
    (mine,) = pushing.fetch("many", count=1)
    assert pushing.call("POST", "/ojs/v1/workers/ack", {"job_id": mine["id"]})[0] == 200
    assert pushing.call("POST", "/ojs/v1/admin/deliveries/many/resume")[0] == 200
    assert {ended(pushing, job)["state"] for job in jobs} == {"completed"}


@pytest.mark.e2e
@pytest.mark.exhaustive
def test_what_may_not_be_named_is_refused(pushing: RunningServer) -> None:
    for target, status in (
        ({"handler": "os:system"}, 422),
        ({"function": "arn:aws:lambda:eu-central-1:123456789012:function:any"}, 422),
        ({"endpoint": "http://example.com/"}, 422),
        ({"endpoint": "https://10.0.0.1/"}, 422),
        ({"endpoint": "https://169.254.169.254/"}, 422),
        ({"endpoint": "file:///etc/passwd"}, 400),
        ({}, 400),
    ):
        body = {
            "target": target,
            "queues": ["any"],
            "signing_secret": "whsec_test_of_24_bytes_and_more",
        }
        answer = pushing.call("PUT", "/ojs/v1/admin/deliveries/any", body)
        assert answer[0] == status, answer
        assert "target" in json.dumps(answer[1])
    unsigned = {"endpoint": "https://example.com/", "queues": ["any"]}
    status, answer = pushing.call("PUT", "/ojs/v1/admin/deliveries/any", unsigned)
    assert (status, answer["error"]["details"]["field"]) == (422, "signing_secret")
    assert pushing.call("GET", "/ojs/v1/admin/deliveries/any")[0] == 404


class Endpoint(ThreadingHTTPServer):
    """Answers as it is told, at random if that is said; remembers what it was asked."""

    daemon_threads = True

    def __init__(self, answers: Callable[[str], tuple[int, bytes]]) -> None:
        self.answers = answers
        self.asked: Counter[str] = Counter()
        self.deliveries: list[str] = []
        self.last: dict[str, str] = {}
        self.outcomes: dict[str, list[int]] = {}
        super().__init__(("127.0.0.1", 0), Answering)

    def handle_error(self, *_: Any) -> None:
        """Nothing: a server that has read enough of a large answer hangs up."""

    @property
    def url(self) -> str:
        return f"http://localhost:{self.server_address[1]}/"


class Answering(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        job_id = body["job"]["id"]
        self.server.asked[job_id] += 1
        self.server.deliveries.append(self.headers["X-OJS-Delivery-ID"])
        self.server.last = dict(self.headers.items())
        status, text = self.server.answers(job_id)
        self.server.outcomes.setdefault(job_id, []).append(status)
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: Any) -> None:
        """Nothing: the tests say what matters."""


@contextmanager
def endpoint(answers: Callable[[str], tuple[int, bytes]]) -> Iterator[Endpoint]:
    made = Endpoint(answers)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    try:
        yield made
    finally:
        made.shutdown()
        made.server_close()
        thread.join()


DONE = json.dumps({"status": "completed"}).encode()


def put(server: RunningServer, name: str, url: str, **more: Any) -> None:
    body = {
        "target": {"endpoint": url},
        "queues": [name],
        "signing_secret": "whsec_test_of_24_bytes_and_more",
        **more,
    }
    status, answer = server.call("PUT", f"/ojs/v1/admin/deliveries/{name}", body)
    assert status == 201, answer


@pytest.mark.e2e
@pytest.mark.exhaustive
def test_endpoints_are_asked_and_their_answers_count(pushing: RunningServer) -> None:
    answers = {
        "ok": (200, DONE), "bad": (400, b""), "large": (200, b"1" * 10_000_000),
        "text": (200, b"OK"),
    }  # fmt: skip
    kinds: dict[str, str] = {}
    with endpoint(lambda job_id: answers[kinds[job_id]]) as there:
        put(pushing, "hooks", there.url, paused=True)
        jobs = {kind: pushing.enqueue(queue="hooks", options=ONCE) for kind in answers}
        kinds |= {job["id"]: kind for kind, job in jobs.items()}
        pushing.call("POST", "/ojs/v1/admin/deliveries/hooks/resume")
        found = {kind: ended(pushing, job) for kind, job in jobs.items()}
    assert {kind: job["state"] for kind, job in found.items()} == {
        "ok": "completed", "bad": "discarded", "large": "discarded", "text": "discarded",
    }  # fmt: skip
    assert found["large"]["error"]["code"] == found["text"]["error"]["code"] == "invalid_response"
    assert there.last["X-OJS-Signature"].startswith("sha256=")
    assert set(there.asked.values()) == {1}


@pytest.mark.e2e
@pytest.mark.exhaustive
def test_an_endpoint_that_is_gone_keeps_its_jobs(pushing: RunningServer) -> None:
    with endpoint(lambda _id: (404, b"")) as there:
        put(pushing, "gone", there.url)
        job = pushing.enqueue(queue="gone")

        def disabled() -> bool:
            shown = pushing.call("GET", "/ojs/v1/admin/deliveries/gone")[1]
            return bool(shown["state"] == "disabled")

        until(disabled)
    shown = until(lambda: pushing.fetch("gone"))[0]
    assert (shown["id"], shown["attempt"]) == (job["id"], 1)


def _says(connection: socket.socket, **answer: Any) -> None:
    endpoints.answer(body=json.dumps(answer).encode())(connection)


def _hangs(connection: socket.socket) -> None:
    connection.recv(1)  # until the server hangs up


# What an endpoint does with the connection, and what its job failed for.
ODD: dict[str, tuple[endpoints.Answering, str]] = {
    "to-a-private-address": (
        endpoints.answer(302, headers="Location: http://169.254.169.254/latest/\r\n"),
        "delivery_error",
    ),
    "to-itself": (endpoints.answer(307, headers="Location: /jobs\r\n"), "delivery_error"),
    "hangs-up": (lambda _: None, "delivery_error"),
    "hangs": (_hangs, "timeout"),
    "of-another-job": (
        lambda connection: _says(connection, status="completed", job_id="x"),
        "invalid_response",
    ),
    "half": (
        lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"),
        "invalid_response",
    ),
}


@pytest.mark.e2e
@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ODD)
def test_an_endpoint_that_gives_no_answer_is_a_fault_and_asked_once(
    pushing: RunningServer, kind: str
) -> None:
    act, code = ODD[kind]
    with endpoints.endpoint(act) as there:
        put(pushing, kind, there.url, timeout_ms=1_000)
        job = ended(pushing, pushing.enqueue(queue=kind, options=ONCE))
    assert (job["state"], job["error"]["code"]) == ("discarded", code)
    assert job["error"]["details"]["error_class"] == "delivery_error"
    assert len(there.requests) == 1

    def noted() -> Any:
        shown = pushing.call("GET", f"/ojs/v1/admin/deliveries/{kind}")[1]
        return shown["statistics"]["faults"] and shown

    # What a target did is noted after its job has ended.
    shown = until(noted)
    assert (shown["state"], shown["statistics"]["faults"]) == ("active", 1)


@pytest.mark.e2e
@pytest.mark.exhaustive
def test_an_endpoint_that_throttles_is_left_alone_as_long_as_it_says(
    pushing: RunningServer,
) -> None:
    asked: list[float] = []

    def throttles_once(connection: socket.socket) -> None:
        asked.append(time.monotonic())
        first = endpoints.answer(429, headers="Retry-After: 2\r\n")
        (first if len(asked) == 1 else endpoints.answer())(connection)

    with endpoints.endpoint(throttles_once) as there:
        put(pushing, "throttled", there.url)
        job = ended(pushing, pushing.enqueue(queue="throttled", options=ONCE))
    # It was no attempt, and there is only one.
    assert (job["state"], job["attempt"], len(asked)) == ("completed", 1, 2)
    assert asked[1] - asked[0] >= 2


@pytest.mark.e2e
@pytest.mark.exhaustive
@pytest.mark.parametrize(("status", "reason"), [(410, "gone"), (401, "forbidden")])
def test_an_endpoint_that_lets_nobody_in_keeps_its_jobs(
    pushing: RunningServer, status: int, reason: str
) -> None:
    queue = f"status{status}"
    with endpoints.endpoint(endpoints.answer(status)) as there:
        put(pushing, queue, there.url)
        job = pushing.enqueue(queue=queue)

        def disabled() -> Any:
            shown = pushing.call("GET", f"/ojs/v1/admin/deliveries/{queue}")[1]
            return shown.get("disabled_reason")

        assert until(disabled) == reason
    with endpoints.endpoint(endpoints.answer()) as there:
        # Another target enables it again.
        body = {
            "target": {"endpoint": there.url},
            "queues": [queue],
            "signing_secret": "whsec_of_another_receiver_24",
        }
        assert pushing.call("PUT", f"/ojs/v1/admin/deliveries/{queue}", body)[0] == 200
        done = ended(pushing, job)
    assert (done["state"], done["attempt"]) == ("completed", 1)


@pytest.mark.e2e
@pytest.mark.exhaustive
@pytest.mark.parametrize("act", ["change", "delete", "pause"])
def test_what_is_under_way_ends_as_it_began(pushing: RunningServer, act: str) -> None:
    let = threading.Event()

    def waits(connection: socket.socket) -> None:
        assert let.wait(60)
        _says(connection, status="completed", result="the first")

    path = f"/ojs/v1/admin/deliveries/{act}"
    said = json.dumps({"status": "completed", "result": "another"}).encode()
    with (
        endpoints.endpoint(waits) as there,
        endpoints.endpoint(endpoints.answer(body=said)) as another,
    ):
        put(pushing, act, there.url, concurrency=1)
        job = pushing.enqueue(queue=act)
        until(lambda: there.requests)
        other = pushing.enqueue(queue=act)
        if act == "change":
            body = {
                "target": {"endpoint": another.url},
                "queues": [act],
                "concurrency": 1,
                "signing_secret": "whsec_of_another_receiver_24",
            }
            assert pushing.call("PUT", path, body)[0] == 200
        elif act == "delete":
            assert pushing.call("DELETE", path)[0] == 200
        else:
            assert pushing.call("POST", f"{path}/pause")[0] == 200
        let.set()
        done = ended(pushing, job)
        assert (done["state"], done["result"]) == ("completed", "the first")
        if act == "change":
            assert ended(pushing, other)["result"] == "another"
        elif act == "delete":
            # It is nobody's but those who fetch.
            (mine,) = until(lambda: pushing.fetch(act))
            assert (mine["id"], mine["attempt"]) == (other["id"], 1)
        else:
            assert pushing.call("GET", path)[1]["state"] == "paused"
            assert pushing.call("POST", f"{path}/resume")[0] == 200
            assert ended(pushing, other)["result"] == "the first"
    asked = [json.loads(body)["job"]["id"] for _, body in (*there.requests, *another.requests)]
    assert len(asked) == len(set(asked))


@pytest.mark.e2e
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(100, marks=pytest.mark.exhaustive),
        pytest.param(1_000, marks=pytest.mark.whole),
        pytest.param(10_000, marks=pytest.mark.whole),
    ],
)
def test_jobs_of_an_endpoint_that_fails_at_random_end_as_it_says(
    pushing: RunningServer, count: int
) -> None:
    """Done once it says so; never after it refused; and given up after the last attempt."""
    chance, name = random.Random(count), f"random{count}"
    # A throttle is rare: each has all of them wait for one or two seconds, and one in forty took
    # half of the time of 10 000 jobs. And so are five faults in a row, after which the breaker has
    # them wait for a minute.
    bad = [(200, b"?")] * 2 + [(400, b"")] * 4 + [(500, b"")] * 2
    answers = ([(200, DONE)] * 32 + bad) * 10 + [(429, b"")]
    with endpoint(lambda _id: chance.choice(answers)) as there:
        put(pushing, name, there.url, concurrency=16)
        retry = {"max_attempts": 4, "initial_interval": "PT0.1S", "max_interval": "PT0.1S"}
        ids = set()
        for start in range(0, count, 100):
            some = min(100, count - start)
            each = {"type": "t", "queue": name, "args": [], "options": {"retry": retry}}
            status, answer = pushing.call("POST", "/ojs/v1/jobs/batch", {"jobs": [each] * some})
            assert status in (200, 201), answer
            ids |= {job["id"] for job in answer["jobs"]}

        def over() -> bool:
            stats = pushing.call("GET", f"/ojs/v1/queues/{name}/stats")[1]
            stats = stats.get("stats", stats)
            return not any(stats[it] for it in ("available", "active", "scheduled", "retryable"))

        # Each look has the server bring its statistics up to date, which keeps it busy.
        until(over, 60 + count / 5, pause_s=1.0 if count < 1_000 else 10.0)
    assert there.outcomes.keys() == ids
    assert len(set(there.deliveries)) == len(there.deliveries)
    for job_id, statuses in list(there.outcomes.items())[:500]:
        shown = pushing.call("GET", f"/ojs/v1/jobs/{job_id}")[1]
        state = shown.get("job", shown)["state"]
        assert state in ("completed", "discarded")
        if state == "completed":
            assert statuses[-1] == 200
        if 400 in statuses:
            assert (state, statuses[-1]) == ("discarded", 400)
