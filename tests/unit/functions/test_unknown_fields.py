"""What configures something has no unknown fields, and says nothing twice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.unit.functions.client import Api, Reply

BASE = "/ojs/v1"
POOL = f"{BASE}/admin/pools/general"
QUEUES = [f"{BASE}/queues/q/config", f"{BASE}/admin/queues/q/config"]
POLICY = f"{BASE}/queues/_default/config"
LIMITS = f"{BASE}/admin/queues/q/rate-limit"
KEY = f"{BASE}/rate-limits/acme"


def refused(reply: Reply, field: str, *words: str) -> None:
    """It is a 400 that names the field, and says these words."""
    assert (reply.status, reply.error["code"]) == (400, "invalid_request")
    assert reply.error["details"]["field"] == field
    for word in words:
        assert word in reply.error["details"]["reason"]


RULE = {"name": "a", "filter": {}, "delay": "PT1H", "max_replays": 1}
# Configuration → the field that is wrong, and the one that was meant.
CONFIGS: list[tuple[dict[str, Any], str, str]] = [
    ({"max_siz": 5}, "max_siz", "max_size"),
    ({"default_retry": {"max_attempt": 3}}, "default_retry.max_attempt", "max_attempts"),
    (
        {"replay_rules": [{**RULE, "filter": {"typ": "a"}}]},
        "replay_rules[0].filter.typ",
        "type",
    ),
]


@pytest.mark.parametrize("path", [*QUEUES, POLICY])
@pytest.mark.parametrize(("config", "field", "meant"), CONFIGS)
def test_a_misspelt_setting_of_a_queue_is_refused(
    api: Api, path: str, config: dict[str, Any], field: str, meant: str
) -> None:
    before = api.get(POLICY).json
    refused(api("PUT", path, config), field, f"Did you mean '{meant}'?")
    # Nothing is made, and nothing is changed.
    assert api.get(QUEUES[0]).status == 404
    assert api.get(POLICY).json == before


@pytest.mark.parametrize(("config", "field", "meant"), CONFIGS)
def test_a_misspelt_setting_of_a_new_queue_is_refused(
    api: Api, config: dict[str, Any], field: str, meant: str
) -> None:
    path = f"{BASE}/queues"
    refused(api.post(path, {"name": "q", **config}), field, meant)
    refused(api.post(path, {"name": "q", "config": config}), f"config.{field}", meant)
    assert api.get(QUEUES[0]).status == 404


def test_what_stands_beside_a_wrapper_counts(api: Api) -> None:
    path = f"{BASE}/queues"
    refused(api.post(path, {"name": "q", "config": {}, "max_siz": 5}), "max_siz", "max_size")
    refused(api("PUT", QUEUES[0], {"config": {"max_size": 5}}), "config", "is not a known field")
    pool = {"queues": ["a"]}
    refused(api("PUT", POOL, {"pool": pool, "concurency": 5}), "concurency", "concurrency")
    refused(api("PUT", POOL, {"pool": pool, "concurrency": 5}), "concurrency", "inside pool")
    register = f"{BASE}/workers/register"
    worker = {"worker_id": "w"}
    refused(api.post(register, {"worker": worker, "pol": "general"}), "pol", "'pool'")
    refused(api.post(register, {"worker": worker, "pool": "x"}), "pool", "worker.pool")


@pytest.mark.parametrize(
    ("body", "field", "meant"),
    [
        ({"concurency": 5}, "concurency", "concurrency"),
        ({"isolate": True}, "isolate", "isolated"),
        (
            {"starvation_prevention": {"enable": True}},
            "starvation_prevention.enable",
            "enabled",
        ),
        ({"tenant_fairness": {"weight": {}}}, "tenant_fairness.weight", "weights"),
        ({"queues": {"a": {"wieght": 2}}}, "queues.a.wieght", "weight"),
    ],
)
def test_a_misspelt_setting_of_a_pool_is_refused(
    api: Api, body: dict[str, Any], field: str, meant: str
) -> None:
    api("PUT", POOL, {"queues": ["a"], "concurrency": 5})
    refused(api("PUT", POOL, {"queues": ["a"], **body}), field, meant)
    refused(api("PUT", POOL, {"pool": {"queues": ["a"], **body}}), f"pool.{field}", meant)
    # The limit that was there still is.
    assert api.get(POOL).json["concurrency"] == 5


def test_a_pool_may_be_sent_back_as_it_is_shown(api: Api) -> None:
    shown = api("PUT", POOL, {"queues": ["a"], "concurrency": 5}).json
    for body in (shown, shown["pool"]):
        assert api("PUT", POOL, body).json["concurrency"] == 5


@pytest.mark.parametrize("base", ["dead-letter", "admin/dead-letter"])
def test_a_misspelt_override_changes_nothing(api: Api, base: str) -> None:
    path = f"{BASE}/{base}/{api.dead()}/retry"
    refused(api.post(path, {"overide": {"queue": "x"}}), "overide", "'override'")
    refused(api.post(path, {"override": {"queu": "x"}}), "override.queu", "'queue'")
    disagreeing = {"retry": {"initial_interval": "PT1S", "initial_interval_ms": 2_000}}
    reply = api.post(path, {"override": disagreeing})
    refused(reply, "override.retry.initial_interval", "override.retry.initial_interval_ms")
    assert api.post(path, {}).status == 200


def test_misspelt_limits_are_refused(api: Api) -> None:
    refused(api("PUT", LIMITS, {"concurrency": 1, "perod": "PT1S"}), "perod", "'period'")
    refused(api("PUT", LIMITS, {"rate": {"limt": 1}}), "rate.limit", "is required")
    refused(api("PUT", KEY, {"concurrency": 1, "expire_at": "x"}), "expire_at", "'expires_at'")
    refused(api("DELETE", f"{BASE}/queues/q", {"stratgy": "discard"}), "stratgy", "'strategy'")


def test_a_slip_in_a_registration_is_refused_and_a_fact_is_not(api: Api) -> None:
    path, worker = f"{BASE}/workers/register", {"worker_id": "w"}
    facts = {"host": "a", "os_version": "1", "sdk_version": "2", "runtime": "go", "started": 1}
    assert api.post(path, worker | facts).status == 200
    refused(api.post(path, {"worker": worker | {"concurency": 5}}), "worker.concurency", "rency'")
    refused(api.post(path, worker | {"weigths": {}}), "weigths", "'weights'")
    refused(api.post(path, worker | {"id": "v"}), "id", "worker_id")
    assert api.post(path, worker | {"id": "w"}).status == 200


def test_a_field_that_is_like_no_other_is_told_all_there_are(api: Api) -> None:
    reply = api("PUT", QUEUES[0], {"zzz": 1, "y" * 5_000: 2})
    refused(reply, "zzz", "Known fields: ", "max_size", "lanes")
    assert max(len(each["field"]) for each in reply.error["details"]["errors"]) <= 100


@pytest.mark.parametrize(
    ("config", "field", "other"),
    [
        ({"max_size": 5, "max_depth": 6}, "max_depth", "max_size"),
        ({"max_size": None, "max_depth": 6}, "max_depth", "max_size"),
        ({"max_size": 5, "backpressure": {"max_depth": 6}}, "backpressure.max_depth", "max_size"),
        ({"max_depth": 5, "backpressure": {"max_depth": 6}}, "backpressure.max_depth", "max_depth"),
        ({"strategy": "block", "overflow_policy": "reject"}, "strategy", "overflow_policy"),
        (
            {"warning_threshold": 0.5, "backpressure": {"warning_threshold": 0.6}},
            "backpressure.warning_threshold",
            "warning_threshold",
        ),
        (
            {"default_retry": {"max_interval": "PT1M", "max_interval_ms": 1}},
            "default_retry.max_interval",
            "default_retry.max_interval_ms",
        ),
    ],
)
def test_names_of_one_setting_must_agree(
    api: Api, config: dict[str, Any], field: str, other: str
) -> None:
    for path in (*QUEUES, POLICY):
        refused(api("PUT", path, config), field, f"conflicts with {other}: both set the same value")
    reply = api.post(f"{BASE}/queues", {"name": "q", "config": config})
    refused(reply, f"config.{field}", f"config.{other}")


def test_names_of_one_setting_may_say_the_same(api: Api) -> None:
    config = {
        "max_size": 5,
        "max_depth": 5,
        "backpressure": {"max_depth": 5},
        "default_retry": {"initial_interval": "PT1S", "initial_interval_ms": 1_000},
    }
    reply = api("PUT", QUEUES[0], config)
    assert (reply.status, reply.json["config"]["max_size"]) == (200, 5)
    # What is shown may be sent back.
    assert api("PUT", QUEUES[0], reply.json["config"]).json["config"] == reply.json["config"]


def test_no_class_is_named_and_producers_are_no_patterns(api: Api) -> None:
    for path in (*QUEUES, POLICY):
        refused(api("PUT", path, {"retention": "P7D"}), "retention", "must be an object")
        reply = api("PUT", path, {"producers": ["billing", "app-*"]})
        refused(reply, "producers[1]", "full producer name")
        assert api("PUT", path, {"producers": ["*"]}).status == 200


def test_the_policy_is_told_to_be_no_queue(api: Api) -> None:
    for path in ("queues/_default/pause", "admin/queues/_default/resume"):
        refused(api.post(f"{BASE}/{path}", {}), "name", "the policy for new queues")
