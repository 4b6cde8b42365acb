"""Changes of configurations: ETag, If-Match, and the audit with the request that undoes each."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from ojs.api.operations import OPERATIONS
from ojs.domain.edits import make_version, merge_patch
from ojs.domain.errors import InvalidRequest
from ojs.http.answer import fields
from ojs.http.binding.preconditions import read_edit
from ojs.store.table.errors import LostRace
from tests.unit.functions import hooked

if TYPE_CHECKING:
    from tests.unit.functions.client import Api, Reply

V1 = "/ojs/v1"
POOL = {"queues": ["a"], "concurrency": 5}
CRON = {"name": "c", "expression": "0 9 * * *", "type": "t", "args": [1]}
# Kind of configuration → path to read it, method and path to write it, two bodies.
KINDS: dict[str, tuple[str, str, str, dict[str, Any], dict[str, Any]]] = {
    "queue": ("queues/q/config", "PUT", "queues/q/config",
        {"concurrency": 3}, {"concurrency": 4, "max_size": 9}),
    "admin queue": ("admin/queues/q/config", "PUT", "admin/queues/q/config",
        {"retention": {"completed": "P1D"}},
        {"retention": {"completed": "P3D", "discarded": "P2D"}}),
    "queue limits": ("queues/q/config", "PUT", "admin/queues/q/rate-limit",
        {"concurrency": 2}, {"concurrency": 7}),
    "policy": ("queues/_default/config", "PUT", "queues/_default/config",
        {"concurrency": 3}, {"concurrency": 4}),
    "pool": ("admin/pools/p", "PUT", "admin/pools/p", POOL, {**POOL, "concurrency": 6}),
    "tenant": ("admin/tenants/t", "PUT", "admin/tenants/t", {"max_queues": 3},
        {"name": "T", "max_enqueue_rate": {"limit": 9, "period": "PT1M"}, "priority_boost": 1}),
    "cron": ("cron/c", "POST", "cron", CRON, {**CRON, "expression": "0 10 * * *"}),
    "cron change": ("crons/c", "PATCH", "crons/c", {"description": "x"}, {"description": "y"}),
    "rate limit": ("rate-limits/k", "PUT", "rate-limits/k", {"concurrency": 1},
        {"rate": {"limit": 3, "period": "PT1M"}}),
}  # fmt: skip


def ask(api: Api, method: str, path: str, body: Any = None, **headers: str) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return api(method, f"{V1}/{path}", body, headers=named)


def last(api: Api) -> Any:
    return ask(api, "GET", "admin/actions").json["items"][0]


def undo(api: Api) -> Reply:
    how = last(api)["undo"]
    return api(how["method"], how["path"], how.get("body"), headers=how["headers"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_with_an_old_etag_changes_nothing(api: Api, kind: str) -> None:
    read, method, path, first, second = KINDS[kind]
    ask(api, "PUT", "queues/q/config", {"dead_letter_ttl": "P9D"})
    ask(api, "POST", "cron", CRON)
    before = ask(api, method, path, first)
    assert before.status in (200, 201)
    seen = ask(api, "GET", read)
    assert seen.headers["ETag"] == f'"{seen.json["etag"]}"' == before.headers["ETag"]
    changed = ask(api, method, path, second, If_Match=seen.headers["ETag"])
    assert changed.status == 200
    assert changed.headers["ETag"] != seen.headers["ETag"]
    stale = ask(api, method, path, first, If_Match=seen.headers["ETag"])
    assert stale.status == 412
    assert stale.json["error"]["code"] == "precondition_failed"
    assert stale.json["error"]["details"]["etag"] == changed.json["etag"]
    assert ask(api, "GET", read).json["etag"] == changed.json["etag"]
    # The change has been made already: a request whose response was lost is repeated.
    assert ask(api, method, path, second, If_Match=seen.headers["ETag"]).status == 200
    assert ask(api, method, path, first, If_Match=f'"0", W/{changed.headers["ETag"]}').status == 200


@pytest.mark.parametrize(
    ("path", "body"), [("admin/pools/p", POOL), ("queues/new/config", {"concurrency": 2})]
)
def test_a_configuration_is_created_once(api: Api, path: str, body: dict[str, Any]) -> None:
    assert ask(api, "PUT", path, body, If_Match="*").status == 412
    assert ask(api, "GET", path).status == 404
    assert ask(api, "PUT", path, body, If_None_Match="*").status in (200, 201)
    assert ask(api, "PUT", path, body, If_None_Match="*").status == 200
    other = {**body, "concurrency": 9}
    assert ask(api, "PUT", path, other, If_None_Match="*").status == 412
    assert ask(api, "PUT", path, other, If_Match="*").status == 200


@pytest.mark.parametrize("kind", ["pool", "tenant", "cron", "rate limit"])
def test_a_deletion_has_a_precondition(api: Api, kind: str) -> None:
    read, method, path, first, second = KINDS[kind]
    old = ask(api, method, path, first).headers["ETag"]
    new = ask(api, method, path, second).headers["ETag"]
    assert ask(api, "DELETE", read, If_Match=old).status == 412
    assert ask(api, "DELETE", read, If_Match=new).status == 200


def test_preconditions_of_other_operations_and_forms_are_rejected(api: Api) -> None:
    ask(api, "PUT", "admin/pools/p", POOL)
    for method, path, headers, field in (
        ("POST", "queues/q/pause", {"If-Match": "*"}, "If-Match"),
        ("POST", "queues/q/pause", {"If-None-Match": "*"}, "If-None-Match"),
        ("DELETE", "admin/pools/p", {"If-None-Match": "*"}, "If-None-Match"),
        ("PUT", "admin/pools/p", {"If-None-Match": '"a"'}, "If-None-Match"),
        ("PUT", "admin/pools/p", {"If-Match": "bare"}, "If-Match"),
        ("PUT", "admin/pools/p", {"If-Match": "*", "If-None-Match": "*"}, "If-None-Match"),
    ):
        reply = api(method, f"{V1}/{path}", POOL if method == "PUT" else None, headers=headers)
        assert (reply.status, reply.json["error"]["details"]["field"]) == (400, field)


def test_a_concurrent_change_is_seen(api: Api) -> None:
    """The write loses its race, and the check is repeated for the winner's configuration."""
    tag = ask(api, "PUT", "admin/pools/p", POOL).headers["ETag"]
    pools = api.runtime.pools._pools
    save, first = pools.save, True

    def race(*args: Any) -> Any:
        nonlocal first
        if first:
            first = False
            ask(api, "PUT", "admin/pools/p", {**POOL, "concurrency": 8})
        return save(*args)

    with mock.patch.object(pools, "save", race):
        lost = ask(api, "PUT", "admin/pools/p", {**POOL, "concurrency": 7}, If_Match=tag)
    assert lost.status == 412
    assert ask(api, "GET", "admin/pools/p").json["concurrency"] == 8


