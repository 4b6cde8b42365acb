"""Items of a table that become jobs, as Lambda delivers the records of its stream."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from boto3.dynamodb.types import TypeSerializer

from functions.bridge import outbox as relay
from functions.bridge.handler import handler
from ojs import runtime
from ojs.clock import ManualClock
from ojs.domain.ids import derived_uuid7
from ojs.runtime import Runtime
from ojs.settings import Outbox, Settings
from ojs.store.table import clients, schema
from ojs.store.table.values import unpack
from ojs_aws.ids import uuid7
from tests.store.faults import FAULTS, Died, Faulty
from tests.unit.functions.client import Api, MemoryBlobs

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine

Record = dict[str, Any]
JOB: dict[str, Any] = {"type": "order.place", "args": [1], "options": {"queue": "orders"}}


def pack(item: Any) -> dict[str, Any]:
    """An item as DynamoDB has it."""
    return {name: TypeSerializer().serialize(value) for name, value in item.items()}


@dataclass
class FakeSqs:
    """Keeps what is sent, unless it is out of order."""

    works: bool = True
    dies: bool = False
    sent: dict[str, list[Any]] = field(default_factory=dict)

    def send_message_batch(self, *, QueueUrl: str, Entries: Sequence[Any]) -> Any:  # noqa: N803
        if not self.works:
            return {"Failed": [{"Id": each["Id"], "Code": "InternalError"} for each in Entries]}
        name = QueueUrl.rpartition("/")[2]
        self.sent.setdefault(name, []).extend(json.loads(each["MessageBody"]) for each in Entries)
        if self.dies:
            raise Died
        return {"Successful": Entries}

    def take(self, name: str) -> list[Any]:
        return self.sent.pop(name, [])


@dataclass
class App:
    """An application with a table, a deployment with its relay, and the table's stream."""

    dynamodb: DynamoDBClient
    clock: ManualClock
    jobs: str
    outbox: Outbox
    sqs: FakeSqs
    numbers: Iterator[int]
    run: Runtime = field(init=False)

    def __post_init__(self) -> None:
        self.use(self.dynamodb)

    def use(self, client: Any, *, measure: bool = False) -> Runtime:
        """A new container with this client."""
        self.run = runtime.build(
            Settings(table=self.jobs, version="1", outbox=self.outbox),
            client=client,
            blobs=MemoryBlobs(),
            clock=self.clock,
            measure=measure,
            sleep=lambda _: None,
        )
        runtime.use(self.run)
        return self.run

    def record(self, new: Any, old: Any = None, *, name: str = "", age_ms: int = 0) -> Record:
        """A record of a change between two items of plain values."""
        item = new if new is not None else old
        second = (self.clock.now_ms() - age_ms) // 1_000
        change: Record = {
            "ApproximateCreationDateTime": float(second),
            "Keys": pack({"id": item["id"]}),
            "SequenceNumber": f"{next(self.numbers):021d}",
            "StreamViewType": "NEW_AND_OLD_IMAGES" if self.outbox.own else "NEW_IMAGE",
        }
        change |= {} if new is None else {"NewImage": pack(new)}
        change |= {} if old is None or not self.outbox.own else {"OldImage": pack(old)}
        found = "INSERT" if old is None else "REMOVE" if new is None else "MODIFY"
        return {"eventName": name or found, "eventSource": "aws:dynamodb", "dynamodb": change}

    def put(self, job: Any = JOB, *, item_id: str | None = None, **more: Any) -> Record:
        """Write an item, as the application does. Its record."""
        text = job if isinstance(job, str) else json.dumps(job)
        item = {"id": item_id or uuid7(), "ojs_job": text, **more}
        self.dynamodb.put_item(TableName=self.outbox.table, Item=pack(item))
        return self.record(item)

    def relay(self, *records: Record) -> list[int]:
        """The numbers of the records that Lambda delivers again."""
        failures = handler({"Records": list(records)}, None)["batchItemFailures"]
        ids = [each["itemIdentifier"] for each in failures]
        numbers = [each.get("messageId") or each["dynamodb"]["SequenceNumber"] for each in records]
        return [numbers.index(each) for each in ids]

    def queued(self) -> list[Record]:
        """The messages of the queue `later`, as Lambda delivers them."""
        bodies = self.sqs.take("later")
        return [{"messageId": uuid7(), "body": json.dumps(body)} for body in bodies]

    def left(self) -> list[dict[str, Any]]:
        """The items of the table."""
        pages = self.dynamodb.get_paginator("scan").paginate(TableName=self.outbox.table)
        return [unpack(each) for page in pages for each in page["Items"]]

    def stored(self, queue: str = "orders") -> list[dict[str, Any]]:
        """The available jobs of a queue."""
        api = Api(self.run, self.clock)
        found: list[dict[str, Any]] = api.get("/ojs/v1/jobs", queue=queue, limit="100").json["jobs"]
        return sorted(found, key=lambda job: str(job["id"]))


