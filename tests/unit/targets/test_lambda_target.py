"""Invocations as the SDK makes them, and the answers of Lambda as its API reference has them."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import botocore.session
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ConnectTimeoutError, EndpointConnectionError, ReadTimeoutError
from botocore.httpsession import ConnectionClosedError

from ojs.clock import ManualClock
from ojs.domain.delivery.delivery import Delivery, Form
from ojs.domain.delivery.outcome import Outcome, Verdict
from ojs.domain.delivery.push import Push
from ojs.services.for_each import one_by_one
from ojs.targets.lambda_target import LambdaTarget
from tests.unit.domain.delivery.pushes import FUNCTION, NOW_MS, job_id, push

if TYPE_CHECKING:
    from botocore.config import Config

# It reads the description of the service once.
SESSION = botocore.session.get_session()
Answer = tuple[int, dict[str, str], Any] | Exception


class Lambda:
    """Lambda's API below the SDK: what it was asked, and what it answers."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, Any]] = []
        self.configs: list[Any] = []

    def client(self, config: Config) -> Any:
        self.configs.append(config)
        made = SESSION.create_client(
            "lambda", "eu-central-1", config=config,
            aws_access_key_id="test", aws_secret_access_key="test",
        )  # fmt: skip
        made.meta.events.register("before-send.lambda.Invoke", self._send)
        return made

    def _send(self, request: Any, **_: Any) -> Any:
        kind = request.headers["X-Amz-Invocation-Type"]
        kind = kind.decode() if isinstance(kind, bytes) else kind
        self.asked.append((request.url, kind, json.loads(request.body)))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, headers, body = answer
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        return AWSResponse(request.url, status, headers, Raw(text))  # type: ignore[arg-type]


class Raw(io.BytesIO):
    def stream(self, **_: Any) -> Any:
        yield self.read()


ACCEPTED: Answer = (202, {}, b"")
DONE: Answer = (200, {}, {"status": "completed", "job_id": job_id(1), "result": 5})


def refused(status: int, code: str, **headers: str) -> Answer:
    # As the API gives it: the code is a header, behind a colon may stand more.
    return (
        status, {"x-amzn-ErrorType": code, **headers}, {"Type": "User", "Message": "why"},
    )  # fmt: skip


def delivery(form: Form = Form.DIRECT, **more: Any) -> Delivery:
    return Delivery("thumbs", function=FUNCTION, queues=("images",), form=form, **more)


def sent(
    service: Lambda, *pushes: Push, wait: bool = False, to: Delivery | None = None
) -> list[Outcome | None]:
    target = LambdaTarget(ManualClock(NOW_MS), each=one_by_one, make=service.client)
    return list(target.send(pushes, delivery=to or delivery(), wait=wait))


def test_a_job_is_invoked_asynchronously_and_its_outcome_comes_later() -> None:
    service = Lambda(ACCEPTED)
    assert sent(service, push()) == [None]
    ((url, kind, event),) = service.asked
    assert url.split("/functions/")[1].replace("%3A", ":") == f"{FUNCTION}/invocations"
    assert (kind, event["id"], event["delivery_id"]) == ("Event", job_id(1), "del_token-1")


def test_each_job_has_an_invocation_of_its_own() -> None:
    service = Lambda(ACCEPTED, refused(429, "TooManyRequestsException"), ACCEPTED)
    first, second, third = sent(service, push(1), push(2), push(3))
    assert first is None
    assert third is None
    assert second is not None
    assert second.verdict is Verdict.THROTTLED


def test_a_batch_has_one_and_shares_what_becomes_of_it() -> None:
    to = delivery(Form.SQS, batch_size=10)
    service = Lambda(refused(404, "ResourceNotFoundException"))
    outcomes = sent(service, push(1), push(2), to=to)
    assert [each and each.verdict for each in outcomes] == [Verdict.GONE, Verdict.GONE]
    assert len(service.asked) == 1


@pytest.mark.requirement("SL-20")
@pytest.mark.parametrize("large", [push(args=["x" * 300_000]), push(lost=True)])
def test_what_a_record_could_not_carry_is_waited_for(large: Push) -> None:
    service = Lambda(DONE)
    assert sent(service, large) == [Outcome(Verdict.COMPLETED, result=5)]
    assert service.asked[0][1] == "RequestResponse"
    # The function's 30 s, and a cold start; and the SDK asks once.
    assert service.configs[0].read_timeout == 40
    assert service.configs[0].retries == {"mode": "standard", "total_max_attempts": 1}
    target = LambdaTarget(ManualClock(NOW_MS), each=one_by_one, make=service.client)
    assert target.waits_for(large, delivery=delivery())
    assert not target.waits_for(push(), delivery=delivery())