def test_a_rate_limit_is_written_on_its_condition(api: Api) -> None:
    ask(api, "PUT", "rate-limits/k", {"concurrency": 1})
    limits = api.runtime.limits
    before = limits.get("k").limiter.override
    assert before is not None
    ask(api, "PUT", "rate-limits/k", {"concurrency": 2})
    with pytest.raises(LostRace):
        limits._store.override("k", replace(before, until_ms=None), seen=before, now_ms=0)
    with pytest.raises(LostRace):
        limits._store.lift("k", seen=before)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "queue limits"])
def test_an_action_has_before_and_after_and_is_undone(api: Api, kind: str) -> None:
    read, method, path, first, second = KINDS[kind]
    ask(api, "PUT", "queues/q/config", {"dead_letter_ttl": "P9D"})
    ask(api, "POST", "cron", CRON)
    ask(api, method, path, first)
    was = ask(api, "GET", read).json["etag"]
    ask(api, method, path, second)
    action = last(api)
    assert action["resource"].split()[-1] in kind
    assert action["before"] != action["after"]
    assert ask(api, "GET", f"admin/actions/{action['id']}").json["action"] == action
    assert undo(api).status == 200
    assert ask(api, "GET", read).json["etag"] == was
    # Undo of the undo: the same configuration as after the action.
    assert undo(api).status == 200
    assert last(api)["after"] == action["after"]


