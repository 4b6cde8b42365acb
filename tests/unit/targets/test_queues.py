"""Messages to queues of SQS, and what it refuses of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError

from ojs.clock import ManualClock
from ojs.domain.errors import BackendUnavailable
from ojs.targets.queues import SqsSendQueue, SqsWakeQueue
from tests.unit.domain.delivery.pushes import NOW_MS, job_id, push

URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/dispatch"


class Sqs:
    """A client that refuses the messages of some bodies, so many times."""

    def __init__(self, refusals: dict[str, int] | None = None, *, down: bool = False) -> None:
        self.requests: list[list[Any]] = []
        self.refusals = refusals or {}
        self.down = down

    def send_message_batch(self, *, QueueUrl: str, Entries: list[Any]) -> Any:  # noqa: N803
        assert QueueUrl == URL
        self.requests.append(Entries)
        if self.down:
            raise ClientError({"Error": {"Code": "ServiceUnavailable"}}, "SendMessageBatch")
        failed = []
        for entry in Entries:
            left = self.refusals.get(entry["MessageBody"], 0)
            if left:
                self.refusals[entry["MessageBody"]] = left - 1
                failed.append({"Id": entry["Id"], "SenderFault": False, "Code": "InternalError"})
        return {"Successful": [], "Failed": failed}


def bodies(request: list[Any]) -> list[Any]:
    return [json.loads(entry["MessageBody"]) for entry in request]


def wake(sqs: Sqs, *names: str, delay_s: int = 0) -> None:
    SqsWakeQueue(URL, ManualClock(NOW_MS), sqs).wake(names, delay_s=delay_s)


def test_each_delivery_is_woken_once_ten_in_a_request() -> None:
    sqs = Sqs()
    wake(sqs, *(f"d{number}" for number in range(12)), "d3")
    assert [len(request) for request in sqs.requests] == [10, 2]
    assert bodies(sqs.requests[1]) == [{"delivery": "d10"}, {"delivery": "d11"}]
    assert all("DelaySeconds" not in entry for request in sqs.requests for entry in request)


@pytest.mark.parametrize(("delay_s", "told"), [(7, 7), (900, 900), (901, 900)])
def test_a_timer_is_a_message_with_a_delay(delay_s: int, told: int) -> None:
    sqs = Sqs()
    wake(sqs, "thumbs", delay_s=delay_s)
    ((entry,),) = sqs.requests
    assert entry["DelaySeconds"] == told
    assert json.loads(entry["MessageBody"]) == {
        "delivery": "thumbs", "at_ms": NOW_MS + 1_000 * delay_s,
    }  # fmt: skip


def test_nothing_is_asked_for_no_deliveries() -> None:
    sqs = Sqs()
    wake(sqs)
    assert sqs.requests == []


def test_what_was_refused_is_sent_once_more_and_nothing_else() -> None:
    sqs = Sqs({'{"delivery":"b"}': 1})
    wake(sqs, "a", "b", "c")
    assert [bodies(request) for request in sqs.requests][1:] == [[{"delivery": "b"}]]


@pytest.mark.parametrize("sqs", [Sqs({'{"delivery":"b"}': 9}), Sqs(down=True)])
def test_a_delivery_that_is_not_woken_is_told_of(sqs: Sqs) -> None:
    with pytest.raises(BackendUnavailable):
        wake(sqs, "a", "b")
    assert len(sqs.requests) == 2


def test_pushes_for_a_sender_are_named_and_those_refused_given_back() -> None:
    second = json.dumps({"delivery": "thumbs", "job": job_id(2), "token": "token-2"})
    sqs = Sqs({second.replace(" ", ""): 9})
    pushes = [push(1), push(2), push(3)]
    assert SqsSendQueue(URL, sqs).send("thumbs", pushes) == [pushes[1]]
    assert bodies(sqs.requests[0])[0] == {
        "delivery": "thumbs", "job": job_id(1), "token": "token-1",
    }  # fmt: skip
