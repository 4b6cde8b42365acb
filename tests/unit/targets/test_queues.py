"""Messages to queues of SQS, and what it refuses of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from ojs.clock import ManualClock
from ojs.domain.errors import BackendUnavailable
from ojs.store.table import clients
from ojs.targets import queues
from ojs.targets.queues import SqsSendQueue, SqsWakeQueue
from tests.unit.domain.delivery.pushes import NOW_MS, job_id, push

INTERNAL = {"Code": "InternalError", "Message": "try again"}
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
            raise ClientError(
                {"Error": {"Code": "AccessDenied", "Message": "no identity-based policy"}},
                "SendMessageBatch",
            )
        failed = []
        for entry in Entries:
            left = self.refusals.get(entry["MessageBody"], 0)
            if left:
                self.refusals[entry["MessageBody"]] = left - 1
                failed.append({"Id": entry["Id"], "SenderFault": False, **INTERNAL})
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


@pytest.mark.parametrize(
    ("sqs", "told"),
    [
        (Sqs(down=True), ("AccessDenied", "no identity-based policy", 2)),
        (Sqs({'{"delivery":"b"}': 9}), ("InternalError", "try again", 1)),
    ],
)
def test_why_a_queue_takes_nothing_is_logged(
    sqs: Sqs, told: tuple[str, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[dict[str, Any]] = []
    monkeypatch.setattr(queues.logger, "warning", lambda _, extra: logged.append(extra))
    with pytest.raises(BackendUnavailable):
        wake(sqs, "a", "b")
    code, reason, count = told
    assert logged == [
        {"queue": "dispatch", "messages": count, "code": code, "reason": reason}
    ] * 2  # fmt: skip


def test_an_error_of_the_connection_is_logged_with_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logged: list[dict[str, Any]] = []
    monkeypatch.setattr(queues.logger, "warning", lambda _, extra: logged.append(extra))
    sqs = Unanswered()
    with pytest.raises(BackendUnavailable):
        wake(sqs, "a")
    assert logged[0]["code"] == "ReadTimeoutError"
    assert URL in logged[0]["reason"]


class Unanswered(Sqs):
    """A queue that takes what it is sent, and whose answers are lost."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error or ReadTimeoutError(endpoint_url=URL)

    def send_message_batch(self, **arguments: Any) -> Any:
        super().send_message_batch(**arguments)
        raise self.error


def _failed(status: int) -> ClientError:
    response: Any = {
        "Error": {"Code": "X", "Message": "y"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, "SendMessageBatch")


@pytest.mark.parametrize("error", [ReadTimeoutError(endpoint_url=URL), _failed(500), _failed(503)])
def test_a_push_that_may_have_been_taken_is_neither_sent_again_nor_given_back(
    error: Exception,
) -> None:
    """A sender may be posting it; two of them would post it side by side."""
    sqs, pushes = Unanswered(error), [push(1), push(2)]
    assert SqsSendQueue(URL, sqs).send("thumbs", pushes) == []
    assert len(sqs.requests) == 1
    # A wake-up may come twice, and must come once.
    again = Unanswered(error)
    with pytest.raises(BackendUnavailable):
        wake(again, "a")
    assert len(again.requests) == 2


@pytest.mark.parametrize("error", [EndpointConnectionError(endpoint_url=URL), _failed(403)])
def test_a_push_that_was_surely_not_taken_is_given_back(error: Exception) -> None:
    pushes = [push(1), push(2)]
    assert SqsSendQueue(URL, Unanswered(error)).send("thumbs", pushes) == pushes


def test_the_sdk_sends_a_push_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def client(_service: str, config: Any) -> Any:
        tries.append(config.retries["total_max_attempts"])
        return Sqs()

    monkeypatch.setattr(clients, "client", client)
    SqsSendQueue(URL).send("thumbs", [push(1)])
    SqsWakeQueue(URL, ManualClock(NOW_MS)).wake(["thumbs"])
    assert tries == [1, 3]
