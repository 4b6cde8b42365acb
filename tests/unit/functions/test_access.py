"""Who gets in, and what they may do: every operation, with no key, a wrong one and each scope."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs import access_runtime
from ojs.api import operations as contract
from ojs.clock import ManualClock
from ojs.domain import times
from ojs.domain.access import (
    ALL_SCOPES,
    ANYBODY,
    KEY_CHARACTERS,
    AccessKey,
    Credential,
    Principal,
    Scope,
    bearer,
)
from ojs.domain.errors import BackendError
from ojs.environment import beginning_ms
from ojs.http.endpoint import Operation, QueueScope
from ojs.runtime import Runtime
from ojs.store.deployment.access_keys import AccessKeyStore
from ojs.store.table.table import Table
from tests.spread import spread
from tests.unit.functions.keyed import EACH_FOR_ITSELF, JOB, OWN_SCOPE, UNREFUSED, Keyed

UNKNOWN = Credential("0" * 16, "0" * 64).text
EVERY = spread(contract.OPERATIONS, 4, ids=[operation.id for operation in contract.OPERATIONS])
WRITES = {"PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem", "TransactWriteItems"}


@pytest.fixture
def keyed(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Keyed:
    return Keyed(make_runtime(authorizer="keys"), clock)


T = TypeVar("T")


def spent(api: Keyed, act: Callable[..., T], *given: Any, **named: Any) -> tuple[T, list[str]]:
    """An answer, and the calls of the table that it took."""
    api.runtime.table.meter.reset()
    answer = act(*given, **named)
    return answer, list(api.runtime.table.meter.calls)


def test_the_table_of_permissions_is_complete() -> None:
    for operation in contract.OPERATIONS:
        reach = operation.permission.reach
        assert (reach is QueueScope.PATH) == (operation.subject == "queue"), operation.id
        assert (reach is QueueScope.JOB) == (operation.subject == "job"), operation.id
        if reach is QueueScope.FILTER:
            assert _filters(operation), operation.id


def _filters(operation: Operation) -> bool:
    return bool({"queue", "queues"} & {each.name for each in operation.query})


# Deliveries take jobs and end them: who sets one needs the scope of workers, too.
ALSO_WORK = frozenset({"create_delivery", "put_delivery", "resume_delivery"})

# A webhook sends events of jobs to its endpoint.
ALSO_JOBS_READ = frozenset(
    {"create_webhook", "update_webhook", "put_webhook", "rotate_webhook_secret"}
)


@pytest.mark.parametrize("operation", EVERY)
def test_each_operation_asks_for_its_scope(operation: Operation, keyed: Keyed) -> None:
    """And what is refused has cost nothing and done nothing."""
    needed = OWN_SCOPE.get(operation.id, operation.permission.scope)
    more = {needed: [Scope.WORK]} if operation.id in ALSO_WORK else {}
    if operation.id == "test_delivery":  # with the type of a job
        more = {needed: [Scope.JOBS_WRITE]}
    if operation.id in ALSO_JOBS_READ:
        more = {needed: [Scope.JOBS_READ]}
    keys = {scope: keyed.make("k", scope, *more.get(scope, ())) for scope in Scope}
    for key in (None, UNKNOWN, "nonsense"):
        told = {"lambda": keyed.told(None if key is None else f"Bearer {key}")}
        reply, calls = spent(keyed, keyed, operation.method, operation.path, {}, told=told)
        assert reply.status == 401
        assert reply.error["code"] == "unauthenticated"
        assert reply.headers["WWW-Authenticate"].startswith("Bearer")
        assert calls == []
    for scope, key in keys.items():
        api = keyed.holding(key)
        if needed in (None, scope) or scope in operation.permission.others:
            reply = api.ask(operation)
            # Not found and in conflict are fine: it was let in.
            assert reply.status not in (401, 403), (scope, reply.text)
            assert reply.status < 500, reply.text
            continue
        told = {"lambda": api.told(f"Bearer {key}")}
        reply, calls = spent(api, api, operation.method, operation.path, {}, told=told)
        assert reply.status == 403, scope
        assert reply.error["code"] == "permission_denied"
        assert reply.error["details"] == {}
        assert calls == []


def test_what_is_no_route_is_for_nobody_either(keyed: Keyed) -> None:
    for method, path in (
        ("GET", "/nowhere"),
        ("PATCH", "/ojs/v1/jobs"),
        ("OPTIONS", "/nowhere"),
    ):
        assert keyed(method, path).status == 401
    assert keyed.holding(keyed.make("k", "work"))("GET", "/nowhere").status == 404


BAD = (
    "", "Bearer", "Bearer ", UNKNOWN, f"Basic {UNKNOWN}", f"Bearer {UNKNOWN} x",
    f"Bearer x,{UNKNOWN}", f"Bearer {UNKNOWN},Bearer {UNKNOWN}", f"Bearer {UNKNOWN.upper()}",
    f"Bearer {UNKNOWN}0", f"Bearer {UNKNOWN[:-1]}", "Bearer " + "x" * 10_240, "Bearer \x00",
    "Bearer ojs_", "Bearer \u2603", f"Bearer {UNKNOWN}\r\nX: y", f"Bearer\t{UNKNOWN}",
)  # fmt: skip


@pytest.mark.parametrize("header", BAD)
def test_what_is_no_key_is_nobody_s_without_a_call(header: str, keyed: Keyed) -> None:
    told, calls = spent(keyed, keyed.told, header)
    assert told == {}
    assert calls == []


@given(st.text())
def test_any_header_is_somebody_s_or_nobody_s(text: str) -> None:
    token = bearer(text)
    assert token is None or (" " not in token and text.strip().lower().startswith("bearer "))
    credential = Credential.parse(text)
    assert credential is None or credential.text == text


def test_wrong_keys_cost_one_call_at_most_and_leave_nothing(keyed: Keyed) -> None:
    good = keyed.make("k", "work")
    ended = keyed.make("k", "work", expires_ms=keyed.clock.now_ms() + 1_000)
    gone = keyed.make("k", "work")
    keyed.runtime.access_keys.revoke(Principal(None), gone.split("_")[1])
    keyed.clock.advance(1_000)
    wrong = good[:-1] + ("0" if good[-1] != "0" else "1")
    answers = []
    made_up = f"{UNKNOWN}_{'0' * 16}"
    for key in (UNKNOWN, made_up, wrong, ended, gone):
        told, calls = spent(keyed, keyed.told, f"Bearer {key}")
        assert told == {}
        assert calls == (["UpdateItem"] if key in (ended, gone) else [])
        reply = keyed.holding(key)("GET", "/ojs/v1/queues")
        body = reply.json
        del body["error"]["request_id"]
        answers.append((reply.status, body))
    # None can be told from another.
    assert all(answer == answers[0] for answer in answers)
    assert keyed.runtime.access_keys.list().items[0].used_ms is None
    assert [key.name for key in keyed.runtime.access_keys.list().items] == ["k", "k", "k"]


def test_a_good_key_is_looked_up_with_one_call(keyed: Keyed) -> None:
    key = keyed.make("mailer", "jobs:write", "work", queues=["mail", "mail.*"])
    keyed.clock.advance(5)
    keyed.runtime.table.meter.reset()
    told = keyed.told(f"bearer   {key}")
    meter = keyed.runtime.table.meter
    assert (meter.calls, meter.write_units, meter.read_units) == (["UpdateItem"], 1.0, 0.0)
    assert told == {
        "principal": "mailer",
        "key": key.split("_")[1],
        "scopes": "jobs:write work",
        "queues": "mail mail.*",
    }
    (found,) = keyed.runtime.access_keys.list().items
    assert found.used_ms == keyed.clock.now_ms()


def test_who_cannot_be_looked_up_is_not_nobody(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise BackendError("gone")

    key = keyed.make("k", "work")
    monkeypatch.setattr(Table, "update", broken)
    with pytest.raises(BackendError):
        keyed.told(f"Bearer {key}")


def test_the_deployment_says_until_when_old_keys_work(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    credential = Credential("1" * 16, "2" * 64)
    now_ms = keyed.clock.now_ms()
    key = AccessKey(credential.id, "old", ALL_SCOPES, now_ms)
    assert AccessKeyStore(keyed.runtime.table).add(key, credential)
    tomorrow = times.format_ms(now_ms + 86_400_000)[:10]
    for day in ("2020-02-29", tomorrow):
        end_ms = beginning_ms(day)
        assert times.format_ms(end_ms).startswith(f"{day}T00:00:00")
        # The authorizer's, and that of a function that looks up keys itself.
        monkeypatch.setenv("OJS_OLD_KEYS_UNTIL", day)
        monkeypatch.setattr(access_runtime, "_table", lambda: keyed.runtime.table)
        monkeypatch.setattr(access_runtime, "SystemClock", lambda: keyed.clock)
        access_runtime._deployed.cache_clear()
        deployed = access_runtime._deployed()
        settings = replace(keyed.runtime.settings, old_keys_until=day)
        monkeypatch.setattr(keyed.runtime, "settings", settings)
        for name in ("keys", "authentication", "callers", "access_keys"):
            keyed.runtime.__dict__.pop(name, None)
        for found in (deployed, keyed.runtime.callers):
            assert (found.who(f"Bearer {credential.text}") is not None) == (day == tomorrow)
        owner = keyed.holding(keyed.make("owner", *ALL_SCOPES))
        shown = owner("GET", f"/ojs/v1/admin/keys/{key.id}").json["key"]
        assert shown["expires_at"].startswith(f"{day}T00:00:00")
    access_runtime._deployed.cache_clear()


def test_the_secret_is_stored_nowhere(keyed: Keyed, dynamodb: Any) -> None:
    key = keyed.make("k", "work")
    everything = json.dumps(dynamodb.scan(TableName=keyed.runtime.table.name)["Items"])
    _, key_id, secret, mac = key.split("_")
    assert key_id in everything
    assert secret not in everything
    assert mac not in everything
    assert len(key) == KEY_CHARACTERS


# --- queues ---------------------------------------------------------------------------------------


def limited(keyed: Keyed) -> Keyed:
    return keyed.holding(keyed.make("limited", *ALL_SCOPES, queues=["mine", "my.*"]))


def push(keyed: Keyed, queue: str) -> str:
    owner = keyed.holding(keyed.make("owner", *ALL_SCOPES))
    reply = owner("POST", "/ojs/v1/jobs", {"type": "t", "args": [], "options": {"queue": queue}})
    return str(reply.json["job"]["id"])


@pytest.mark.parametrize("operation", EVERY)
def test_a_limited_key_touches_its_queues_only(operation: Operation, keyed: Keyed) -> None:
    api = limited(keyed)
    reach = operation.permission.reach
    theirs, mine = push(keyed, "theirs"), push(keyed, "mine")
    if operation.subject == "cron job":
        # Each has the name of its queue.
        for name in ("theirs", "mine", "my.own"):
            raw = {"name": name, "cron": "@daily", "type": "t", "queue": name}
            keyed.runtime.crons.register(raw, ANYBODY, None)
    if operation.subject == "workflow":
        # Each has the id of a job, which is no job of it.
        keyed.make_workflow(theirs, "mine", "theirs")
        keyed.make_workflow(mine, "mine", "mine")
    reply, calls = spent(api, lambda: api.ask(operation, queue="theirs", job=theirs))
    # The first call is the authorizer's.
    written = [call for call in calls[1:] if call in WRITES]
    if reach is QueueScope.NONE or operation.id in UNREFUSED:
        assert reply.status not in (401, 403), reply.text
        return
    refusal = reply.error
    if operation.id == EACH_FOR_ITSELF:
        assert reply.status == 422, reply.text
        refusal = reply.json["items"][0]["error"]
    else:
        assert reply.status == 403, reply.text
    assert refusal["code"] == "permission_denied"
    # Of many jobs which it is, which is no more than its number.
    assert refusal["details"] in ({}, {"index": 0})
    assert written == []
    reply = api.ask(operation, queue="mine", job=mine)
    unnamed = reach is QueueScope.TENANT and not _filters(operation)
    assert (reply.status == 403) == (reach is QueueScope.ALL or unnamed), reply.text
    if reach is not QueueScope.ALL and not unnamed:
        assert api.ask(operation, queue="my.own", job=mine).status not in (401, 403)


def test_a_result_out_of_reach_looks_like_none(keyed: Keyed) -> None:
    ids = {name: push(keyed, name) for name in ("mine", "theirs")}
    for job_id in ids.values():
        keyed.holding(keyed.make("owner", *ALL_SCOPES))("DELETE", f"/ojs/v1/jobs/{job_id}")
    reply = limited(keyed)("POST", "/ojs/v1/jobs/results", {"ids": list(ids.values())})
    assert reply.json["results"][ids["mine"]]["state"] == "cancelled"
    assert reply.json["results"][ids["theirs"]] is None


REFUSED: tuple[tuple[str, str, Any, dict[str, str]], ...] = (
    ("POST", "/ojs/v1/workers/fetch", {"queues": ["mine", "theirs"]}, {}),
    ("POST", "/ojs/v1/workers/fetch", {"worker_id": "w"}, {}),
    ("POST", "/ojs/v1/workers/fetch", {"worker_id": "w", "pool": "p"}, {}),
    ("POST", "/ojs/v1/jobs", {"type": "t", "args": []}, {}),
    (
        "POST",
        "/ojs/v1/jobs/batch",
        {
            "jobs": [
                {"type": "t", "args": [], "options": {"queue": name}} for name in ("mine", "theirs")
            ]
        },
        {},
    ),
    ("PUT", "/ojs/v1/queues/mine/config", {"dead_letter_queue": "theirs"}, {}),
    ("POST", "/ojs/v1/queues", {"name": "mine", "config": {"dead_letter_queue": "theirs"}}, {}),
    ("DELETE", "/ojs/v1/queues/mine", {"strategy": "move", "target_queue": "theirs"}, {}),
    ("DELETE", "/ojs/v1/queues/mine", None, {"strategy": "move", "target_queue": "theirs"}),
    ("GET", "/ojs/v1/events", None, {}),
    ("GET", "/ojs/v1/events", None, {"queues": "mine,theirs"}),
    ("GET", "/ojs/v1/events", None, {"queues": "mine", "queue": "theirs"}),
    ("GET", "/ojs/v1/dead-letter", None, {}),
    ("GET", "/ojs/v1/admin/stats/history", None, {"queue": ""}),
    ("POST", "/ojs/v1/dead-letter/retry", {"all": True, "confirm": True}, {}),
    ("DELETE", "/ojs/v1/dead-letter", {"all": True, "confirm": True}, {}),
    ("DELETE", "/ojs/v1/dead-letter", None, {"confirm": "true", "queue": "theirs"}),
    ("POST", "/ojs/v1/dead-letter/purge", None, {"older_than": "P1D"}),
    ("POST", "/ojs/v1/admin/keys", {"name": "k", "scopes": ["work"], "queues": ["mine"]}, {}),
)


@pytest.mark.parametrize(("method", "path", "body", "query"), REFUSED)
def test_ways_around_a_limit(
    method: str, path: str, body: Any, query: dict[str, str], keyed: Keyed
) -> None:
    api = limited(keyed)
    reply, calls = spent(api, lambda: api(method, path, body, query=query))
    assert reply.status == 403, reply.text
    assert not WRITES & set(calls[1:])


MOVES = {
    "patch": ("PATCH", "/ojs/v1/admin/jobs/{id}", {"queue": "target"}, Scope.ADMIN_WRITE),
    "deletion": (
        "DELETE",
        "/ojs/v1/queues/mine",
        {"strategy": "move", "target_queue": "target"},
        Scope.ADMIN_WRITE,
    ),
    "dead-letter": (
        "POST",
        "/ojs/v1/dead-letter/{id}/retry",
        {"override": {"queue": "target"}},
        Scope.ADMIN_WRITE,
    ),
}
# Name, scopes beside the operation's own, queues, producers of the target → whether it may move.
MOVERS: tuple[tuple[str, set[Scope], list[str], list[str], bool], ...] = (
    ("may", {Scope.JOBS_WRITE}, ["mine", "target"], ["may"], True),
    ("all", {Scope.JOBS_WRITE}, ["*"], ["*"], True),
    ("no-scope", set(), ["mine", "target"], ["*"], False),
    ("no-reach", {Scope.JOBS_WRITE}, ["mine"], ["*"], False),
    ("no-source", {Scope.JOBS_WRITE}, ["target"], ["*"], False),
    ("no-producer", {Scope.JOBS_WRITE}, ["mine", "target"], ["other"], False),
)


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize(("name", "scopes", "queues", "producers", "may"), MOVERS)
def test_each_move_needs_what_an_enqueue_needs(
    move: str,
    name: str,
    scopes: set[Scope],
    queues: list[str],
    producers: list[str],
    may: bool,
    keyed: Keyed,
) -> None:
    method, path, body, own = MOVES[move]
    keyed.runtime.queues.configure("target", {"producers": producers})
    job = push(keyed, "mine")
    if move == "dead-letter":
        keyed.runtime.fetch.fetch(["mine"], 1, "w")
        error = {"message": "no", "retryable": False}
        keyed.runtime.finish.nack(job, worker_id="w", error=error)
    api = keyed.holding(keyed.make(name, own, *scopes, queues=queues))
    reply = api(method, path.format(id=job), body)
    assert (reply.status == 403) is not may, reply.text
    assert reply.status < 500
    if not may:
        assert keyed.runtime.jobs.get(job).queue == "mine"
        assert keyed.runtime.queues.get("mine").state == "active"
    else:
        assert reply.status < 300, reply.text
        assert keyed.runtime.jobs.get(job).queue == "target"


def test_a_worker_s_pool_does_not_widen_a_limit(keyed: Keyed) -> None:
    owner = keyed.holding(keyed.make("owner", *ALL_SCOPES))
    assert owner("PUT", "/ojs/v1/admin/pools/p", {"queues": ["theirs", "mine"]}).status == 201
    theirs, api = push(keyed, "theirs"), limited(keyed)
    assert api("POST", "/ojs/v1/workers/register", {"worker_id": "w", "pool": "p"}).status == 200
    assert api("POST", "/ojs/v1/workers/fetch", {"worker_id": "w"}).status == 403
    mine = push(keyed, "mine")
    reply = api("POST", "/ojs/v1/workers/fetch", {"worker_id": "w", "queues": ["mine"]})
    assert [job["id"] for job in reply.json["jobs"]] == [mine]
    assert theirs != mine


AS_A_WORKER: tuple[tuple[str, str, dict[str, Any] | None], ...] = (
    ("POST", "/ojs/v1/workers/register", {"worker_id": "w", "pool": "p"}),
    ("POST", "/ojs/v1/workers/register", {"worker_id": "w"}),
    ("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w"}),
    ("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w", "pool": "p"}),
    ("POST", "/ojs/v1/workers/beat", {"worker_id": "w", "state": "terminate"}),
    ("POST", "/ojs/v1/workers/fetch", {"worker_id": "w", "queues": ["my.own"]}),
    ("POST", "/ojs/v1/workers/fetch", {"worker_id": "w", "queues": ["my.own"], "pool": "p"}),
    ("GET", "/ojs/v1/workers/w/health", None),
    ("DELETE", "/ojs/v1/workers/w", None),
)


def worker_key(keyed: Keyed, name: str, *queues: str) -> Keyed:
    return keyed.holding(keyed.make(name, "work", queues=queues))


@pytest.mark.parametrize(("method", "path", "body"), AS_A_WORKER, ids=str)
@pytest.mark.parametrize("by", ["limited", "all"])
def test_a_limited_key_takes_no_worker_s_name_from_another(
    by: str, method: str, path: str, body: dict[str, Any] | None, keyed: Keyed
) -> None:
    owner = (
        worker_key(keyed, "mail", "mail")
        if by == "limited"
        else keyed.holding(keyed.make("mail", "work"))
    )
    other = worker_key(keyed, "other", "my.own")
    # Whoever comes first, and however long the owner was not heard of.
    register = ("POST", "/ojs/v1/workers/register", {"worker_id": "w"})
    for first, second in ((owner, other), (other, owner)):
        assert first(*register).status == 200
        keyed.clock.advance(29_000)
        assert second(*register).status == 200
    owner("POST", "/ojs/v1/workers/register", {"worker_id": "w", "pool": "q"})
    keyed.clock.advance(60_000)
    reply = other(method, path, body)
    assert reply.status == 200, reply.text
    # Nothing of this reaches the owner's worker.
    fetch = {"worker_id": "w", "queues": ["mail"]}
    job = push(keyed, "mail")
    fetched = owner("POST", "/ojs/v1/workers/fetch", fetch).json["jobs"]
    assert [each["id"] for each in fetched] == [job]
    assert owner("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w"}).status == 200
    assert owner("GET", "/ojs/v1/workers/w/health").json["state"] == "running"
    (own,) = [each for each in keyed.runtime.workers.list(limit=9).items if each.holder == "mail"]
    assert (own.pool, own.state) == ("q", "running")


def test_a_directive_reaches_each_worker_of_a_name(keyed: Keyed) -> None:
    root = keyed.holding(keyed.make("root", *ALL_SCOPES))
    keys = [worker_key(keyed, name, "my.own") for name in ("a", "b")]
    for api in (*keys, root):
        assert api("POST", "/ojs/v1/workers/register", {"worker_id": "w"}).status == 200
        # No worker of another id, however it begins.
        assert api("POST", "/ojs/v1/workers/register", {"worker_id": "w2"}).status == 200
    assert root("POST", "/ojs/v1/admin/workers/w/quiet").status == 200
    for worker, state in (("w", "quiet"), ("w2", "running")):
        beat = ("POST", "/ojs/v1/workers/heartbeat", {"worker_id": worker})
        assert [api(*beat).json["state"] for api in (*keys, root)] == [state] * 3
    push(keyed, "my.own")
    fetch = ("POST", "/ojs/v1/workers/fetch", {"worker_id": "w", "queues": ["my.own"]})
    assert [api(*fetch).json["jobs"] for api in keys] == [[], []]
    # Each is in the list, page by page.
    after: str | None = None
    seen: list[str] = []
    while after is not None or not seen:
        query = {"limit": "1", **({} if after is None else {"cursor": after})}
        page = root("GET", "/ojs/v1/admin/workers", query=query).json
        seen += [each["id"] for each in page["items"]]
        after = page["pagination"].get("next_cursor")
    assert sorted(seen) == ["w", "w", "w", "w2", "w2", "w2"]
    # A worker removes its own record, an operator all of them.
    assert keys[0]("DELETE", "/ojs/v1/workers/w").status == 200
    assert keys[0]("DELETE", "/ojs/v1/workers/w").status == 404
    assert keys[1]("GET", "/ojs/v1/workers/w/health").status == 200
    assert root("DELETE", "/ojs/v1/admin/workers/w").status == 200
    assert keys[1]("GET", "/ojs/v1/workers/w/health").status == 404


@pytest.mark.parametrize(("method", "path", "body"), AS_A_WORKER, ids=str)
def test_the_next_key_of_the_same_name_goes_on(
    method: str, path: str, body: dict[str, Any] | None, keyed: Keyed
) -> None:
    first = worker_key(keyed, "mail", "my.own")
    assert first("POST", "/ojs/v1/workers/register", {"worker_id": "w"}).status == 200
    following = worker_key(keyed, "mail", "my.own")
    assert following(method, path, body).status == 200


def test_a_record_of_before_holds_on(keyed: Keyed) -> None:
    """Version 0.2.1 wrote one record for a worker, whatever key it had."""
    keyed.runtime.workers.register("w", {"concurrency": 3}, "p")
    root = keyed.holding(keyed.make("root", *ALL_SCOPES))
    api = worker_key(keyed, "mail", "my.own")
    assert root("PUT", "/ojs/v1/admin/pools/p", {"queues": ["other"]}).status == 201
    push(keyed, "my.own")
    fetch = ("POST", "/ojs/v1/workers/fetch", {"worker_id": "w", "queues": ["my.own"]})
    beat = ("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w"})
    # Its pool serves other queues: before it beats, and with a record of its own.
    for _ in range(2):
        assert api("GET", "/ojs/v1/workers/w/health").status == 200
        assert api(*fetch).json["jobs"] == []
        assert api(*beat).status == 200
        keyed.clock.advance(60_000)
    (own,) = [each for each in keyed.runtime.workers.list(limit=9).items if each.holder]
    assert (own.pool, own.info) == ("p", {"concurrency": 3})
    # Of a key that this version knows nothing is taken over.
    assert root("POST", "/ojs/v1/workers/register", {"worker_id": "x", "pool": "p"}).status == 200
    assert api("GET", "/ojs/v1/workers/x/health").status == 404
    assert len(api(*fetch[:2], {**fetch[2], "worker_id": "x"}).json["jobs"]) == 1


@pytest.mark.parametrize("authorizer", ["none", "jwt", "iam"])
def test_without_keys_workers_are_nobody_s(
    authorizer: str, make_runtime: Callable[..., Runtime], clock: ManualClock
) -> None:
    """A JWT may name queues; but each container of a role has another name."""
    api = Keyed(make_runtime(authorizer=authorizer), clock)
    claims = {"scope": "work", "ojs_queues": "my.own"}
    for name in ("a", "b"):
        told = {"jwt": {"claims": {"sub": name, **claims}}, "iam": {"userArn": f"arn:{name}"}}
        for method, path, body in AS_A_WORKER[1:4]:
            assert api(method, path, body, told=told).status == 200
        assert api("GET", "/ojs/v1/workers/w/health", told=told).status == 200
    assert api.runtime.workers.get("w").holder is None


def test_a_worker_s_key_costs_nothing_more(keyed: Keyed) -> None:
    costs = []
    every = keyed.holding(keyed.make("all", "work"))
    mail = worker_key(keyed, "mail", "my.own")
    # The container has seen worker and pool before.
    for api in (every, mail, every, mail):
        keyed.clock.advance(60_000)
        calls = []
        for method, path, body in AS_A_WORKER[2:6]:
            told = {"lambda": api.told(f"Bearer {api.key}")}
            reply, made = spent(keyed, keyed, method, path, body, told=told)
            assert reply.status == 200
            calls.append((made, keyed.runtime.table.meter.write_units))
        costs.append(calls)
    assert costs[2] == costs[3]
    assert costs[3][3] == (["BatchGetItem"], 0.0)


def test_a_dead_letter_cannot_be_taken_to_another_queue(keyed: Keyed) -> None:
    api, job = limited(keyed), push(keyed, "mine")
    assert api("POST", "/ojs/v1/workers/fetch", {"queues": ["mine"]}).status == 200
    error = {"type": "E", "retryable": False}
    assert api("POST", "/ojs/v1/workers/nack", {"job_id": job, "error": error}).status == 200
    retry = f"/ojs/v1/dead-letter/{job}/retry"
    assert api("POST", retry, {"override": {"queue": "theirs"}}).status == 403
    assert api("POST", retry, {"override": {"queue": "my.other"}}).status == 200


def discarded(api: Keyed, job: str, queue: str) -> None:
    """A job becomes a dead letter."""
    assert api("POST", "/ojs/v1/workers/fetch", {"queues": [queue]}).json["jobs"][0]["id"] == job
    failed = {"job_id": job, "error": {"type": "E", "retryable": False}}
    assert api("POST", "/ojs/v1/workers/nack", failed).status == 200


@pytest.mark.parametrize(
    "path", ["dead-letter/{}/retry", "admin/dead-letter/{}/retry", "jobs/{}/retry"]
)
def test_a_retry_does_not_show_jobs_of_other_queues(path: str, keyed: Keyed) -> None:
    owner, api = keyed.holding(keyed.make("owner", *ALL_SCOPES)), limited(keyed)
    job = {"type": "t", "args": ["secret"], "unique": {"keys": ["type"], "states": ["available"]}}
    mine = owner("POST", "/ojs/v1/jobs", {**job, "options": {"queue": "mine"}}).json["job"]["id"]
    discarded(owner, mine, "mine")
    theirs = owner("POST", "/ojs/v1/jobs", {**job, "options": {"queue": "theirs"}}).json["job"]
    reply = api("POST", f"/ojs/v1/{path.format(mine)}")
    assert (reply.status, reply.error["code"]) == (409, "duplicate")
    assert set(reply.error["details"]) == {"unique_key", "uniqueness_key", "job_id"}
    assert theirs["id"] not in reply.text
    # Of many neither.
    asked = {"filter": {"queue": "mine"}, "confirm": True}
    many = api("POST", "/ojs/v1/dead-letter/retry", asked)
    assert theirs["id"] not in many.text
    # Who reaches both is told.
    told = owner("POST", f"/ojs/v1/{path.format(mine)}")
    assert (told.status, told.error["details"]["existing_job_id"]) == (409, theirs["id"])


@pytest.mark.parametrize(
    "override",
    [{"args": [2]}, {"queue": "other"}, {"meta": {"a": 1}}, {"retry": {"max_attempts": 1}}],
    ids=str,
)
def test_who_changes_a_dead_letter_is_its_producer(override: dict[str, Any], keyed: Keyed) -> None:
    job = push(keyed, "q")
    owner = keyed.holding(keyed.make("owner", *ALL_SCOPES))
    discarded(owner, job, "q")
    for queue in ("q", "other"):
        config = {"producers": ["billing"]}
        assert owner("PUT", f"/ojs/v1/queues/{queue}/config", config).status == 200
    retry = f"/ojs/v1/dead-letter/{job}/retry"
    for name, *scopes in (("billing", "admin:write"), ("owner", *ALL_SCOPES)):
        api = keyed.holding(keyed.make(name, *scopes))
        assert api("POST", retry, {"override": override}).status == 403
        assert owner("GET", f"/ojs/v1/dead-letter/{job}").status == 200
    billing = keyed.holding(keyed.make("billing", "admin:write", "jobs:write"))
    back = billing("POST", retry, {"override": override}).json["job"]
    assert (back["producer"], back["changed_by"]) == ("owner", "billing")
    assert owner("GET", f"/ojs/v1/jobs/{job}").json["changed_by"] == "billing"


def test_a_dead_letter_comes_back_as_it_is_for_any_operator(keyed: Keyed) -> None:
    job = push(keyed, "q")
    owner = keyed.holding(keyed.make("owner", *ALL_SCOPES))
    discarded(owner, job, "q")
    owner("PUT", "/ojs/v1/queues/q/config", {"producers": ["billing"]})
    operator = keyed.holding(keyed.make("operator", "admin:write"))
    back = operator("POST", f"/ojs/v1/dead-letter/{job}/retry", {"override": {}})
    assert back.status == 200
    assert "changed_by" not in back.json["job"]


@pytest.mark.parametrize("prefix", ["", "admin/"])
def test_who_moves_a_job_is_its_producer(prefix: str, keyed: Keyed) -> None:
    job = push(keyed, "q")
    owner = keyed.holding(keyed.make("owner", *ALL_SCOPES))
    owner("PUT", "/ojs/v1/queues/other/config", {"producers": ["billing"]})
    path, move = f"/ojs/v1/{prefix}jobs/{job}", {"queue": "other"}
    operator = keyed.holding(keyed.make("billing", "admin:write"))
    for api in (owner, operator):
        assert api("PATCH", path, move).status == 403
    if prefix:
        assert operator("PATCH", path, {"priority": 3}).status == 200
    billing = keyed.holding(keyed.make("billing", "admin:write", "jobs:write"))
    moved = billing("PATCH", path, move).json
    assert (moved["queue"], moved["producer"]) == ("other", "owner")
    assert moved["changed_by"] == "billing"


@pytest.mark.parametrize("how", ["ignore", "reject", "replace"])
def test_a_unique_key_does_not_show_jobs_of_other_queues(how: str, keyed: Keyed) -> None:
    owner, api = keyed.holding(keyed.make("owner", *ALL_SCOPES)), limited(keyed)
    unique = {"keys": ["type"], "on_conflict": how}
    job = {"type": "t", "args": ["secret"], "unique": unique}
    theirs = owner("POST", "/ojs/v1/jobs", {**job, "options": {"queue": "theirs"}}).json["job"]
    reply = api("POST", "/ojs/v1/jobs", {**job, "options": {"queue": "mine"}})
    assert (reply.status, reply.error["code"]) == (409, "duplicate")
    assert set(reply.error["details"]) == {"unique_key", "uniqueness_key"}
    batch = {"jobs": [{**job, "options": {"queue": "mine"}}]}
    whole = api("POST", "/ojs/v1/jobs/batch", batch)
    assert (whole.status, theirs["id"] in whole.text) == (409, False)
    bulk = api("POST", "/ojs/v1/jobs/bulk", {"jobs": [*batch["jobs"], {"type": "t", "args": []}]})
    assert (bulk.status, theirs["id"] in bulk.text) == (422, False)
    told = [item["error"]["code"] for item in bulk.json["items"]]
    assert told == ["duplicate", "permission_denied"]
    assert owner("GET", f"/ojs/v1/jobs/{theirs['id']}").json["state"] == "available"


# --- producers ------------------------------------------------------------------------------------


def test_the_key_s_name_is_the_producer(keyed: Keyed) -> None:
    owner = keyed.holding(keyed.make("owner", *ALL_SCOPES))
    assert owner("PUT", "/ojs/v1/queues/q/config", {"producers": ["billing"]}).status == 200
    job = {"type": "t", "args": [], "options": {"queue": "q"}}
    assert owner("POST", "/ojs/v1/jobs", job).status == 403
    billing = keyed.holding(keyed.make("billing", "jobs:write", "jobs:read"))
    pushed = billing("POST", "/ojs/v1/jobs", job)
    assert pushed.status == 201
    assert pushed.json["job"]["producer"] == "billing"
    read = billing("GET", f"/ojs/v1/jobs/{pushed.json['job']['id']}")
    assert read.json["producer"] == "billing"
    batch = billing("POST", "/ojs/v1/jobs/batch", {"jobs": [job]})
    assert batch.json["jobs"][0]["producer"] == "billing"


def test_nobody_passes_for_another(keyed: Keyed) -> None:
    api = keyed.holding(keyed.make("owner", "jobs:write"))
    job = {"type": "t", "args": []}
    reply, calls = spent(
        api, lambda: api("POST", "/ojs/v1/jobs", job, headers={"x-ojs-producer": "billing"})
    )
    assert reply.status == 403
    assert calls == ["UpdateItem"]
    headers = {"x-ojs-producer": "owner"}
    assert api("POST", "/ojs/v1/jobs", job, headers=headers).status == 201


# --- keys -----------------------------------------------------------------------------------------


def test_the_life_of_a_key(keyed: Keyed) -> None:
    owner = keyed.holding(keyed.make("owner", *ALL_SCOPES))
    made = owner(
        "POST",
        "/ojs/v1/admin/keys",
        {"name": "worker", "scopes": ["work"], "queues": ["a"], "expires_at": "+PT1H"},
    )
    assert made.status == 201
    key, secret = made.json["key"], made.json["secret"]
    assert made.headers["Location"] == f"/ojs/v1/admin/keys/{key['id']}"
    worker = keyed.holding(secret)
    assert worker("POST", "/ojs/v1/workers/fetch", {"queues": ["a"]}).status == 200
    read = owner("GET", f"/ojs/v1/admin/keys/{key['id']}").json["key"]
    assert read == {**key, "last_used_at": read["last_used_at"]}
    assert secret not in owner("GET", "/ojs/v1/admin/keys").text
    assert owner("DELETE", f"/ojs/v1/admin/keys/{key['id']}").json["key"]["state"] == "revoked"
    assert worker("POST", "/ojs/v1/workers/fetch", {"queues": ["a"]}).status == 401
    again = owner("DELETE", f"/ojs/v1/admin/keys/{key['id']}")
    assert again.status == 200
    assert keyed.runtime.access_keys.get(key["id"]).ttl_s is not None


def test_a_key_ends_when_it_is_to(keyed: Keyed) -> None:
    key = keyed.make("k", "work", expires_ms=keyed.clock.now_ms() + 10)
    api = keyed.holding(key)
    keyed.clock.advance(9)
    assert api("POST", "/ojs/v1/workers/fetch", {"queues": ["a"]}).status == 200
    keyed.clock.advance(1)
    assert api("POST", "/ojs/v1/workers/fetch", {"queues": ["a"]}).status == 401
    assert keyed.runtime.access_keys.get(key.split("_")[1]).state(keyed.clock.now_ms()) == "expired"


def test_nobody_gives_or_takes_more_than_they_have(keyed: Keyed) -> None:
    root = keyed.make("root", *ALL_SCOPES)
    operator = keyed.holding(keyed.make("operator", "admin:read", "admin:write"))
    wanted = {"name": "k", "scopes": ["admin:read"]}
    assert operator("POST", "/ojs/v1/admin/keys", wanted).status == 201
    for scope in ("work", "jobs:read", "jobs:write"):
        more = {"name": "k", "scopes": ["admin:read", scope]}
        assert operator("POST", "/ojs/v1/admin/keys", more).status == 403
    assert operator("DELETE", f"/ojs/v1/admin/keys/{root.split('_')[1]}").status == 403
    assert keyed.holding(root)("GET", "/ojs/v1/queues").status == 200


def created(api: Keyed, name: str, **more: Any) -> tuple[dict[str, Any], Keyed]:
    """A key that another one makes, and the API asked with it."""
    body = {"name": name, "scopes": ["admin:write", "work"], **more}
    reply = api("POST", "/ojs/v1/admin/keys", body)
    assert reply.status == 201, reply.text
    return reply.json["key"], api.holding(reply.json["secret"])


def test_no_key_outlives_the_key_that_made_it(keyed: Keyed) -> None:
    end_ms = keyed.clock.now_ms() + 3_600_000
    maker = keyed.holding(keyed.make("maker", *ALL_SCOPES, expires_ms=end_ms))
    end = times.format_ms(end_ms)
    asked = {"name": "k", "scopes": ["work"]}
    for body in (asked, {**asked, "expires_at": end}):
        made = maker("POST", "/ojs/v1/admin/keys", body)
        assert made.json["key"]["expires_at"] == end
    sooner, child = created(maker, "k", expires_at="+PT1M")
    assert sooner["expires_at"] < end
    # Nor does the child of a child.
    assert created(child, "k")[0]["expires_at"] == sooner["expires_at"]
    for late in ("+PT61M", "2199-01-01T00:00:00Z"):
        reply = maker("POST", "/ojs/v1/admin/keys", {**asked, "expires_at": late})
        assert (reply.status, reply.error["details"]["field"]) == (400, "expires_at")
        assert end in reply.error["message"]
    assert len(keyed.runtime.access_keys.list().items) == 5


def test_a_key_is_revoked_with_all_that_it_made(keyed: Keyed) -> None:
    root, api = created(keyed.holding(keyed.make("first", *ALL_SCOPES)), "root")
    children = [created(api, f"child {number}") for number in range(3)]
    grandchild, deep = created(children[0][1], "grandchild")
    first_id = root["ancestors"][0]
    assert grandchild["ancestors"] == [first_id, root["id"], children[0][0]["id"]]
    # One of them was revoked alone: what it made lives on.
    owner = keyed.holding(keyed.make("owner", *ALL_SCOPES))
    alone = owner("DELETE", f"/ojs/v1/admin/keys/{children[0][0]['id']}")
    assert "also_revoked" not in alone.json
    fetch = ("POST", "/ojs/v1/workers/fetch", {"queues": ["a"]})
    assert deep(*fetch).status == 200
    reply = owner("DELETE", f"/ojs/v1/admin/keys/{root['id']}", query={"made": "revoke"})
    assert reply.json["key"]["state"] == "revoked"
    also = {grandchild["id"], children[1][0]["id"], children[2][0]["id"]}
    assert set(reply.json["also_revoked"]) == also
    for _, one in [*children, (grandchild, deep)]:
        assert one(*fetch).status == 401
    assert owner(*fetch).status == 200
    again = owner("DELETE", f"/ojs/v1/admin/keys/{root['id']}", query={"made": "revoke"})
    assert again.json["also_revoked"] == []
    bad = owner("DELETE", f"/ojs/v1/admin/keys/{root['id']}", query={"made": "x"})
    assert (bad.status, bad.error["details"]["field"]) == (400, "made")


WRONG_ABOUT_KEYS: tuple[tuple[str, dict[str, str], str], ...] = (
    # What was meant to revoke more must not revoke the key alone.
    *(("DELETE", {"made": text}, "made") for text in ("", "Revoke", "revoke,keep", "true", " ")),
    ("DELETE", {"mode": "revoke"}, "mode"),
    ("GET", {"made": "revoke"}, "made"),
)


@pytest.mark.parametrize(("method", "query", "field"), WRONG_ABOUT_KEYS, ids=str)
def test_a_wrong_parameter_about_a_key_is_named(
    method: str, query: dict[str, str], field: str, keyed: Keyed
) -> None:
    owner = keyed.holding(keyed.make("owner", *ALL_SCOPES))
    key, api = created(owner, "k")
    child, _ = created(api, "child")
    reply = owner(method, f"/ojs/v1/admin/keys/{key['id']}", query=query)
    assert (reply.status, reply.error["details"]["field"]) == (400, field)
    assert reply.error["details"]["reason"]
    for each in (key, child):
        assert keyed.runtime.access_keys.get(each["id"]).revoked_ms is None


@pytest.mark.parametrize("method", ["GET", "DELETE"])
@pytest.mark.parametrize(
    "key_id", ["x", "0123456789ABCDEF", "0123456789abcde", "0123456789abcdef0", "a b", "..", "é"]
)
def test_what_is_no_id_of_a_key_is_named(method: str, key_id: str, keyed: Keyed) -> None:
    owner = keyed.holding(keyed.make("owner", *ALL_SCOPES))
    for query in ({}, {"made": "revoke"}) if method == "DELETE" else ({},):
        reply = owner(method, f"/ojs/v1/admin/keys/{key_id}", query=query)
        assert (reply.status, reply.error["details"]["field"]) == (400, "id")
        assert "16 hex digits" in reply.error["details"]["reason"]
    assert owner(method, f"/ojs/v1/admin/keys/{'0' * 16}").status == 404


def test_a_revocation_takes_no_body(keyed: Keyed) -> None:
    key, api = created(keyed.holding(keyed.make("owner", *ALL_SCOPES)), "k")
    reply = api("DELETE", f"/ojs/v1/admin/keys/{key['id']}", {"made": "revoke"})
    assert (reply.status, reply.error["details"]["field"]) == (400, "body")
    assert keyed.runtime.access_keys.get(key["id"]).revoked_ms is None


def test_a_revoked_key_that_is_remembered_makes_none(keyed: Keyed) -> None:
    key, api = created(keyed.holding(keyed.make("owner", *ALL_SCOPES)), "k")
    told = {"lambda": api.told(f"Bearer {api.key}")}
    keyed.runtime.access_keys.revoke(ANYBODY, key["id"])
    body = {"name": "k", "scopes": ["work"]}
    assert keyed("POST", "/ojs/v1/admin/keys", body, told=told).status == 401
    assert len(keyed.runtime.access_keys.list().items) == 2


@pytest.mark.parametrize("name", ['a"b', "a\\b", '","principal":"root'])
def test_names_that_would_break_the_access_log_are_refused(name: str, keyed: Keyed) -> None:
    """API Gateway writes a name between quotes as it is."""
    owner = keyed.holding(keyed.make("owner", *ALL_SCOPES))
    reply = owner("POST", "/ojs/v1/admin/keys", {"name": name, "scopes": ["work"]})
    assert (reply.status, reply.error["details"]["field"]) == (400, "name")
    assert len(keyed.runtime.access_keys.list().items) == 1


def test_keys_have_ten_generations(keyed: Keyed) -> None:
    api = keyed.holding(keyed.make("first", *ALL_SCOPES))
    for _ in range(9):
        key, api = created(api, "k")
    assert len(key["ancestors"]) == 9
    body = {"name": "k", "scopes": ["work"]}
    assert api("POST", "/ojs/v1/admin/keys", body).status == 403


def test_keys_are_listed_page_by_page(keyed: Keyed) -> None:
    ids = [keyed.make(f"k{number}", "work").split("_")[1] for number in range(5)]
    keyed.clock.advance(1)
    owner = keyed.holding(keyed.make("owner", *ALL_SCOPES))
    seen, query = [], {"limit": "2"}
    while True:
        page = owner("GET", "/ojs/v1/admin/keys", query=query).json
        seen += [key["id"] for key in page["keys"]]
        if not page["pagination"].get("next_cursor"):
            break
        query = {"limit": "2", "cursor": page["pagination"]["next_cursor"]}
    assert sorted(ids) == sorted(seen[:5])
    assert len(seen) == 6
    assert owner("GET", "/ojs/v1/admin/keys", query={"cursor": "x"}).status == 400


# --- other ways of knowing who asks ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"sub": "svc", "scope": "jobs:write jobs:read"}, 201),
        ({"client_id": "svc", "scope": "[jobs:write jobs:read]"}, 201),
        ({"sub": "svc", "scope": "jobs:write", "ojs_queues": "default other"}, 201),
        ({"sub": "svc", "scope": "jobs:write", "ojs_queues": "other"}, 403),
        ({"sub": "svc", "scope": "jobs:write", "ojs_queues": ""}, 403),
        ({"sub": "svc", "scope": "jobs:read"}, 403),
        ({"sub": "svc"}, 403),
        ({"scope": "jobs:write"}, 401),
        ({}, 401),
    ],
)
def test_a_jwt(
    claims: dict[str, str],
    status: int,
    make_runtime: Callable[..., Runtime],
    clock: ManualClock,
) -> None:
    api = Keyed(make_runtime(authorizer="jwt"), clock)
    told = {"jwt": {"claims": claims, "scopes": None}}
    reply = api("POST", "/ojs/v1/jobs", {"type": "t", "args": []}, told=told)
    assert reply.status == status
    if status == 201:
        assert reply.json["job"]["producer"] == "svc"
    # What the other authorizers say does not count here.
    other = {"lambda": {"principal": "svc", "scopes": "jobs:write"}}
    assert api("POST", "/ojs/v1/jobs", {"type": "t", "args": []}, told=other).status == 401


# What API Gateway hands on of a token's claims: texts; an array is written as `[a b]`.
ISSUERS: Mapping[str, tuple[dict[str, str], dict[str, str]]] = {
    "Amazon Cognito": (
        {"jwt_scope_prefix": "ojs/"},
        {
            "sub": "1example23456789", "token_use": "access", "client_id": "1example23456789",
            "scope": "ojs/jobs:write ojs/jobs:read other/work",
        },
    ),
    "Auth0": (
        {},
        {"sub": "abc@clients", "gty": "client-credentials", "scope": "jobs:write jobs:read"},
    ),
    "Auth0 with permissions": (
        {"jwt_scope_claim": "permissions"},
        {"sub": "abc@clients", "scope": "work", "permissions": "[jobs:write jobs:read]"},
    ),
    "Okta": (
        {"jwt_scope_claim": "scp"},
        {"sub": "0oa1", "cid": "0oa1", "scp": "[jobs:write jobs:read]"},
    ),
    "Microsoft Entra ID": (
        {"jwt_scope_claim": "roles"},
        {"sub": "55", "azp": "55", "roles": "[jobs:write jobs:read]", "ver": "2.0"},
    ),
    "Microsoft Entra ID, people": (
        {"jwt_scope_claim": "scp"},
        {"sub": "66", "name": "Ada", "scp": "jobs:write jobs:read", "ver": "2.0"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("issuer", ISSUERS)
def test_tokens_of_the_issuers_that_are_named(
    issuer: str, make_runtime: Callable[..., Runtime], clock: ManualClock
) -> None:
    settings, claims = ISSUERS[issuer]
    api = Keyed(make_runtime(authorizer="jwt", **settings), clock)
    told = {"jwt": {"claims": claims, "scopes": None}}
    pushed = api("POST", "/ojs/v1/jobs", {"type": "t", "args": []}, told=told)
    assert (pushed.status, pushed.json["job"]["producer"]) == (201, claims["sub"])
    assert api("GET", f"/ojs/v1/jobs/{pushed.json['job']['id']}", told=told).status == 200
    # A scope of another API, or in another claim, opens nothing.
    assert api("POST", "/ojs/v1/workers/fetch", {"queues": ["a"]}, told=told).status == 403


@pytest.mark.parametrize(
    "scope", ["jobs:write", "ojs/", "ojs", "OJS/jobs:write", "x/ojs/jobs:write"]
)
def test_a_scope_without_the_prefix_does_not_count(
    scope: str, make_runtime: Callable[..., Runtime], clock: ManualClock
) -> None:
    api = Keyed(make_runtime(authorizer="jwt", jwt_scope_prefix="ojs/"), clock)
    told = {"jwt": {"claims": {"sub": "a", "scope": scope}}}
    assert api("POST", "/ojs/v1/jobs", {"type": "t", "args": []}, told=told).status == 403


def test_a_role(make_runtime: Callable[..., Runtime], clock: ManualClock) -> None:
    api = Keyed(make_runtime(authorizer="iam"), clock)
    arn = "arn:aws:sts::000000000000:assumed-role/producer/x"
    told = {"iam": {"userArn": arn}}
    reply = api("POST", "/ojs/v1/jobs", {"type": "t", "args": []}, told=told)
    assert reply.json["job"]["producer"] == arn
    nobodies: tuple[dict[str, Any], ...] = (
        {},
        {"iam": {}},
        {"iam": None},
        {"lambda": {"principal": "x", "scopes": ""}},
    )
    for nobody in nobodies:
        assert api("GET", "/ojs/v1/queues", told=nobody).status == 401
    # Keys would open nothing.
    made = api("POST", "/ojs/v1/admin/keys", {"name": "k", "scopes": ["work"]}, told=told)
    assert made.status == 422


def test_headers_do_not_make_a_principal(keyed: Keyed) -> None:
    forged = {
        "x-amzn-authorizer": "root",
        "requestcontext": '{"authorizer":{"lambda":{"principal":"root"}}}',
        "principal": "root",
    }
    assert keyed("GET", "/ojs/v1/queues", headers=forged).status == 401


def test_a_function_that_was_told_nothing_lets_nobody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    from ojs.settings import Settings

    monkeypatch.setenv("OJS_TABLE", "table")
    assert Settings.from_environment().authorizer == "keys"


def test_answers_with_keys_are_for_no_other_page(keyed: Keyed) -> None:
    reply = keyed.holding(keyed.make("k", "admin:read"))("GET", "/ojs/v1/queues")
    assert "Access-Control-Allow-Origin" not in reply.headers
    assert reply.headers["Strict-Transport-Security"]
    document = keyed.holding(keyed.make("k", "work"))("GET", "/ojs/v1/openapi.json").json
    assert document["paths"]["/ojs/v1/jobs"]["post"]["security"] == [{"key": ["jobs:write"]}]
    assert "401" in document["paths"]["/ojs/v1/jobs"]["post"]["responses"]
    assert JOB not in document["paths"]


@pytest.mark.parametrize("authorizer", ["keys", "jwt", "iam"])
@pytest.mark.parametrize("path", ["/ojs/v1/jobs", "/ojs/v1/workers/fetch", "/ojs/v1/queues"])
def test_browsers_ask_without_a_key(
    authorizer: str, path: str, make_runtime: Callable[..., Runtime], clock: ManualClock
) -> None:
    """Where pages may use the API, preflight requests get here without an authorizer."""
    api = Keyed(make_runtime(authorizer=authorizer), clock)
    reply, calls = spent(api, api, "OPTIONS", path, told={})
    assert reply.status == 204
    assert calls == []
    assert "Access-Control-Allow-Origin" not in reply.headers


# --- limits of requests ---------------------------------------------------------------------------


def test_a_key_has_a_limit_of_requests(keyed: Keyed) -> None:
    operator = keyed.holding(keyed.make("owner", *ALL_SCOPES))
    body = {"name": "slow", "scopes": [*ALL_SCOPES], "max_requests_per_s": 3}
    made = operator("POST", "/ojs/v1/admin/keys", body).json
    assert made["key"]["max_requests_per_s"] == 3
    shown = operator("GET", f"/ojs/v1/admin/keys/{made['key']['id']}").json["key"]
    assert shown["max_requests_per_s"] == 3
    api = keyed.holding(made["secret"])
    found = [api("GET", "/ojs/v1/admin/keys") for _ in range(4)]
    assert [reply.status for reply in found] == [200, 200, 200, 429]
    assert found[3].error["code"] == "rate_limited"
    assert found[3].headers["Retry-After"] == "1"
    keyed.clock.advance(1_000)
    reply, calls = spent(api, lambda: api("GET", "/ojs/v1/me"))
    # The first call is the authorizer's.
    assert (reply.status, calls[1:]) == (200, ["UpdateItem"])
    reply, calls = spent(operator, lambda: operator("GET", "/ojs/v1/me"))
    assert (reply.status, calls[1:]) == (200, [])


def test_a_limited_key_makes_no_faster_one(keyed: Keyed) -> None:
    api = keyed.holding(keyed.make("slow", *ALL_SCOPES, max_requests_per_s=9))
    body = {"name": "k", "scopes": ["work"]}
    assert api("POST", "/ojs/v1/admin/keys", body).json["key"]["max_requests_per_s"] == 9
    for wrong, status in ((10, 400), (0, 400), ("9", 400), (1.5, 400), (10**6, 400)):
        reply = api("POST", "/ojs/v1/admin/keys", {**body, "max_requests_per_s": wrong})
        assert (reply.status, reply.error["details"]["field"]) == (status, "max_requests_per_s")
