"""The matrix of ojs-serverless, section 7.1: what targets say, and what it means."""

from __future__ import annotations

import json
from typing import Any

import botocore.session
import pytest

from ojs.domain.delivery import forms, outcome
from ojs.domain.delivery.delivery import Form
from ojs.domain.delivery.outcome import MalformedRecord, Outcome, Verdict
from ojs.domain.job import failure
from ojs.domain.job.job import MISSING
from tests.unit.domain.delivery.pushes import FUNCTION, NOW_MS, job_id, push

ID = job_id(1)


def error_of(found: Outcome) -> dict[str, Any]:
    """The error, which a nack must be able to take."""
    assert found.error is not None
    failure.reported(found.error, attempt=1, now_ms=0)
    return dict(found.error)


@pytest.mark.parametrize("job_id_field", [{}, {"job_id": ID}, {"job_id": None}])
def test_completed(job_id_field: dict[str, Any]) -> None:
    found = outcome.of_answer({"status": "completed", **job_id_field}, job_id=ID)
    assert found == Outcome(Verdict.COMPLETED, result=MISSING)


@pytest.mark.parametrize("result", [None, 0, [], {"a": 1}, "text"])
def test_a_result_is_taken_as_it_is(result: object) -> None:
    found = outcome.of_answer({"status": "completed", "result": result}, job_id=ID)
    assert (found.verdict, found.result) == (Verdict.COMPLETED, result)


def test_a_result_too_large_to_be_stored_is_not_made_again() -> None:
    found = outcome.of_answer({"status": "completed", "result": "x" * 1_100_000}, job_id=ID)
    assert found.verdict is Verdict.FAILED
    assert (error_of(found)["code"], error_of(found)["retryable"]) == ("result_too_large", False)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        ("SMTP refused", "handler_error", "SMTP refused"),
        ({"code": "smtp", "message": "refused", "retryable": False}, "smtp", "refused"),
        (None, "handler_error", "The target returned no error message."),
        ({}, "handler_error", "The target returned no error message."),
        ("", "handler_error", "The target returned no error message."),
    ],
)
def test_failed(error: object, code: str, message: str) -> None:
    found = outcome.of_answer({"status": "failed", "job_id": ID, "error": error}, job_id=ID)
    assert found.verdict is Verdict.FAILED
    assert (error_of(found)["code"], error_of(found)["message"]) == (code, message)


@pytest.mark.parametrize(
    "answer",
    [
        None, "completed", 1, [], {}, {"status": "done"}, {"status": None}, {"status": ["failed"]},
        {"status": "completed", "job_id": job_id(2)}, {"status": "completed", "job_id": 7},
        {"status": "failed", "error": 5}, {"status": "failed", "error": {"message": 5}},
        {"status": "failed", "error": {"backtrace": 5, "code": "x"}},
        {"batchItemFailures": []},
    ],
)  # fmt: skip
def test_an_answer_that_says_nothing_is_a_fault(answer: object) -> None:
    found = outcome.of_answer(answer, job_id=ID)
    assert found.verdict is Verdict.FAULT
    assert (error_of(found)["code"], error_of(found)["retryable"]) == ("invalid_response", True)


@pytest.mark.parametrize(
    "text", [b"", b"OK", b"\xff\xfe", b"[" * 5_000, b'{"status":"completed"', b"NaN"]
)
def test_what_is_no_json_is_a_fault(text: bytes) -> None:
    found = outcome.of_text(text, job_id=ID)
    assert found.verdict is Verdict.FAULT
    assert len(error_of(found)["message"]) < 1_000


