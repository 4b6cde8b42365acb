"""Webhooks over HTTP, as the suite, the CLI and the admin UI ask; and the function that posts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from functions.webhook.handler import handler
from ojs.api import operations as contract
from ojs.domain import jsontext, times
from ojs.domain.access import Scope
from ojs.domain.events.event import Event
from tests.store.hooking import BODY, URL, Endpoint, Messages
from tests.unit.functions.client import Api
from tests.unit.functions.hooked import BASE, Hooks, hooked, made
from tests.unit.functions.isolation import Caller
from tests.unit.functions.keyed import Keyed

if TYPE_CHECKING:
    from ojs.clock import ManualClock
    from ojs.runtime import Runtime

LOG = "/ojs/v1/webhooks/deliveries"
SECRET = "whk_test_secret_001"  # as the suite
# Hosts that are this machine, a private network, or the metadata service, in all their forms.
PRIVATE = (
    "localhost", "a.localhost", "127.0.0.1", "127.1", "2130706433", "0x7f000001", "0.0.0.0",
    "10.0.0.1", "172.16.0.1", "192.168.0.1", "100.64.0.1", "169.254.169.254", "224.0.0.1",
    "[::1]", "[::ffff:10.0.0.1]", "[fd00:ec2::254]", "[fe80::1]", "[64:ff9b::a00:1]",
    "[2002:a00:1::]",
)  # fmt: skip


def failed(api: Api, endpoint: Endpoint, queue: Messages) -> str:
    """A dead delivery."""
    endpoint.answer = lambda _: 404
    at_ms = api.clock.now_ms()
    told = Event("evt_1", "job.completed", "ojs://s/api", at_ms, "j", {"queue": "q"})
    assert not api.runtime.webhook_matcher.publish([told])  # type: ignore[union-attr]
    for _, body in queue.due():
        record = {"messageId": "m", "body": jsontext.dumps(body)}
        assert handler({"Records": [record]}, None) == {"batchItemFailures": []}
    (found,) = api("GET", LOG, query={"status": "dead"}).json["items"]
    return str(found["id"])


def test_a_subscription_is_made_read_changed_and_deleted(hooks: Hooks) -> None:
    api, *_ = hooks
    reply = api("POST", BASE, {**BODY, "secret": SECRET, "filter": {"queues": ["q"]}})
    whole = reply.json
    assert reply.status == 201
    assert reply.headers["Location"] == f"{BASE}/{whole['id']}"
    assert whole["secret"] == whole["subscription"]["secret"] == SECRET
    assert (whole["url"], whole["active"], whole["timeout_s"]) == (URL, True, 30)
    path = f"{BASE}/{whole['id']}"
    assert "secret" not in api("GET", path).text
    # The admin UI sends what it has read.
    shown = api("GET", path).json
    changed = api("PUT", path, {**shown, "events": ["job.*", "workflow.failed"]}).json
    assert changed["subscription"]["events"] == ["job.*", "workflow.failed"]
    assert changed["filter"] == {"queues": ["q"], "job_types": []}
    assert api("PATCH", path, {"active": False}).json["active"] is False
    listed = api("GET", BASE, query={"page": "1", "per_page": "5"}).json
    assert listed["subscriptions"] == listed["items"]
    assert listed["total"] == listed["pagination"]["total"] == 1
    assert api("DELETE", path).json == {"deleted": True, "id": whole["id"]}
    assert api("GET", path).status == api("DELETE", path).status == 404


def test_pages_of_subscriptions(hooks: Hooks) -> None:
    api, *_ = hooks
    names = sorted(made(api) for _ in range(3))
    first = api("GET", BASE, query={"limit": "2"}).json
    cursor = first["pagination"]["next_cursor"]
    rest = api("GET", BASE, query={"limit": "2", "cursor": cursor}).json
    assert [each["id"] for each in first["items"] + rest["items"]] == names


def test_a_rotation_shows_the_new_secret_once(hooks: Hooks) -> None:
    api, *_ = hooks
    name = made(api)
    reply = api("POST", f"{BASE}/{name}/rotate-secret", {}).json
    assert reply["new_secret"] == reply["secret"]
    assert reply["new_secret"].startswith("whsec_")
    assert reply["previous_valid_until"] > api("GET", f"{BASE}/{name}").json["updated_at"]
    stored = api.runtime.webhooks.get(name).subscription
    assert len(stored.signing_secrets(api.clock.now_ms())) == 2
    again = api("POST", f"{BASE}/{name}/rotate-secret", {"secret": reply["secret"]})
    assert (again.status, again.error["details"]["field"]) == (400, "secret")


def test_a_test_posts_one_event_and_changes_nothing(hooks: Hooks) -> None:
    api, endpoint, _ = hooks
    name = made(api)
    before = api("GET", f"{BASE}/{name}").json
    reply = api("POST", f"{BASE}/{name}/test", {}).json
    assert reply == {
        "success": True, "status_code": 200, "status": 200, "response_time_ms": 5,
        "response_body": "said",
    }  # fmt: skip
    assert endpoint.last is not None
    assert endpoint.last[1].event["type"] == "webhook.test"
    endpoint.answer = lambda _: 0
    assert api("POST", f"{BASE}/{name}/test").json["success"] is False
    assert api("GET", f"{BASE}/{name}").json == before


def test_a_dead_delivery_is_shown_and_retried(hooks: Hooks) -> None:
    api, endpoint, queue = hooks
    name = made(api)
    dead = failed(api, endpoint, queue)
    shown = api("GET", f"{LOG}/{dead}").json
    assert shown["delivery"]["status"] == shown["status"] == "dead"
    assert (shown["subscription_id"], shown["status_code"]) == (name, 404)
    assert api("GET", LOG, query={"subscription": name, "limit": "1"}).json["items"][0] == {
        key: value for key, value in shown.items() if key != "delivery"
    }
    assert api("POST", f"{LOG}/{dead}/retry", {}).json["status"] == "pending"
    again = api("POST", f"{LOG}/{dead}/retry", {})
    assert (again.status, again.error["details"]["current_state"]) == (409, "pending")
    assert api("GET", f"{LOG}/del_unknown").status == 404


@pytest.mark.parametrize(
    ("name", "value"),
    [("status", "odd"), ("status", ""), ("subscription", "x"), ("cursor", "zz"), ("limit", "0")],
)
def test_bad_parameters_of_the_log(hooks: tuple[Api, Any, Any], name: str, value: str) -> None:
    reply = hooks[0]("GET", LOG, query={name: value})
    assert (reply.status, reply.error["details"]["field"]) == (400, name)
    assert "one of ," not in reply.error["message"]


@pytest.mark.parametrize(
    ("field", "body", "status"),
    [
        ("url", {"url": "http://"}, 400),
        ("url", {"url": "https://u:p@hooks.example.com/"}, 400),
        ("url", {"url": "https://other.test/"}, 422),
        ("url", {"url": "http://hooks.example.com/"}, 422),
        ("url", {"url": "https://hooks.example.com:0/"}, 422),
        ("url", {"url": "https://hooks.example.com/#part"}, 400),
        ("url", {"url": "https://hooks.example.com/\u00e9"}, 422),
        *(("url", {"url": f"https://{host}/"}, 422) for host in PRIVATE),
        ("url", {"url": None}, 400),
        ("events", {"events": []}, 400),
        ("events", {"events": None}, 400),
        ("events[0]", {"events": ["job.unknown"]}, 400),
        ("events[0]", {"events": ["webhook.dead"]}, 400),
        ("events[0]", {"events": ["webhook.*"]}, 400),
        ("secret", {"secret": "x" * 15}, 400),
        ("secret", {"secret": "x" * 129}, 400),
        ("timeout_s", {"timeout_s": 4}, 400),
        ("timeout_s", {"timeout_s": 61}, 400),
        ("filter.queues[0]", {"filter": {"queues": ["No such"]}}, 400),
        ("metadata", {"metadata": {"x": "y" * 5_000}}, 400),
        ("events", {"events": ["job.*"] * 51}, 400),
        ("secret", {"secret": "tab\tin a long secret"}, 400),
        ("filter.job_types", {"filter": {"job_types": ["t"] * 101}}, 400),
        ("filter.queue", {"filter": {"queue": "q"}}, 400),
        ("active", {"active": "yes"}, 400),
        ("evnts", {"evnts": ["job.*"]}, 400),
    ],
)
def test_bad_subscriptions(field: str, body: Any, status: int, hooks: Hooks) -> None:
    api, *_ = hooks
    reply = api("POST", BASE, {**BODY, **body})
    assert (reply.status, reply.error["details"]["field"]) == (status, field)
    assert api("GET", BASE).json["total"] == 0


# --- as the clients of the specification ask ------------------------------------------------------

_UI = {"content-type": "application/json", "accept": "*/*"}
_CLI = {"content-type": "application/openjobspec+json", "accept": "application/openjobspec+json"}
# The boxes of the admin UI, without those whose events neither the specification nor this server
# has: job.retried, worker.registered, worker.deregistered, worker.stale.
_BOXES = [
    "job.enqueued", "job.started", "job.completed", "job.failed", "job.cancelled", "job.discarded",
    "queue.paused", "queue.resumed", "workflow.started", "workflow.completed", "workflow.failed",
    "cron.triggered",
]  # fmt: skip


def test_what_the_cli_sends(hooks: Hooks) -> None:
    """It sends no body with `test` and `rotate-secret`."""
    api, *_ = hooks
    body = {"url": URL, "events": ["job.completed", "job.failed"], "secret": SECRET}
    name = api("POST", BASE, body, headers=_CLI).json["id"]
    shown = api("GET", BASE, headers=_CLI, query={"limit": "25"}).json
    assert shown["total"] == 1
    row = {"id", "url", "events", "active", "created_at"}
    assert row <= shown["subscriptions"][0].keys()
    path = f"{BASE}/{name}"
    one = api("GET", path, headers=_CLI).json
    assert (one["success_count"], one["failure_count"], one.get("last_delivery_at")) == (0, 0, None)
    tried = api("POST", f"{path}/test", headers=_CLI).json
    assert (tried["status_code"], tried["success"]) == (200, True)
    rotated = api("POST", f"{path}/rotate-secret", headers=_CLI).json
    assert rotated["new_secret"] != SECRET
    assert api("DELETE", path, headers=_CLI).status == 200


def test_what_the_admin_ui_sends(hooks: Hooks) -> None:
    """It reads what it has created from the top level, and changes one field with PUT."""
    api, endpoint, queue = hooks
    name = api("POST", BASE, {"url": URL, "events": _BOXES}, headers=_UI).json["id"]
    page = api("GET", BASE, headers=_UI, query={"page": "1", "per_page": "25"}).json
    assert [each["id"] for each in page["items"]] == [name]
    assert {"page": 1, "per_page": 25, "total": 1}.items() <= page["pagination"].items()
    path = f"{BASE}/{name}"
    for active in (False, True):
        changed = api("PUT", path, {"active": active}, headers=_UI).json
        assert (changed["active"], changed["events"], changed["url"]) == (active, _BOXES, URL)
    tried = api("POST", f"{path}/test", headers=_UI).json
    assert (tried["status"], tried["response_time_ms"]) == (200, 5)
    failed(api, endpoint, queue)
    row = api("GET", path, headers=_UI).json
    assert (row["last_delivery_status"], row["failure_count"]) == (404, 1)
    assert row["last_delivery_at"]
    assert api("DELETE", path, headers=_UI).status == 200


def test_pages_of_the_admin_ui(hooks: Hooks) -> None:
    api, *_ = hooks
    names = sorted(made(api) for _ in range(3))
    pages = [
        api("GET", BASE, headers=_UI, query={"page": str(page), "per_page": "2"}).json
        for page in (1, 2, 3)
    ]
    assert [[each["id"] for each in page["items"]] for page in pages] == [names[:2], names[2:], []]
    assert {page["pagination"]["total"] for page in pages} == {3}
    listed = api("GET", BASE, headers=_CLI, query={"limit": "1"}).json
    assert (listed["total"], len(listed["subscriptions"])) == (3, 1)


def test_a_rotated_secret_signs_for_a_day(hooks: Hooks) -> None:
    api, *_ = hooks
    name = made(api, secret=SECRET)
    now_ms = api.clock.now_ms()
    reply = api("POST", f"{BASE}/{name}/rotate-secret").json
    assert reply["previous_valid_until"] == times.format_ms(now_ms + 86_400_000)
    stored = api.runtime.webhooks.get(name).subscription
    assert stored.signing_secrets(now_ms) == (reply["new_secret"], SECRET)
    assert stored.signing_secrets(now_ms + 86_400_000) == (reply["new_secret"],)


def test_another_host_needs_another_secret(hooks: Hooks) -> None:
    api, *_ = hooks
    path = f"{BASE}/{made(api, secret=SECRET)}"
    moved = {"url": "https://new.example.com/"}
    for secret in ({}, {"secret": SECRET}):
        reply = api("PATCH", path, {**moved, **secret})
        assert (reply.status, reply.error["details"]["field"]) == (400, "secret")
    assert api("PATCH", path, {**moved, "secret": "y" * 16}).status == 200
    assert api("PATCH", path, {"url": "https://new.example.com/other"}).status == 200


def test_the_101st_subscription_is_refused(hooks: Hooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ojs.domain.webhooks.MAX_SUBSCRIPTIONS", 2)
    api, *_ = hooks
    for _ in range(2):
        made(api)
    assert api("POST", BASE, BODY).status == 409


def test_a_deployment_without_webhooks_says_so(api: Api) -> None:
    reply = api("POST", BASE, BODY)
    assert (reply.status, reply.error["code"]) == (422, "unsupported")
    assert api("GET", BASE).json["items"] == []
    assert api.runtime.webhook_matcher is None
    assert api.runtime.webhook_sweep is None


def test_messages_that_are_none_come_again(hooks: Hooks) -> None:
    api, *_ = hooks
    texts = ["", "[]", '{"delivery":"d"}', '{"delivery":"del_1","turn":1}']
    records = [{"messageId": str(at), "body": text} for at, text in enumerate(texts)]
    found = handler({"Records": records}, None)["batchItemFailures"]
    assert len(found) == len(texts)
    assert api.runtime.webhook_sender.handle([]) == []


def test_who_may_subscribe_and_what_a_revoked_key_leaves(
    make_runtime: Callable[..., Runtime], clock: ManualClock
) -> None:
    """Events contain data of jobs, so a key that can't read jobs can't have them sent."""
    built, endpoint, queue = hooked(make_runtime, clock, authorizer="keys")
    keyed = Keyed(built, clock)
    read, write = Scope.ADMIN_READ, Scope.ADMIN_WRITE
    for scopes, queues, status in (
        ((write,), None, 403),
        ((Scope.JOBS_READ, read), None, 403),
        ((write, Scope.JOBS_READ), ["mine"], 403),
        ((write, Scope.JOBS_READ), None, 201),
    ):
        keyed.key = keyed.make("k", *scopes, **({} if queues is None else {"queues": queues}))
        assert keyed("POST", BASE, BODY).status == status
    maker = keyed.key
    keyed.key = keyed.make("root", *Scope)
    (found,) = keyed("GET", BASE).json["items"]
    revoked = keyed("DELETE", f"/ojs/v1/admin/keys/{found['created_by']}", query={"made": "revoke"})
    assert revoked.json["paused"]["webhooks"] == 1
    assert keyed("GET", f"{BASE}/{found['id']}").json["active"] is False
    assert maker is not None
    # Without that option, the first event after the revocation disables it.
    keyed.key = keyed.make("other", write, Scope.JOBS_READ)
    name = keyed("POST", BASE, BODY).json["id"]
    keyed.key = keyed.make("root", *Scope)
    key_id = keyed("GET", f"{BASE}/{name}").json["created_by"]
    assert keyed("DELETE", f"/ojs/v1/admin/keys/{key_id}").status == 200
    clock.advance(60_000)
    told = Event("evt_1", "job.completed", "ojs://s/api", clock.now_ms(), "j", {"queue": "q"})
    built.webhook_matcher.publish([told])
    assert built.webhook_sender.handle([body for _, body in queue.due()]) == []
    assert endpoint.seen == []
    assert keyed("GET", f"{BASE}/{name}").json["disabled_reason"] == "key_ended"


def test_a_tenants_caller_has_no_webhooks(hooks: Hooks) -> None:
    """A subscription would have the events of all tenants."""
    api, endpoint, _ = hooks
    name, acme = made(api), Caller(api.runtime, "acme")
    operations = [each for each in contract.OPERATIONS if "/webhooks/" in each.path]
    assert len(operations) > 10
    for each in operations:
        path = each.path.replace("{id}", name)
        body = BODY if each.method in ("POST", "PUT", "PATCH") else None
        reply = acme.ask(each.method, path, body)
        assert (reply.status, reply.error["code"]) == (403, "permission_denied"), each.id
    assert api("GET", BASE).json["total"] == 1
    assert endpoint.seen == []
