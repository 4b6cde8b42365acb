"""What handlers of the official SDKs read of an event, and what they answer (ojs-python-sdk,
ojs-js-sdk, ojs-go-sdk, ojs-rust-sdk): each form there and back.

Readers here take an event as strictly as the strictest version of their SDK does.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from typing import Any

import pytest

from ojs.domain.delivery import forms, outcome, signing
from ojs.domain.delivery.delivery import Form
from ojs.domain.delivery.outcome import Verdict
from tests.unit.domain.delivery.pushes import NOW_MS, job_id, push

ARN = "arn:aws:sqs:eu-central-1:123456789012:thumbs"
ID = job_id(1)
SECRETS = ("whsec_" + "a" * 32, "whsec_" + "b" * 32)


def event(form: Form, *numbers: int) -> dict[str, Any]:
    pushes = [push(number) for number in numbers or (1,)]
    (found,) = forms.events(pushes, form, source=ARN, batch_size=10, now_ms=NOW_MS)
    told: dict[str, Any] = json.loads(found.text)
    return told


def go_job(shown: dict[str, Any]) -> str:
    """JobEvent of Go and Rust: texts, whole numbers, and JSON as it is. Its id."""
    for name in ("id", "type", "queue"):
        assert isinstance(shown[name], str)
    for name in ("attempt", "priority"):
        assert type(shown[name]) is int
    assert isinstance(shown["args"], list)
    return str(shown["id"])


def python_job(shown: dict[str, Any]) -> str:
    """parse_job_event of Python. Its id."""
    assert isinstance(shown["args"], list)
    assert isinstance(shown["meta"], dict)
    assert shown["state"] == "active"
    for name, least in (("attempt", 0), ("max_attempts", 1), ("priority", -100)):
        assert type(shown[name]) is int
        assert shown[name] >= least
    assert shown["id"]
    assert shown["type"]
    return str(shown["id"])


# --- the job itself ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "verdict", "retryable"),
    [
        # Python, JavaScript and Rust name the job; a result is Python's alone.
        ({"status": "completed", "job_id": ID}, Verdict.COMPLETED, None),
        ({"status": "completed", "job_id": ID, "result": [1]}, Verdict.COMPLETED, None),
        ({"status": "failed", "job_id": ID, "error": "no such picture"}, Verdict.FAILED, True),
        ({"status": "failed", "job_id": ID,
          "error": {"code": "handler_error", "message": "ValueError", "retryable": True}},
         Verdict.FAILED, True),
        ({"status": "failed", "job_id": ID,
          "error": {"code": "unknown_job_type", "message": "HandlerNotFoundError",
                    "retryable": False}}, Verdict.FAILED, False),
        # Rust writes what it does not know as null.
        ({"status": "completed", "job_id": ID, "result": None, "error": None},
         Verdict.COMPLETED, None),
    ],
)  # fmt: skip
def test_direct(answer: dict[str, Any], verdict: Verdict, retryable: bool | None) -> None:
    told = event(Form.DIRECT)
    assert go_job(told) == python_job(told) == ID
    found = outcome.of_text(json.dumps(answer), job_id=ID)
    assert found.verdict is verdict
    if retryable is not None:
        assert found.error is not None
        assert found.error.get("retryable", True) is retryable


# --- messages of SQS -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "failed"),
    [
        ({"batchItemFailures": []}, []),
        # A slice of Go that nothing was put into.
        ({"batchItemFailures": None}, []),
        ({"batchItemFailures": [{"itemIdentifier": job_id(2)}]}, [2]),
        ({"batchItemFailures": [{"itemIdentifier": job_id(n)} for n in (3, 1)]}, [1, 3]),
        # A handler of one's own that answers nothing.
        (None, []),
        ({}, []),
    ],
)
def test_messages(answer: Any, failed: list[int]) -> None:
    told = event(Form.SQS, 1, 2, 3)
    assert set(told) == {"Records"}
    for number, record in enumerate(told["Records"], 1):
        for name in ("messageId", "body", "receiptHandle", "md5OfBody", "eventSource"):
            assert isinstance(record[name], str)
        # map[string]string
        assert all(isinstance(value, str) for value in record["attributes"].values())
        shown = json.loads(record["body"])
        assert go_job(shown) == python_job(shown) == record["messageId"] == job_id(number)
    ids = [job_id(number) for number in (1, 2, 3)]
    found = outcome.of_batch(json.loads(json.dumps(answer)), ids)
    ends = {number: each.verdict for number, each in enumerate(found, 1)}
    assert ends == {
        number: Verdict.FAILED if number in failed else Verdict.COMPLETED for number in (1, 2, 3)
    }


def test_a_message_of_which_the_id_is_not_known_is_a_failure_of_all() -> None:
    """Python names a message without an id "unknown"."""
    answer = {"batchItemFailures": [{"itemIdentifier": "unknown"}]}
    found = outcome.of_batch(answer, [job_id(1), job_id(2)])
    assert {each.verdict for each in found} == {Verdict.FAULT}


# --- posts ---------------------------------------------------------------------------------------


def authenticated(headers: dict[str, str], body: bytes, secrets: tuple[str, ...]) -> bool:
    """As Go, JavaScript and Rust check it: digits, at most 32 signatures of 64 hex digits, one of
    which is that of one secret.
    """
    stamp, told = headers["X-OJS-Timestamp"], headers["X-OJS-Signature"]
    assert re.fullmatch(r"[0-9]{1,32}", stamp)
    signatures = [each.strip() for each in told.split(",")]
    assert len(signatures) <= 32
    assert all(re.fullmatch(r"sha256=[0-9a-f]{64}", each) for each in signatures)
    signed = f"{stamp}.".encode() + body
    made = [hmac.new(each.encode(), signed, hashlib.sha256).hexdigest() for each in secrets]
    return any(f"sha256={each}" in signatures for each in made)


@pytest.mark.requirement("SL-15")
def test_a_post_is_signed_and_names_what_is_in_it() -> None:
    one = push()
    body = json.dumps(forms.pushed(one)).encode()
    headers = {
        **signing.signed(SECRETS, body, delivery_id=one.delivery_id, url="a/", now_ms=NOW_MS),
        **signing.named(one),
    }
    told = json.loads(body)
    assert set(told) == {"job", "worker_id", "delivery_id"}
    assert go_job(told["job"]) == python_job(told["job"]) == ID
    assert told["job"]["specversion"] == "1.0"
    for each in SECRETS:
        assert authenticated(headers, body, (each,))
    assert not authenticated(headers, body, ("whsec_" + "c" * 32,))
    assert not authenticated(headers, body + b" ", SECRETS)
    # Rust refuses a post whose headers name another delivery or job than its body.
    assert headers["X-OJS-Delivery-ID"] == told["delivery_id"] == "del_token-1"
    assert headers["X-OJS-Job-ID"] == ID
    assert told["worker_id"] == "push_worker_thumbs"


def go_error(code: str, *, retryable: bool = False) -> dict[str, Any]:
    error = {"code": code, "message": "why", "retryable": retryable}
    return {"status": "failed", "error": error}


@pytest.mark.requirement("SL-4")
@pytest.mark.parametrize(
    ("status", "answer", "verdict"),
    [
        (200, {"status": "completed"}, Verdict.COMPLETED),
        (200, {"status": "completed", "job_id": ID}, Verdict.COMPLETED),
        (200, {"status": "completed", "result": {"message_id": "msg_123"}}, Verdict.COMPLETED),
        (200, go_error("handler_error", retryable=True), Verdict.FAILED),
        # No secret is set at the endpoint: Go and JavaScript.
        (503, go_error("authentication_unavailable"), Verdict.FAULT),
        (500, {"error": "No signing secret configured and allowInsecurePush is not enabled"},
         Verdict.FAULT),
        (401, go_error("authentication_failed"), Verdict.FORBIDDEN),
        (401, {"error": "Request timestamp outside freshness window"}, Verdict.FORBIDDEN),
        (400, go_error("invalid_request"), Verdict.REFUSED),
        (400, {"error": 'Invalid push envelope: missing "job" field'}, Verdict.REFUSED),
        (405, {"error": "Method not allowed"}, Verdict.REFUSED),
        (413, go_error("invalid_request"), Verdict.REFUSED),
        (431, go_error("authentication_failed"), Verdict.REFUSED),
    ],
)  # fmt: skip
def test_answers_to_a_post(status: int, answer: dict[str, Any], verdict: Verdict) -> None:
    body = json.dumps(answer).encode()
    found = outcome.of_response(status, {}, body, job_id=ID, now_ms=NOW_MS)
    assert found.verdict is verdict
    if verdict is Verdict.REFUSED:
        assert found.error is not None
        assert found.error["retryable"] is False


# --- every status --------------------------------------------------------------------------------

NO_ATTEMPT = {
    401: Verdict.FORBIDDEN, 403: Verdict.FORBIDDEN, 404: Verdict.GONE, 410: Verdict.GONE,
    429: Verdict.THROTTLED,
}  # fmt: skip


def by_section_2_3(status: int) -> Verdict:
    """What section 2.3 makes of a status whose answer says that the job is done; section 7.2 goes
    before it for some, and a time-out is one, whoever tells of it.
    """
    if 200 <= status < 300:
        return Verdict.COMPLETED
    if 400 <= status < 500:
        return NO_ATTEMPT.get(status, Verdict.FAULT if status == 408 else Verdict.REFUSED)
    return Verdict.FAULT


@pytest.mark.requirement("SL-4", "SL-5", "SL-18")
@pytest.mark.parametrize("body", [b"", b'{"status": "completed"}', b"\xff", b"<html>"])
def test_every_status_has_its_meaning(body: bytes) -> None:
    for status in range(100, 600):
        found = outcome.of_response(status, {}, body, job_id=ID, now_ms=NOW_MS)
        wanted = by_section_2_3(status)
        if wanted is Verdict.COMPLETED and b"completed" not in body:
            wanted = Verdict.FAULT
        assert found.verdict is wanted, status
        if wanted in (Verdict.FAULT, Verdict.REFUSED):
            assert found.error is not None
            assert found.error["retryable"] is (wanted is Verdict.FAULT)
            # Section 7.2: an error of delivery, told from those that functions word themselves.
            assert found.error["details"]["error_class"] == "delivery_error"
