"""The deployment's middleware over HTTP: pushes, batches, cron jobs, retries, repetitions."""

from __future__ import annotations

import json
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ojs import runtime
from ojs.domain.job import envelope
from ojs.http.parameters import MAX_BLOCK_S
from ojs.settings import Settings
from tests.unit.functions.client import Api
from tests.unit.functions.keyed import Keyed

if TYPE_CHECKING:
    from pathlib import Path

    from ojs.clock import ManualClock
    from ojs.runtime import Runtime

BASE = "/ojs/v1"
HOOKS = """
from ojs.middleware import Envelope, Next, Refused

refusing = False
seen = []


def note(job: Envelope, following: Next) -> Envelope:
    seen.append((job.id, job.type, job.queue))
    return following(job)


def act(job: Envelope, following: Next) -> Envelope:
    what = job.meta.get("act")
    if what == "refuse" or refusing:
        raise Refused("not today", code="closed", details={"field": "meta.act"})
    if what == "fail":
        raise KeyError("a-secret")
    if what == "spoil":
        job.priority = 1_000
    if what == "lead away":
        job.queue = "vip"
    if what == "rewrite":
        job.args = [*job.args, "more"]
        job.meta = {"by": "act"}
    if what == "make unique":
        job.unique = {"keys": ["args"]}
    if what == "relabel":
        job.type = "other.type"
    return following(job)
"""


@pytest.fixture
def make(
    make_runtime: Callable[..., Runtime],
    clock: ManualClock,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[..., Api]]:
    """Makes an API with this middleware; the module is `hooks_of_test`."""
    (tmp_path / "hooks_of_test.py").write_text(textwrap.dedent(HOOKS))
    monkeypatch.syspath_prepend(str(tmp_path))

    def made(*names: str, **settings: Any) -> Api:
        built = make_runtime(
            middleware=tuple(f"hooks_of_test:{name}" for name in names), **settings
        )
        runtime.use(built)
        return Api(built, clock)

    yield made
    sys.modules.pop("hooks_of_test", None)


@pytest.fixture
def api(make: Callable[..., Api]) -> Api:
    return make("note", "act")


def hooks() -> Any:
    return sys.modules["hooks_of_test"]


def stored(api: Api) -> int:
    """How many items the table has, but for the queues'."""
    items = api.runtime.table.client.scan(TableName=api.runtime.settings.table)["Items"]
    return len(items)


def push(api: Api, act: str, path: str = "jobs", **headers: str) -> Any:
    job = {"type": "a.b", "args": [1], "meta": {"act": act}}
    body = job if path == "jobs" else {"jobs": [{"type": "a.b", "args": [0]}, job]}
    return api.post(f"{BASE}/{path}", body, **headers)


PATHS = pytest.mark.parametrize("path", ["jobs", "jobs/batch"])


def test_what_is_refused_takes_no_other_job_along(api: Api) -> None:
    def bulk(*acts: str) -> Any:
        jobs = [{"type": "a.b", "args": [1], "meta": {"act": act}} for act in acts]
        return api.post(f"{BASE}/jobs/bulk", {"jobs": jobs, "idempotency_key": "k"})

    reply = bulk("", "refuse", "rewrite")
    assert (reply.status, reply.json["failed"]) == (207, 1)
    assert reply.json["items"][1]["error"]["code"] == "middleware_refused"
    assert sorted(job["args"] for job in api.fetch(count=9)) == [[1], [1, "more"]]
    hooks().refusing = True
    again = bulk("", "refuse", "rewrite")
    assert again.status == 207
    assert [item["status"] for item in again.json["items"]] == ["created", "failed", "created"]


def test_its_failure_fails_all(api: Api) -> None:
    jobs = [{"type": "a.b", "args": [1], "meta": {"act": act}} for act in ("", "fail", "")]
    reply = api.post(f"{BASE}/jobs/bulk", {"jobs": jobs})
    assert (reply.status, reply.error["code"]) == (500, "middleware_error")
    assert stored(api) == 0


# --- pushes ---------------------------------------------------------------------------------------


@PATHS
def test_what_it_changes_is_stored(api: Api, path: str) -> None:
    reply = push(api, "rewrite", path)
    assert reply.status == 201
    job = reply.json.get("job") or reply.json["jobs"][1]
    assert (job["args"], job["meta"]) == ([1, "more"], {"by": "act"})
    fetched = {one["id"]: one for one in api.fetch(count=2)}[job["id"]]
    assert (fetched["args"], fetched["meta"]) == ([1, "more"], {"by": "act"})