class TestBatch:
    IDS = (job_id(1), job_id(2))

    def verdicts(self, answer: object) -> list[Verdict]:
        return [each.verdict for each in outcome.of_batch(answer, self.IDS)]

    @pytest.mark.parametrize(
        "answer", [None, {}, {"batchItemFailures": []}, {"batchItemFailures": None}, {"ok": 1}]
    )
    def test_no_failures_are_a_success_of_all(self, answer: object) -> None:
        assert self.verdicts(answer) == [Verdict.COMPLETED, Verdict.COMPLETED]

    def test_failures_are_of_the_jobs_that_they_name(self) -> None:
        named = {"batchItemFailures": [{"itemIdentifier": self.IDS[1]}]}
        assert self.verdicts(named) == [Verdict.COMPLETED, Verdict.FAILED]
        error_of(outcome.of_batch(named, self.IDS)[1])

    @pytest.mark.parametrize(
        "answer",
        [
            "text", [], {"batchItemFailures": "all"}, {"batchItemFailures": [1]},
            {"batchItemFailures": [{}]}, {"batchItemFailures": [{"itemIdentifier": ""}]},
            {"batchItemFailures": [{"itemIdentifier": None}]},
            {"batchItemFailures": [{"itemIdentifier": job_id(9)}]},
            {"batchItemFailures": [{"itemIdentifier": {"a": 1}}]},
        ],
    )  # fmt: skip
    def test_what_names_no_message_is_a_failure_of_all(self, answer: object) -> None:
        assert self.verdicts(answer) == [Verdict.FAULT, Verdict.FAULT]


def response(status: int, body: object = b"", **headers: str) -> Outcome:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return outcome.of_response(status, named, text, job_id=ID, now_ms=NOW_MS)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, Verdict.FAULT), (204, Verdict.FAULT), (301, Verdict.FAULT), (307, Verdict.FAULT),
        (400, Verdict.REFUSED), (401, Verdict.FORBIDDEN), (403, Verdict.FORBIDDEN),
        (404, Verdict.GONE), (408, Verdict.FAULT), (410, Verdict.GONE), (413, Verdict.REFUSED),
        (422, Verdict.REFUSED), (429, Verdict.THROTTLED), (500, Verdict.FAULT),
        (503, Verdict.FAULT), (599, Verdict.FAULT), (999, Verdict.FAULT),
    ],
)  # fmt: skip
def test_statuses_of_endpoints(status: int, verdict: Verdict) -> None:
    found = response(status)
    assert found.verdict is verdict
    assert error_of(found)["retryable"] is (verdict is not Verdict.REFUSED)


def test_a_refusal_in_words_keeps_them_and_is_not_tried_again() -> None:
    said = {"code": "invalid_request", "message": "no such key", "retryable": True}
    found = response(400, {"status": "failed", "error": said})
    assert found.verdict is Verdict.REFUSED
    assert error_of(found) == {**said, "retryable": False}


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("7", 7_000), (" 7 ", 7_000), ("0", 0), ("99999999999999999999", 3_600_000),
        ("Thu, 28 May 2026 20:26:45 GMT", 5_000), ("Wed, 27 May 2020 20:26:45 GMT", 0),
        ("-5", None), ("soon", None), ("", None), ("\u0667", None), ("1e9", None),
    ],
)  # fmt: skip
def test_retry_after(value: str, ms: int | None) -> None:
    assert response(429, retry_after=value).retry_after_ms == ms


class TestFunctionErrors:
    """Payloads as AWS documents them, or as its runtimes give them."""

    @pytest.mark.parametrize(
        ("payload", "verdict", "code"),
        [
            # Python, of the page on exceptions.
            (
                {
                    "errorMessage": "unsupported operand type(s)", "errorType": "TypeError",
                    "requestId": "x", "stackTrace": ['  File "/var/task/app.py", line 3'],
                },
                Verdict.FAILED, "handler_error",
            ),
            # Node.js.
            (
                {"errorType": "ReferenceError", "errorMessage": "x is not defined", "trace": ["a"]},
                Verdict.FAILED, "handler_error",
            ),
            # Go.
            ({"errorMessage": "no such key", "errorType": "errorString"}, Verdict.FAILED,
             "handler_error"),
            (
                {"errorMessage": "2026-11-20T00:00:00.000Z 4f7c Task timed out after 3.00 seconds"},
                Verdict.FAULT, "timeout",
            ),
            (
                {"errorType": "Sandbox.Timedout", "errorMessage": "RequestId: 4f7c Error: Task "
                 "timed out after 3.00 seconds"},
                Verdict.FAULT, "timeout",
            ),
            (
                {"errorMessage": "RequestId: e4b46cbf-b738-xmpl-8880-a18cdf61200e Process exited "
                 "before completing request"},
                Verdict.FAULT, "crash",
            ),
            (
                {"errorType": "Runtime.ExitError", "errorMessage": "RequestId: 4f7c Error: Runtime "
                 "exited with error: signal: killed"},
                Verdict.FAULT, "crash",
            ),
            ({"errorType": "Runtime.ImportModuleError", "errorMessage": "no module"},
             Verdict.FAULT, "crash"),
            ({"errorType": "Runtime.MarshalError", "errorMessage": "Unable to marshal response"},
             Verdict.FAULT, "crash"),
            ({"errorType": "Function.ResponseSizeTooLarge", "errorMessage": "Response payload size "
              "exceeded maximum allowed payload size (6291556 bytes)."},
             Verdict.FAILED, "result_too_large"),
            (None, Verdict.FAULT, "crash"),
            ("text", Verdict.FAULT, "crash"),
            ({}, Verdict.FAULT, "crash"),
        ],
    )  # fmt: skip
    def test_what_they_mean(self, payload: object, verdict: Verdict, code: str) -> None:
        found = outcome.of_function_error(payload)
        assert (found.verdict, error_of(found)["code"]) == (verdict, code)

    def test_an_exception_keeps_its_name_and_frames(self) -> None:
        payload = {"errorMessage": "boom", "errorType": "KeyError", "stackTrace": ["a", "b"]}
        error = error_of(outcome.of_function_error(payload))
        assert (error["type"], error["message"], error["backtrace"]) == (
            "KeyError", "boom", ["a", "b"],
        )  # fmt: skip


