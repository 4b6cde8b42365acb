"""WebSocket connections: tickets, the authorizer, and the messages of clients."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from functions.socket.handler import handler as socket
from functions.ticket.handler import handler as redeem
from ojs import access_runtime
from ojs.domain.access import ALL_SCOPES, ANYBODY, Principal
from ojs.domain.realtime import MAX_CHANNELS, MAX_SUBSCRIBERS, MAX_WATCHERS, Subscriber
from ojs.domain.realtime_events import read_time
from ojs.runtime import Runtime
from tests.unit.functions.keyed import Keyed

TICKETS = "/ojs/v1/realtime/tickets"
ARN = "arn:aws:execute-api:eu-central-1:123456789012:a1/live/$connect"
ORIGIN = "https://jobs.example.com"
URL = "wss://ws.example.com/live"
JOB = "01968f2a-0000-7000-8000-000000000000"


@dataclass
class Live:
    """The WebSocket API as API Gateway is: the ticket authorizer first, then the function."""

    keyed: Keyed
    numbers: Any = field(default_factory=lambda: count(1))

    @property
    def meter(self) -> Any:
        return self.keyed.runtime.table.meter

    def authorized(self, ticket: str | None) -> dict[str, Any]:
        query = None if ticket is None else {"ticket": ticket}
        return redeem({"methodArn": ARN, "queryStringParameters": query}, None)

    def ticket(self, key: str | None) -> str:
        reply = self.keyed.holding(key)("POST", TICKETS)
        assert reply.status == 201, reply.text
        return str(reply.json["ticket"])

    def event(self, route: str, connection: str, **more: Any) -> dict[str, Any]:
        return {"requestContext": {"routeKey": route, "connectionId": connection}, **more}

    def open(self, ticket: str, headers: dict[str, str] | None = None) -> tuple[int, str, Any]:
        """Connect; the status, the connection, and the answer."""
        answer = self.authorized(ticket)
        if answer["policyDocument"]["Statement"][0]["Effect"] != "Allow":
            return 403, "", None
        connection = f"c{next(self.numbers)}="
        event = self.event("$connect", connection, headers=headers)
        event["requestContext"]["authorizer"] = answer["context"]
        told = socket(event, None)
        return told["statusCode"], connection, told

    def connect(self, key: str | None) -> str:
        status, connection, _ = self.open(self.ticket(key))
        assert status == 200
        return connection

    def send(self, connection: str, message: Any, **more: Any) -> Any:
        text = message if isinstance(message, str) else json.dumps(message)
        answer = socket(self.event("$default", connection, body=text, **more), None)
        assert answer["statusCode"] == 200
        return json.loads(answer["body"])

    def subscribe(self, connection: str, channel: str, **options: Any) -> Any:
        return self.send(connection, {"action": "subscribe", "channel": channel, **options})

    def close(self, connection: str) -> None:
        assert socket(self.event("$disconnect", connection), None) == {"statusCode": 200}

    def items(self) -> list[str]:
        """The keys of all items of realtime."""
        table = self.keyed.runtime.table
        found = table.client.scan(TableName=table.name)["Items"]
        names = [f"{item['pk']['S']} {item['sk']['S']}" for item in found]
        return sorted(name for name in names if name.startswith("RT"))


@pytest.fixture
def live(make_runtime: Callable[..., Runtime], clock: Any, monkeypatch: pytest.MonkeyPatch) -> Live:
    built = make_runtime(
        authorizer="keys",
        realtime="all",
        socket_url=URL,
        socket_origins=(ORIGIN,),
    )
    tickets = built.stores.tickets
    monkeypatch.setattr(access_runtime, "tickets", lambda: tickets)
    return Live(Keyed(built, clock))


def owner(live: Live) -> str:
    return live.keyed.make("owner", *ALL_SCOPES)


def push(live: Live, queue: str = "mail") -> str:
    api = live.keyed.holding(owner(live))
    reply = api("POST", "/ojs/v1/jobs", {"type": "t", "args": [], "options": {"queue": queue}})
    return str(reply.json["job"]["id"])


# --- tickets --------------------------------------------------------------------------------------


def test_a_ticket_opens_one_connection(live: Live) -> None:
    api = live.keyed.holding(live.keyed.make("worker", "work", queues=["mail"]))
    live.meter.reset()
    reply = api("POST", TICKETS)
    # The look-up of the key, and the ticket.
    assert live.meter.calls == ["UpdateItem", "PutItem"]
    assert live.meter.write_units == 2.0
    assert reply.status == 201
    assert reply.json == {"ticket": reply.json["ticket"], "url": URL, "expires_in": 60}
    live.meter.reset()
    status, connection, answer = live.open(
        reply.json["ticket"], {"Sec-WebSocket-Protocol": "other, ojs.v1", "Origin": ORIGIN}
    )
    assert live.meter.calls == ["DeleteItem", "PutItem"]
    assert live.meter.write_units == 2.0
    assert (status, answer["headers"]) == (200, {"Sec-WebSocket-Protocol": "ojs.v1"})
    assert live.send(connection, {"action": "hello"}) == {"type": "hello", "connection": connection}
    assert live.send(connection, {"action": "ping"}) == {"type": "pong"}
    found = live.keyed.runtime.stores.connections.get(connection, now_ms=0)
    assert found is not None
    assert found.principal.name == "worker"
    assert found.principal.queues == ("mail",)
    assert found.until_ms == live.keyed.clock.now_ms() + 125 * 60_000


def test_the_secret_of_a_ticket_is_not_stored(live: Live) -> None:
    ticket = live.ticket(owner(live))
    table = live.keyed.runtime.table
    assert ticket not in json.dumps(table.client.scan(TableName=table.name)["Items"])


@pytest.mark.parametrize("text", ["", "x", "0" * 43, "é", "a" * 10_000])
def test_a_foreign_ticket_opens_nothing(live: Live, text: str) -> None:
    assert live.open(text)[0] == 403


def test_no_query_opens_nothing(live: Live) -> None:
    statement = live.authorized(None)["policyDocument"]["Statement"][0]
    assert statement == {"Action": "execute-api:Invoke", "Effect": "Deny", "Resource": ARN}


def test_a_ticket_is_valid_once_and_for_a_minute(live: Live) -> None:
    ticket = live.ticket(owner(live))
    assert [live.open(ticket)[0] for _ in range(2)] == [200, 403]
    late, last = live.ticket(owner(live)), live.ticket(owner(live))
    live.keyed.clock.advance(59_999)
    assert live.open(last)[0] == 200
    live.keyed.clock.advance(1)
    assert live.open(late)[0] == 403


def test_no_key_no_ticket(live: Live) -> None:
    assert live.keyed("POST", TICKETS).status == 401
    assert live.keyed.holding(owner(live))("POST", TICKETS, {"a": 1}).status == 400


def test_without_realtime_there_are_no_tickets(
    make_runtime: Callable[..., Runtime], clock: Any
) -> None:
    keyed = Keyed(make_runtime(authorizer="keys"), clock)
    reply = keyed.holding(keyed.make("owner", *ALL_SCOPES))("POST", TICKETS)
    assert (reply.status, reply.error["code"]) == (422, "unsupported")
    assert "realtime" in reply.error["message"]


def test_the_manifest_has_the_address(live: Live) -> None:
    found = live.keyed.holding(owner(live))("GET", "/ojs/manifest").json
    assert found["extensions"]["realtime"] == {"sse": True, "websocket": URL}


@pytest.mark.parametrize("origin", ["https://evil.example.com", "null", "", f"{ORIGIN}.evil.com"])
def test_a_page_of_another_site_cannot_connect(live: Live, origin: str) -> None:
    assert live.open(live.ticket(owner(live)), {"origin": origin})[0] == 403
    assert not [name for name in live.items() if "|c|" in name]


def test_a_connection_ends_with_its_key(live: Live) -> None:
    end_ms = live.keyed.clock.now_ms() + 60_000
    key = live.keyed.make("short", *ALL_SCOPES, expires_ms=end_ms)
    connection = live.connect(key)
    live.keyed.clock.advance(60_000)
    assert live.subscribe(connection, "all")["code"] == "connection_ended"


@pytest.mark.parametrize("expires", ["1780000060", "1.78000006E9", 1_780_000_060])
def test_a_connection_ends_with_its_token(
    make_runtime: Callable[..., Runtime], clock: Any, expires: Any
) -> None:
    built = make_runtime(authorizer="jwt", realtime="all", socket_url=URL)
    claims = {"sub": "reader", "scope": "admin:read", "exp": expires}
    reply = Keyed(built, clock)("POST", TICKETS, told={"jwt": {"claims": claims}})
    found = built.stores.tickets.redeem(reply.json["ticket"])
    assert found is not None
    assert found.until_ms == 1_780_000_060_000
    built.sockets.add_connection("c1", found)
    connection = built.stores.connections.get("c1", now_ms=0)
    assert connection is not None
    assert connection.until_ms == 1_780_000_060_000


def test_who_has_no_principal_cannot_connect(live: Live) -> None:
    event = live.event("$connect", "c1", headers=None)
    assert socket(event, None) == {"statusCode": 401}


def test_a_server_without_keys_takes_anybody(
    make_runtime: Callable[..., Runtime], clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = make_runtime(realtime="all", socket_url=URL)
    tickets = built.stores.tickets
    monkeypatch.setattr(access_runtime, "tickets", lambda: tickets)
    live = Live(Keyed(built, clock))
    status, connection, _ = live.open(tickets.issue(ANYBODY))
    assert status == 200
    assert live.subscribe(connection, "all")["type"] == "subscribed"


# --- subscriptions --------------------------------------------------------------------------------


def test_subscribe_to_a_job(live: Live) -> None:
    job = push(live)
    connection = live.connect(live.keyed.make("reader", "jobs:read"))
    live.keyed.runtime.stores.realtime_directory.read(remembered_ms=10_000)
    live.meter.reset()
    answer = live.subscribe(connection, f"job:{job}", event_types=["job.state_changed"])
    assert answer.pop("last_event_id").startswith("evt_")
    assert answer == {
        "type": "subscribed",
        "channel": f"job:{job}",
        "event_types": ["job.state_changed"],
        "state": "available",
    }
    # The connection, the job before and after, and the watchers; the channel in the record of the
    # connection, the watcher, the entry of the directory.
    assert sorted(live.meter.calls) == ["GetItem"] * 4 + ["PutItem"] + ["UpdateItem"] * 2
    assert live.meter.write_units == 3.0
    assert live.items() == ["RT j", f"RT|c|{connection} @", f"RT|j|{job} @"]
    found = live.keyed.runtime.stores.subscribers.list_watching([job, JOB], now_ms=0)
    (subscriber,) = found.pop(job)
    assert found == {}
    assert (subscriber.connection, subscriber.channel) == (connection, f"job:{job}")
    assert subscriber.event_types == ("job.state_changed",)
    assert subscriber.principal.scopes == {"jobs:read"}
    live.close(connection)
    assert live.items() == ["RT j", f"RT|j|{job} @"]
    assert live.keyed.runtime.stores.subscribers.list_watching([job], now_ms=0) == {}


def test_subscribe_to_a_queue_and_to_all(live: Live) -> None:
    push(live)
    connection = live.connect(owner(live))
    answer = live.subscribe(connection, "queue:mail")
    now_ms = live.keyed.clock.now_ms()
    assert read_time(answer.pop("last_event_id"), now_ms) == now_ms
    assert answer == {"type": "subscribed", "channel": "queue:mail"}
    live.subscribe(connection, "queue:mail", event_types=["job.progress"], batch=True, detail=True)
    live.subscribe(connection, "all", digest=True)
    store = live.keyed.runtime.stores.subscribers
    (queue,) = store.list_of("queue:mail", now_ms=0)
    assert (queue.channel, queue.event_types) == ("queue:mail", ("job.progress",))
    assert (queue.batch, queue.detail, queue.digest) == (True, True, False)
    (everything,) = store.list_of("all", now_ms=0)
    assert (everything.channel, everything.digest) == ("all", True)
    directory = live.keyed.runtime.stores.realtime_directory.read(remembered_ms=0)
    assert directory.queues == {"mail"}
    assert (directory.everything, directory.jobs) == (True, False)
    unsubscribe = {"action": "unsubscribe", "channel": "queue:mail"}
    for _ in range(2):
        assert live.send(connection, unsubscribe) == {
            "type": "unsubscribed",
            "channel": "queue:mail",
        }
    assert store.list_of("queue:mail", now_ms=0) == []
    found = live.keyed.runtime.stores.connections.get(connection, now_ms=0)
    assert found is not None
    assert found.channels == ("all",)
    live.close(connection)
    live.close(connection)
    assert live.items() == ["RT a", "RT q|mail"]


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({}, "action"),
        ({"action": "shout"}, "action"),
        ({"action": 1}, "action"),
        ({"action": ["hello"]}, "action"),
        ({"action": "hello", "more": 1}, "more"),
        ({"action": "subscribe"}, "channel"),
        ({"action": "subscribe", "channel": 1}, "channel"),
        ({"action": "subscribe", "channel": ""}, "channel"),
        ({"action": "subscribe", "channel": "jobs"}, "channel"),
        ({"action": "subscribe", "channel": "all:x"}, "channel"),
        ({"action": "subscribe", "channel": "job:x"}, "channel"),
        ({"action": "subscribe", "channel": "job:"}, "channel"),
        ({"action": "subscribe", "channel": "queue:"}, "channel"),
        ({"action": "subscribe", "channel": "queue:" + "q" * 256}, "channel"),
        ({"action": "subscribe", "channel": "queue:a b"}, "channel"),
        ({"action": "subscribe", "channel": "all", "event_types": ["job.x"]}, "event_types"),
        ({"action": "subscribe", "channel": "all", "event_types": "job.progress"}, "event_types"),
        ({"action": "subscribe", "channel": "all", "event_types": []}, "event_types"),
        ({"action": "subscribe", "channel": "all", "batch": 1}, "batch"),
        ({"action": "subscribe", "channel": "all", "digest": True, "batch": True}, "digest"),
        ({"action": "subscribe", "channel": f"job:{JOB}", "digest": True}, "digest"),
        ({"action": "unsubscribe", "channel": "x"}, "channel"),
    ],
)
def test_bad_messages(live: Live, message: Any, field: str) -> None:
    connection = live.connect(owner(live))
    before = live.items()
    answer = live.send(connection, message)
    assert (answer["type"], answer["code"]) == ("error", "invalid_request")
    assert f"'{field}" in answer["message"]
    assert live.items() == before


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "invalid_payload"),
        ("no JSON", "invalid_payload"),
        ("[]", "invalid_payload"),
        ('"hello"', "invalid_payload"),
        ("[" * 1_000 + "]" * 1_000, "invalid_payload"),
        ('{"action":"hello","action":"ping"}', "invalid_payload"),
        (json.dumps({"action": "hello", "more": "x" * 129 * 1_024}), "payload_too_large"),
    ],
)
def test_bad_texts(live: Live, text: str, code: str) -> None:
    answer = live.send("c1", text)
    assert (answer["type"], answer["code"]) == ("error", code)


def test_a_binary_message(live: Live) -> None:
    body = base64.b64encode(b'{"action":"hello"}').decode()
    answer = live.send("c1", body, isBase64Encoded=True)
    assert (answer["type"], answer["code"]) == ("error", "invalid_payload")


@pytest.mark.parametrize("channel", ["all", "queue:mail"])
@pytest.mark.parametrize("action", ["subscribe", "unsubscribe"])
def test_a_connection_that_is_not_there(live: Live, channel: str, action: str) -> None:
    answer = live.send("other", {"action": action, "channel": channel})
    assert answer["code"] == "connection_ended"
    assert live.items() == []


def test_what_is_not_there(live: Live) -> None:
    connection = live.connect(owner(live))
    before = live.items()
    for channel, message in (
        (f"job:{JOB}", f"Job '{JOB}' not found."),
        ("queue:none", "Queue 'none' not found."),
    ):
        assert live.subscribe(connection, channel) == {
            "type": "error",
            "code": "not_found",
            "message": message,
            "channel": channel,
        }
    assert live.items() == before


def test_a_queue_that_was_deleted(live: Live) -> None:
    push(live)
    api = live.keyed.holding(owner(live))
    assert api("DELETE", "/ojs/v1/queues/mail", {"strategy": "discard"}).status < 300
    answer = live.subscribe(live.connect(owner(live)), "queue:mail")
    assert answer["code"] == "not_found"


SCOPES = {
    "jobs:write": set[str](),
    "jobs:read": {"job"},
    "work": set[str](),
    "admin:read": {"queue", "all"},
    "admin:write": set[str](),
}


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("queues", [None, ["mail"], ["m*"], ["other"]])
def test_the_matrix_of_channels(live: Live, scope: str, queues: list[str] | None) -> None:
    """Each scope and reach with each channel, as each operation in `test_access`."""
    job = push(live)
    connection = live.connect(live.keyed.make("k", scope, queues=queues))
    for channel in (f"job:{job}", "queue:mail", "all"):
        kind = channel.partition(":")[0]
        answer = live.subscribe(connection, channel)
        if kind not in SCOPES[scope]:
            assert answer["code"] == "permission_denied"
        elif queues == ["other"] and kind != "all":
            # As one that is not there.
            name = channel.partition(":")[2]
            assert answer["code"] == "not_found"
            assert answer["message"] == f"{kind.capitalize()} '{name}' not found."
        else:
            # All events are filtered by reach when they are sent.
            assert answer["type"] == "subscribed"


def test_a_revoked_key_subscribes_to_nothing(live: Live) -> None:
    api = live.keyed.holding(owner(live))
    first = live.keyed.make("first", *ALL_SCOPES)
    second = live.keyed.holding(first)(
        "POST", "/ojs/v1/admin/keys", {"name": "second", "scopes": ["admin:read"]}
    ).json
    connection = live.connect(second["secret"])
    assert live.subscribe(connection, "all")["type"] == "subscribed"
    reply = api("DELETE", f"/ojs/v1/admin/keys/{first.split('_')[1]}", query={"made": "revoke"})
    assert reply.json["also_revoked"] == [second["key"]["id"]]
    directory = live.keyed.runtime.stores.realtime_directory
    revoked = directory.read(remembered_ms=0).revoked
    assert revoked == {first.split("_")[1], second["key"]["id"]}
    assert live.subscribe(connection, "all")["code"] == "permission_denied"
    # The entries outlive every connection of a ticket that API Gateway still let them have.
    live.keyed.clock.advance(185 * 60_000)
    assert directory.read(remembered_ms=0).revoked == revoked
    live.keyed.clock.advance(10 * 60_000)
    assert directory.read(remembered_ms=0).revoked == frozenset()


def test_limits(live: Live) -> None:
    stores, clock = live.keyed.runtime.stores, live.keyed.clock
    for number in range(MAX_CHANNELS):
        stores.queues.ensure(f"q{number}", now_ms=clock.now_ms())
    connection = live.connect(owner(live))
    for number in range(MAX_CHANNELS):
        assert live.subscribe(connection, f"queue:q{number}")["type"] == "subscribed"
    assert live.subscribe(connection, "all")["code"] == "too_many"
    # Not one more: other options.
    assert live.subscribe(connection, "queue:q1", batch=True)["type"] == "subscribed"
    job = push(live)
    for channel, most in ((f"job:{job}", MAX_WATCHERS), ("queue:mail", MAX_SUBSCRIBERS)):
        until_ms = clock.now_ms() + 60_000
        for number in range(most):
            other = Subscriber(f"o{number}", channel, Principal("x"), until_ms)
            assert stores.subscribers.add(other, now_ms=clock.now_ms())
        another = live.connect(owner(live))
        answer = live.subscribe(another, channel)
        assert (answer["code"], str(most) in answer["message"]) == ("too_many", True)
        found = stores.connections.get(another, now_ms=clock.now_ms())
        assert found is not None
        assert found.channels == ()
        # Those that have ended make place.
        clock.advance(60_000)
        assert live.subscribe(another, channel)["type"] == "subscribed"


def test_a_deployment_that_only_wakes_workers(
    make_runtime: Callable[..., Runtime], clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = make_runtime(authorizer="keys", realtime="wake", socket_url=URL)
    tickets = built.stores.tickets
    monkeypatch.setattr(access_runtime, "tickets", lambda: tickets)
    live = Live(Keyed(built, clock))
    connection = live.connect(owner(live))
    assert live.send(connection, {"action": "hello"})["connection"] == connection
    assert live.subscribe(connection, "all")["code"] == "unsupported"
    key = live.keyed.make("gone", "work")
    api = live.keyed.holding(owner(live))
    assert api("DELETE", f"/ojs/v1/admin/keys/{key.split('_')[1]}").status == 200
    # Nothing is sent that a revoked key must not have.
    assert live.items() == [f"RT|c|{connection} @"]


def test_a_defect_is_answered(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(live.keyed.runtime.__dict__, "sockets", None)
    answer = live.send("c1", {"action": "hello"})
    assert (answer["type"], answer["code"]) == ("error", "backend_error")


def test_a_connection_of_a_server_without_keys_keeps_its_tenant(
    make_runtime: Callable[..., Runtime],
    clock: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built = make_runtime(realtime="all", socket_url=URL)
    monkeypatch.setattr(access_runtime, "tickets", lambda: built.stores.tickets)
    live = Live(Keyed(built, clock))
    reply = live.keyed("POST", TICKETS, headers={"X-OJS-Tenant": "acme"}, told={})
    status, connection, _ = live.open(reply.json["ticket"])
    assert status == 200
    found = built.stores.connections.get(connection, now_ms=0)
    assert found is not None
    assert found.principal == ANYBODY.with_tenant("acme")
