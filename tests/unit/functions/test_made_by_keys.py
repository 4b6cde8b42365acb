"""What a key may have sent out, and what is left of what it set once it is revoked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from ojs import runtime
from ojs.domain.access import ALL_SCOPES, ANYBODY, Principal
from ojs.domain.errors import BackendUnavailable
from ojs.services.deliveries.parts import AllowedTargets, DeliveryDependencies
from ojs.services.operations.setup import Setup, SetupError
from ojs.settings import Settings
from ojs.store.deployment.access_keys import AccessKeyStore
from ojs.store.deployment.notes import DeploymentStore
from tests.store.pushing import DONE, FUNCTION, FakeTarget, Wakes
from tests.unit.functions.client import Api, event_of
from tests.unit.functions.keyed import Keyed

if TYPE_CHECKING:
    from ojs.clock import ManualClock
    from ojs.domain.delivery.outcome import Outcome
    from ojs.domain.delivery.push import Push
    from ojs.runtime import Runtime

BASE = "/ojs/v1/admin/deliveries"
CRON = {"name": "c", "cron": "* * * * * *", "type": "a.b", "overlap_policy": "allow"}
SECRET = "whsec_a_secret_of_24_bytes"
ENDPOINT = {
    "target": {"endpoint": "https://a.example/jobs"}, "queues": ["q"], "signing_secret": SECRET,
}  # fmt: skip


class Keys(Api):
    """An API that is asked with a key."""

    principal: Principal = ANYBODY
    target: FakeTarget

    def by(self, *scopes: str, maker: Principal = ANYBODY) -> Principal:
        key, _ = self.runtime.access_keys.create(maker, "k", scopes)
        return key.principal


@pytest.fixture
def keys(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Keys:
    plain, target = make_runtime(), FakeTarget()
    built = runtime.build(
        Settings(table=plain.settings.table, bucket="payloads", version="1.2.3"),
        client=plain.table.client,
        blobs=plain.blobs,
        clock=clock,
        sleep=lambda _: None,
        push=DeliveryDependencies(
            wakes=Wakes(clock),
            target=lambda _: target,
            allowed=AllowedTargets([FUNCTION], ["a.example"], check_endpoint=lambda _: None),
        ),
    )
    runtime.use(built)
    found = Keys(built, clock)
    found.target = target
    return found


def limited(keys: Keys, monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """From now on the deployment allows these hosts only, and no function."""
    allowed = AllowedTargets([], hosts, check_endpoint=lambda _: None)
    monkeypatch.setattr(keys.runtime.dispatch, "_allowed", allowed)
    assert keys.runtime.push_parts is not None
    parts = replace(keys.runtime.push_parts, allowed=allowed)
    monkeypatch.setattr(keys.runtime.deliveries, "_parts", parts)


@pytest.mark.parametrize(
    "change",
    [{"target": {"endpoint": "https://b.example/"}}, {"target": {"function": FUNCTION + "x"}}],
)
def test_a_target_that_is_not_allowed_is_refused_and_not_stored(
    keys: Keys, change: dict[str, Any]
) -> None:
    for name in ("new", "there"):
        if name == "there":
            assert keys("PUT", f"{BASE}/there", ENDPOINT).status == 201
        refused = keys("PUT", f"{BASE}/{name}", {**ENDPOINT, **change})
        assert refused.status == 422
        assert refused.error["details"]["field"].startswith("target.")
        assert any(each in refused.text for each in ("egress_hosts", "push_functions"))
    assert keys("GET", f"{BASE}/there").json["target"] == ENDPOINT["target"]
    assert keys("GET", f"{BASE}/new").status == 404


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        (ENDPOINT["target"], "endpoint_not_allowed"),
        ({"function": FUNCTION}, "function_not_allowed"),
    ],
)
def test_a_target_that_is_allowed_no_longer_gets_nothing(
    keys: Keys, monkeypatch: pytest.MonkeyPatch, target: Any, reason: str
) -> None:
    secret = {} if "function" in target else {"signing_secret": SECRET}
    assert keys("PUT", f"{BASE}/d", {"target": target, "queues": ["q"], **secret}).status == 201
    limited(keys, monkeypatch, "*.a.example")
    keys.push("q")
    assert keys.runtime.dispatch.run("d").pushed == 0
    shown = keys("GET", f"{BASE}/d").json
    assert (shown["state"], shown["disabled_reason"]) == ("disabled", reason)
    assert keys("POST", f"{BASE}/d/resume", {}).status == 422
    assert keys("POST", f"{BASE}/d/test", {}).status == 422
    assert keys.target.flying == []


def test_a_push_that_waits_for_a_sender_is_checked_again(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys("PUT", f"{BASE}/d", ENDPOINT)
    job_id = keys.push("q")
    keys.runtime.dispatch.run("d")
    (push,) = keys.target.flying
    limited(keys, monkeypatch)
    assert not keys.runtime.dispatch.send_one("d", job_id, push.token)
    assert len(keys.target.flying) == 1
    assert keys.get(f"/ojs/v1/jobs/{job_id}").json["job"]["state"] == "available"


def test_another_receiver_needs_a_new_secret_and_new_ones_are_long(keys: Keys) -> None:
    assert keys("PUT", f"{BASE}/d", ENDPOINT).status == 201
    plain = {"queues": ["q"]}
    elsewhere = {**plain, "target": {"endpoint": "https://a.example:8443/jobs"}}
    for body in (
        elsewhere,
        {**elsewhere, "signing_secret": SECRET},
        {**plain, "target": {"function": FUNCTION}},
        {**ENDPOINT, "signing_secret": "whsec_of_23_bytes______"},
    ):
        refused = keys("PUT", f"{BASE}/d", body)
        assert (refused.status, refused.error["details"]["field"]) == (400, "signing_secret")
    path = {"target": {"endpoint": "https://a.example/other"}}
    assert keys("PUT", f"{BASE}/d", {**plain, **path}).status == 200
    new = {"signing_secret": SECRET + "2"}
    assert keys("PUT", f"{BASE}/d", {**elsewhere, **new}).status == 200


def test_a_test_push_runs_nothing_real(keys: Keys) -> None:
    keys("PUT", f"{BASE}/d", {**ENDPOINT, "job_types": ["pay.out"]})
    got: list[Push] = []

    def answer(push: Push) -> Outcome:
        got.append(push)
        return DONE

    keys.target.answer = answer
    assert keys("POST", f"{BASE}/d/test", {}).status == 200
    (push,) = got
    assert push.job.content is not None
    assert (push.job.type, push.job.content["args"]) == ("ojs.test", [])


def asked(principal: Principal, method: str, path: str, body: str) -> int:
    from functions.admin.handler import handler

    event = event_of(method, path, body)
    event["requestContext"]["authorizer"] = {"lambda": principal.context()}
    return int(handler(event, None)["statusCode"])


def test_after_a_revocation_with_what_the_key_made_nothing_is_enqueued_or_sent(keys: Keys) -> None:
    root = keys.by("admin:write", "jobs:write", "work")
    child = keys.by("jobs:write", "work", maker=root)
    run = keys.runtime
    run.crons.register(
        {"name": "c", "cron": "* * * * * *", "type": "a.b", "queue": "q"}, child, None
    )
    run.deliveries.put("d", ENDPOINT, root)
    assert keys.get("/ojs/v1/cron/c").json["created_by"] == child.key
    assert keys.get(f"{BASE}/d").json["created_by"] == root.key
    keys.clock.advance(1_000)
    assert run.cron_firing.fire("c") is not None
    path = f"/ojs/v1/admin/keys/{root.key}"
    told = keys("DELETE", path, query={"made": "revoke"}).json
    assert told["also_revoked"] == [child.key]
    assert told["paused"] == {"crons": 1, "deliveries": 1, "webhooks": 0}
    for _ in range(60):
        keys.clock.advance(1_000)
        assert run.cron_firing.fire("c") is None
        assert run.dispatch.run("d").pushed == 0
    assert keys.target.flying == []
    again = keys("DELETE", path, query={"made": "revoke"}).json
    assert again["paused"] == {"crons": 0, "deliveries": 0, "webhooks": 0}


def test_what_a_crash_left_of_a_revocation_is_found_by_a_repetition(
    keys: Keys,
) -> None:
    root = keys.by("admin:write", "jobs:write", "work")
    child = keys.by("jobs:write", maker=root)
    run = keys.runtime
    for name in ("c1", "c2"):
        run.crons.register({"name": name, "cron": "0 0 1 1 *", "type": "a.b"}, child, None)
    assert root.key is not None
    run.access_keys.revoke_with_made(ANYBODY, root.key)
    left = iter([True, True, False])
    with pytest.raises(BackendUnavailable):
        run.crons.pause_made(root.key, lambda: next(left))
    told = keys("DELETE", f"/ojs/v1/admin/keys/{root.key}", query={"made": "revoke"}).json
    assert (told["also_revoked"], told["paused"]["crons"]) == ([], 1)
    assert {each.enabled for each in run.stores.crons.page(limit=9, after=None).items} == {False}


def test_a_tick_and_a_dispatch_of_a_revoked_key_pause_what_it_set(keys: Keys) -> None:
    key = keys.by("admin:write", "jobs:write", "work")
    run = keys.runtime
    run.crons.register({**CRON, "queue": "q"}, key, None)
    run.deliveries.put("d", ENDPOINT, key)
    keys.push("q")
    assert key.key is not None
    run.access_keys.revoke(ANYBODY, key.key)
    keys.clock.advance(1_000)
    assert run.cron_firing.fire("c") is None
    assert run.dispatch.run("d").pushed == 0
    shown = keys.get("/ojs/v1/cron/c/history").json
    assert [each["skipped_reason"] for each in shown["executions"]] == ["key_ended"]
    assert keys.get("/ojs/v1/cron/c").json["status"] == "paused"
    assert keys.get(f"{BASE}/d").json["disabled_reason"] == "key_ended"
    # Who resumes it answers for it.
    other = keys.by("admin:write", "jobs:write", "work")
    run.crons.enable("c", other, enabled=True)
    run.deliveries.resume("d", other)
    keys.clock.advance(1_000)
    assert run.cron_firing.fire("c") is not None
    assert run.dispatch.run("d").pushed > 0


def test_an_expired_key_and_one_that_cannot_be_read_stop_nothing(
    keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    end_ms = keys.clock.now_ms() + 500
    key, _ = keys.runtime.access_keys.create(ANYBODY, "k", ["jobs:write"], expires_ms=end_ms)
    run = keys.runtime
    run.crons.register(CRON, key.principal, None)
    keys.clock.advance(1_000)
    assert run.cron_firing.fire("c") is not None
    reads: list[str] = []

    def busy(_store: Any, key_id: str, **_: Any) -> Any:
        reads.append(key_id)
        raise BackendUnavailable("busy")

    monkeypatch.setattr(AccessKeyStore, "get", busy)
    keys.clock.advance(1_000)
    assert run.cron_firing.fire("c") is not None
    assert reads == []
    keys.clock.advance(60_000)
    assert run.cron_firing.fire("c") is not None
    assert reads == [key.id]


def test_jobs_of_a_producer_are_listed_and_cancelled(keys: Keys) -> None:
    body: Any = {"type": "a.b", "args": [], "options": {"queue": "q"}}
    for name in ("stolen", "good"):
        made = keys("POST", "/ojs/v1/jobs", body, headers={"x-ojs-producer": name})
        assert made.status == 201
    told = keys.get("/ojs/v1/admin/jobs", queue="q", producer="stolen").json
    assert [each["producer"] for each in told["items"]] == ["stolen"]
    body = {"filter": {"queue": "q", "producer": "stolen"}, "confirm": True}
    assert keys.post("/ojs/v1/admin/jobs/bulk/cancel", body).status < 300
    left = keys.get("/ojs/v1/admin/jobs", queue="q", state="available").json["items"]
    assert [each["producer"] for each in left] == ["good"]


def test_setup_lists_the_deliveries_that_would_stop(keys: Keys) -> None:
    table = keys.runtime.table
    setup = Setup(
        DeploymentStore(table), AccessKeyStore(table), keys.runtime.stores.deliveries, keys.clock,
        version="2",
    )  # fmt: skip
    for push in (True, False):
        setup.check_deliveries((), push=push)
    keys("PUT", f"{BASE}/f", {"target": {"function": FUNCTION}, "queues": ["f"]})
    setup.check_deliveries((), push=True)
    keys("PUT", f"{BASE}/d", ENDPOINT)
    with pytest.raises(SetupError, match=r"jobs to a\.example, but the setting egress_hosts"):
        setup.check_deliveries((), push=True)
    setup.check_deliveries(("a.example",), push=True)
    with pytest.raises(
        SetupError, match="deliveries d, f are active, but push=false would stop them"
    ):
        setup.check_deliveries(("a.example",), push=False)
    for name in ("d", "f"):
        keys("POST", f"{BASE}/{name}/pause", {})
    for push in (True, False):
        setup.check_deliveries((), push=push)


@pytest.mark.parametrize(
    ("method", "path", "body", "scopes", "status"),
    [
        ("PUT", f"{BASE}/d", ENDPOINT, ["admin:write"], 403),
        ("PUT", f"{BASE}/d", ENDPOINT, ["admin:write", "work"], 200),
        ("POST", f"{BASE}/d/resume", {}, ["admin:write"], 403),
        ("POST", f"{BASE}/d/resume", {}, ["admin:write", "work"], 200),
        ("POST", f"{BASE}/d/pause", {}, ["admin:write"], 200),
        ("POST", f"{BASE}/d/test", {"type": "pay.out"}, ["admin:write", "work"], 403),
        ("POST", f"{BASE}/d/test", {"args": [1]}, ["admin:write", "work"], 403),
    ],
)
def test_who_sets_a_delivery_works_and_who_words_a_test_enqueues(
    keys: Keys, make_runtime: Any, method: str, path: str, body: Any, scopes: list[str], status: int
) -> None:
    keys("PUT", f"{BASE}/d", ENDPOINT)
    keys.runtime.settings = replace(keys.runtime.settings, authorizer="keys")
    assert asked(keys.by(*scopes), method, path, json.dumps(body)) == status


KEY = "{key}"
# What can be done to what a key made.
ACTS: tuple[tuple[str, str, Any], ...] = (
    ("PUT", f"{BASE}/d", {**ENDPOINT, "concurrency": 2}),
    ("POST", f"{BASE}/d/pause", {}),
    ("POST", f"{BASE}/d/resume", {}),
    ("POST", f"{BASE}/d/test", {}),
    ("DELETE", f"{BASE}/d", None),
    ("POST", "/ojs/v1/cron", {**CRON, "queue": "q", "description": "x"}),
    ("PATCH", "/ojs/v1/cron/c", {"description": "x"}),
    ("POST", "/ojs/v1/cron/c/pause", None),
    ("POST", "/ojs/v1/cron/c/resume", None),
    ("POST", "/ojs/v1/cron/c/trigger", None),
    ("DELETE", "/ojs/v1/cron/c", None),
    ("DELETE", f"/ojs/v1/admin/keys/{KEY}", None),
    ("DELETE", f"/ojs/v1/admin/keys/{KEY}?made=revoke", None),
    ("POST", "/ojs/v1/workers/register", {"worker_id": "w", "pool": "p"}),
    ("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w", "state": "terminate"}),
    ("DELETE", "/ojs/v1/workers/w", None),
    ("POST", "/ojs/v1/admin/workers/w/quiet", {}),
    ("DELETE", "/ojs/v1/admin/workers/w", None),
)


@pytest.mark.parametrize("who", ["limited", "scopes", "revoked", "made up", "maker"])
def test_what_a_key_made_is_reached_by_no_key_of_less_and_no_revoked_one(
    keys: Keys, who: str
) -> None:
    run = keys.runtime
    _, root = run.access_keys.create(ANYBODY, "root", ALL_SCOPES)
    run.settings = replace(run.settings, authorizer="keys")
    api = Keyed(run, keys.clock, root.text)
    register = ("POST", "/ojs/v1/workers/register", {"worker_id": "w"})
    assert api("PUT", f"{BASE}/d", ENDPOINT).status == 201
    assert api("POST", "/ojs/v1/cron", {**CRON, "queue": "q"}).status == 201
    assert api(*register).status == 200
    child = api("POST", "/ojs/v1/admin/keys", {"name": "child", "scopes": ["work"]})
    if who == "limited":
        api = api.holding(api.make("limited", *ALL_SCOPES, queues=["other"]))
    elif who == "scopes":
        # Each scope that does not suffice for any of these.
        api = api.holding(api.make("scopes", "jobs:read", "admin:read"))
    elif who == "revoked":
        run.access_keys.revoke(ANYBODY, root.id)
    elif who == "made up":
        api = api.holding(f"{root.text[:-1]}{'0' if root.text[-1] != '0' else '1'}")
    refused = {"revoked": 401, "made up": 401}.get(who, 403)
    before = _stored(keys)
    for method, place, body in ACTS:
        if who == "maker":
            api(*register)
        path, _, made = place.replace(KEY, child.json["key"]["id"]).partition("?made=")
        reply = api(method, path, body, query={"made": made} if made else None)
        if who == "maker":
            assert reply.status < 300, (path, reply.text)
            continue
        # A limited key has workers of its own, by the same ids.
        own = who == "limited" and path.startswith("/ojs/v1/workers/")
        assert reply.status in ((200, 404) if own else (refused,)), (path, reply.text)
        after = _stored(keys)
        assert {key: after.get(key) for key in before} == before, path
        assert own or after.keys() == before.keys(), path


def _stored(keys: Keys) -> dict[tuple[str, str], Any]:
    """All items, but for when keys were used."""
    table = keys.runtime.table
    items = table.client.scan(TableName=table.name, ConsistentRead=True)["Items"]
    return {
        (item["pk"]["S"], item["sk"]["S"]): {n: v for n, v in item.items() if n != "used"}
        for item in items
    }