@PATHS
def test_a_refusal_is_told_and_nothing_is_stored(api: Api, path: str) -> None:
    reply = push(api, "refuse", path)
    assert (reply.status, reply.error["code"]) == (422, "middleware_refused")
    assert (reply.error["message"], reply.error["retryable"]) == ("not today", False)
    index = {} if path == "jobs" else {"index": 1}
    assert reply.error["details"] == {
        "field": "meta.act", "middleware": "hooks_of_test:act", "reason": "closed", **index,
    }  # fmt: skip
    assert stored(api) == 0


@PATHS
@pytest.mark.parametrize("act", ["fail", "spoil"])
def test_a_fault_is_500_and_nothing_is_stored(
    api: Api, path: str, act: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = push(api, act, path)
    assert (reply.status, reply.error["code"]) == (500, "middleware_error")
    assert (reply.error["retryable"], reply.error["catalog_code"]) == (True, "OJS-7003")
    assert "a-secret" not in reply.text
    assert stored(api) == 0
    failed = [record for record in caplog.records if record.message == "Middleware failed"]
    assert len(failed) == 1
    assert failed[0].levelname == "ERROR"


def test_no_answer_in_time_is_504_and_nothing_is_stored(
    make: Callable[..., Api],
) -> None:
    may_end = threading.Event()
    api = make("note", middleware_timeout_ms=5)
    assert api.runtime.middleware is not None
    api.runtime.middleware.load()

    def stuck(job: Any, following: Any) -> Any:
        may_end.wait(30)
        return following(job)

    api.runtime.middleware._links[0]._function = stuck
    reply = push(api, "")
    may_end.set()
    assert (reply.status, reply.error["code"]) == (504, "middleware_timeout")
    assert (reply.error["retryable"], reply.error["catalog_code"]) == (True, "OJS-7004")
    assert stored(api) == 0


@pytest.mark.parametrize(
    ("in_middleware", "status"), [(False, 201), (True, 504)], ids=["reading", "middleware"]
)
def test_only_the_time_of_the_middleware_counts(
    make: Callable[..., Api], monkeypatch: pytest.MonkeyPatch, in_middleware: bool, status: int
) -> None:
    """Each of three jobs takes 500 ms of the 1,000 ms that the middleware has for all."""
    api = make("note", middleware_timeout_ms=1_000)
    assert api.runtime.middleware is not None
    where: Any = api.runtime.middleware if in_middleware else envelope
    name = "changed" if in_middleware else "resolve"
    act = getattr(where, name)

    def slow(*given: Any, **more: Any) -> Any:
        api.clock.advance(500)
        return act(*given, **more)

    monkeypatch.setattr(where, name, slow)
    reply = api.post(f"{BASE}/jobs/bulk", {"jobs": [{"type": "t", "args": []}] * 3})
    assert reply.status == status, reply.text
    if in_middleware:
        assert reply.error["code"] == "middleware_timeout"


def test_a_push_that_waits_for_room_leaves_it_its_time(
    make: Callable[..., Api], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Context:
        @staticmethod
        def get_remaining_time_in_millis() -> int:
            return 29_000

    waits: list[int] = []
    for timeout_ms in (1_000, 20_000):
        api = make("note", middleware_timeout_ms=timeout_ms)
        api.context = Context()
        enqueue, push_one = api.runtime.enqueue, api.runtime.enqueue.push

        def pushed(request: Any, *, wait_ms: int, push: Any = push_one, **more: Any) -> Any:
            waits.append(wait_ms)
            return push(request, **more)

        monkeypatch.setattr(enqueue, "push", pushed)
        assert push(api, "", **{"ojs-block-timeout": "25"}).status == 201
    assert waits[0] == MAX_BLOCK_S * 1_000
    assert 0 < waits[1] < 29_000 - 20_000


def test_an_invalid_request_does_not_come_to_it(api: Api) -> None:
    bad = {"type": "a.b", "args": [], "options": {"retry": {"initial_interval": "soon"}}}
    assert api.post(f"{BASE}/jobs", bad).status == 422
    assert api.post(f"{BASE}/jobs", {"args": []}).status == 400
    assert "hooks_of_test" not in sys.modules


def test_a_queue_s_own_rules_hold_for_what_comes_out(api: Api) -> None:
    config = {"max_size": 5, "allowed_job_types": ["a.*"]}
    assert api("PUT", f"{BASE}/queues/default/config", config).status == 200
    reply = push(api, "relabel")
    assert (reply.status, reply.error["code"]) == (422, "JOB_TYPE_NOT_ALLOWED")


def test_where_it_cannot_be_loaded_workers_go_on(make: Callable[..., Api]) -> None:
    api = make("note")
    job_id = api.push()
    built = runtime.build(
        Settings(table=api.runtime.settings.table, middleware=("no_such_module:f",)),
        client=api.runtime.table.client,
        clock=api.clock,
    )
    runtime.use(built)
    refused = push(api, "")
    assert (refused.status, refused.error["code"]) == (500, "middleware_error")
    assert [job["id"] for job in api.fetch(worker_id="w1")] == [job_id]
    assert api.post(f"{BASE}/workers/ack", {"job_id": job_id, "worker_id": "w1"}).status == 200


def test_a_key_reaches_no_further_through_it(make: Callable[..., Api], clock: ManualClock) -> None:
    keyed = Keyed(make("act", authorizer="keys").runtime, clock)
    limited = keyed.holding(keyed.make("mail", "jobs:write", queues=("mail",)))
    both = keyed.holding(keyed.make("vip", "jobs:write", queues=("mail", "vip")))
    job = {"type": "a.b", "args": [], "queue": "mail", "meta": {"act": "lead away"}}
    assert both("POST", f"{BASE}/jobs", job).json["job"]["queue"] == "vip"
    for body in (job, {**job, "queue": "other", "meta": {}}):
        assert limited("POST", f"{BASE}/jobs", body).error["code"] == "permission_denied"
    batch = limited("POST", f"{BASE}/jobs/batch", {"jobs": [job]})
    assert (batch.status, batch.error["details"]["index"]) == (403, 0)


# --- repetitions ----------------------------------------------------------------------------------


@PATHS
def test_a_repetition_is_answered_whatever_it_says_by_then(api: Api, path: str) -> None:
    first = push(api, "rewrite", path, **{"idempotency-key": "k"})
    assert first.status == 201
    hooks().refusing = True
    again = push(api, "rewrite", path, **{"idempotency-key": "k"})
    assert (again.status, again.json) == (201, first.json)
    new = push(api, "rewrite", path, **{"idempotency-key": "new"})
    assert (new.status, new.error["code"]) == (422, "middleware_refused")
    other = push(api, "refuse", path, **{"idempotency-key": "k"})
    assert other.status in (409, 422)


def test_a_key_of_a_refused_request_is_free(api: Api) -> None:
    assert push(api, "refuse", **{"idempotency-key": "k"}).status == 422
    assert push(api, "", **{"idempotency-key": "k"}).status == 201


@pytest.mark.parametrize("count", [2, 8], ids=["a transaction", "staged"])
def test_a_repetition_after_a_lost_answer_finds_what_was_stored(
    api: Api, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """The first try died after it had written its jobs: before it noted that in the key, or, as a
    staged batch is noted before, before its commit.
    """
    body = {"jobs": [{"type": "a.b", "args": [n]} for n in range(count)]}

    def dies(*_: Any, **__: Any) -> None:
        raise RuntimeError("dead")

    with monkeypatch.context() as patched:
        if count == 2:
            patched.setattr(api.runtime.idempotent_push._keys, "finish", dies)
        else:
            patched.setattr(api.runtime.stores.jobs.batches, "_commit", dies)
        assert push_all(api, body).status == 500
    hooks().refusing = True
    again = push_all(api, body)
    assert again.status == 201, again.text
    fetched = api.fetch(count=20)
    assert sorted(job["id"] for job in fetched) == sorted(job["id"] for job in again.json["jobs"])
    assert len(fetched) == count


def test_a_repetition_is_found_though_the_middleware_decided_how_it_was_stored(api: Api) -> None:
    """Unique jobs are stored in a transaction, so many others as a staged batch."""
    jobs = [{"type": "a.b", "args": [n], "meta": {"act": "make unique"}} for n in range(8)]
    first = push_all(api, {"jobs": jobs})
    assert first.status == 201, first.text
    hooks().refusing = True
    again = push_all(api, {"jobs": jobs})
    assert (again.status, again.json) == (201, first.json)


def test_a_repetition_of_what_was_not_stored_is_refused(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try died before it wrote its jobs."""
    body = {"jobs": [{"type": "a.b", "args": [n]} for n in range(2)]}

    def dies(*_: Any, **__: Any) -> None:
        raise RuntimeError("dead")

    with monkeypatch.context() as patched:
        patched.setattr(api.runtime.stores.jobs, "create_all", dies)
        assert push_all(api, body).status == 500
    hooks().refusing = True
    assert push_all(api, body).error["code"] == "middleware_refused"
    assert api.fetch(count=20) == []
    hooks().refusing = False
    assert push_all(api, body).status == 201
    assert len(api.fetch(count=20)) == 2


def push_all(api: Api, body: Any) -> Any:
    return api.post(f"{BASE}/jobs/batch", body, **{"idempotency-key": "k"})


# --- cron jobs ------------------------------------------------------------------------------------


def cron(api: Api, act: str) -> Any:
    template = {"type": "report", "args": [1], "meta": {"act": act}}
    body = {"name": "daily", "expression": "0 9 * * *", "job_template": template}
    return api("POST", f"{BASE}/cron", body)


def test_cron_jobs_go_through_it_when_they_are_made_and_fired(api: Api) -> None:
    assert cron(api, "refuse").status == 422
    assert cron(api, "rewrite").status == 201
    api.clock.advance(86_400_000)
    (job,) = api.fetch()
    assert (job["args"], job["meta"]) == ([1, "more"], {"by": "act"})
    fired = api.post(f"{BASE}/cron/daily/trigger")
    assert fired.json["job"]["args"] == [1, "more"]


def test_a_tick_that_is_refused_is_told_in_the_runs(api: Api) -> None:
    assert cron(api, "").status == 201
    hooks().refusing = True
    api.clock.advance(86_400_000)
    assert api.fetch() == []
    (run,) = api.get(f"{BASE}/cron/daily/history").json["executions"]
    assert "not today" in json.dumps(run)
    assert api.post(f"{BASE}/cron/daily/trigger").error["code"] == "middleware_refused"


def test_a_tick_waits_for_middleware_that_fails(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert cron(api, "").status == 201
    assert api.runtime.middleware is not None
    link, act = api.runtime.middleware._links[1], hooks().act
    link._function = lambda _job, _following: None  # type: ignore[assignment]
    api.clock.advance(86_400_000)
    assert api.fetch() == []
    assert [record.message for record in caplog.records] == ["Middleware failed"]
    link._function = act
    api.clock.advance(30_000)
    assert len(api.fetch()) == 1


# --- retries --------------------------------------------------------------------------------------


def retry(api: Api, job_id: str, **override: Any) -> Any:
    body = {"override": override} if override else {}
    return api.post(f"{BASE}/dead-letter/{job_id}/retry", body)


def test_a_retry_as_it_was_does_not_come_to_it(api: Api) -> None:
    job_id = api.dead()
    hooks().refusing = True
    assert retry(api, job_id).status == 200


def test_a_retry_with_changes_is_checked_as_it_would_be(api: Api) -> None:
    job_id = api.dead()
    hooks().seen.clear()
    before = api.get(f"{BASE}/dead-letter/{job_id}").json
    for act, status in (("refuse", 422), ("fail", 500), ("relabel", 500), ("spoil", 500)):
        assert retry(api, job_id, meta={"act": act}, queue="again").status == status, act
    assert api.get(f"{BASE}/dead-letter/{job_id}").json == before
    assert set(hooks().seen) == {(job_id, "test.echo", "again")}


def test_a_retry_with_changes_may_be_changed_further(api: Api) -> None:
    job_id = api.dead()
    back = retry(api, job_id, args=[2], meta={"act": "rewrite"}).json["job"]
    assert (back["args"], back["meta"]) == ([2, "more"], {"by": "act"})
    (job,) = api.fetch()
    assert (job["id"], job["args"], job["meta"]) == (job_id, [2, "more"], {"by": "act"})


def test_a_retry_may_be_led_to_another_queue(api: Api) -> None:
    job_id = api.dead()
    assert retry(api, job_id, meta={"act": "lead away"}).json["job"]["queue"] == "vip"
    assert [job["id"] for job in api.fetch("vip")] == [job_id]


def test_a_retry_of_a_job_whose_payload_is_large_comes_to_it_whole(api: Api) -> None:
    job_id = api.push(args=["x" * 500_000], options={"retry": {"max_attempts": 1}})
    api.fetch(worker_id="w")
    api.post(f"{BASE}/workers/nack", {"job_id": job_id, "error": {"type": "T", "message": "m"}})
    back = retry(api, job_id, queue="again")
    assert back.status == 200, back.text
    assert len(api.fetch("again")[0]["args"][0]) == 500_000


# --- settings -------------------------------------------------------------------------------------


def test_the_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OJS_TABLE", "jobs")
    assert Settings.from_environment().middleware == ()
    monkeypatch.setenv("OJS_MIDDLEWARE", "hooks:add_trace, pkg.mod:Check ,")
    monkeypatch.setenv("OJS_MIDDLEWARE_TIMEOUT_MS", "50")
    found = Settings.from_environment()
    assert found.middleware == ("hooks:add_trace", "pkg.mod:Check")
    assert found.middleware_timeout_ms == 50
    for name, value in (
        ("MIDDLEWARE", "hooks"), ("MIDDLEWARE", "a b:c"), ("MIDDLEWARE", ":c"),
        ("MIDDLEWARE_TIMEOUT_MS", "0"), ("MIDDLEWARE_TIMEOUT_MS", "soon"),
    ):  # fmt: skip
        with monkeypatch.context() as patched:
            patched.setenv(f"OJS_{name}", value)
            with pytest.raises(ValueError, match=r"middleware|invalid literal"):
                Settings.from_environment()
