"""The trace of a request: kept with its jobs, given to workers, and in the log beside the ids."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ojs import runtime
from ojs.domain.job.envelope import MAX_JOB_BYTES, MAX_META_BYTES
from ojs.http.binding import application
from ojs.services.for_each import in_threads
from tests.unit.functions.client import Api

if TYPE_CHECKING:
    from ojs.clock import ManualClock
    from ojs.middleware import Envelope, Next
    from ojs.runtime import Runtime

BASE = "/ojs/v1"
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "operations.md").read_text("utf-8")
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
HEADERS = {"traceparent": PARENT, "tracestate": "rojo=1,congo=2"}
KEPT = {"traceparent": PARENT, "tracestate": "rojo=1,congo=2"}
JOB: dict[str, Any] = {"type": "a.b", "args": [1]}


def push(api: Api, body: Any, path: str = "jobs", **headers: str) -> Any:
    reply = api("POST", f"{BASE}/{path}", body, headers={**HEADERS, **headers})
    assert reply.status in (200, 201), reply.text
    return reply.json


def test_it_stays_with_the_job_and_comes_to_the_worker(api: Api) -> None:
    job_id = push(api, {**JOB, "meta": {"k": 1}})["job"]["id"]
    (job,) = api.fetch(worker_id="w1")
    assert (job["id"], job["meta"]) == (job_id, {"k": 1, **KEPT})
    error = {"type": "Boom", "message": "no", "retryable": False}
    api.post(f"{BASE}/workers/nack", {"job_id": job_id, "error": error})
    assert api.post(f"{BASE}/dead-letter/{job_id}/retry").json["job"]["meta"] == {"k": 1, **KEPT}


def test_each_job_of_a_batch_has_it(api: Api) -> None:
    for count in (2, 8):
        push(api, {"jobs": [JOB] * count}, "jobs/batch")
        assert [job["meta"] for job in api.fetch(count=10)] == [KEPT] * count


def test_what_the_client_put_into_meta_counts(api: Api) -> None:
    own = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-00"}
    assert push(api, {**JOB, "meta": own})["job"]["meta"] == own


def test_a_cron_job_that_is_triggered_has_it(api: Api) -> None:
    body = {"name": "daily", "expression": "0 9 * * *", "job_template": JOB}
    assert push(api, body, "cron")["meta"] == {}
    meta = push(api, None, "cron/daily/trigger")["job"]["meta"]
    assert KEPT.items() <= meta.items()
    api.clock.advance(86_400_000)
    metas = [job["meta"] for job in api.fetch(count=2)]
    assert [("traceparent" in each) for each in metas] == [True]


@pytest.mark.parametrize("bad", ["", "00-0-0-00", f"{PARENT},{PARENT}", PARENT.upper()])
def test_a_bad_one_is_ignored(api: Api, bad: str) -> None:
    assert push(api, JOB, traceparent=bad)["job"]["meta"] == {}


def test_a_repetition_with_another_one_is_the_same_request(api: Api) -> None:
    first = push(api, JOB, **{"idempotency-key": "k"})
    other = PARENT.replace("4bf", "4bc")
    assert push(api, JOB, traceparent=other, **{"idempotency-key": "k"}) == first
    assert first["job"]["meta"] == KEPT


def test_a_job_that_just_fits_is_not_refused_for_it(api: Api) -> None:
    meta = {"k": "x" * (MAX_META_BYTES - len('{"k":""}'))}
    assert push(api, {**JOB, "meta": meta})["job"]["meta"] == meta
    args = ["x" * (MAX_JOB_BYTES - len('{"args":[""]}'))]
    assert push(api, {**JOB, "args": args})["job"]["meta"] == {}


def test_middleware_sees_it_first(make_runtime: Callable[..., Runtime], clock: ManualClock) -> None:
    built = make_runtime()
    seen: list[dict[str, Any]] = []

    def look(job: Envelope, following: Next) -> Envelope:
        seen.append(dict(job.meta))
        del job.meta["tracestate"]
        return following(job)

    made = runtime.build(built.settings, client=built.table.client, clock=clock, middleware=[look])
    runtime.use(made)
    assert push(Api(made, clock), JOB)["job"]["meta"] == {"traceparent": PARENT}
    assert seen == [KEPT]


# --- the log --------------------------------------------------------------------------------------


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The lines that are logged, as CloudWatch gets them."""
    handler: Any = application.logger.registered_handler
    written = io.StringIO()
    before, level = handler.setStream(written), application.logger.log_level
    application.logger.setLevel(logging.DEBUG)
    yield lambda: [json.loads(line) for line in written.getvalue().splitlines()]
    application.logger.setLevel(level)
    handler.setStream(before or handler.stream)