class TestInvokeErrors:
    def verdict(self, code: str, status: int = 400) -> Verdict:
        found = outcome.of_invoke_error(code, "why", status=status, retry_after="2", now_ms=NOW_MS)
        error_of(found)
        return found.verdict

    def test_every_error_of_the_operation_has_a_meaning(self) -> None:
        service = botocore.session.get_session().get_service_model("lambda")
        codes = {shape.name for shape in service.operation_model("Invoke").error_shapes}
        assert {"TooManyRequestsException", "SnapStartNotReadyException"} <= codes
        assert codes <= outcome._VERDICTS.keys()

    @pytest.mark.parametrize(
        ("code", "verdict"),
        [
            ("TooManyRequestsException", Verdict.THROTTLED),
            ("SnapStartNotReadyException", Verdict.THROTTLED),
            ("EC2ThrottledException", Verdict.THROTTLED),
            ("ResourceNotFoundException", Verdict.GONE),
            ("AccessDeniedException", Verdict.FORBIDDEN),
            ("KMSDisabledException", Verdict.FORBIDDEN),
            ("RequestTooLargeException", Verdict.REFUSED),
            ("InvalidParameterValueException", Verdict.REFUSED),
            ("EC2UnexpectedException", Verdict.FAULT),
            ("ServiceException", Verdict.FAULT),
        ],
    )
    def test_what_they_mean(self, code: str, verdict: Verdict) -> None:
        assert self.verdict(code) is verdict

    @pytest.mark.parametrize(
        ("status", "verdict"),
        [
            (403, Verdict.FORBIDDEN), (404, Verdict.GONE), (429, Verdict.THROTTLED),
            (400, Verdict.REFUSED), (500, Verdict.FAULT), (0, Verdict.FAULT),
        ],
    )  # fmt: skip
    def test_one_that_is_new_goes_by_its_status(self, status: int, verdict: Verdict) -> None:
        assert self.verdict("NewException", status) is verdict

    def test_a_throttle_says_for_how_long(self) -> None:
        found = outcome.of_invoke_error(
            "TooManyRequestsException", "", status=429, retry_after="3", now_ms=NOW_MS
        )
        assert found.retry_after_ms == 3_000


def record(form: Form = Form.DIRECT, *, condition: str = "Success", **more: Any) -> dict[str, Any]:
    """A record as AWS's page on asynchronous invocations shows it, with an event of ours."""
    pushes = [push(1), push(2)] if form is Form.SQS else [push(1)]
    arn = "arn:aws:sqs:eu-central-1:123456789012:thumbs"
    (event,) = forms.events(pushes, form, source=arn, batch_size=10, now_ms=NOW_MS)
    told = {
        "version": "1.0",
        "timestamp": "2026-11-14T18:16:05.568Z",
        "requestContext": {
            "requestId": "e4b46cbf-b738-xmpl-8880-a18cdf61200e",
            "functionArn": f"{FUNCTION}:$LATEST",
            "condition": condition,
            "approximateInvokeCount": 1,
        },
        "requestPayload": json.loads(event.text),
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST"},
        "responsePayload": {"status": "completed", "job_id": ID, "result": {"size": 3}},
    }
    told |= more
    return {name: value for name, value in told.items() if value is not MISSING}


