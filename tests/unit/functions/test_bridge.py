"""Messages of an SQS queue that become jobs, as Lambda hands them to the function."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from functions.bridge.handler import handler
from ojs import runtime
from ojs.clock import ManualClock
from ojs.domain.ids import derived_uuid7
from ojs.runtime import Runtime
from ojs.settings import Settings
from ojs.store.table import schema
from tests.store.faults import FAULTS, Died, Faulty
from tests.unit.functions.client import Api, MemoryBlobs

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

ARN = "arn:aws:sqs:eu-central-1:123456789012:orders"
SENT_MS = 1_770_201_000_000
MAIL = {"bridge_type": "mail.send", "bridge_queue": "mail"}


def message(number: int, body: Any = None, **more: Any) -> dict[str, Any]:
    """As Lambda has it; the same number is the same message, come again."""
    attributes = {"SentTimestamp": str(SENT_MS + number), "ApproximateReceiveCount": "1"}
    return {
        "messageId": str(uuid.UUID(int=number)),
        "body": json.dumps({"n": number}) if body is None else body,
        "attributes": attributes | more.pop("attributes", {}),
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": ARN,
        **more,
    }


def text(value: str) -> dict[str, Any]:
    return {"stringValue": value, "dataType": "String"}


def bridged(*messages: dict[str, Any]) -> list[int]:
    """The numbers of the messages that go back to their queue."""
    failures = handler({"Records": list(messages)}, None)["batchItemFailures"]
    return [uuid.UUID(each["itemIdentifier"]).int for each in failures]


@pytest.fixture
def bridge(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Callable[..., Api]:
    def make(**settings: Any) -> Api:
        built = make_runtime(**settings)
        runtime.use(built)
        return Api(built, clock)

    return make


def jobs(api: Api, queue: str = "mail") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get("/ojs/v1/jobs", queue=queue, limit="100").json["jobs"]
    return sorted(found, key=lambda job: str(job["id"]))


def test_each_message_becomes_a_job(bridge: Callable[..., Api]) -> None:
    api = bridge(**MAIL)
    attributes = {"shop": text("eu"), "raw": {"binaryValue": "AA==", "dataType": "Binary"}}
    assert bridged(message(1), message(2, messageAttributes=attributes), message(3)) == []
    one, two, _ = jobs(api)
    assert (one["type"], one["args"], one["state"]) == ("mail.send", [{"n": 1}], "available")
    assert two["meta"] == {"shop": "eu", "sqs_message_id": str(uuid.UUID(int=2))}


@pytest.mark.parametrize("count", [1, 5])
def test_a_message_that_comes_again_is_no_second_job(
    bridge: Callable[..., Api], count: int
) -> None:
    api = bridge(**MAIL)
    several = [message(number) for number in range(count)]
    assert bridged(*several) == []
    # All of them, some of them beside new ones, and one twice in the same batch.
    assert bridged(*several) == []
    assert bridged(*several, message(count), message(count)) == []
    assert [job["args"] for job in jobs(api)] == [[{"n": n}] for n in range(count + 1)]
    # Also when its job is done.
    (job, *_) = api.fetch("mail", count=1)
    assert api.post("/ojs/v1/workers/ack", {"job_id": job["id"]}).status == 200
    assert bridged(*several) == []
    assert len(api.fetch("mail", count=50)) == count


def test_what_is_no_job_goes_back_alone(bridge: Callable[..., Api]) -> None:
    api = bridge(**MAIL)
    assert bridged(message(1), message(2, "{"), message(3, ""), message(4)) == [2, 3]
    assert [job["args"] for job in jobs(api)] == [[{"n": 1}], [{"n": 4}]]


def test_a_body_may_be_a_whole_job(bridge: Callable[..., Api]) -> None:
    api = bridge()
    whole = {"type": "a.b", "args": [1], "options": {"queue": "mail", "priority": 3}}
    own = "019c2833-a840-7000-8143-0784d9cd5e1e"
    bodies = [
        whole,
        {**whole, "id": own, "meta": {"shop": "us"}},
        {**whole, "options": {"queue": "mail", "delay": 5}},  # no option here
        {**whole, "meta": 5},
        [whole],
        {"args": []},
        {**whole, "id": "abc"},
    ]
    several = [
        message(n, json.dumps(body), messageAttributes={"shop": text("eu")})
        for n, body in enumerate(bodies)
    ]
    assert bridged(*several) == [2, 3, 4, 5, 6]
    first, second = sorted(jobs(api), key=lambda job: str(job["meta"]["shop"]))
    assert (first["priority"], first["meta"]["shop"]) == (3, "eu")
    assert (second["id"], second["meta"]["shop"]) == (own, "us")


def test_a_whole_job_without_an_id_is_one_job(bridge: Callable[..., Api]) -> None:
    api = bridge()
    whole = {"type": "a.b", "args": [1], "id": None, "options": {"queue": "mail"}}
    for _ in range(2):
        assert bridged(message(1, json.dumps(whole))) == []
    assert len(jobs(api)) == 1


def test_a_body_may_be_text(bridge: Callable[..., Api]) -> None:
    api = bridge(**MAIL, bridge_body="text")
    assert bridged(message(1, "12"), message(2, "{")) == []
    assert [job["args"] for job in jobs(api)] == [["12"], ["{"]]


def test_a_full_queue_sends_messages_back(bridge: Callable[..., Api]) -> None:
    api = bridge(**MAIL)
    runtime.current().queues.configure("mail", {"max_size": 3})
    several = [message(number) for number in range(5)]
    assert bridged(*several[:2]) == []
    # As many as there is room for, though a batch is stored as a whole or not at all.
    assert bridged(*several[2:]) == [3, 4]
    assert bridged(*several) == [3, 4]
    assert len(jobs(api)) == 3


def test_no_message_of_a_group_overtakes_another(bridge: Callable[..., Api]) -> None:
    api = bridge(**MAIL)

    def of(group: str) -> dict[str, Any]:
        return {"attributes": {"MessageGroupId": group}}

    several = [
        message(1, **of("a")), message(2, "{", **of("a")), message(3, **of("a")),
        message(4, **of("b")),
    ]  # fmt: skip
    assert bridged(*several) == [2, 3]
    assert [job["args"] for job in jobs(api)] == [[{"n": 1}], [{"n": 4}]]


def test_a_group_stops_at_what_a_queue_refuses(bridge: Callable[..., Api]) -> None:
    """Refused by the queue, and not as it is read."""
    bridge()
    group = {"attributes": {"MessageGroupId": "a"}}
    good: dict[str, Any] = {"type": "a", "args": []}
    bad = {**good, "type": "b"}
    runtime.current().queues.configure("default", {"allowed_job_types": ["a"]})
    several = [
        message(n, json.dumps(body), **group) for n, body in enumerate([good, bad, good])
    ]  # fmt: skip
    assert bridged(*several) == [1, 2]


def test_who_pushes_is_the_queue_that_messages_are_from(bridge: Callable[..., Api]) -> None:
    bridge(**MAIL)
    runtime.current().queues.configure("mail", {"producers": ["orders"]})
    assert bridged(message(1)) == []
    runtime.current().queues.configure("mail", {"producers": ["others"]})
    assert bridged(message(2)) == [2]


def test_an_empty_event_is_answered() -> None:
    assert handler({"Records": []}, None) == {"batchItemFailures": []}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_fails_no_message_is_lost_and_none_is_doubled(
    dynamodb: DynamoDBClient, clock: ManualClock, fault: str, count: int
) -> None:
    """A fault at each call; a message is gone from its queue only if the function says nothing of
    it, and what is not gone comes again.
    """
    for number in range(1, 100):
        name = f"ojs-unit-{uuid.uuid4().hex[:12]}"
        dynamodb.create_table(**schema.create_table_arguments(name))
        settings = Settings(table=name, version="1", bridge_type="mail.send")

        def built(client: Any, settings: Settings = settings) -> Runtime:
            return runtime.build(
                settings, client=client, blobs=MemoryBlobs(), clock=clock, sleep=lambda _: None
            )

        faulty = Faulty(dynamodb, number, fault)
        waiting = [message(n) for n in range(count)]
        runtime.use(built(faulty))
        try:
            back = bridged(*waiting)
        except Died:
            back = list(range(count))
        waiting = [message(n) for n in back]
        well = built(dynamodb)
        runtime.use(well)
        assert bridged(*waiting) == []
        clock.advance(3_600_000)
        stored = well.fetch.fetch(["default"], 10, "w")
        wanted = [derived_uuid7(SENT_MS + n, str(uuid.UUID(int=n))) for n in range(count)]
        assert sorted(job.id for job in stored) == wanted
        dynamodb.delete_table(TableName=name)
        if faulty.calls < number:
            break
    else:
        pytest.fail("a path with a hundred calls")


def test_a_batch_is_one_transaction_whatever_its_size(
    dynamodb: DynamoDBClient, make_runtime: Callable[..., Runtime], clock: ManualClock
) -> None:
    """As pushes of chosen ids are, whose units tests/store/test_capacity.py counts."""
    settings = make_runtime(**MAIL).settings

    def calls(messages: int, first: int) -> int:
        counting = Faulty(dynamodb, 0, "")
        client: Any = counting
        built = runtime.build(
            settings, client=client, blobs=MemoryBlobs(), clock=clock, sleep=lambda _: None
        )
        runtime.use(built)
        assert bridged(*(message(first + n) for n in range(messages))) == []
        return counting.calls

    calls(1, 0)  # makes the queue
    assert (calls(1, 1), calls(10, 10), calls(100, 100)) == (2, 2, 2)
