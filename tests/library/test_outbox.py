"""Items of an outbox: what the application writes, and what it is told before."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from unittest.mock import Mock

import pytest

from ojs.domain import jsontext
from ojs.domain.errors import OjsError
from ojs.domain.ids import is_uuid7
from ojs.domain.job import envelope
from ojs_aws import AsyncClient, Client, JobRequest, ServerError
from ojs_aws.client.outbox import MAX_JOB_BYTES, outbox_item
from ojs_aws.testing.server import OjsServer
from tests.library.pages import files, page

OWN = "019c2833-a840-7000-8143-0784d9cd5e1e"


def job_of(action: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(action["Put"]["Item"]["ojs_job"]["S"])
    return found


def test_an_item_is_a_put_of_a_transaction() -> None:
    with Client("http://stub") as client:
        action = client.outbox_item(
            "order.place", [{"n": 1}], table="Outbox", queue="orders", delay_s=5, tags=["a"]
        )
    assert action["Put"].keys() == {"TableName", "Item"}
    assert (action["Put"]["TableName"], action["Put"]["Item"].keys()) == (
        "Outbox",
        {"id", "ojs_job"},
    )
    job = job_of(action)
    assert is_uuid7(job["id"])
    assert action["Put"]["Item"]["id"] == {"S": job["id"]}
    assert job == {
        "id": job["id"], "type": "order.place", "args": [{"n": 1}],
        "options": {"queue": "orders", "scheduled_at": "+PT5.000S", "tags": ["a"]},
    }  # fmt: skip
    envelope.resolve(envelope.parse(job), now_ms=0)
    # It is the same method of both clients, and sends nothing.
    assert AsyncClient.outbox_item is Client.outbox_item is outbox_item


def test_an_item_can_have_plain_values() -> None:
    action = outbox_item("a", table="T", style="resource", id=OWN)
    item = {
        "id": OWN,
        "ojs_job": json.dumps({"id": OWN, "type": "a", "args": []}, separators=(",", ":")),
    }
    assert action == {"Put": {"TableName": "T", "Item": item}}
    with pytest.raises(ValueError, match="style must be 'client' or 'resource', but is 'table'"):
        outbox_item("a", table="T", style="table")  # type: ignore[arg-type]


def test_a_job_can_be_complete() -> None:
    @dataclass
    class Call:
        request: JobRequest

    request = JobRequest("order.place", [1], queue="orders")
    for job in (request, Call(request)):
        made = job_of(outbox_item(job, table="T"))
        assert (made["type"], made["args"], made["options"]) == (
            "order.place",
            [1],
            {"queue": "orders"},
        )
        with pytest.raises(TypeError, match="can't be combined with a complete job"):
            outbox_item(job, table="T", queue="mail")


DEEP: Any = []
for _ in range(150):
    DEEP = [DEEP]

BAD: list[dict[str, Any]] = [
    {"type": "A"}, {"type": ""}, {"type": "a..b"}, {"type": "a\n"}, {"type": "a" * 256},
    {"queue": "Orders"}, {"queue": ""}, {"queue": "a" * 256}, {"queue": 5},
    {"id": "order-1"}, {"id": OWN.upper()}, {"id": ""},
    {"priority": 101}, {"priority": -101}, {"priority": 1.5}, {"priority": True},
    {"timeout_s": 0}, {"timeout_s": -1}, {"tags": [""]}, {"tags": ["a"] * 101}, {"tags": [5]},
    {"scheduled_at": "tomorrow"}, {"scheduled_at": ""}, {"expires_at": "2026-11-28"},
    {"pending": "yes"}, {"meta": {"a": "x" * 65_536}}, {"args": ["x" * 1_048_577]},
    {"args": [float("nan")]}, {"args": ["\ud800"]}, {"args": DEEP},
    {"retry": {"max_attempts": -1}}, {"retry": {"attempts": 3}}, {"retry": []},
    {"retry": {"backoff_strategy": "random"}}, {"retry": {"backoff_coefficient": 0.5}},
    {"retry": {"initial_interval": "soon"}}, {"retry": {"non_retryable_errors": ["a"] * 101}},
    {"unique": {"keys": []}}, {"unique": {"keys": ["id"]}}, {"unique": {"on_conflict": "drop"}},
    {"unique": {"states": ["done"]}}, {"unique": {"period_ms": 0}}, {"unique": "args"},
    {"options": {"delay": 5}}, {"options": {"rate_limit": {"key": ""}}},
    {"options": {"visibility_timeout_ms": 0}},
]  # fmt: skip
GOOD: list[dict[str, Any]] = [
    {}, {"queue": "a.b-1"}, {"priority": -100}, {"timeout_s": 0.5}, {"tags": []}, {"pending": True},
    {"args": [1, 2.5, None, {"a": [True]}, "ä", "\x00"]}, {"meta": {"shop": "eu"}}, {"id": OWN},
    {"scheduled_at": "2026-11-28T10:00:00Z"}, {"expires_at": datetime(2030, 1, 1, tzinfo=UTC)},
    {"retry": {"max_attempts": 5, "initial_interval": "PT2S", "jitter": False}},
    {"retry": {"max_attempts": None, "max_interval": "5m", "backoff": "none"}},
    {"unique": {"keys": ["args"], "period": "PT1H", "on_conflict": "replace"}},
    {"unique": {"key": "one"}}, {"unique": {"key": ["args", "queue"]}},
    {"options": {"rate_limit": {"key": "shop", "concurrency": 1}}}, {"options": {"metadata": {}}},
]  # fmt: skip


def relayed(options: dict[str, Any]) -> bool:
    """Whether the server accepts this job."""
    given = {"type": "a.b", **options}
    try:
        text = json.dumps(JobRequest(**given).wire(given.get("id", OWN)))
        envelope.resolve(envelope.parse(jsontext.loads(text)), now_ms=0)
    except OjsError:
        return False
    return True


@pytest.mark.parametrize("options", BAD)
def test_what_the_server_would_refuse_is_refused_before(options: dict[str, Any]) -> None:
    assert not relayed(options)
    given = {"job": options.get("type", "a.b"), **options}
    given.pop("type", None)
    with pytest.raises(ValueError, match=r".") as refused:
        outbox_item(table="T", **given)
    name = next(iter(options))
    if name not in ("args", "options"):
        field = {"timeout_s": "timeout_ms"}.get(name, name)
        assert field in str(refused.value)


# Rules that no schema of a job has. The relay refuses such a job.
LEFT: list[dict[str, Any]] = [
    {"options": {"rate_limit": {}}}, {"scheduled_at": "2026-02-30T10:00:00Z"},
    {"retry": {"initial_interval": "PT9S", "max_interval": "PT1S"}}, {"unique": {"keys": ["meta"]}},
]  # fmt: skip


@pytest.mark.parametrize("options", LEFT)
def test_policies_that_contradict_themselves_are_left_to_the_relay(options: dict[str, Any]) -> None:
    assert not relayed(options)
    job_of(outbox_item("a.b", table="T", **options))


@pytest.mark.parametrize("options", GOOD)
def test_what_the_server_takes_is_no_error(options: dict[str, Any]) -> None:
    assert relayed(options)
    job_of(outbox_item("a.b", table="T", **options))


def test_a_job_must_fit_into_an_item() -> None:
    rest = len(json.dumps({"id": OWN, "type": "a", "args": [""]}, separators=(",", ":")))
    item = outbox_item("a", ["x" * (MAX_JOB_BYTES - rest)], table="T")["Put"]["Item"]
    assert sum(len(name) + len(value["S"]) for name, value in item.items()) == 400 * 1024
    with pytest.raises(ValueError, match=f"'job': has {MAX_JOB_BYTES + 1} bytes as JSON"):
        outbox_item("a", ["x" * (MAX_JOB_BYTES - rest + 1)], table="T")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"args": "x"}, "args must be a list"),
        ({"colour": "red"}, "colour"),
        ({"args": [object()]}, "not JSON serializable"),
    ],
)
def test_an_argument_of_the_wrong_type_is_an_error(arguments: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        outbox_item("a", table="T", **arguments)


# --- the page ------------------------------------------------------------------------------------


def on_page(name: str) -> dict[str, Any]:
    """What a file of the page defines, in the words of SQLite."""
    text = files(page("outbox"))[name].replace(" FOR UPDATE SKIP LOCKED", "").replace("%s", "?")
    space: dict[str, Any] = {"__name__": "page"}
    exec(compile(text, name, "exec"), space)
    return space


def test_the_transaction_of_the_page() -> None:
    dynamodb = Mock()
    with Client("http://stub") as client:
        on_page("orders.py")["place"](dynamodb, client, "Box", 7)
    order, item = dynamodb.transact_write_items.call_args.kwargs["TransactItems"]
    assert order["Put"]["TableName"] == "Orders"
    assert (item["Put"]["TableName"], job_of(item)["args"]) == ("Box", [7])


@pytest.fixture
def database() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE orders (number int)")
    table = "outbox (id uuid PRIMARY KEY, job text NOT NULL, error text)"
    assert f"`{table}`" in " ".join(page("outbox").split())
    connection.execute(f"CREATE TABLE {table}")
    return connection


def left(connection: sqlite3.Connection) -> list[str | None]:
    """The errors of the rows that are left."""
    return [error for (error,) in connection.execute("SELECT error FROM outbox ORDER BY id")]


def test_rows_of_a_database_become_jobs(
    ojs_server: OjsServer, database: sqlite3.Connection
) -> None:
    ojs_server.reset()
    place, relay = on_page("shop.py")["place"], on_page("relay.py")["relay"]
    client = ojs_server.client
    for number in range(120):
        place(database, client, number)
    assert [relay(database, client) for _ in range(3)] == [100, 20, 0]
    assert left(database) == []
    jobs = ojs_server.enqueued("order.place", queue="orders")
    assert sorted(job.args[0] for job in jobs) == list(range(120))


def test_an_interrupted_relay_creates_no_second_job(
    ojs_server: OjsServer, database: sqlite3.Connection
) -> None:
    ojs_server.reset()
    place, relay = on_page("shop.py")["place"], on_page("relay.py")["relay"]
    client = ojs_server.client
    for number in range(3):
        place(database, client, number)
    invalid = json.dumps({"id": OWN, "type": "A", "args": []})
    database.execute("INSERT INTO outbox VALUES (?, ?, NULL)", (OWN, invalid))
    database.commit()
    # It dies before it deletes the rows, at each statement.
    for statements in range(1, 5):
        cursor = Mock(wraps=database.cursor())
        cursor.execute = dying(database, statements)
        cursor.fetchall = lambda: database.execute("SELECT job FROM outbox").fetchall()
        with pytest.raises(ConnectionError):
            relay(Mock(cursor=lambda cursor=cursor: cursor, commit=database.commit), client)
        database.rollback()
    assert relay(database, client) == 4
    (error,) = left(database)
    assert "invalid_request" in str(error)
    assert relay(database, client) == 0
    ojs_server.assert_enqueued("order.place", count=3)


def dying(connection: sqlite3.Connection, statements: int) -> Any:
    left = iter(range(statements))

    def execute(*arguments: Any) -> None:
        if next(left, None) is None:
            raise ConnectionError
        connection.execute(*arguments)

    return execute


def test_a_relay_without_a_server_deletes_nothing(database: sqlite3.Connection) -> None:
    with Client("http://stub") as client:
        on_page("shop.py")["place"](database, client, 1)
    busy = Mock(enqueue_many=Mock(side_effect=ServerError(503, {})))
    with pytest.raises(ServerError):
        on_page("relay.py")["relay"](database, busy)
    assert left(database) == [None]
