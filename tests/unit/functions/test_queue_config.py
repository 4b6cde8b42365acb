"""Queue configuration over HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from ojs import runtime

if TYPE_CHECKING:
    from collections.abc import Callable

    from ojs.runtime import Runtime
    from tests.unit.functions.client import Api, Reply

BASE = "/ojs/v1"
PLACES = ("queues", "admin/queues")
SYSTEM: dict[str, Any] = {
    "overflow_policy": "reject",
    "warning_threshold": 0.8,
    "visibility_timeout": 1_800,
    "default_timeout": 1_800,
    "default_retry": {
        "max_attempts": 3,
        "initial_interval": "PT1S",
        "backoff_coefficient": 2.0,
        "max_interval": "PT5M",
        "jitter": True,
        "backoff_strategy": "exponential",
        "on_exhaustion": "dead_letter",
    },
    "retention": {"completed": "P7D", "discarded": "P30D", "cancelled": "P7D"},
    "allowed_job_types": ["*"],
    "producers": ["*"],
    "backpressure": {"strategy": "reject", "warning_threshold": 0.8},
}


def put(api: Api, queue: str, body: Any, place: str = "queues") -> Reply:
    return api("PUT", f"{BASE}/{place}/{queue}/config", body)


def configured(api: Api, queue: str, **config: Any) -> dict[str, Any]:
    reply = put(api, queue, config)
    assert reply.status == 200, reply.text
    shown: dict[str, Any] = reply.json["config"]
    return shown


def config_of(api: Api, queue: str, place: str = "queues") -> dict[str, Any]:
    reply = api.get(f"{BASE}/{place}/{queue}/config")
    assert reply.status == 200, reply.text
    shown: dict[str, Any] = reply.json["config"]
    return shown


def pushed(api: Api, queue: str, **options: Any) -> dict[str, Any]:
    """The job as it is after the push."""
    job: dict[str, Any] = api.get(f"{BASE}/jobs/{api.push(queue, options=options)}").json["job"]
    return job


def state(api: Api, job_id: str) -> str:
    return str(api.get(f"{BASE}/jobs/{job_id}").json["state"])


# --- creation ---------------------------------------------------------------------------------


@pytest.mark.requirement("QC-2")
def test_the_first_push_makes_the_queue_with_default_configuration(api: Api) -> None:
    assert api.get(f"{BASE}/queues/fresh/config").status == 404
    api.push("fresh")
    reply = api.get(f"{BASE}/queues/fresh/config")
    assert (reply.status, reply.json["name"], reply.json["state"]) == (200, "fresh", "active")
    shown = reply.json["config"]
    assert {name: shown[name] for name in SYSTEM} == SYSTEM
    assert set(reply.json["config_sources"].values()) == {"system"}


@pytest.mark.requirement("QC-4")
def test_without_configuration_there_is_no_limit(api: Api) -> None:
    api.push("fresh")
    assert (
        not {"max_size", "max_size_bytes", "concurrency", "rate_limit"}
        & config_of(api, "fresh").keys()
    )
    for _ in range(30):
        api.push("fresh")
    assert len(api.fetch("fresh", count=100)) == 31


PAYMENTS: dict[str, Any] = {
    "max_size": 100_000,
    "concurrency": 20,
    "visibility_timeout": 300,
    "default_timeout": 1_800,
    "retention": {"completed": "P3D", "discarded": "P30D"},
    "allowed_job_types": ["payment.*"],
    "default_retry": {"max_attempts": 5, "initial_interval": "PT5S", "backoff_coefficient": 3.0},
}


@pytest.mark.requirement("QC-12", "QC-43", "QC-44", "QC-55")
@pytest.mark.parametrize("flat", [False, True], ids=["seed's form", "CLI's form"])
def test_a_queue_is_made_before_its_first_job(api: Api, flat: bool) -> None:
    name = {"name": "payments"}
    reply = api.post(f"{BASE}/queues", name | (PAYMENTS if flat else {"config": PAYMENTS}))
    assert reply.status == 201
    assert reply.headers["Location"] == f"{BASE}/queues/payments"
    assert (reply.json["name"], reply.json["state"]) == ("payments", "active")
    assert reply.json["created_at"] == reply.json["updated_at"]
    shown = reply.json["config"]
    # As the seed's answer fills it in (section 9.2).
    assert shown["retention"] == {"completed": "P3D", "discarded": "P30D", "cancelled": "P7D"}
    assert shown["default_retry"] == SYSTEM["default_retry"] | PAYMENTS["default_retry"]
    for field in ("max_size", "concurrency", "visibility_timeout", "allowed_job_types"):
        assert shown[field] == PAYMENTS[field]
    assert shown["backpressure"]["max_depth"] == 100_000
    assert api.get(f"{BASE}/queues/payments").json["config"] == shown
    assert api.get(reply.headers["Location"]).status == 200


@pytest.mark.requirement("QC-12")
@pytest.mark.parametrize("body", [{}, {"config": None}, {"config": {}}], ids=str)
def test_a_queue_needs_no_configuration(api: Api, body: dict[str, Any]) -> None:
    reply = api.post(f"{BASE}/queues", {"name": "plain", **body})
    assert reply.status == 201
    assert set(reply.json["config_sources"].values()) == {"system"}


def test_a_queue_that_exists_is_not_made_again(api: Api) -> None:
    api.push("implicit")
    assert api.post(f"{BASE}/queues", {"name": "explicit", "max_size": 5}).status == 201
    for name in ("implicit", "explicit"):
        before = config_of(api, name)
        reply = api.post(f"{BASE}/queues", {"name": name, "config": {"max_size": 7}})
        assert (reply.status, reply.error["code"]) == (409, "conflict")
        assert reply.error["retryable"] is False
        assert reply.error["details"] == {"queue": name, "current_state": "active"}
        assert config_of(api, name) == before


def test_two_places_for_the_configuration_of_a_new_queue_are_a_mistake(api: Api) -> None:
    reply = api.post(f"{BASE}/queues", {"name": "a", "config": {"max_size": 5}, "max_size": 6})
    assert (reply.status, reply.error["details"]["field"]) == (400, "max_size")
    assert api.get(f"{BASE}/queues/a/config").status == 404
    # Null is what SDKs send for what is not set.
    reply = api.post(f"{BASE}/queues", {"name": "a", "config": {"max_size": 5}, "max_size": None})
    assert (reply.status, reply.json["config"]["max_size"]) == (201, 5)


def test_wrong_fields_of_a_new_queue_are_named_where_they_are(api: Api) -> None:
    for body, field in (
        ({"config": {"max_size": -1}}, "config.max_size"),
        ({"max_size": -1}, "max_size"),
        ({"config": {"backpressure": {"max_depth": 1.5}}}, "config.backpressure.max_depth"),
        ({"config": {"default_retry": {"initial_interval": "PT0S"}}},
         "config.default_retry.initial_interval"),
        ({"retention": {"completed": "soon"}}, "retention.completed"),
    ):  # fmt: skip
        reply = api.post(f"{BASE}/queues", {"name": "a", **body})
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")
        assert reply.error["details"]["field"] == field
        assert api.get(f"{BASE}/queues/a/config").status == 404


@pytest.fixture
def strict(api: Api, make_runtime: Callable[..., Runtime]) -> Api:
    """The API with `strict_queues`."""
    api.runtime = make_runtime(strict_queues=True)
    runtime.use(api.runtime)
    return api


@pytest.mark.requirement("QC-13", "QC-56")
def test_in_strict_mode_only_queues_that_were_made_take_jobs(strict: Api) -> None:
    body = {"type": "a", "args": [], "options": {"queue": "orders"}}
    for path, sent in (("jobs", body), ("jobs/batch", {"jobs": [body]})):
        reply = strict.post(f"{BASE}/{path}", sent)
        assert (reply.status, reply.error["code"]) == (404, "queue_not_found")
        assert reply.error["details"]["queue"] == "orders"
        assert reply.error["retryable"] is False
    assert strict.get(f"{BASE}/queues/orders/config").status == 404
    assert strict.post(f"{BASE}/queues", {"name": "orders"}).status == 201
    assert strict.post(f"{BASE}/jobs", body).status == 201
    assert strict.post(f"{BASE}/jobs/batch", {"jobs": [body]}).status == 201


def test_jobs_make_no_queue_beyond_the_limit(
    api: Api, make_runtime: Callable[..., Runtime]
) -> None:
    """By no path; and nothing is stored."""
    api.runtime = make_runtime(max_queues=1)
    runtime.use(api.runtime)
    job_id = api.push("there")
    job = {"type": "a", "args": [], "options": {"queue": "orders"}}
    cron = {"name": "c", "expression": "@daily", "job_template": job}
    refused = [
        ("POST", "jobs", job, {}), ("POST", "jobs", job, {"idempotency-key": "k"}),
        ("POST", "jobs/batch", {"jobs": [{**job, "options": {"queue": "there"}}, job]}, {}),
        ("PATCH", f"jobs/{job_id}", {"queue": "orders"}, {}), ("POST", "crons", cron, {}),
    ]  # fmt: skip
    for method, path, sent, headers in refused:
        reply = api(method, f"{BASE}/{path}", sent, headers=headers)
        assert (reply.status, reply.error["code"]) == (422, "too_many_queues"), reply.text
        assert reply.error["details"] == {"field": "queue", "queue": "orders", "limit": 1}
        assert reply.error["retryable"] is False
        assert "max_queues" in reply.error["message"]
    assert [each["name"] for each in api.get(f"{BASE}/queues").json["queues"]] == ["there"]
    assert api.get(f"{BASE}/crons/c").status == 404
    # With the same key, once an operator has made the queue.
    assert api.post(f"{BASE}/queues", {"name": "orders"}).status == 201
    for method, path, sent, headers in refused:
        reply = api(method, f"{BASE}/{path}", sent, headers=headers)
        assert reply.status < 300, reply.text


# --- reading and changing ---------------------------------------------------------------------


@pytest.mark.requirement("QC-3", "QC-51", "QC-52")
def test_configuration_is_read_and_changed_through_the_api(api: Api) -> None:
    configured(api, "q", concurrency=5, retention={"completed": "P1D"})
    shown = config_of(api, "q")
    assert (shown["concurrency"], shown["retention"]["completed"]) == (5, "P1D")
    configured(api, "q", concurrency=9, retention={"discarded": "P2D"})
    shown = config_of(api, "q")
    assert shown["concurrency"] == 9
    assert shown["retention"] == {"completed": "P1D", "discarded": "P2D", "cancelled": "P7D"}


@pytest.mark.requirement("QC-43", "ADM-14")
@pytest.mark.parametrize("written", PLACES)
@pytest.mark.parametrize("read", PLACES)
def test_both_places_show_one_configuration(api: Api, written: str, read: str) -> None:
    reply = put(api, "q", {"max_size": 5, "warning_threshold": 0.5}, written)
    assert reply.status == 200
    assert config_of(api, "q", read) == reply.json["config"]
    assert api.get(f"{BASE}/{read}/q/config").json == reply.json


@pytest.mark.requirement("QC-43")
def test_answers_say_when_and_where_from(api: Api) -> None:
    made = put(api, "q", {"max_size": 5}).json
    api.clock.advance(5_000)
    changed = put(api, "q", {"concurrency": 5}).json
    assert changed["created_at"] == made["created_at"] == made["updated_at"]
    assert changed["updated_at"] > made["updated_at"]
    sources = changed["config_sources"]
    assert (sources["max_size"], sources["concurrency"], sources["retention"]) == (
        "queue", "queue", "system",
    )  # fmt: skip


def test_an_update_leaves_alone_what_it_does_not_name(api: Api) -> None:
    configured(api, "q", max_size=5, concurrency=2, default_retry={"max_attempts": 9})
    assert put(api, "q", {}).json["config"] == config_of(api, "q")
    shown = configured(api, "q", default_retry={"initial_interval": "PT2S"})
    assert (shown["max_size"], shown["concurrency"]) == (5, 2)
    assert shown["default_retry"]["max_attempts"] == 9
    assert shown["default_retry"]["initial_interval"] == "PT2S"


def test_null_takes_a_field_back(api: Api) -> None:
    configured(api, "q", max_size=5, concurrency=2, retention={"completed": "P1D"})
    shown = configured(api, "q", max_size=None, concurrency=None, retention={"completed": None})
    assert not {"max_size", "concurrency"} & shown.keys()
    assert shown["retention"] == SYSTEM["retention"]
    sources = api.get(f"{BASE}/queues/q/config").json["config_sources"]
    assert set(sources.values()) == {"system"}


@pytest.mark.requirement("QC-20", "QC-40")
def test_both_names_of_a_bound_are_one_setting(api: Api) -> None:
    put(api, "q", {"backpressure": {"max_depth": 7, "strategy": "block"}}, "admin/queues")
    shown = config_of(api, "q")
    assert (shown["max_size"], shown["overflow_policy"]) == (7, "block")
    shown = configured(api, "q", max_size=8, overflow_policy="drop_oldest")
    assert shown["backpressure"] == {
        "max_depth": 8, "strategy": "drop_oldest", "warning_threshold": 0.8,
    }  # fmt: skip


def test_a_configuration_that_was_read_can_be_sent_again(api: Api) -> None:
    shown = configured(api, "q", max_size=5, rate_limit={"limit": 5, "period": "PT1M"})
    assert put(api, "q", shown).status == 200
    assert put(api, "other", shown).status == 200
    again = config_of(api, "other")
    assert {name: again[name] for name in shown} == shown


def test_a_body_that_is_no_configuration_changes_nothing(api: Api) -> None:
    deep = '{"retention":' * 200 + "{}" + "}" * 200
    for path in (f"{BASE}/queues/q/config", f"{BASE}/queues/_default/config"):
        api("PUT", path, {"max_size": 5, "concurrency": 2})
        before = api.get(path).json
        for raw in (
            "", "[]", "5", "null", "{", '{"max_size": 1e400}', '{"producers": ["\\ud800"]}',
            '{"default_retry": {"non_retryable_errors": ["\\udfff"]}}', deep,
        ):  # fmt: skip
            reply = api("PUT", path, raw=raw)
            assert (reply.status, reply.error["code"]) == (400, "invalid_payload"), raw[:80]
        assert api.get(path).json == before


WRONG: list[tuple[str, Any]] = [
    ("max_size", -1),
    ("default_retry", {"initial_interval": "PT1M", "max_interval": "PT1S"}),
    ("retention", {"cancelled": "PT0S"}),
    ("replay_rules", [{"name": "a"}]),
]


@pytest.mark.parametrize(
    ("field", "value"), WRONG, ids=[f"{f}-{n}" for n, (f, _) in enumerate(WRONG)]
)
@pytest.mark.parametrize("path", ["queues/q", "admin/queues/q", "queues/_default"])
def test_a_wrong_field_is_named_and_nothing_of_the_request_is_kept(
    api: Api, path: str, field: str, value: Any
) -> None:
    path = f"{BASE}/{path}/config"
    assert api("PUT", path, {"max_size": 5, "retention": {"completed": "P1D"}}).status == 200
    before = api.get(path).json
    api.clock.advance(1_000)
    reply = api("PUT", path, {"concurrency": 3, field: value})
    assert reply.status == 400
    assert str(reply.error["details"]["field"]).startswith(field)
    assert api.get(path).json == before


RULE = {"name": "a", "filter": {"queue": "q"}, "delay": "PT1H", "max_replays": 3}


@pytest.mark.requirement("DL-16")
def test_rules_are_set_shown_taken_over_and_taken_back(api: Api) -> None:
    shown = [{**RULE, "enabled": True}]
    assert configured(api, "q", replay_rules=[RULE])["replay_rules"] == shown
    assert api.get(f"{BASE}/queues/q/config").json["config"]["replay_rules"] == shown
    assert "replay_rules" not in configured(api, "q", replay_rules=None)
    assert put(api, "_default", {"replay_rules": [RULE]}).json["config"]["replay_rules"] == shown
    made = api.post(f"{BASE}/queues", {"name": "q2", "config": {}}).json
    assert made["config"]["replay_rules"] == shown
    assert made["config_sources"]["replay_rules"] == "_default"
    assert configured(api, "q2", replay_rules=[])["replay_rules"] == []


@pytest.mark.requirement("DL-16")
def test_a_rule_for_another_queue_is_refused(api: Api) -> None:
    configured(api, "q", concurrency=2)
    for method, path, prefix, body in (
        ("PUT", "queues/r/config", "", {"concurrency": 1, "replay_rules": [RULE]}),
        ("POST", "queues", "config.", {"name": "r", "config": {"replay_rules": [RULE]}}),
    ):
        reply = api(method, f"{BASE}/{path}", body)
        field = f"{prefix}replay_rules[0].filter.queue"
        assert (reply.status, reply.error["details"]["field"]) == (400, field)
    assert api.get(f"{BASE}/queues/r/config").status == 404


@pytest.mark.requirement("DL-10")
def test_retention_is_bounded_above(api: Api) -> None:
    for count, status in ((1_000_000, 200), (1_000_001, 400)):
        reply = put(api, "q", {"dead_letter": {"retention": {"max_count": count}}})
        assert reply.status == status
    assert reply.error["details"]["field"] == "dead_letter.retention.max_count"


def test_a_change_that_only_breaks_with_what_is_there_is_refused(api: Api) -> None:
    for name in ("q", "_default"):
        path = f"{BASE}/queues/{name}/config"
        assert api("PUT", path, {"default_retry": {"max_interval": "PT5S"}}).status == 200
        before = api.get(path).json
        reply = api("PUT", path, {"default_retry": {"initial_interval": "PT10S"}})
        assert (reply.status, reply.error["code"]) == (400, "invalid_request"), reply.text
        assert reply.error["details"]["field"] == "default_retry.max_interval"
        assert api.get(path).json == before
    # What `_default` says counts for a new queue too.
    body = {"name": "new", "config": {"default_retry": {"initial_interval": "PT10S"}}}
    reply = api.post(f"{BASE}/queues", body)
    assert reply.status == 400, reply.text
    assert reply.error["details"]["field"] == "config.default_retry.max_interval"
    assert api.get(f"{BASE}/queues/new/config").status == 404
    assert api.push("fresh")


def test_lanes_never_become_fewer(api: Api) -> None:
    configured(api, "q", lanes=4)
    for fewer in (3, None):
        reply = put(api, "q", {"lanes": fewer})
        assert (reply.status, reply.error["details"]["field"]) == (400, "lanes")
        assert config_of(api, "q")["lanes"] == 4


def test_names_that_no_queue_can_have(api: Api) -> None:
    for name in ("_default", "_other", "Upper", "a_b", "a|b", "-a", "", "x" * 256, "a\x00", "ü"):
        reply = api.post(f"{BASE}/queues", {"name": name})
        assert (reply.status, reply.error["details"]["field"]) == (400, "name")
    for place in PLACES:
        for name in ("_other", "Upper", "a|b", "x" * 256, "%00", "%5Fdefault", "\ud800"):
            for method in ("GET", "PUT"):
                reply = api(method, f"{BASE}/{place}/{name}/config", {})
                assert (reply.status, reply.error["details"]["field"]) == (400, "name")
    assert api.get(f"{BASE}/admin/queues/_default/config").status == 400
    assert api.get(f"{BASE}/queues").json["queues"] == []


def test_reading_takes_no_parameters_and_knows_only_queues_that_exist(api: Api) -> None:
    configured(api, "q", max_size=5)
    for path in ("queues/q", "admin/queues/q", "queues/_default"):
        reply = api.get(f"{BASE}/{path}/config", verbose="1")
        assert (reply.status, reply.error["details"]["field"]) == (400, "verbose")
    for place in PLACES:
        reply = api.get(f"{BASE}/{place}/nowhere/config")
        assert (reply.status, reply.error["code"]) == (404, "not_found")


# --- what a configuration does ----------------------------------------------------------------


@pytest.mark.requirement("QC-5")
def test_a_change_leaves_queued_jobs_as_they_are(api: Api) -> None:
    ids = [api.push("q") for _ in range(4)]
    shown = [api.get(f"{BASE}/jobs/{job_id}").text for job_id in ids]
    configured(
        api, "q", max_size=1, overflow_policy="drop_oldest", default_timeout=1,
        default_retry={"max_attempts": 9}, allowed_job_types=["other.*"], producers=["nobody"],
    )  # fmt: skip
    assert [api.get(f"{BASE}/jobs/{job_id}").text for job_id in ids] == shown
    assert [job["id"] for job in api.fetch("q", count=10)] == ids
    api.clock.advance(2_000)
    assert {state(api, job_id) for job_id in ids} == {"active"}


@pytest.mark.requirement("QC-6")
def test_a_change_holds_for_what_comes_after(api: Api) -> None:
    before = pushed(api, "q")
    configured(api, "q", default_retry={"max_attempts": 9}, visibility_timeout=60)
    assert (before["max_attempts"], pushed(api, "q")["max_attempts"]) == (3, 9)
    # The lease is decided when a job is handed out.
    assert len(api.fetch("q", count=2)) == 2
    api.clock.advance(61_000)
    api.runtime.sweep.run_once(api.clock.now_ms(), 100)
    assert len(api.fetch("q", count=2)) == 2


@pytest.mark.requirement("QC-7", "QC-8", "QC-9", "QC-53")
def test_pause_and_resume(api: Api) -> None:
    running = api.active("q")
    configured(api, "q", concurrency=5)
    for verb, expected in (("pause", "paused"), ("resume", "active"), ("pause", "paused")):
        assert api.post(f"{BASE}/queues/q/{verb}").json["state"] == expected
        assert api.get(f"{BASE}/queues/q/config").json["state"] == expected
    waiting = api.push("q")
    assert api.fetch("q") == []
    beat = api.post(f"{BASE}/workers/heartbeat", {"worker_id": "w1", "active_jobs": [running]})
    assert beat.json["jobs_extended"] == [running]
    assert api.post(f"{BASE}/workers/ack", {"job_id": running}).status == 200
    # Configuring neither resumes nor pauses.
    assert put(api, "q", {"max_size": 50}).json["state"] == "paused"
    assert api.fetch("q") == []
    api.post(f"{BASE}/queues/q/resume")
    assert [job["id"] for job in api.fetch("q")] == [waiting]
    assert config_of(api, "q")["concurrency"] == 5


@pytest.mark.requirement("QC-26")
def test_visibility_timeout_is_the_lease_of_a_queue(api: Api) -> None:
    configured(api, "q", visibility_timeout=60)
    job_id = api.active("q")
    api.clock.advance(59_000)
    assert state(api, job_id) == "active"
    api.clock.advance(2_000)
    assert state(api, job_id) == "available"


@pytest.mark.requirement("QC-27", "QC-56")
def test_default_timeout_ends_an_attempt(api: Api) -> None:
    configured(api, "q", default_timeout=60)
    job_id = api.active("q")
    api.clock.advance(61_000)
    job = api.get(f"{BASE}/jobs/{job_id}").json["job"]
    assert (job["state"], job["error"]["type"]) == ("retryable", "timeout")


@pytest.mark.requirement("QC-28")
def test_default_retry_is_the_policy_of_jobs_that_bring_none(api: Api) -> None:
    configured(
        api, "q", default_retry={"max_attempts": 7, "initial_interval": "PT9S", "jitter": False}
    )
    job_id = api.active("q")
    error = {"type": "Boom", "message": "no"}
    reply = api.post(f"{BASE}/workers/nack", {"job_id": job_id, "error": error})
    assert (reply.json["max_attempts"], reply.json["retry_delay_ms"]) == (7, 9_000)


@pytest.mark.requirement("QC-27", "QC-28")
def test_a_worker_sees_the_limits_that_the_queue_sets(api: Api) -> None:
    configured(api, "q", default_timeout=60, default_retry={"max_interval": "PT9S"})
    for queue in ("q", "plain"):
        api.push(queue)
        api.push(queue, options={"timeout": 5, "retry": {"max_attempts": 2}})
    jobs = {
        queue: api.post(f"{BASE}/workers/fetch", {"queues": [queue], "count": 2}).json["jobs"]
        for queue in ("q", "plain")
    }
    by_queue, own = jobs["q"]
    assert (by_queue["timeout"], by_queue["timeout_ms"]) == (60, 60_000)
    assert by_queue["retry"]["max_interval"] == "PT9S"
    assert (own["timeout"], own["timeout_ms"], own["retry"]) == (5, 5_000, {"max_attempts": 2})
    none, own = jobs["plain"]
    assert not {"timeout", "timeout_ms", "retry"} & none.keys()
    assert (own["timeout"], own["retry"]) == (5, {"max_attempts": 2})


def test_an_ack_without_the_token_that_a_queue_demands_is_a_bad_request(api: Api) -> None:
    configured(api, "q", require_lease_token=True)
    api.push("q")
    (job,) = api.post(f"{BASE}/workers/fetch", {"queues": ["q"]}).json["jobs"]
    for path, body in (("ack", {}), ("nack", {"error": {"message": "no"}})):
        reply = api.post(f"{BASE}/workers/{path}", {"job_id": job["id"], **body})
        assert reply.status == 400
        assert reply.json["error"]["details"]["field"] == "lease_token"
    body = {"job_id": job["id"], "lease_token": job["lease_token"]}
    assert api.post(f"{BASE}/workers/ack", body).status == 200


@pytest.mark.requirement("QC-29")
def test_what_a_job_says_comes_first(api: Api) -> None:
    configured(
        api, "q", default_retry={"max_attempts": 7, "initial_interval": "PT9S", "jitter": False},
        visibility_timeout=60, default_timeout=60,
    )  # fmt: skip
    job_id = api.active(
        "q",
        options={
            "retry": {"max_attempts": 2}, "timeout_ms": 300_000, "visibility_timeout_ms": 400_000,
        },
    )  # fmt: skip
    api.clock.advance(299_000)
    assert state(api, job_id) == "active"
    error = {"type": "Boom", "message": "no"}
    reply = api.post(f"{BASE}/workers/nack", {"job_id": job_id, "error": error})
    # Field by field: the interval is still the queue's.
    assert (reply.json["max_attempts"], reply.json["retry_delay_ms"]) == (2, 9_000)


@pytest.mark.requirement("QC-30")
def test_retention_has_defaults_and_is_kept_as_written(api: Api) -> None:
    api.push("q")
    assert config_of(api, "q")["retention"] == SYSTEM["retention"]
    shown = configured(api, "q", retention={"completed": "PT12H"})
    assert shown["retention"] == SYSTEM["retention"] | {"completed": "PT12H"}


@pytest.mark.requirement("QC-35", "QC-56")
@pytest.mark.parametrize(
    ("allowed", "taken", "refused"),
    [
        (["payment.*"], ["payment.charge", "payment.a.b"], ["payment", "payments.a", "email.send"]),
        (["email.send"], ["email.send"], ["email.sender", "email.send.now"]),
        (["*.send", "a"], ["email.send", "sms.send", "a"], ["email.receive", "b"]),
        (["*"], ["a", "b.c"], []),
    ],
)
def test_other_job_types_are_refused(
    api: Api, allowed: list[str], taken: list[str], refused: list[str]
) -> None:
    configured(api, "q", allowed_job_types=allowed)
    for job_type in taken:
        assert api.post(f"{BASE}/jobs", {"type": job_type, "args": [], "queue": "q"}).status == 201
    for job_type in refused:
        reply = api.post(f"{BASE}/jobs", {"type": job_type, "args": [], "queue": "q"})
        assert (reply.status, reply.error["code"]) == (422, "JOB_TYPE_NOT_ALLOWED")
        assert reply.error["retryable"] is False
        assert reply.error["details"] == {
            "field": "type", "queue": "q", "job_type": job_type, "allowed_job_types": allowed,
        }  # fmt: skip
        assert reply.error["catalog_code"] == "OJS-1001"
    assert len(api.fetch("q", count=50)) == len(taken)


@pytest.mark.requirement("QC-35")
def test_one_wrong_type_refuses_the_batch(api: Api) -> None:
    configured(api, "q", allowed_job_types=["a.*"])
    jobs: list[dict[str, Any]] = [
        {"type": t, "args": [], "queue": "q"} for t in ("a.b", "c.d", "a.c")
    ]
    reply = api.post(f"{BASE}/jobs/batch", {"jobs": jobs})
    assert (reply.status, reply.error["code"]) == (422, "JOB_TYPE_NOT_ALLOWED")
    assert reply.error["details"]["index"] == 1
    assert api.fetch("q", count=50) == []


@pytest.mark.requirement("QC-36", "QC-56")
def test_only_listed_producers_may_push(api: Api) -> None:
    configured(api, "q", producers=["billing", "Büro 7"])
    body = {"type": "a", "args": [], "queue": "q"}
    for who in ("billing", "Büro 7", " billing "):
        headers = {"x-ojs-producer": who}
        assert api("POST", f"{BASE}/jobs", body, headers=headers).status == 201
    for headers in ({}, {"x-ojs-producer": "Billing"}, {"x-ojs-producer": "*"}):
        for path, sent in (("jobs", body), ("jobs/batch", {"jobs": [body]})):
            reply = api("POST", f"{BASE}/{path}", sent, headers=headers)
            assert (reply.status, reply.error["code"]) == (403, "permission_denied")
            assert reply.error["details"]["queue"] == "q"
            assert reply.error["catalog_code"] == "OJS-5001"
    assert len(api.fetch("q", count=50)) == 3
    # Anybody, named or not, where the list is open.
    configured(api, "q", producers=["billing", "*"])
    assert api.post(f"{BASE}/jobs", body).status == 201


@pytest.mark.requirement("QC-36")
@pytest.mark.parametrize(
    "name", ["", " ", "a\nb", "a\x00", "\x7f", "x" * 256, "\ud800", "a\u2028b"]
)
def test_a_producer_without_a_proper_name_is_refused(api: Api, name: str) -> None:
    body = {"type": "a", "args": []}
    for path, sent in (("jobs", body), ("jobs/batch", {"jobs": [body]})):
        reply = api("POST", f"{BASE}/{path}", sent, headers={"X-OJS-Producer": name})
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")
        assert reply.error["details"]["field"] == "X-OJS-Producer"
        reply.text.encode("utf-8")
    assert api.fetch() == []


def test_a_mistyped_name_is_not_paused_in_strict_mode(strict: Api) -> None:
    for verb in ("pause", "resume"):
        for place in PLACES:
            reply = strict.post(f"{BASE}/{place}/ordrs/{verb}", {})
            assert (reply.status, reply.error["code"]) == (404, "queue_not_found")
    assert strict.get(f"{BASE}/queues/ordrs/config").status == 404


def test_pausing_says_that_it_made_the_queue(api: Api) -> None:
    for number, place in enumerate(PLACES):
        first = api.post(f"{BASE}/{place}/new-{number}/pause", {}).json
        assert (first["paused"], first["created"]) == (True, True)
        assert "created" not in first["queue"]
        assert "created" not in api.post(f"{BASE}/{place}/new-{number}/resume", {}).json


# --- the policy for new queues ----------------------------------------------------------------


@pytest.mark.requirement("QC-37", "QC-43", "QC-55")
def test_the_policy_holds_for_queues_made_later(api: Api) -> None:
    api.push("old")
    reply = put(api, "_default", {"concurrency": 10, "default_retry": {"max_attempts": 4}})
    assert (reply.status, reply.json["name"]) == (200, "_default")
    assert api.get(f"{BASE}/queues/_default/config").json == reply.json
    assert reply.json["config_sources"]["concurrency"] == "_default"
    assert pushed(api, "old")["max_attempts"] == 3
    assert pushed(api, "implicit")["max_attempts"] == 4
    assert api.post(f"{BASE}/queues", {"name": "explicit"}).status == 201
    assert put(api, "configured", {}).status == 200
    for name in ("implicit", "explicit", "configured"):
        found = api.get(f"{BASE}/queues/{name}/config").json
        assert found["config"]["concurrency"] == 10
        assert found["config_sources"]["concurrency"] == "_default"
    assert "concurrency" not in config_of(api, "old")
    assert {"_default"}.isdisjoint(q["name"] for q in api.get(f"{BASE}/queues").json["queues"])


@pytest.mark.requirement("QC-37")
def test_a_later_policy_leaves_queues_as_they_are(api: Api) -> None:
    put(api, "_default", {"concurrency": 10})
    api.push("q")
    put(api, "_default", {"concurrency": 3})
    assert config_of(api, "q")["concurrency"] == 10
    put(api, "_default", {"concurrency": None})
    assert "concurrency" not in config_of(api, "_default")


@pytest.mark.requirement("QC-37", "QC-43")
def test_an_unset_policy_is_the_system_s_defaults(api: Api) -> None:
    reply = api.get(f"{BASE}/queues/_default/config")
    assert reply.status == 200
    assert {name: reply.json["config"][name] for name in SYSTEM} == SYSTEM
    assert set(reply.json["config_sources"].values()) == {"system"}


@pytest.mark.requirement("QC-38")
def test_layers_are_resolved_field_by_field(api: Api) -> None:
    put(api, "_default", {
        "concurrency": 10, "visibility_timeout": 60,
        "default_retry": {"max_attempts": 4, "jitter": False}, "retention": {"completed": "P1D"},
    })  # fmt: skip
    reply = api.post(f"{BASE}/queues", {"name": "q", "config": {
        "concurrency": 2, "default_retry": {"max_attempts": 8}, "retention": {"discarded": "P2D"},
    }})  # fmt: skip
    shown, sources = reply.json["config"], reply.json["config_sources"]
    assert (shown["concurrency"], sources["concurrency"]) == (2, "queue")
    assert (shown["visibility_timeout"], sources["visibility_timeout"]) == (60, "_default")
    assert (shown["default_timeout"], sources["default_timeout"]) == (1_800, "system")
    assert shown["default_retry"] == SYSTEM["default_retry"] | {"max_attempts": 8, "jitter": False}
    assert shown["retention"] == {"completed": "P1D", "discarded": "P2D", "cancelled": "P7D"}
    # What a queue takes back falls to the policy it was made with.
    assert configured(api, "q", concurrency=None)["concurrency"] == 10


@pytest.mark.requirement("QC-39")
def test_the_order_of_timeouts(api: Api) -> None:
    def fails_after(queue: str, seconds: int, **options: Any) -> None:
        job_id = api.active(queue, options={"visibility_timeout_ms": 40_000_000, **options})
        api.clock.advance(seconds * 1_000 - 1_000)
        assert state(api, job_id) == "active"
        api.clock.advance(2_000)
        assert state(api, job_id) == "retryable"

    fails_after("system", 1_800)
    put(api, "_default", {"default_timeout": 900})
    fails_after("policy", 900)
    configured(api, "queue", default_timeout=300)
    fails_after("queue", 300)
    fails_after("queue", 100, timeout_ms=100_000)


@pytest.mark.requirement("QC-41")
def test_configuration_does_not_change_the_order(api: Api) -> None:
    configured(api, "q", concurrency=5, max_size=10, warning_threshold=0.1)
    low, high, normal = (api.push("q", options={"priority": p}) for p in (-5, 5, 0))
    assert [job["id"] for job in api.fetch("q", count=3)] == [high, normal, low]


@pytest.mark.requirement("QC-43", "QC-45")
def test_a_queue_shows_its_whole_configuration(api: Api) -> None:
    configured(api, "q", max_size=50)
    api.clock.advance(1_000)
    configured(api, "q", concurrency=3)
    shown = api.get(f"{BASE}/queues/q").json
    assert shown["config"] == config_of(api, "q")
    assert shown["config_sources"]["max_size"] == "queue"
    assert shown["updated_at"] == api.get(f"{BASE}/queues/q/config").json["updated_at"]
    assert shown["updated_at"] > shown["created_at"]
    assert shown["stats"]["max_depth"] == 50
    assert shown["stats"].keys() >= {
        "depth", "available", "active", "retryable", "scheduled", "completed_today", "failed_today",
    }  # fmt: skip
    assert api.get(f"{BASE}/admin/queues/q").json["configuration"] == shown["config"]


@pytest.mark.requirement("QC-43", "QC-46")
def test_the_list_has_state_and_configuration(api: Api) -> None:
    configured(api, "a", max_size=50)
    api.push("b")
    api.post(f"{BASE}/queues/b/pause")
    listed = {queue["name"]: queue for queue in api.get(f"{BASE}/queues").json["queues"]}
    assert (listed["a"]["state"], listed["a"]["config"]["max_size"]) == ("active", 50)
    assert (listed["b"]["state"], "max_size" in listed["b"]["config"]) == ("paused", False)


def test_configurations_are_exact_texts_and_numbers(api: Api) -> None:
    body = '{"warning_threshold": 0.123456789012345678, "max_size_bytes": 9007199254740991}'
    reply = api("PUT", f"{BASE}/queues/q/config", raw=body)
    assert reply.status == 200
    shown = json.loads(api.get(f"{BASE}/queues/q/config").text)["config"]
    assert shown["max_size_bytes"] == 2**53 - 1
    assert shown["warning_threshold"] == pytest.approx(0.123456789012345678, abs=1e-15)


# --- tenants ----------------------------------------------------------------------------------

FAIR: dict[str, Any] = {
    "enabled": True,
    "strategy": "fair-share",
    "weights": {"tenant:enterprise-a": 5, "tenant:startup-b": 1},
    "default_weight": 1,
}


@pytest.mark.requirement("FS-20")
@pytest.mark.parametrize(
    ("queue", "place"), [("mail", "queues"), ("mail", "admin/queues"), ("_default", "queues")]
)
def test_tenant_fairness_is_set_shown_changed_and_taken_back(
    api: Api, queue: str, place: str
) -> None:
    def tenant_fairness(given: Any) -> Any:
        reply = put(api, queue, {"tenant_fairness": given}, place)
        assert reply.status == 200, reply.text
        assert config_of(api, queue, place) == reply.json["config"]
        return reply.json["config"].get("tenant_fairness")

    assert tenant_fairness(FAIR) == FAIR
    assert tenant_fairness({"weights": {"tenant:startup-b": None}, "default_weight": 2}) == {
        **FAIR,
        "weights": {"tenant:enterprise-a": 5},
        "default_weight": 2,
    }
    assert tenant_fairness(None) is None
    # Off unless it says that it is on.
    assert tenant_fairness({}) is None
    assert tenant_fairness({"weights": {"tenant:a": 3}})["enabled"] is False


@pytest.mark.requirement("FS-20")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("weight", [0, -1, 1.5, True, "5", 1_001, {}])
def test_a_weight_that_is_none_is_named(api: Api, place: str, weight: Any) -> None:
    for queue in ("mail", "_default") if place == "queues" else ("mail",):
        body = {"tenant_fairness": {"weights": {"tenant:a": weight}}}
        reply = put(api, queue, body, place)
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")
        assert reply.error["details"]["field"] == "tenant_fairness.weights.tenant:a"
    assert put(api, "mail", {"tenant_fairness": {"strategy": "x"}}, place).status == 400


@pytest.mark.requirement("FS-19")
def test_a_queue_that_is_made_fair_serves_tenants_in_turns(api: Api) -> None:
    api.post(f"{BASE}/queues", {"name": "mail", "config": {"tenant_fairness": {"enabled": True}}})
    for tenant in "aaab":
        api.push("mail", meta={"tenant_id": tenant})
    got = api.fetch("mail", count=4)
    assert [job["meta"]["tenant_id"] for job in got] == ["a", "b", "a", "a"]
