"""Answers stay below what a Lambda may send, whatever the jobs are like."""

from __future__ import annotations

import json
from dataclasses import replace

from ojs.domain import jsontext
from ojs.domain.failure import Failure
from ojs.domain.job import Job
from ojs.domain.page import Page
from ojs.domain.states import State
from ojs.http import views
from ojs.http.paging import Window

LAMBDA_BYTES = 6_291_556
MIB = 1_048_576
# Quotes are what JSON in JSON makes longest.
QUOTES = '"' * (MIB // 2 - 100)
LARGE = Job(
    id="019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6",
    type="a",
    queue="default",
    state=State.DISCARDED,
    created_ms=0,
    discarded_ms=0,
    dead_letter=True,
    attempt=1_000,
    content={"args": [QUOTES], "meta": {}},
)
FAILURE = Failure(
    attempt=1,
    code="c",
    type="t",
    message='"' * 10_000,
    occurred_ms=0,
    backtrace=('"' * 10_000,),
    details={"a": '"' * 7_000},
)


def sent(answer: dict[str, object]) -> int:
    """Bytes of the answer as the Lambda runtime sends it."""
    return len(json.dumps({"statusCode": 200, "body": jsontext.dumps(answer)}))


def test_a_job_with_everything_at_its_limit_can_be_sent() -> None:
    failures = tuple(replace(FAILURE, attempt=n) for n in range(1_000))
    job = replace(LARGE, result=QUOTES, errors=failures)
    answer = views.detail(job)
    assert sent(answer) < LAMBDA_BYTES
    shown = answer["job"]
    assert shown["errors"][-1]["attempt"] == 999
    assert len(shown["errors"]) + shown["errors_omitted"] == 1_000
    assert sent(views.retries(job)) < LAMBDA_BYTES


def test_a_short_history_is_whole() -> None:
    failure = replace(FAILURE, message="no", details=None)
    job = replace(LARGE, content={}, errors=tuple([failure] * 20))
    assert len(views.whole(job)["errors"]) == 20
    assert "errors_omitted" not in views.whole(job)


def test_large_listings_and_batches_can_be_sent() -> None:
    page = views.jobs_page(Window(200), Page([LARGE] * 200))
    assert sent(page) < LAMBDA_BYTES
    assert "args" in page["jobs"][0]
    assert "args" not in page["jobs"][-1]
    assert {job["id"] for job in page["jobs"]} == {LARGE.id}
    assert sent(views.batch([LARGE] * 6)) < LAMBDA_BYTES
    small = replace(LARGE, content={"args": ["x" * 5_000], "meta": {}})
    batch = views.batch([small] * 1_000)
    assert sent(batch) < LAMBDA_BYTES
    assert batch["count"] == len(batch["jobs"]) == 1_000
