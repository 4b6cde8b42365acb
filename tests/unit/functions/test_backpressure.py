"""Bounded queues over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from ojs.http.binding import negotiation
from ojs.http.parameters import MAX_BLOCK_S
from ojs.services.permits import backpressure as bounds

if TYPE_CHECKING:
    from tests.unit.functions.client import Api, Reply

BASE = "/ojs/v1"
DEPTH, BOUND, PRESSURE = "X-OJS-Queue-Depth", "X-OJS-Queue-Bound", "X-OJS-Queue-Pressure"


def bounded(api: Api, queue: str = "q", **backpressure: Any) -> None:
    path = f"{BASE}/admin/queues/{queue}/config"
    reply = api("PUT", path, {"backpressure": backpressure})
    assert reply.status == 200, reply.text


def job(queue: str = "q", **more: Any) -> dict[str, Any]:
    return {"type": "test.echo", "args": [1], "options": {"queue": queue}, **more}


def push(api: Api, queue: str = "q", **headers: str) -> Reply:
    return api("POST", f"{BASE}/jobs", job(queue), headers=headers)


def push_batch(api: Api, *queues: str, headers: dict[str, str] | None = None) -> Reply:
    body = {"jobs": [job(queue) for queue in queues]}
    return api("POST", f"{BASE}/jobs/batch", body, headers=headers)


def stored(api: Api, queue: str = "q") -> int:
    """Jobs that can be fetched; they are taken."""
    return len(api.fetch(queue, count=100))


def refused(reply: Reply, queue: str, depth: int, bound: int, strategy: str = "reject") -> None:
    """The answer to a push into a full queue."""
    assert (reply.status, reply.error["code"]) == (429, "QUEUE_FULL")
    told = {"queue": queue, "depth": depth, "bound": bound, "strategy": strategy}
    assert {name: reply.error[name] for name in told} == told
    assert reply.error["retryable"] is True
    assert (reply.headers[DEPTH], reply.headers[BOUND]) == (str(depth), str(bound))
    assert 1 <= int(reply.headers["Retry-After"]) <= 60
    assert PRESSURE not in reply.headers
    assert "Location" not in reply.headers


# --- reject -----------------------------------------------------------------------------------


@pytest.mark.requirement("QC-21", "BP-b", "BP-l", "BP-m", "BP-t")
def test_a_full_queue_refuses_at_once(api: Api) -> None:
    bounded(api, max_depth=2)
    assert [push(api).status for _ in range(2)] == [201, 201]
    reply = push(api)
    refused(reply, "q", 2, 2)
    assert reply.error.keys() == {
        "code", "type", "message", "queue", "depth", "bound", "strategy", "retryable", "details",
        "hint", "docs_url", "request_id", "catalog_code",
    }  # fmt: skip
    assert reply.error["catalog_code"] == "OJS-6001"
    assert reply.error["message"] == (
        "Queue 'q' doesn't have enough capacity: it contains 2 of at most 2 jobs. Retry after 5 s."
    )
    assert reply.headers["Retry-After"] == "5"
    # Not stored, under no id.
    assert stored(api) == 2


@pytest.mark.requirement("BP-b")
def test_the_job_that_was_refused_does_not_exist(api: Api) -> None:
    bounded(api, max_depth=1)
    push(api)
    job_id = "019539a4-0000-7000-8000-000000000000"
    refused(api.post(f"{BASE}/jobs", job(id=job_id)), "q", 1, 1)
    assert api.get(f"{BASE}/jobs/{job_id}").status == 404


@pytest.mark.requirement("QC-18", "QC-20", "QC-55", "BP-h", "BP-t")
@pytest.mark.parametrize(
    "config",
    [
        {"max_size": 2},
        {"max_depth": 2},
        {"backpressure": {"max_depth": 2}},
        {"backpressure": {"max_depth": 2, "strategy": "reject"}},
    ],
    ids=str,
)
@pytest.mark.parametrize("place", ["queues", "admin/queues"])
def test_every_form_sets_the_bound(api: Api, place: str, config: dict[str, Any]) -> None:
    assert api("PUT", f"{BASE}/{place}/q/config", config).status == 200
    assert [push(api).status for _ in range(3)] == [201, 201, 429]
    refused(push(api), "q", 2, 2)


@pytest.mark.requirement("BP-i", "BP-j")
def test_nothing_and_zero_are_unbounded(api: Api) -> None:
    bounded(api, "zero", max_depth=0, max_size_bytes=0)
    bounded(api, "lifted", max_depth=1)
    bounded(api, "lifted", max_depth=0)
    for queue in ("zero", "lifted", "untouched"):
        replies = [push(api, queue) for _ in range(5)]
        assert {reply.status for reply in replies} == {201}
        assert not any(name in reply.headers for reply in replies for name in (DEPTH, BOUND))


@pytest.mark.requirement("QC-20", "BP-i")
def test_the_defaults_of_bounds(api: Api) -> None:
    push(api)
    shown = api.get(f"{BASE}/queues/q/config").json["config"]["backpressure"]
    assert shown == {"strategy": "reject", "warning_threshold": 0.8}


@pytest.mark.requirement("BP-a", "QC-1")
def test_depth_is_jobs_that_are_not_final(api: Api) -> None:
    bounded(api, max_depth=5, warning_threshold=1)
    active = api.active("q")
    api.push("q", options={"pending": True})
    api.push("q", options={"scheduled_at": "+PT1H"})
    retried = api.push("q")
    (taken,) = api.fetch("q")
    assert taken["id"] == retried
    error = {"type": "Boom", "message": "no"}
    reply = api.post(f"{BASE}/workers/nack", {"job_id": retried, "error": error})
    assert reply.json["state"] == "retryable"
    cancelled = api.push("q")
    refused(push(api), "q", 5, 5)
    # Final jobs make room: by cancelling, by success, by failure.
    assert api("DELETE", f"{BASE}/jobs/{cancelled}").status == 200
    assert push(api).status == 201
    refused(push(api), "q", 5, 5)
    assert api.post(f"{BASE}/workers/ack", {"job_id": active}).status == 200
    assert push(api).status == 201
    refused(push(api), "q", 5, 5)
    (taken,) = api.fetch("q")
    final = {"error": {"message": "no", "retryable": False}}
    assert api.post(f"{BASE}/jobs/{taken['id']}/nack", final).json["state"] == "discarded"
    assert push(api).status == 201


@pytest.mark.requirement("QC-19", "QC-56", "BP-g")
def test_bytes_are_bounded_too(api: Api) -> None:
    bounded(api, max_size_bytes=2_000)
    large = job(args=["x" * 900])
    assert [api.post(f"{BASE}/jobs", large).status for _ in range(2)] == [201, 201]
    reply = api.post(f"{BASE}/jobs", large)
    depth = int(reply.headers[DEPTH])
    refused(reply, "q", depth, 2_000)
    assert 1_800 < depth <= 2_000
    assert reply.error["details"]["unit"] == "bytes"
    assert "2000 bytes" in reply.error["message"]


@pytest.mark.requirement("BP-g")
def test_the_first_bound_reached_counts(api: Api) -> None:
    bounded(api, "few", max_depth=1, max_size_bytes=1_000_000)
    bounded(api, "small", max_depth=1_000, max_size_bytes=50)
    assert push(api, "few").status == 201
    refused(push(api, "few"), "few", 1, 1)
    assert push(api, "small").status == 201
    reply = api.post(f"{BASE}/jobs", job("small", args=["x" * 30]))
    used = reply.error["depth"]
    assert 0 < used <= 50
    refused(reply, "small", used, 50)


@pytest.mark.requirement("BP-o", "BP-w")
def test_a_bound_and_a_rate_limit_hold_together(api: Api) -> None:
    bounded(api, max_depth=2)
    api("PUT", f"{BASE}/queues/q/config", {"rate_limit": {"limit": 1, "period": "PT1M"}})
    for _ in range(2):
        assert push(api).status == 201
    assert len(api.fetch("q", count=5, worker_id="w")) == 1
    assert push(api).status == 429
    api.clock.advance(66_001)
    (job,) = api.fetch("q", count=5, worker_id="w")
    api.post(f"{BASE}/workers/ack", {"job_id": job["id"], "worker_id": "w"})
    assert push(api).status == 201
    assert api.fetch("q", count=5, worker_id="w") == []


# --- batches ----------------------------------------------------------------------------------


@pytest.mark.requirement("BP-q")
def test_a_batch_is_taken_as_a_whole_or_not_at_all(api: Api) -> None:
    bounded(api, max_depth=3)
    push(api)
    refused(push_batch(api, "q", "q", "q"), "q", 1, 3)
    assert push_batch(api, "q", "q").status == 201
    assert stored(api) == 3


@pytest.mark.requirement("BP-q")
def test_one_full_queue_refuses_the_batch_for_all(api: Api) -> None:
    bounded(api, "a", max_depth=5)
    bounded(api, "b", max_depth=1)
    push(api, "b")
    refused(push_batch(api, "a", "a", "b", "c"), "b", 1, 1)
    assert [stored(api, queue) for queue in ("a", "b", "c")] == [0, 1, 0]
    # What was reserved in the other queue was given back.
    assert push_batch(api, *["a"] * 5).status == 201


def test_a_batch_that_could_never_fit_is_refused(api: Api) -> None:
    for strategy in ("reject", "drop_oldest", "block"):
        queue = strategy.replace("_", "-")
        bounded(api, queue, max_depth=2, strategy=strategy)
        assert push(api, queue).status == 201
        reply = push_batch(api, *[queue] * 3, headers={"OJS-Block-Timeout": "5"})
        assert (reply.status, reply.error["code"]) == (429, "QUEUE_FULL")
        assert reply.error["message"] == (
            f"The request has 3 jobs for queue '{queue}', which can hold at most 2. "
            "Send smaller batches."
        )
        details = reply.error["details"]
        assert (details["field"], details["size"], details["limit"]) == ("jobs", 3, 2)
        assert reply.error["retryable"] is False
        assert "Retry-After" not in reply.headers
        assert (reply.headers[DEPTH], reply.headers[BOUND]) == ("1", "2")
        assert stored(api, queue) == 1


def test_a_job_that_could_never_fit_is_too_large(api: Api) -> None:
    for strategy in ("reject", "drop_oldest", "block"):
        queue = strategy.replace("_", "-")
        bounded(api, queue, max_size_bytes=1_000, strategy=strategy)
        assert push(api, queue).status == 201
        large, half = (job(queue, args=["x" * size]) for size in (2_000, 600))
        told = [
            (api.post(f"{BASE}/jobs", large), "body"),
            (api.post(f"{BASE}/jobs/batch", {"jobs": [job(queue), large]}), "jobs[1].body"),
            (api.post(f"{BASE}/jobs/batch", {"jobs": [half, half]}), "jobs"),
        ]
        for reply, what in told:
            assert (reply.status, reply.error["code"]) == (413, "payload_too_large")
            details = reply.error["details"]
            assert (details["field"], details["limit"]) == (what, 1_000)
            assert details["size"] > 1_000
            assert reply.error["message"] == (
                f"'{what}' has {details['size']} bytes. Queue '{queue}' allows 1000 bytes in total."
            )
            assert reply.error["retryable"] is False
            assert "Retry-After" not in reply.headers
        assert stored(api, queue) == 1


# --- warnings ---------------------------------------------------------------------------------


@pytest.mark.requirement("BP-n")
def test_above_the_threshold_the_answer_says_how_full_it_is(api: Api) -> None:
    bounded(api, max_depth=5, warning_threshold=0.6)
    told = [push(api).headers for _ in range(5)]
    assert all(name not in each for each in told[:2] for name in (DEPTH, BOUND, PRESSURE))
    shown = [(each[DEPTH], each[BOUND], each[PRESSURE]) for each in told[2:]]
    assert shown == [("3", "5", "0.60"), ("4", "5", "0.80"), ("5", "5", "1.00")]
    assert all(each["Location"] for each in told)


@pytest.mark.requirement("BP-n")
def test_the_default_threshold_is_four_fifths(api: Api) -> None:
    bounded(api, max_depth=10)
    told = [PRESSURE in push(api).headers for _ in range(10)]
    assert told == [False] * 7 + [True] * 3


@pytest.mark.requirement("BP-n")
def test_pressure_has_two_decimals(api: Api) -> None:
    bounded(api, max_depth=3, warning_threshold=0)
    assert [push(api).headers[PRESSURE] for _ in range(3)] == ["0.33", "0.67", "1.00"]


@pytest.mark.requirement("BP-n")
def test_of_a_batch_the_fullest_queue_is_told(api: Api) -> None:
    bounded(api, "a", max_depth=10, warning_threshold=0.1)
    bounded(api, "b", max_depth=4, warning_threshold=0.1)
    bounded(api, "c", max_depth=2, warning_threshold=1)
    reply = push_batch(api, "a", "b", "b", "b", "a", "c")
    assert reply.status == 201
    assert [reply.headers[name] for name in (DEPTH, BOUND, PRESSURE)] == ["3", "4", "0.75"]
    reply = push_batch(api, "c", "unbounded")
    assert [reply.headers[name] for name in (DEPTH, BOUND, PRESSURE)] == ["2", "2", "1.00"]
    assert PRESSURE not in push_batch(api, "unbounded").headers


@pytest.mark.requirement("BP-n")
def test_bytes_count_as_well(api: Api) -> None:
    bounded(api, max_size_bytes=2_000, warning_threshold=0.5)
    reply = api.post(f"{BASE}/jobs", job(args=["x" * 1_500]))
    assert reply.headers[BOUND] == "2000"
    assert 0.75 <= float(reply.headers[PRESSURE]) <= 0.8


def test_a_duplicate_takes_no_room(api: Api) -> None:
    bounded(api, max_depth=2)
    unique = job(options={"queue": "q", "unique": {"on_conflict": "ignore"}})
    assert [api.post(f"{BASE}/jobs", unique).status for _ in range(3)] == [201, 200, 200]
    assert push(api).status == 201
    assert push(api).status == 429


# --- drop_oldest ------------------------------------------------------------------------------


@pytest.mark.requirement("BP-d")
def test_the_oldest_available_job_gives_way(api: Api) -> None:
    bounded(api, max_depth=4, strategy="drop_oldest")
    active = api.active("q")
    later = api.push("q", options={"scheduled_at": "+PT1H"})
    api.clock.advance(10)
    first = api.push("q")
    api.clock.advance(10)
    second = api.push("q")
    reply = push(api)
    assert reply.status == 201
    states = [api.get(f"{BASE}/jobs/{one}").json["state"] for one in (active, later, first, second)]
    assert states == ["active", "scheduled", "discarded", "available"]
    dropped = api.get(f"{BASE}/jobs/{first}").json
    assert dropped["error"]["type"] == "overflow"
    assert stored(api) == 2


@pytest.mark.requirement("BP-d")
def test_without_an_available_job_it_refuses(api: Api) -> None:
    bounded(api, max_depth=2, strategy="drop_oldest")
    api.active("q")
    api.push("q", options={"scheduled_at": "+PT1H"})
    refused(push(api), "q", 2, 2, "drop_oldest")


@pytest.mark.requirement("BP-e", "BP-f")
def test_dropping_is_chosen_for_each_queue(api: Api) -> None:
    path = f"{BASE}/queues/_default/config"
    for body in (
        {"overflow_policy": "drop_oldest"},
        {"strategy": "drop_oldest"},
        {"backpressure": {"strategy": "drop_oldest"}},
    ):
        reply = api("PUT", path, {"max_size": 2, **body})
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")
    assert "max_size" not in api.get(path).json["config"]
    # A bound for all queues is fine, and rejects.
    assert api("PUT", path, {"max_size": 1}).status == 200
    assert [push(api).status for _ in range(2)] == [201, 429]


@pytest.mark.requirement("BP-q")
def test_a_batch_drops_as_many_as_it_needs(api: Api) -> None:
    bounded(api, max_depth=3, strategy="drop_oldest")
    old = []
    for _ in range(3):
        old.append(api.push("q"))
        api.clock.advance(10)
    assert push_batch(api, "q", "q").status == 201
    states = [api.get(f"{BASE}/jobs/{one}").json["state"] for one in old]
    assert states == ["discarded", "discarded", "available"]


# --- block ------------------------------------------------------------------------------------


@dataclass
class Waiting:
    """Time while a push waits: each wait moves the clock, and something may happen then."""

    api: Api
    waits: list[float] = field(default_factory=list)
    meanwhile: Callable[[], object] | None = None

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        assert len(self.waits) < 1_000
        self.api.clock.advance(max(1, round(seconds * 1_000)))
        if self.meanwhile is not None and len(self.waits) == 3:
            self.meanwhile()

    @property
    def waited_s(self) -> float:
        return sum(self.waits)


@pytest.fixture
def waiting(api: Api, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    """A full queue `q` of one job that blocks, and the waits of who pushes into it."""
    told = Waiting(api)
    monkeypatch.setattr(api.runtime.enqueue._bounds, "_sleep", told.sleep)
    bounded(api, max_depth=1, strategy="block")
    assert push(api).status == 201
    return told


@pytest.mark.requirement("QC-23", "BP-c")
def test_a_push_waits_for_room(api: Api, waiting: Waiting) -> None:
    (running,) = api.fetch("q")
    waiting.meanwhile = lambda: api.post(f"{BASE}/workers/ack", {"job_id": running["id"]})
    reply = push(api, **{"OJS-Block-Timeout": "20"})
    assert reply.status == 201
    assert len(waiting.waits) == 3
    assert stored(api) == 1


@pytest.mark.requirement("BP-c")
def test_when_the_time_is_over_the_push_is_refused(api: Api, waiting: Waiting) -> None:
    refused(push(api, **{"OJS-Block-Timeout": "10"}), "q", 1, 1, "block")
    assert waiting.waited_s == pytest.approx(10, abs=0.2)
    assert stored(api) == 1


@pytest.mark.requirement("BP-c")
def test_without_the_header_it_refuses_at_once(api: Api, waiting: Waiting) -> None:
    for headers in ({}, {"OJS-Block-Timeout": "0"}, {"OJS-Block-Timeout": "0.0"}):
        refused(push(api, **headers), "q", 1, 1, "block")
    assert waiting.waits == []


def test_only_a_queue_that_blocks_makes_a_push_wait(api: Api, waiting: Waiting) -> None:
    bounded(api, max_depth=1, strategy="reject")
    refused(push(api, **{"OJS-Block-Timeout": "10"}), "q", 1, 1, "reject")
    assert waiting.waits == []


@pytest.mark.requirement("BP-c")
@pytest.mark.parametrize(
    ("given", "seconds"),
    [("2", 2), ("2.5", 2.5), ("0.25", 0.25), (" 3 ", 3), ("007", 7), ("25", 25), ("26", 25),
     ("86400", 25), ("9" * 3_000, 25)],
)  # fmt: skip
def test_how_long_a_push_waits(api: Api, waiting: Waiting, given: str, seconds: float) -> None:
    refused(push(api, **{"OJS-Block-Timeout": given}), "q", 1, 1, "block")
    assert waiting.waited_s == pytest.approx(seconds, abs=0.2)


@pytest.mark.requirement("BP-c")
def test_a_push_never_waits_until_the_function_is_stopped(api: Api, waiting: Waiting) -> None:
    @dataclass
    class Context:
        left_ms: int

        def get_remaining_time_in_millis(self) -> int:
            return self.left_ms

    api.context = Context(8_000)
    refused(push(api, **{"OJS-Block-Timeout": "20"}), "q", 1, 1, "block")
    assert 3 < waiting.waited_s < 7
    waiting.waits.clear()
    api.context = Context(500)
    refused(push(api, **{"OJS-Block-Timeout": "20"}), "q", 1, 1, "block")
    assert waiting.waits == []


@pytest.mark.requirement("BP-c")
@pytest.mark.parametrize(
    "given",
    ["", " ", "-1", "+5", "5s", "PT5S", "1e3", "nan", "inf", "Infinity", "0x10", "1_000", "1,5",
     ".5", "5.", "\u0665", "1 2", "\ud800", "\x00"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["jobs", "jobs/batch"])
def test_a_malformed_time_is_refused(api: Api, path: str, given: str) -> None:
    body = job() if path == "jobs" else {"jobs": [job()]}
    # For every queue: that the header is not needed does not make it right.
    reply = api("POST", f"{BASE}/{path}", body, headers={"OJS-Block-Timeout": given})
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")
    assert reply.error["details"]["field"] == "OJS-Block-Timeout"
    reply.text.encode("utf-8")
    assert stored(api) == 0


@pytest.mark.requirement("BP-c")
def test_a_push_that_waits_is_let_in_by_no_bound_of_before(api: Api, waiting: Waiting) -> None:
    """The bound is lowered, and one of the jobs is done: that makes no room."""
    bounded(api, max_depth=3, strategy="block")
    assert [push(api).status for _ in range(2)] == [201, 201]
    running = api.fetch("q")[0]

    def meanwhile() -> None:
        bounded(api, max_depth=2, strategy="block")
        api.post(f"{BASE}/workers/ack", {"job_id": running["id"]})

    waiting.meanwhile = meanwhile
    refused(push(api, **{"OJS-Block-Timeout": "5"}), "q", 2, 2, "block")


@pytest.mark.requirement("BP-q")
def test_a_batch_waits_for_room_for_all_of_it(api: Api, waiting: Waiting) -> None:
    bounded(api, max_depth=2, strategy="block")
    (running,) = api.fetch("q")
    waiting.meanwhile = lambda: api.post(f"{BASE}/workers/ack", {"job_id": running["id"]})
    reply = push_batch(api, "q", "q", headers={"OJS-Block-Timeout": "20"})
    assert reply.status == 201
    assert len(waiting.waits) == 3
    refused(push_batch(api, "q", headers={"OJS-Block-Timeout": "1"}), "q", 2, 2, "block")
    assert stored(api) == 2


def test_the_longest_wait_is_the_use_case_s() -> None:
    assert MAX_BLOCK_S * 1_000 == bounds.MAX_BLOCK_MS


# --- for browsers -----------------------------------------------------------------------------


def test_browsers_may_send_and_read_the_headers(api: Api) -> None:
    reply = api("OPTIONS", f"{BASE}/jobs", headers={"origin": "https://ui.example"})
    allowed = set(reply.headers["Access-Control-Allow-Headers"].split(", "))
    assert {"X-OJS-Producer", "OJS-Block-Timeout"} <= allowed
    assert allowed == set(negotiation.REQUEST_HEADERS)
    assert {DEPTH, BOUND, PRESSURE, "Retry-After"} <= set(negotiation.EXPOSED_HEADERS)