@pytest.fixture
def make_app(
    dynamodb: DynamoDBClient, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., App]]:
    """Makes applications. Keywords are settings of the outbox."""
    names: list[str] = []

    def make(**more: Any) -> App:
        jobs, box = (f"{kind}-{uuid.uuid4().hex[:12]}" for kind in ("jobs", "box"))
        dynamodb.create_table(**schema.create_table_arguments(jobs))
        dynamodb.create_table(
            TableName=box,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        names.extend((jobs, box))
        sqs = FakeSqs()
        monkeypatch.setattr(clients, "client", lambda *_: sqs)
        outbox = Outbox(box, "https://sqs/refused", "https://sqs/later", **more)
        return App(dynamodb, clock, jobs, outbox, sqs, iter(range(10**9)))

    yield make
    for name in names:
        dynamodb.delete_table(TableName=name)


@pytest.mark.parametrize("count", [1, 3, 120])
def test_each_item_becomes_a_job_and_goes(make_app: Callable[..., App], count: int) -> None:
    app = make_app()
    ids = [uuid7() for _ in range(count)]
    records = [app.put({**JOB, "args": [n]}, item_id=each) for n, each in enumerate(ids)]
    assert app.relay(*records[:100]) == app.relay(*records[100:]) == []
    assert app.left() == []
    assert {job["id"] for job in app.stored()} <= set(ids)
    (job,) = app.run.fetch.fetch(["orders"], 1, "w")
    assert (job.id, job.producer, (job.content or {})["args"]) == (ids[0], app.outbox.table, [0])
    # What the stream delivers again is no second job, also when the first one is done.
    app.run.finish.ack(job.id, worker_id="w")
    assert app.relay(*records[:100]) == app.relay(*records[100:]) == []
    assert len(app.run.fetch.fetch(["orders"], 500, "w")) == count - 1
    assert app.sqs.sent == {}


def test_an_empty_event_has_no_failures(make_app: Callable[..., App]) -> None:
    make_app()
    assert handler({"Records": []}, None) == {"batchItemFailures": []}


def test_the_id_of_a_job_is_its_own_or_that_of_its_item(make_app: Callable[..., App]) -> None:
    app = make_app()
    item, own, other = uuid7(), uuid7(), uuid7()
    nothing = {**JOB, "id": None}
    records = [app.put(nothing, item_id=item), app.put({**JOB, "id": own}, item_id=other)]
    assert app.relay(*records) == []
    assert app.relay(*records) == []
    assert [job["id"] for job in app.stored()] == sorted([item, own])


def test_changed_and_deleted_items_are_no_jobs(make_app: Callable[..., App]) -> None:
    app = make_app(keep=True)
    item = {"id": uuid7(), "ojs_job": json.dumps(JOB)}
    assert app.relay(app.record(item | {"expires": 1}, item), app.record(None, item)) == []
    assert (app.stored(), app.sqs.sent) == ([], {})


def test_kept_items_expire(make_app: Callable[..., App]) -> None:
    app = make_app(keep=True)
    one, two = app.put(), app.put()
    gone = unpack(two["dynamodb"]["Keys"])
    app.dynamodb.delete_item(TableName=app.outbox.table, Key=pack(gone))
    assert app.relay(one, two) == []
    # An item that was deleted stays deleted.
    (left,) = app.left()
    assert left["expires"] == app.clock.now_ms() // 1_000 + 7 * 86_400
    assert len(app.stored()) == 2


BAD = [
    ("{", "invalid_payload"),
    ("", "invalid_payload"),
    ("[]", "invalid_request"),
    (json.dumps([JOB]), "invalid_request"),
    (json.dumps({"args": []}), "invalid_request"),
    (json.dumps({**JOB, "type": "A"}), "invalid_request"),
    (json.dumps({**JOB, "id": "order-1"}), "invalid_request"),
    (json.dumps({**JOB, "options": {"delay": 5}}), "invalid_request"),
    (json.dumps({**JOB, "options": {"retry": {"max_attempts": -1}}}), "validation_error"),
    (json.dumps({**JOB, "args": ["x" * 1_048_577]}), "payload_too_large"),
    (b"{}", "invalid_request"),
    (5, "invalid_request"),
    ([json.dumps(JOB)], "invalid_request"),
    (JOB, "invalid_request"),
    (None, "invalid_request"),
]


@pytest.mark.parametrize(("value", "code"), BAD)
def test_what_is_no_job_is_refused_alone_and_stays(
    make_app: Callable[..., App], value: Any, code: str
) -> None:
    app = make_app()
    good, bad = app.put(), {"id": uuid7(), "ojs_job": value}
    if value is None:
        del bad["ojs_job"]
    record = app.record(bad)
    assert app.relay(record, good) == []
    told = {"table": app.outbox.table, "keys": pack({"id": bad["id"]}), "code": code}
    assert app.sqs.sent == {"refused": [told]}
    assert len(app.stored()) == 1
    # If nobody can be told, the stream delivers it again.
    app.sqs.works = False
    assert app.relay(good, record) == [1]


def test_an_id_of_an_item_that_is_no_uuid7_is_refused(make_app: Callable[..., App]) -> None:
    app = make_app()
    records = [app.put(item_id="order-1"), app.put({**JOB, "id": uuid7()}, item_id="order-2")]
    assert app.relay(*records) == []
    assert [each["keys"] for each in app.sqs.take("refused")] == [pack({"id": "order-1"})]
    assert [item["id"] for item in app.left()] == ["order-1"]


def test_a_table_reaches_its_queues_and_types_alone(make_app: Callable[..., App]) -> None:
    app = make_app(queues=("orders", "mail*"), types=("order.*", "pay"))
    allowed = [("order.place", "orders"), ("pay", "mail.eu")]
    denied = [("order.place", "other"), ("order.place", "order"), ("payment", "orders")]
    records = [
        app.put({"type": kind, "args": [], "options": {"queue": queue}})
        for kind, queue in (*allowed, *denied)
    ]
    assert app.relay(*records) == []
    assert [each["code"] for each in app.sqs.take("refused")] == ["permission_denied"] * 3
    assert len(app.left()) == 3
    assert len(app.stored()) == len(app.stored("mail.eu")) == 1
    # A queue knows the table as the producer.
    app.run.queues.configure("orders", {"producers": ["shop"]})
    assert app.relay(app.put()) == []
    assert [each["code"] for each in app.sqs.take("refused")] == ["permission_denied"]


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
def test_a_queue_must_keep_jobs_for_longer_than_the_stream(
    make_app: Callable[..., App], state: str
) -> None:
    app = make_app()
    app.run.queues.configure("orders", {"retention": {state: "PT47H"}})
    record = app.put()
    assert app.relay(record) == []
    assert [each["code"] for each in app.sqs.take("refused")] == ["conflict"]
    app.run.queues.configure("orders", {"retention": {state: "P2D"}})
    assert app.relay(record) == []
    assert (len(app.stored()), app.left(), app.sqs.sent) == (1, [], {})


def test_a_full_queue_sends_jobs_to_later(make_app: Callable[..., App]) -> None:
    app = make_app()
    app.run.queues.configure("orders", {"max_size": 2})
    other = {**JOB, "options": {"queue": "other"}}
    records = [*(app.put({**JOB, "args": [n, 1.10]}) for n in range(4)), app.put(other)]
    assert app.relay(*records) == []
    # Jobs of other queues don't wait.
    assert (len(app.stored()), len(app.stored("other")), len(app.left())) == (2, 1, 2)
    waiting = app.queued()
    assert app.relay(*waiting) == [0, 1]
    assert app.sqs.sent == {}
    app.run.queues.configure("orders", {"max_size": 3})
    assert app.relay(*waiting) == [1]
    app.run.queues.configure("orders", {"max_size": 9})
    assert app.relay(*waiting) == []
    assert sorted(job["args"] for job in app.stored()) == [[n, 1.1] for n in range(4)]
    assert app.left() == []
    # With neither queue there is no other place, so the stream waits.
    app.run.queues.configure("orders", {"max_size": 4})
    app.sqs.works = False
    assert app.relay(app.put(), app.put(other)) == [0]


def test_a_death_after_a_message_is_no_second_job(make_app: Callable[..., App]) -> None:
    app = make_app()
    app.run.queues.configure("orders", {"max_size": 1})
    records = [app.put(), app.put(), app.put("{")]
    app.sqs.dies = True
    for _ in range(2):
        with pytest.raises(Died):
            app.relay(*records)
    app.sqs.dies = False
    assert app.relay(*records) == []
    app.run.queues.configure("orders", {"max_size": 9})
    assert len(waiting := app.queued()) == 3
    assert app.relay(*waiting) == []
    assert (len(app.stored()), len(app.left())) == (2, 1)


def test_an_ordered_stream_waits_for_a_full_queue(make_app: Callable[..., App]) -> None:
    app = make_app(ordered=True)
    app.run.queues.configure("orders", {"max_size": 2})
    other = {**JOB, "options": {"queue": "other"}}
    bad = app.put("{")
    records = [app.put(), bad, app.put(), app.put(), app.put(other)]
    assert app.relay(*records) == [3, 4]
    assert (len(app.stored()), len(app.stored("other")), app.queued()) == (2, 0, [])
    app.run.queues.configure("orders", {"max_size": 3})
    assert app.relay(*records[3:]) == []
    assert len(app.left()) == len(app.sqs.sent["refused"]) == 1


@pytest.mark.parametrize("ordered", [False, True])
def test_what_the_stream_will_soon_delete_goes_to_later(
    make_app: Callable[..., App], ordered: bool
) -> None:
    app = make_app(ordered=ordered)
    item = {"id": uuid7(), "ojs_job": json.dumps(JOB)}
    records = [app.record(item, age_ms=relay.LATE_MS + 1_000), app.put()]
    assert app.relay(*records) == []
    assert len(app.stored()) == 1
    assert app.relay(*app.queued()) == []
    assert len(app.stored()) == 2


def test_a_throttled_table_sends_all_to_later(make_app: Callable[..., App]) -> None:
    app = make_app()
    app.relay(app.put())
    records = [app.put() for _ in range(3)]
    app.use(Faulty(app.dynamodb, 2, "ThrottlingException"))
    assert app.relay(*records) == []
    app.use(app.dynamodb)
    waiting = app.queued()
    assert len(waiting) == len(app.left()) == 3
    # They can be delivered by both ways.
    assert app.relay(*records) == app.relay(*waiting) == []
    assert (len(app.stored()), app.left()) == (4, [])


def test_an_equal_unique_job_is_no_second_one(make_app: Callable[..., App]) -> None:
    app = make_app()
    unique = {**JOB, "options": {"queue": "orders", "unique": {"keys": ["args"]}}}
    assert app.relay(app.put(unique), app.put(unique), app.put()) == []
    assert (len(app.stored()), app.left(), app.sqs.sent) == (2, [], {})


# --- own tables ----------------------------------------------------------------------------------


def test_an_item_of_an_own_table_brings_a_job_whenever_the_attribute_changes(
    make_app: Callable[..., App],
) -> None:
    app = make_app(own=True)
    placed = {"id": uuid7(), "total": 5, "ojs_job": json.dumps(JOB)}
    paid = placed | {"ojs_job": json.dumps({**JOB, "type": "order.pay"})}
    records = [
        app.record(placed), app.record(placed | {"total": 6}, placed), app.record(paid, placed),
        app.record(placed, paid), app.record({"id": placed["id"]}, paid), app.record(None, paid),
    ]  # fmt: skip
    for _ in range(2):
        assert app.relay(*records) == []
    kinds = sorted(job["type"] for job in app.stored())
    assert kinds == ["order.pay", "order.place", "order.place"]
    at_ms = app.clock.now_ms() // 1_000 * 1_000
    name = f"{app.outbox.table}|{records[0]['dynamodb']['SequenceNumber']}|0"
    assert derived_uuid7(at_ms, name) in {job["id"] for job in app.stored()}


def test_an_item_of_an_own_table_can_bring_ten_jobs(make_app: Callable[..., App]) -> None:
    app = make_app(own=True)
    texts = [json.dumps({**JOB, "args": [n]}) for n in range(11)]
    unique = json.dumps({**JOB, "options": {"queue": "orders", "unique": {"keys": ["args"]}}})
    ten = app.record({"id": "a", "ojs_job": texts[:10]})
    others = [
        app.record({"id": name, "ojs_job": jobs})
        for name, jobs in (("b", texts), ("c", []), ("d", [texts[0], 5]), ("e", [texts[0], "{"]))
    ]
    assert app.relay(ten, *others) == []
    assert len(app.stored()) == 10
    assert [unpack(each["keys"])["id"] for each in app.sqs.take("refused")] == ["b", "c", "d", "e"]
    # A repeated record, and a list whose second job is a duplicate.
    assert app.relay(ten, app.record({"id": "f", "ojs_job": [unique]})) == []
    assert app.relay(app.record({"id": "g", "ojs_job": [texts[10], unique]})) == []
    assert len(app.stored()) == 12
    # More jobs than a transaction takes.
    several = [app.record({"id": f"h{n}", "ojs_job": texts[:7]}) for n in range(20)]
    assert app.relay(*several) == []
    assert len(app.run.fetch.fetch(["orders"], 500, "w")) == 152
    # A death between them leaves no job for later.
    others = [app.record({"id": f"i{n}", "ojs_job": texts[:7]}) for n in range(20)]
    app.use(Faulty(app.dynamodb, 4, "died after"))
    with pytest.raises(Died):
        app.relay(*others)
    app.use(app.dynamodb)
    assert (app.relay(*others), app.queued()) == ([], [])
    assert len(app.run.fetch.fetch(["orders"], 500, "w")) == 140
    # Claimed jobs are not stored again.
    assert app.relay(*several) == []
    assert app.run.fetch.fetch(["orders"], 500, "w") == []


def test_a_list_of_which_a_part_is_stored_waits_for_the_rest(make_app: Callable[..., App]) -> None:
    app = make_app(own=True)
    app.run.queues.configure("small", {"max_size": 1})
    stored = json.dumps({**JOB, "id": uuid7()})
    small = json.dumps({**JOB, "id": uuid7(), "options": {"queue": "small"}})
    full = json.dumps({**JOB, "options": {"queue": "small"}})
    assert app.relay(app.record({"id": "a", "ojs_job": [stored, small]})) == []
    assert app.relay(app.record({"id": "b", "ojs_job": [stored, full, small]})) == []
    waiting = app.queued()
    assert app.relay(*waiting) == [0]
    app.run.queues.configure("small", {"max_size": 2})
    assert app.relay(*waiting) == []
    assert (len(app.stored()), len(app.stored("small"))) == (1, 2)


def test_an_own_table_needs_old_images(make_app: Callable[..., App]) -> None:
    app = make_app(own=True)
    record = app.record({"id": "a", "ojs_job": json.dumps(JOB)}, name="MODIFY")
    assert app.relay(record) == []
    assert [each["code"] for each in app.sqs.take("refused")] == ["invalid_request"]
    assert app.stored() == []


# --- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({}, 3),
        *(
            pytest.param(settings, count, marks=pytest.mark.exhaustive)
            for settings in ({}, {"ordered": True}, {"keep": True})
            for count in (1, 4)
        ),
    ],
)
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_fails_each_item_is_one_job(
    make_app: Callable[..., App], fault: str, count: int, settings: dict[str, Any]
) -> None:
    for number in range(1, 100):
        app = make_app(**settings)
        records = [app.put() for _ in range(count)]
        faulty = Faulty(app.dynamodb, number, fault)
        app.use(faulty)
        deliver(app, records)
        assert len(app.stored()) == count
        assert [item for item in app.left() if "expires" not in item] == []
        if faulty.calls < number:
            break
    else:
        pytest.fail("a path with a hundred calls")


