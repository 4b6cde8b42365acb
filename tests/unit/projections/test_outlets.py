"""What leaves the projection: to EventBridge, to the failure queue, to CloudWatch."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from botocore.stub import Stubber

from ojs.clock import ManualClock
from ojs.domain import jsontext
from ojs.domain.counters import definitions as rows
from ojs.domain.counters.definitions import DURATION
from ojs.domain.events.event import Event
from ojs.domain.events.types import EventType
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.projections import metrics
from ojs.projections.metrics import EmbeddedMetrics, MeteredQueues
from ojs.projections.outlets import MAX_BYTES, EventBridge, SqsFailureQueue
from ojs.projections.transitions import JobEvent
from tests.unit.domain.arbitrary import NOW_MS


def event(number: int, **data: Any) -> Event:
    return Event(f"evt_{number}", "job.failed", "ojs://s/api", NOW_MS + number, "j", data)


class Events:
    """EventBridge's PutEvents, refusing what it is told to, each so many times."""

    def __init__(self, refusals: dict[str, int] | None = None, errors: int = 0) -> None:
        self.refusals, self.errors = refusals or {}, errors
        self.calls: list[list[str]] = []

    def put_events(self, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        ids = [json.loads(entry["Detail"])["id"] for entry in Entries]
        assert sum(len(entry["Detail"].encode()) for entry in Entries) <= MAX_BYTES
        self.calls.append(ids)
        if self.errors:
            self.errors -= 1
            raise EndpointConnectionError(endpoint_url="events")
        results = []
        for name in ids:
            refused = self.refusals.get(name, 0) > 0
            if refused:
                self.refusals[name] -= 1
            results.append({"ErrorCode": "ThrottlingException"} if refused else {"EventId": "1"})
        return {"FailedEntryCount": 0, "Entries": results}


def bridge(client: Any) -> tuple[EventBridge, list[float]]:
    slept: list[float] = []
    return EventBridge("bus", client, sleep=slept.append, chance=lambda: 1.0), slept


def test_entries_are_what_eventbridge_takes() -> None:
    client = boto3.client("events", region_name="us-east-1")
    told = event(1, queue="é")
    entry = {
        "EventBusName": "bus",
        "Source": "ojs",
        "DetailType": "job.failed",
        "Time": datetime.fromtimestamp(told.time_ms / 1_000, UTC),
        "Detail": jsontext.dumps(told.to_dict()),
    }
    with Stubber(client) as stub:
        answer = {"FailedEntryCount": 0, "Entries": [{"EventId": "1"}]}
        stub.add_response("put_events", answer, {"Entries": [entry]})
        assert bridge(client)[0].publish([told]) == set()
        stub.assert_no_pending_responses()


def test_ten_entries_a_call_and_no_more_than_its_bytes() -> None:
    client = Events()
    assert bridge(client)[0].publish([event(n) for n in range(25)]) == set()
    assert [len(call) for call in client.calls] == [10, 10, 5]
    client = Events()
    bridge(client)[0].publish([event(n, text="é" * 50_000) for n in range(5)])
    assert [len(call) for call in client.calls] == [2, 2, 1]


def test_what_is_refused_is_sent_again_alone() -> None:
    client = Events({"evt_3": 2, "evt_5": 1})
    bus, slept = bridge(client)
    assert bus.publish([event(n) for n in range(8)]) == set()
    assert client.calls[1:] == [["evt_3", "evt_5"], ["evt_3"]]
    assert slept == [0.1, 0.2]


def test_what_is_refused_for_good_is_told() -> None:
    client = Events({"evt_3": 99})
    bus, slept = bridge(client)
    assert bus.publish([event(n) for n in range(8)]) == {"evt_3"}
    assert len(client.calls) == 5
    assert slept == [0.1, 0.2, 0.4, 0.8]


def test_a_bus_that_cannot_be_reached() -> None:
    client = Events(errors=2)
    assert bridge(client)[0].publish([event(n) for n in range(3)]) == set()
    assert len(client.calls) == 3
    assert bridge(Events(errors=99))[0].publish([event(1), event(2)]) == {"evt_1", "evt_2"}


def test_a_bus_in_trouble_is_asked_once_until_it_takes_all_again() -> None:
    """The shard that brings the events does not wait for it: a sweep publishes them."""
    client = Events(errors=6)
    publisher, slept = bridge(client)
    assert publisher.publish([event(1)]) == {"evt_1"}
    assert (len(client.calls), len(slept)) == (5, 4)
    assert publisher.publish([event(2)]) == {"evt_2"}
    assert (len(client.calls), len(slept)) == (6, 4)
    assert publisher.publish([event(3)]) == set()
    client.errors = 1
    assert publisher.publish([event(4)]) == set()
    assert len(slept) == 5


def test_an_event_is_read_back_from_its_envelope() -> None:
    for number in (0, 1, 999):
        told = event(number, queue="é", count=3)
        assert Event.of(jsontext.stored(jsontext.dumps(told.to_dict()))) == told


def test_the_failure_queue_keeps_entries() -> None:
    client = boto3.client("sqs", region_name="us-east-1")
    entry = {"error": "é", "sequence_number": "1", "event_id": "2", "keys": {"pk": "J|1"}}
    with Stubber(client) as stub:
        body = '{"error":"é","sequence_number":"1","event_id":"2","keys":{"pk":"J|1"}}'
        expected = {"QueueUrl": "https://sqs.test/q", "MessageBody": body}
        stub.add_response("send_message", {"MessageId": "1"}, expected)
        stub.add_client_error("send_message", "AWS.SimpleQueueService.NonExistentQueue")
        queue = SqsFailureQueue("https://sqs.test/q", client)
        assert queue.send(entry) is True
        assert queue.send(entry) is False


# --- metrics ------------------------------------------------------------------------------------

JOB = Job("1", "email.send", "mail", State.ACTIVE, NOW_MS)


def written(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_metrics_by_queue_and_type(capsys: pytest.CaptureFixture[str]) -> None:
    other = replace(JOB, queue="post")
    what = [
        (JobEvent(EventType.JOB_ENQUEUED, NOW_MS, None, JOB), "email.send"),
        (JobEvent(EventType.JOB_ENQUEUED, NOW_MS, None, JOB), "email.send"),
        (JobEvent(EventType.JOB_STARTED, NOW_MS, None, JOB, 1_500), "email.send"),
        (JobEvent(EventType.JOB_STARTED, NOW_MS, None, JOB, 20), "email.send"),
        (JobEvent(EventType.JOB_COMPLETED, NOW_MS, None, JOB, 250), "email.send"),
        (JobEvent(EventType.JOB_FAILED, NOW_MS, None, other, 4), "other"),
        (JobEvent(EventType.JOB_DISCARDED, NOW_MS, None, other), "other"),
        (JobEvent(EventType.JOB_HEARTBEAT, NOW_MS, None, other), "quiet"),
    ]
    metrics.write(EmbeddedMetrics("mail-service"), metrics.of_jobs(what))
    first, second = written(capsys)
    (definition,) = first["_aws"]["CloudWatchMetrics"]
    assert definition["Namespace"] == "OJS"
    assert [sorted(names) for names in definition["Dimensions"]] == [["queue", "service", "type"]]
    assert {(one["Name"], one["Unit"]) for one in definition["Metrics"]} == {
        ("ojs.job.enqueued", "Count"),
        ("ojs.job.queue_time", "Seconds"),
        ("ojs.job.completed", "Count"),
        ("ojs.job.duration", "Seconds"),
    }
    assert (first["queue"], first["type"], first["service"]) == (
        "mail", "email.send", "mail-service",
    )  # fmt: skip
    assert first["ojs.job.enqueued"] == [2.0]
    assert first["ojs.job.queue_time"] == [1.5, 0.02]
    assert first["ojs.job.duration"] == [0.25]
    assert (second["queue"], second["type"]) == ("post", "other")
    assert second["ojs.job.failed"] == [1.0]
    assert second["ojs.job.duration"] == [0.004]


def test_many_values_take_several_objects(capsys: pytest.CaptureFixture[str]) -> None:
    EmbeddedMetrics("s").put({"queue": "mail"}, {DURATION.name: [0.5] * 250, "x": []})
    found = written(capsys)
    assert [len(one[DURATION.name]) for one in found] == [100, 100, 50]
    EmbeddedMetrics("s").put({"queue": "mail"}, {DURATION.name: [0.5] * 100})
    assert [len(one[DURATION.name]) for one in written(capsys)] == [100]
    EmbeddedMetrics("s").put({"queue": "mail"}, {})
    assert written(capsys) == []


HOUR_MS = 3_600_000


def of_queues(metered: MeteredQueues, *queues: str, kind: str = "email.send") -> list[Any]:
    return [metered.shown({"queue": queue, "type": kind}) for queue in queues]


def test_queues_beyond_the_cap_have_metrics_together(clock: ManualClock) -> None:
    """Whoever may push may name any queue, and each metric costs."""
    metered = MeteredQueues(2, clock)
    names = [f"q{number}" for number in range(1_000)]
    first, second, *rest = of_queues(metered, *names)
    assert (first["queue"], second["queue"]) == ("q0", "q1")
    assert all(one == {"queue": metrics.OTHERS, "type": "other"} for one in rest)
    # Those that were first stay; what else tells a metric apart stays, too.
    assert of_queues(metered, "q1") == [{"queue": "q1", "type": "email.send"}]
    policy = {"queue": "q9", "policy": "reject"}
    assert metered.shown(policy) == {"queue": metrics.OTHERS, "policy": "reject"}
    assert metered.shown({}) == {}
    # CloudWatch counts by the hour.
    clock.advance(HOUR_MS)
    assert of_queues(metered, "q500")[0]["queue"] == "q500"


def test_a_queue_has_ten_types_with_metrics_of_their_own(clock: ManualClock) -> None:
    metered = MeteredQueues(1, clock)
    shown = [of_queues(metered, "mail", kind=f"t{number}")[0]["type"] for number in range(100)]
    assert shown == [f"t{number}" for number in range(10)] + ["other"] * 90
    assert of_queues(metered, "mail", kind="t9")[0]["type"] == "t9"


def test_no_queue_or_all_may_have_metrics(
    clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    assert of_queues(MeteredQueues(None, clock), "q")[0] == {"queue": "q", "type": "email.send"}
    what = [(JobEvent(EventType.JOB_ENQUEUED, NOW_MS, None, JOB), "email.send")]
    off = EmbeddedMetrics("mail-service", metered=MeteredQueues(0, clock))
    metrics.write(off, metrics.of_jobs(what))
    metrics.write(off, [({"queue": "q", "policy": "reject"}, "n", 1)])
    metrics.write(off, [({"queue": "q", "pool": "p"}, "m", 1)])
    dimensions = [one["_aws"]["CloudWatchMetrics"][0]["Dimensions"] for one in written(capsys)]
    assert [sorted(names) for (names,) in dimensions] == [
        ["service"], ["policy", "service"], ["service"],
    ]  # fmt: skip


def test_alarms_are_the_only_metrics_of_their_level(
    clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """Late cron jobs from a third of the threshold on, and new dead letters."""
    watched = {rows.LATENESS.name: 60, rows.DEAD_ADDED.name: 0}
    to = EmbeddedMetrics("s", metered=MeteredQueues(0, clock), watched=watched)
    dead = JobEvent(EventType.DEAD_LETTER_ADDED, NOW_MS, None, JOB)
    pushed = JobEvent(EventType.JOB_ENQUEUED, NOW_MS, None, JOB)
    metrics.write(to, metrics.of_jobs([(pushed, "t"), (dead, "t"), (dead, "u")]))
    metrics.write(to, [({"queue": "q", "strategy": "x"}, rows.EXCEEDED.name, 1)])
    metrics.write(to, [({}, rows.LATENESS.name, late_s) for late_s in (59.9, 60, 61)])
    assert [
        {name: value for name, value in one.items() if name[:4] == "ojs."}
        for one in written(capsys)
    ] == [*[{rows.DEAD_ADDED.name: [1.0]}] * 2, {rows.LATENESS.name: [60.0, 61.0]}]


def test_dead_letters_of_queues_are_also_counted_together(
    clock: ManualClock, capsys: pytest.CaptureFixture[str]
) -> None:
    """For their alarm, once at each level."""
    dead = JobEvent(EventType.DEAD_LETTER_ADDED, NOW_MS, None, JOB)
    for most, shown in ((0, [["service"]]), (5, [["service"], ["queue", "service", "type"]])):
        to = EmbeddedMetrics("s", metered=MeteredQueues(most, clock))
        metrics.write(to, metrics.of_jobs([(dead, "t")]))
        found = [one["_aws"]["CloudWatchMetrics"][0]["Dimensions"] for one in written(capsys)]
        assert [sorted(names) for (names,) in found] == shown