def test_a_record_of_a_success() -> None:
    for form in (Form.DIRECT, Form.PUSH):
        (found,) = outcome.settled_by(record(form))
        assert (found.job_id, found.lease_token, found.delivery) == (ID, "token-1", "thumbs")
        assert found.outcome == Outcome(Verdict.COMPLETED, result={"size": 3})


def test_a_record_of_a_batch() -> None:
    answer = {"batchItemFailures": [{"itemIdentifier": job_id(2)}]}
    found = outcome.settled_by(record(Form.SQS, responsePayload=answer))
    assert [(each.job_id, each.lease_token) for each in found] == [
        (job_id(1), "token-1"), (job_id(2), "token-2"),
    ]  # fmt: skip
    verdicts = [each.outcome.verdict for each in found]
    assert verdicts == [Verdict.COMPLETED, Verdict.FAILED]


FAILED_RESPONSE = {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"}


@pytest.mark.parametrize(
    ("condition", "response_context", "payload", "verdict"),
    [
        ("RetriesExhausted", FAILED_RESPONSE, {"errorMessage": "boom", "errorType": "KeyError"},
         Verdict.FAILED),
        ("RetriesExhausted", FAILED_RESPONSE,
         {"errorMessage": "RequestId: x Process exited before completing request"}, Verdict.FAULT),
        # The event was never run: it has no response.
        ("EventAgeExceeded", MISSING, MISSING, Verdict.THROTTLED),
        ("EventAgeExceeded", None, None, Verdict.THROTTLED),
        ("EventAgeExceeded", {"statusCode": 429}, None, Verdict.THROTTLED),
        # It ran, and that failed: which is an attempt.
        ("EventAgeExceeded", FAILED_RESPONSE, {"errorMessage": "boom", "errorType": "KeyError"},
         Verdict.FAILED),
        ("ZeroReservedConcurrency", MISSING, MISSING, Verdict.THROTTLED),
        ("RetriesExhausted", {"statusCode": 403}, None, Verdict.FORBIDDEN),
        ("RetriesExhausted", {"statusCode": 404}, None, Verdict.GONE),
        ("RetriesExhausted", {"statusCode": 500}, None, Verdict.FAULT),
        ("Success", {"statusCode": 200}, None, Verdict.FAULT),
        ("Success", {"statusCode": 200}, MISSING, Verdict.FAULT),
        ("SomethingNew", MISSING, MISSING, Verdict.FAULT),
    ],
)  # fmt: skip
def test_records_of_other_ends(
    condition: str, response_context: object, payload: object, verdict: Verdict
) -> None:
    told = record(condition=condition, responseContext=response_context, responsePayload=payload)
    (found,) = outcome.settled_by(told)
    assert found.outcome.verdict is verdict
    error_of(found.outcome)


@pytest.mark.parametrize(
    "broken",
    [
        {}, {"requestContext": {}}, {"requestPayload": {}, "requestContext": {}},
        record(requestPayload=None), record(requestContext="x"), record(requestPayload={"id": ID}),
        record(requestPayload={"Records": []}), record(requestPayload={"Records": "x"}),
        record(requestPayload={"Records": [{"messageId": ID}]}),
        record(requestPayload={"job": "x"}),
        record(requestPayload={"id": ID, "delivery_id": "x", "worker_id": "push_worker_a"}),
        record(requestPayload={"id": ID, "delivery_id": "del_", "worker_id": "push_worker_a"}),
        record(requestPayload={"id": ID, "delivery_id": "del_t", "worker_id": "worker"}),
        record(requestPayload={"id": 5, "delivery_id": "del_t", "worker_id": "push_worker_a"}),
    ],
)  # fmt: skip
def test_a_record_of_no_push_is_refused(broken: dict[str, Any]) -> None:
    with pytest.raises(MalformedRecord):
        outcome.settled_by(broken)