def deliver(app: App, records: list[Record]) -> None:
    """Deliver records until none fails, as Lambda does; then the messages of `later`."""
    while records:
        try:
            failed = app.relay(*records)
        except Died:
            failed = [0]
        # From the first failure on.
        records = records[min(failed) :] if failed else app.queued()
        app.use(app.dynamodb)


@pytest.mark.parametrize(
    "items", [200, pytest.param(10_000, marks=[pytest.mark.exhaustive, pytest.mark.whole])]
)  # fmt: skip
def test_items_are_delivered_with_a_death_at_each_step(
    make_app: Callable[..., App], items: int
) -> None:
    app = make_app()
    # A run makes two calls, and one for each 25 deletions. The last number is beyond them.
    calls, size = (4, 10) if items < 1_000 else (7, 100)
    ids = set()
    for turn in range(items // size):
        records = [app.put() for _ in range(size)]
        ids |= {str(unpack(each["dynamodb"]["Keys"])["id"]) for each in records}
        app.use(Faulty(app.dynamodb, 1 + turn // len(FAULTS) % calls, FAULTS[turn % len(FAULTS)]))
        deliver(app, records)
    assert (app.left(), app.sqs.sent.get("refused")) == ([], None)
    fetched = []
    while jobs := app.run.fetch.fetch(["orders"], 100, "w"):
        fetched += [job.id for job in jobs]
    assert len(fetched) == len(set(fetched)) == items
    assert set(fetched) == ids


@pytest.mark.parametrize(("count", "relayed"), [(1, 2), (10, 3), (100, 3)])
def test_an_item_costs_three_or_four_units(
    dynoxide: Engine, make_app: Callable[..., App], count: int, relayed: int
) -> None:
    """Two or three for the job, and one to delete the item. Then the app's own write."""
    app = make_app()
    app.relay(app.put())
    meter = app.use(app.dynamodb, measure=True).table.meter
    assert app.relay(*(app.put() for _ in range(count))) == []
    assert meter.write_units == (relayed + 1) * count
    assert meter.read_units <= 1
    assert len(meter.calls) == 2 + -(-count // 25)
