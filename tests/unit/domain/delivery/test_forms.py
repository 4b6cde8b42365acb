"""Events as handlers of the SDKs, and of Lambda's own event source, read them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest

from ojs.domain.delivery import forms
from ojs.domain.delivery.delivery import Form
from tests.unit.domain.delivery.pushes import NOW_MS, job_id, push

ARN = "arn:aws:sqs:eu-central-1:123456789012:thumbs"


def made(*pushes: Any, form: Form, batch_size: int = 10) -> list[forms.PushEvent]:
    return list(forms.events(pushes, form, source=ARN, batch_size=batch_size, now_ms=NOW_MS))


def test_direct_is_the_job_with_what_names_the_push() -> None:
    (event,) = made(push(), form=Form.DIRECT)
    told = json.loads(event.text)
    assert told | {
        "id": job_id(1), "type": "image.resize", "queue": "images", "args": [{"key": "a.png"}],
        "attempt": 1, "meta": {"trace": "t-1"}, "state": "active", "priority": 0,
        "max_attempts": 3, "delivery_id": "del_token-1", "worker_id": "push_worker_thumbs",
    } == told  # fmt: skip
    assert not event.alone


def test_push_is_that_of_the_specification() -> None:
    (event,) = made(push(), form=Form.PUSH)
    told = json.loads(event.text)
    assert set(told) == {"job", "worker_id", "delivery_id"}
    assert (told["worker_id"], told["delivery_id"]) == ("push_worker_thumbs", "del_token-1")
    assert told["job"]["args"] == [{"key": "a.png"}]


def test_sqs_has_every_field_of_a_message_of_sqs() -> None:
    """The fields, and their types, of the example in AWS's page on SQS as an event source."""
    (event,) = made(push(1), push(2), form=Form.SQS)
    first, second = json.loads(event.text)["Records"]
    assert set(first) == {
        "messageId", "receiptHandle", "body", "attributes", "messageAttributes", "md5OfBody",
        "eventSource", "eventSourceARN", "awsRegion",
    }  # fmt: skip
    assert (first["messageId"], second["messageId"]) == (job_id(1), job_id(2))
    assert (first["eventSource"], first["awsRegion"]) == ("aws:sqs", "eu-central-1")
    assert set(first["attributes"]) == {
        "ApproximateReceiveCount", "SentTimestamp", "SenderId", "ApproximateFirstReceiveTimestamp",
    }  # fmt: skip
    assert all(isinstance(value, str) for value in first["attributes"].values())
    assert first["md5OfBody"] == hashlib.md5(first["body"].encode()).hexdigest()
    assert first["messageAttributes"]["delivery_id"] == {
        "stringValue": "del_token-1",
        "stringListValues": [],
        "binaryListValues": [],
        "dataType": "String",
    }
    job = json.loads(first["body"])
    assert (job["id"], job["type"], job["attempt"]) == (job_id(1), "image.resize", 1)


def test_events_of_sqs_hold_as_many_jobs_as_the_delivery_says() -> None:
    found = made(*map(push, range(1, 6)), form=Form.SQS, batch_size=2)
    assert [len(event.pushes) for event in found] == [2, 2, 1]


def test_a_batch_that_would_not_fit_is_cut_and_what_never_fits_goes_alone() -> None:
    large, huge = "x" * 150_000, "x" * 300_000
    pushes = [push(1, args=[large]), push(2, args=[huge]), push(3, args=[large]), push(4)]
    found = made(*pushes, form=Form.SQS)
    assert [[each.job.id for each in event.pushes] for event in found] == [
        [job_id(2)], [job_id(1)], [job_id(3), job_id(4)],
    ]  # fmt: skip
    assert [event.alone for event in found] == [True, False, False]
    assert all(event.alone or len(event.text) <= forms.MAX_EVENT_BYTES + 20 for event in found)


@pytest.mark.parametrize("form", Form)
def test_after_a_lost_outcome_the_answer_is_waited_for(form: Form) -> None:
    again = push(lost=True)
    assert [event.alone for event in made(again, push(2), form=form)] == [True, False]
    assert forms.alone(again, form)
    assert not forms.alone(push(2), form)


def test_numbers_and_texts_go_as_they_came() -> None:
    from decimal import Decimal

    (event,) = made(push(args=[Decimal("0.10"), "å\u2028", 2**60]), form=Form.DIRECT)
    assert '"args":[0.10,"å\u2028",1152921504606846976]'.encode() in event.text


def test_a_clients_own_fields_cannot_make_another_form_of_an_event() -> None:
    one = push()
    own = {"Records": [{"messageId": "x"}], "job": {"id": "x"}, "requestContext": {}, "mine": 1}
    content = {**(one.job.content or {}), **own, "delivery_id": "del_x", "worker_id": "w"}
    spoofed = replace(one, job=replace(one.job, content=content))
    (event,) = made(spoofed, form=Form.DIRECT)
    told = json.loads(event.text)
    assert not own.keys() & told.keys() - {"mine"}
    assert (told["mine"], told["delivery_id"]) == (1, "del_token-1")
    assert told["worker_id"] == "push_worker_thumbs"


STATES = {
    "scheduled", "available", "pending", "active", "completed", "retryable", "cancelled",
    "discarded",
}  # fmt: skip


@pytest.mark.parametrize("form", Form)
def test_jobs_are_as_handlers_of_the_sdks_check_them(form: Form) -> None:
    """Python: texts that are not empty, an array, an object, whole numbers and a known state, and
    no `job` within the job. Go: numbers where it has numbers, and texts as values of attributes.
    JavaScript: the job itself, or a message's body, or `job`.
    """
    (event,) = made(push(), form=form)
    told = json.loads(event.text)
    if form is Form.SQS:
        (message,) = told["Records"]
        assert all(isinstance(value, str) for value in message["attributes"].values())
        told = json.loads(message["body"])
    job = told.get("job", told)
    assert all(isinstance(job[name], str) and job[name] for name in ("id", "type", "queue"))
    assert (type(job["args"]), type(job["meta"])) == (list, dict)
    numbers = {name: job[name] for name in ("attempt", "max_attempts", "priority")}
    assert {type(number) for number in numbers.values()} == {int}
    assert numbers["attempt"] >= 0
    assert numbers["max_attempts"] >= 1
    assert job["state"] in STATES
    assert "job" not in job