@pytest.mark.parametrize("kind", ["pool", "tenant", "cron", "rate limit"])
def test_a_creation_and_a_deletion_are_undone(api: Api, kind: str) -> None:
    read, method, path, first, _ = KINDS[kind]
    ask(api, method, path, first)
    tag = ask(api, "GET", read).json["etag"]
    assert undo(api).status == 200
    gone = ask(api, "GET", read)
    assert gone.status == (200 if kind == "rate limit" else 404)
    assert undo(api).status in (200, 201)
    assert ask(api, "GET", read).json["etag"] == tag


def test_a_pause_is_undone_and_a_later_change_prevents_an_undo(api: Api) -> None:
    ask(api, "POST", "queues", {"name": "q"})
    ask(api, "POST", "queues/q/pause")
    action = last(api)
    states = [{"state": "active"}, {"state": "paused"}]
    assert [action["before"], action["after"]] == states
    assert (action["resource"], action["name"]) == ("queue state", "q")
    assert undo(api).json["queue"]["state"] == "active"
    ask(api, "POST", "queues/q/resume")
    assert "undo" not in last(api)  # nothing changed
    ask(api, "PUT", "admin/pools/p", POOL)
    ask(api, "PUT", "admin/pools/p", {**POOL, "concurrency": 6})
    how = last(api)["undo"]
    ask(api, "PUT", "admin/pools/p", {**POOL, "concurrency": 7})
    late = api(how["method"], how["path"], how["body"], headers=how["headers"])
    assert late.status == 412


def test_a_large_configuration_is_not_in_the_audit(api: Api) -> None:
    ask(api, "POST", "cron", {**CRON, "args": ["x" * 5_000]})
    action = last(api)
    assert action["omitted"] is True
    assert not {"before", "after", "undo"} & set(action)
    unknown = ask(api, "GET", "admin/actions/01968f2a-0000-7000-8000-000000000000")
    assert unknown.status == 404


def test_webhooks_have_versions_and_no_secret_in_the_audit(hooks: hooked.Hooks) -> None:
    api, _, _ = hooks
    path = f"webhooks/subscriptions/{hooked.made(api)}"
    old = ask(api, "GET", path).headers["ETag"]
    secret = "whk_another_secret_002"
    api.clock.advance(1)
    new = ask(api, "PATCH", path, {"secret": secret}, If_Match=old).headers["ETag"]
    assert new != old
    action = last(api)
    assert action["before"] == action["after"]
    assert secret not in str(action)
    assert ask(api, "PUT", path, {"timeout_s": 9}, If_Match=old).status == 412
    assert ask(api, "PUT", path, {"timeout_s": 9}, If_Match=new).status == 200
    assert undo(api).json["timeout_s"] != 9
    assert ask(api, "DELETE", path, If_Match=old).status == 412
    assert ask(api, "DELETE", path, If_Match="*").status == 200
    assert "undo" not in last(api)  # a new one would have another id and secret


def test_a_merge_patch_makes_one_of_the_other() -> None:
    now = {"a": 1, "b": {"x": 1, "y": 2}, "c": [1], "d": {"z": 1}}
    wanted = {"b": {"x": 3}, "c": [2], "d": {"z": 1}, "e": {"n": 1}}
    assert merge_patch(now, wanted) == {
        "a": None, "b": {"x": 3, "y": None}, "c": [2], "e": {"n": 1},
    }  # fmt: skip
    assert make_version({"a": Decimal("0.1")}) == make_version({"a": 0.1})
    assert (
        make_version({"a": 1, "b": 2}) == make_version({"b": 2, "a": 1}) != make_version({"a": 1})
    )


def test_each_versioned_operation_checks_preconditions() -> None:
    """PUT, PATCH and DELETE of a configuration; what has none rejects If-Match."""
    writes = [it for it in OPERATIONS if it.function == "admin" and it.method != "GET"]
    for operation in writes:
        sent = {"if-match": '"a"'}
        if operation.versioned:
            found = read_edit(operation, sent)
            assert found is not None
            assert found.accepts == frozenset({"a"})
        else:
            with pytest.raises(InvalidRequest):
                read_edit(operation, sent)
    for operation in OPERATIONS:
        shapes = [each.shape for each in operation.answers.values() if each.shape]
        tagged = any("etag" in dict(fields(shape)) for shape in shapes)
        if tagged and operation.method in ("GET", "PUT", "PATCH"):
            assert operation.versioned, operation.id