def some_of_each(api: Api) -> str:
    """Requests that are served, refused and failed, of a trace; the id of their job."""
    job_id: str = push(api, {**JOB, "queue": "mail"})["job"]["id"]
    push(api, {"jobs": [{**JOB, "queue": "mail"}, {**JOB, "queue": "mail"}]}, "jobs/batch")
    nobody = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"
    for method, path, body in (
        ("POST", "jobs", {**JOB, "id": job_id, "queue": "mail"}),
        ("GET", f"jobs/{nobody}", None),
        ("POST", "workers/ack", {"job_id": nobody}),
        ("GET", "queues/no-queue", None),
    ):
        assert api(method, f"{BASE}/{path}", body, headers=HEADERS).status >= 400
    return job_id


def test_lines_name_the_job_its_queue_the_request_and_the_trace(
    api: Api, log: Callable[[], list[dict[str, Any]]]
) -> None:
    job_id = some_of_each(api)
    nobody = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"
    found = [
        (line["message"], line["operation"], line.get("job_id"), line.get("queue"))
        for line in log()
    ]
    assert found == [
        ("Request processed", "enqueue_job", job_id, "mail"),
        ("Request processed", "enqueue_batch", None, "mail"),
        ("Request rejected", "enqueue_job", job_id, "mail"),
        ("Request rejected", "get_job", nobody, None),
        ("Request rejected", "ack_job", nobody, None),
        ("Request rejected", "get_queue", None, "no-queue"),
    ]
    assert {line["trace_id"] for line in log()} == {TRACE}
    assert all(line["correlation_id"].startswith("req_") for line in log())


def test_what_one_request_was_about_is_not_said_of_the_next(
    api: Api, log: Callable[[], list[dict[str, Any]]]
) -> None:
    some_of_each(api)
    before = len(log())
    api.get(f"{BASE}/health")
    (line,) = log()[before:]
    assert not {"job_id", "queue", "trace_id"} & line.keys()


def test_nothing_unchecked_comes_into_the_log(
    api: Api, log: Callable[[], list[dict[str, Any]]]
) -> None:
    for path in ("jobs/secret", "queues/Secret", "workers/secret secret"):
        api("GET", f"{BASE}/{path}")
    api.post(f"{BASE}/workers/ack", {"job_id": "secret"})
    api.post(f"{BASE}/jobs", {**JOB, "queue": "Secret", "args": ["secret"]})
    assert len(log()) == 5
    assert "secret" not in json.dumps(log()).lower()


def test_middleware_that_fails_is_logged_with_the_same_ids(
    make_runtime: Callable[..., Runtime],
    clock: ManualClock,
    log: Callable[[], list[dict[str, Any]]],
) -> None:
    api = failing(make_runtime, clock)
    api("POST", f"{BASE}/jobs", {**JOB, "queue": "mail"}, headers=HEADERS)
    failed, answered = log()
    assert failed["message"] == "Middleware failed"
    for name in ("correlation_id", "trace_id", "queue"):
        assert failed[name] == answered[name]
    assert (failed["queue"], answered["status"]) == ("mail", 500)


def failing(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Api:
    """An API whose middleware always fails."""
    built = make_runtime(middleware=("no_such_module:f",))
    runtime.use(built)
    return Api(built, clock)


def test_calls_at_the_same_time_are_of_the_same_request(
    log: Callable[[], list[dict[str, Any]]],
) -> None:
    application.logger.thread_safe_append_keys(correlation_id="one")
    try:
        in_threads(lambda _: application.logger.info("called"), range(4))
    finally:
        application.logger.thread_safe_clear_keys()
    assert [line["correlation_id"] for line in log()] == ["one"] * 4


# --- docs/operations.md ---------------------------------------------------------------------------

WORDS = {"filter", "display", "stats", "by", "sort", "desc", "count", "and", "limit", "bin", "m"}
_, _, _QUERIES = PAGE.partition("<!-- queries of the functions' logs -->")
QUERIES = re.findall(
    r"^```\n(.*?)^```$", _QUERIES.partition("<!-- end of queries -->")[0], re.MULTILINE | re.DOTALL
)


def test_the_queries_of_the_page_name_fields_that_are_logged(
    api: Api,
    make_runtime: Callable[..., Runtime],
    clock: ManualClock,
    log: Callable[[], list[dict[str, Any]]],
) -> None:
    some_of_each(api)
    failing(make_runtime, clock).post(f"{BASE}/jobs", JOB)
    logged = {name for line in log() for name in line}
    messages = {line["message"] for line in log()}
    levels = {line["level"] for line in log()}
    assert len(QUERIES) >= 5
    for query in QUERIES:
        bare = re.sub(r'"[^"]*"|@\w+', "", query)
        named = set(re.findall(r"[a-z_]+", bare)) - WORDS
        assert named, query
        assert named <= logged, query
        assert set(re.findall(r'message = "([^"]+)"', query)) <= messages
        assert set(re.findall(r'level = "([^"]+)"', query)) <= levels