def test_without_destinations_every_invocation_is_synchronous() -> None:
    service = Lambda(DONE)
    target = LambdaTarget(
        ManualClock(NOW_MS), each=one_by_one, make=service.client, destinations=False
    )
    assert target.waits_for(push(), delivery=delivery())
    assert target.send([push()], delivery=delivery()) == [Outcome(Verdict.COMPLETED, result=5)]
    assert service.asked[0][1] == "RequestResponse"


def test_outcomes_stand_in_the_order_of_their_pushes() -> None:
    to = delivery(Form.SQS, batch_size=10)
    failed = {"batchItemFailures": [{"itemIdentifier": job_id(2)}]}
    service = Lambda((200, {}, failed), ACCEPTED)
    large = push(2, args=["x" * 300_000])
    outcomes = sent(service, push(1), large, push(3), to=to)
    assert [each and each.verdict for each in outcomes] == [None, Verdict.FAILED, None]


def test_a_test_call_waits_for_the_answer() -> None:
    service = Lambda(DONE)
    assert sent(service, push(), wait=True) == [Outcome(Verdict.COMPLETED, result=5)]


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ((200, {"X-Amz-Function-Error": "Unhandled"},
          {"errorMessage": "boom", "errorType": "KeyError"}), Verdict.FAILED),
        ((200, {"X-Amz-Function-Error": "Unhandled"}, b"\xff"), Verdict.FAULT),
        ((200, {}, b"null"), Verdict.FAULT),
        ((200, {}, b""), Verdict.FAULT),
        ((200, {}, b"not json"), Verdict.FAULT),
        ((200, {}, {"status": "completed", "job_id": job_id(9)}), Verdict.FAULT),
        ((200, {}, b"x" * 7_000_000), Verdict.FAULT),
    ],
)  # fmt: skip
def test_answers_of_functions(answer: Answer, verdict: Verdict) -> None:
    (found,) = sent(Lambda(answer), push(), wait=True)
    assert found is not None
    assert found.verdict is verdict


@pytest.mark.parametrize(
    ("status", "code", "verdict"),
    [
        (429, "TooManyRequestsException", Verdict.THROTTLED),
        (404, "ResourceNotFoundException", Verdict.GONE),
        (403, "AccessDeniedException", Verdict.FORBIDDEN),
        (502, "KMSDisabledException", Verdict.FORBIDDEN),
        (409, "SnapStartNotReadyException", Verdict.THROTTLED),
        (413, "RequestTooLargeException", Verdict.REFUSED),
        (500, "ServiceException", Verdict.FAULT),
    ],
)
@pytest.mark.parametrize("wait", [False, True])
def test_refusals_are_heard_once(status: int, code: str, verdict: Verdict, wait: bool) -> None:
    service = Lambda(refused(status, code))
    (found,) = sent(service, push(), wait=wait)
    assert found is not None
    assert found.verdict is verdict
    assert len(service.asked) == 1


def test_a_throttle_says_for_how_long() -> None:
    service = Lambda(refused(429, "TooManyRequestsException", **{"Retry-After": "4"}))
    (found,) = sent(service, push())
    assert found is not None
    assert found.retry_after_ms == 4_000


URL = "https://lambda.eu-central-1.amazonaws.com"


@pytest.mark.parametrize(
    "error",
    [
        ReadTimeoutError(endpoint_url=URL),
        ConnectionClosedError(endpoint_url=URL),
    ],
)
def test_what_became_of_an_unanswered_invocation_is_not_guessed(error: Exception) -> None:
    """It may run: its outcome comes, or the lease ends. Synchronously nothing more will come."""
    service = Lambda(error)
    assert sent(service, push()) == [None]
    assert len(service.asked) == 1
    (found,) = sent(Lambda(error), push(), wait=True)
    assert found is not None
    assert found.verdict is Verdict.FAULT


@pytest.mark.parametrize(
    "error",
    [EndpointConnectionError(endpoint_url=URL), ConnectTimeoutError(endpoint_url=URL)],
)
@pytest.mark.parametrize("wait", [False, True])
def test_an_invocation_that_was_never_sent_is_no_attempt(error: Exception, wait: bool) -> None:
    (found,) = sent(Lambda(error), push(), wait=wait)
    assert found is not None
    assert found.verdict is Verdict.THROTTLED


def test_clients_are_made_once_for_each_time_that_they_wait() -> None:
    service = Lambda(ACCEPTED, DONE, ACCEPTED, DONE)
    target = LambdaTarget(ManualClock(NOW_MS), each=one_by_one, make=service.client)
    for wait in (False, True, False, True):
        target.send([push()], delivery=delivery(), wait=wait)
    assert [config.read_timeout for config in service.configs] == [5, 40]


@pytest.mark.parametrize(("timeout_ms", "wait_s"), [(1_000, 11), (1_001, 12), (900_000, 885)])
def test_a_client_waits_as_long_as_the_function_may_take(timeout_ms: int, wait_s: int) -> None:
    service = Lambda(DONE)
    sent(service, push(), wait=True, to=delivery(timeout_ms=timeout_ms))
    assert service.configs[0].read_timeout == wait_s
