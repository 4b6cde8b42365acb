"""Fetch with a connection: what is asked for, refused and answered; and rings before answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from functions.dispatch.handler import handler as dispatch
from functions.stream.handler import handler as stream
from functions.sweep.handler import handler as sweep
from ojs import runtime
from ojs.clock import ManualClock
from ojs.domain.access import Principal
from ojs.domain.maintenance import NOTICED_MS
from ojs.domain.realtime import Connection
from ojs.runtime import Runtime
from tests.store.ringing import QUEUE, Hub
from tests.unit.functions.client import Api
from tests.unit.functions.keyed import Keyed

FETCH = "/ojs/v1/workers/fetch"
HOUR_MS = 3_600_000


@pytest.fixture
def hub() -> Hub:
    return Hub()


@pytest.fixture
def live(make_runtime: Callable[..., Runtime], clock: ManualClock, hub: Hub) -> Api:
    """The API with connections."""
    built = make_runtime(realtime="wake")
    built._realtime = lambda: hub
    runtime.use(built)
    return Api(built, clock)


def connect(api: Api, name: str, caller: Principal | None = None) -> None:
    until_ms = api.runtime.clock.now_ms() + HOUR_MS
    api.runtime.stores.connections.add(Connection(name, caller or Principal(None), until_ms))


def fetch(api: Any, **more: Any) -> Any:
    return api("POST", FETCH, {"queues": [QUEUE], "worker_id": "w", **more})


def push(api: Any) -> Any:
    body = {"type": "t", "args": [], "options": {"queue": QUEUE}}
    return api("POST", "/ojs/v1/jobs", body)


def test_a_fetch_lists_and_delists(live: Api, hub: Hub) -> None:
    connect(live, "c1=")
    told = fetch(live, listen={"connection": "c1=", "listed": None}).json
    assert told == {"jobs": [], "listen": {"listed": True}, "next_ms": 500}
    push(live)
    assert hub.sent == [("c1=", {"type": "ring", "queue": QUEUE})]
    told = fetch(live, rung=[QUEUE], listen={"connection": "c1=", "listed": True}).json
    assert len(told["jobs"]) == 1
    assert told["listen"] == {"listed": False}
    assert "next_ms" not in told


def test_a_ring_names_the_queue_as_its_worker_does(live: Api, hub: Hub) -> None:
    connect(live, "c1=", Principal(None).with_tenant("acme"))
    acme = {"X-OJS-Tenant": "acme"}
    body = {"queues": [QUEUE], "worker_id": "w", "listen": {"connection": "c1=", "listed": None}}
    assert live("POST", FETCH, body, headers=acme).json["listen"] == {"listed": True}
    push(live)
    job = {"type": "t", "args": [], "options": {"queue": QUEUE}}
    live("POST", "/ojs/v1/jobs", job, headers={"X-OJS-Tenant": "beta"})
    assert hub.sent == []
    live("POST", "/ojs/v1/jobs", job, headers=acme)
    assert hub.sent == [("c1=", {"type": "ring", "queue": QUEUE})]


def test_a_fetch_without_a_connection_is_answered_as_ever(live: Api) -> None:
    assert fetch(live).json == {"jobs": []}
    assert fetch(live, rung=[QUEUE]).json == {"jobs": []}


def test_where_there_are_no_connections_none_is_listed(api: Api) -> None:
    """A worker of before, when there were."""
    told = fetch(api, rung=[QUEUE], listen={"connection": "c1=", "listed": True}).json
    assert told == {"jobs": [], "listen": {"listed": False}}


def test_an_ended_connection_is_not_listed(live: Api) -> None:
    told = fetch(live, listen={"connection": "c1="}).json
    assert told == {"jobs": [], "listen": {"listed": False}}


@pytest.fixture
def closed(make_runtime: Callable[..., Runtime], clock: ManualClock, hub: Hub) -> Keyed:
    """The API with connections and keys, and a connection of somebody else."""
    built = make_runtime(authorizer="keys", realtime="wake", socket_url="wss://ws.example.com/v1")
    built._realtime = lambda: hub
    keyed = Keyed(built, clock)
    other = Connection("c1=", Principal("other", key="0" * 16), clock.now_ms() + HOUR_MS)
    built.stores.connections.add(other)
    return keyed


def test_a_foreign_connection_is_refused(closed: Keyed) -> None:
    api = closed.holding(closed.make("worker", "work"))
    assert fetch(api, listen={"connection": "c1="}).status == 403


def test_a_foreign_connection_costs_no_job_and_no_outcome(closed: Keyed) -> None:
    api: Any = closed.holding(closed.make("worker", "work", "jobs:write"))
    push(api)
    told = fetch(api, count=2, listen={"connection": "c1="}).json
    (job,) = told["jobs"]
    assert told["listen"] == {"listed": False}
    told = fetch(api, acks=[{"job_id": job["id"]}], listen={"connection": "c1="}).json
    assert told["acks"][0]["status"] == 200
    assert told["fetch_error"]["code"] == "permission_denied"


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("claimed", [True, False, None])
@pytest.mark.parametrize(
    ("name", "queues"), [("owner", None), ("thief", None), ("thief", (QUEUE,))]
)
def test_nobody_lists_or_delists_with_the_connection_of_another(
    name: str,
    queues: tuple[str, ...] | None,
    claimed: bool | None,
    full: bool,
    closed: Keyed,
    hub: Hub,
) -> None:
    """Another key of the same name is another caller, too."""
    owner, other = (
        closed.holding(closed.make(each, "work", "jobs:write", queues=reach))
        for each, reach in (("owner", None), (name, queues))
    )
    ticket = owner("POST", "/ojs/v1/realtime/tickets", {}).json["ticket"]
    principal = closed.runtime.stores.tickets.redeem(ticket)
    assert principal is not None
    closed.runtime.sockets.add_connection("own=", principal)
    assert fetch(owner, listen={"connection": "own="}).json["listen"] == {"listed": True}
    closed.runtime.stores.realtime_directory.forget()
    if full:
        push(owner)
    told = fetch(other, listen={"connection": "own=", "listed": claimed})
    if full:
        assert (len(told.json["jobs"]), told.json["listen"]) == (1, {"listed": False})
    else:
        assert told.status == 403
    hub.sent.clear()
    push(owner)
    assert hub.rung() == ["own="]
    assert fetch(owner, listen={"connection": "own=", "listed": True}).json["jobs"]
    push(owner)
    assert hub.rung() == ["own="]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"rung": ["sms"]}, "rung[0]"),
        ({"rung": [QUEUE, "Not a name"]}, "rung[1]"),
        ({"rung": [QUEUE] * 51}, "rung"),
        ({"rung": QUEUE}, "rung"),
        ({"listen": {}}, "listen.connection"),
        ({"listen": {"connection": ""}}, "listen.connection"),
        ({"listen": {"connection": "c" * 129}}, "listen.connection"),
        ({"listen": {"connection": "c|1"}}, "listen.connection"),
        ({"listen": {"connection": 1}}, "listen.connection"),
        ({"listen": {"connection": "c1", "listed": 1}}, "listen.listed"),
        ({"listen": "c1"}, "listen"),
    ],
)
def test_bad_input_is_named(live: Api, body: Any, field: str) -> None:
    reply = fetch(live, **body)
    assert reply.status in (400, 422)
    assert field in json.dumps(reply.json["error"])


@pytest.mark.parametrize("next_ms", [-1, 600_001, 1.5, True, "1"])
def test_a_bad_time_of_the_next_heartbeat_is_named(live: Api, next_ms: Any) -> None:
    body = {"worker_id": "w", "next_ms": next_ms}
    reply = live("POST", "/ojs/v1/workers/heartbeat", body)
    assert reply.status in (400, 422)
    assert "next_ms" in json.dumps(reply.json["error"])


def test_an_idle_worker_says_when_it_is_heard_of_next(live: Api, clock: ManualClock) -> None:
    live("POST", "/ojs/v1/workers/heartbeat", {"worker_id": "w", "next_ms": 300_000})
    clock.advance(320_000)
    assert live("GET", "/ojs/v1/workers").json["items"][0]["state"] == "running"


def test_a_limited_key_lists_for_its_queues_alone(closed: Keyed) -> None:
    api = closed.holding(closed.make("worker", "work", queues=[QUEUE]))
    listen = {"connection": "c1="}
    assert api("POST", FETCH, {"queues": ["sms"], "listen": listen}).status == 403
    assert api("POST", FETCH, {"pool": "p", "listen": listen}).status == 403
    assert api("POST", FETCH, {"queues": [QUEUE], "rung": ["sms"]}).status in (400, 422)


# --- rings are sent before the answer -------------------------------------------------------------


def test_a_request_that_fails_rings_for_what_it_wrote(live: Api, hub: Hub) -> None:
    """The second job of two acks that come with a bad fetch."""
    connect(live, "c1=")
    fetch(live, listen={"connection": "c1="})
    live.runtime.stores.realtime_directory.forget()

    def broken(*_args: Any, **_more: Any) -> Any:
        live.runtime.placed(job)
        raise RuntimeError

    job = live.runtime.jobs.get(push(live).json["job"]["id"])
    hub.sent.clear()
    live.runtime.enqueue.push = broken  # type: ignore[method-assign]
    assert push(live).status == 500
    assert hub.rung() == ["c1="]


def test_the_end_of_maintenance_rings_for_when_all_containers_know(
    live: Api, clock: ManualClock, hub: Hub
) -> None:
    connect(live, "c1=")
    fetch(live, listen={"connection": "c1="})
    live("POST", "/ojs/v1/admin/maintenance", {"enabled": True, "reason": "r"})
    push(live)
    hub.sent.clear()
    live("POST", "/ojs/v1/admin/maintenance", {"enabled": False})
    ((_, ring),) = hub.sent
    assert ring["at_ms"] == clock.now_ms() + NOTICED_MS + 1_000


@pytest.mark.parametrize(
    ("handler", "event"),
    [(sweep, {}), (stream, {"Records": []}), (dispatch, {"Records": []})],
    ids=["sweep", "stream", "dispatch"],
)
def test_functions_ring_at_their_end(
    live: Api, hub: Hub, handler: Callable[..., Any], event: Any
) -> None:
    connect(live, "c1=")
    job = live.runtime.jobs.get(push(live).json["job"]["id"])
    fetch(live, count=2, listen={"connection": "c1="})
    live.runtime.stores.realtime_directory.forget()
    live.runtime.placed(job)
    handler(event, None)
    assert hub.rung() == ["c1="]
