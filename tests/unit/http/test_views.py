"""Answers stay below what a Lambda may send, whatever the jobs are like, and say what they omit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.api import job_answers as views
from ojs.api import workers
from ojs.domain import jsontext
from ojs.domain.job.envelope import MAX_BATCH, MAX_JOB_BYTES, MAX_META_BYTES
from ojs.domain.job.failure import Failure, reported
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.page import Page
from ojs.domain.pool.worker import MAX_ID_BYTES, Worker
from ojs.http import answers, models
from ojs.http.binding import paging
from ojs.http.binding.paging import PageWindow
from ojs.http.parameters import MAX_LIMIT
from ojs.services.workers.workers import MAX_INFO_BYTES
from tests.spread import spread

# What Lambda names when it refuses an answer.
LAMBDA_BYTES = 6_291_556
MIB = 1_048_576
ID = "019414d4-8b2e-7c3a-b5d1-f0e2a3b4c5d6"
# Quotes, backslashes and controls are what JSON in JSON makes longest; characters beyond ASCII are
# escaped by Lambda's Python 3.11.
CHARACTERS = {"quotes": '"', "backslashes": "\\", "control": "\x01", "latin": "é", "emoji": "😀"}
LARGE = Job(
    id=ID,
    type="a",
    queue="default",
    state=State.DISCARDED,
    created_ms=0,
    discarded_ms=0,
    completed_ms=0,
    dead_letter=True,
    attempt=1_000,
    content={"args": ['"' * (MIB // 2 - 100)], "meta": {}},
)


def sent(answer: Mapping[str, Any]) -> int:
    """Bytes of the answer as the Lambda runtime sends it, with headers at their longest."""
    headers = {"X-Request-Id": '"' * 128, "Some": "x" * 2_000}
    text = jsontext.dumps(answer)
    return len(json.dumps({"statusCode": 200, "body": text, "headers": headers}))


def fill(character: str, size: int) -> str:
    """A text of these characters that has about `size` bytes as JSON, and not more."""
    return character * ((size - 2) // (jsontext.size_of(character) - 2))


def failure(character: str = '"', attempt: int = 1) -> Failure:
    """As long as a reported error can be."""
    text = character * 10_000
    error = {
        "code": "c" * 255,
        "type": character * 255,
        "message": text,
        "backtrace": [text],
        "details": {"a": fill(character, 16_000)},
    }
    return reported(error, attempt=attempt, now_ms=0)


def bulk(character: str) -> str:
    return fill(character, MAX_JOB_BYTES - 2_000)


# The largest contents a client may store, the bulk in another place each.
CONTENTS: dict[str, Callable[[str], dict[str, Any]]] = {
    "args": lambda c: {"args": [bulk(c)]},
    "many args": lambda c: {"args": [c] * (MAX_JOB_BYTES // 20)},
    "meta": lambda c: {"args": [], "meta": {"a": fill(c, MAX_META_BYTES - 100)}},
    "own value": lambda c: {"args": [], "x_own": bulk(c)},
    "own key": lambda c: {"args": [], bulk(c): 1},
    "many own keys": lambda c: {"args": [], **{f"{c}{n}": n for n in range(40_000)}},
    "metadata": lambda c: {"args": [], "metadata": {"a": bulk(c)}},
    "options": lambda c: {"args": [], "options": {"a": bulk(c)}},
    "tags": lambda c: {"args": [], "tags": [c * 255] * 100},
    "schema": lambda _: {"args": [], "schema": "a:" + "x" * 2_000},
    "policy": lambda c: {"args": [], "retry": {"non_retryable_errors": [c * 255] * 100}},
}
CASES = [
    (kind, place)
    for kind in CHARACTERS
    for place in CONTENTS
    if kind in ("quotes", "backslashes") or place in ("args", "own key", "many own keys")
]
KINDS = pytest.mark.parametrize("character", CHARACTERS.values(), ids=CHARACTERS)


@pytest.mark.parametrize(
    ("kind", "place"),
    spread(CASES, 9, rest=2),
)
def test_no_answer_is_too_large_to_send(kind: str, place: str) -> None:
    character = CHARACTERS[kind]
    content = CONTENTS[place](character)
    assert jsontext.size_of(content) <= MAX_JOB_BYTES
    name = "a" + ".b" * 127
    worker_id = fill(character, MAX_ID_BYTES) if character != "\x01" else "w"
    failures = tuple(failure(character, n) for n in range(12))
    job = replace(
        LARGE, type=name, queue=name, content=content, errors=failures, worker_id=worker_id
    )
    # In a listing: a few of them fill an answer, and there are as many as a page holds.
    cut = replace(job, content=None, errors=failures[:1])
    listed = [replace(job, errors=failures[:1])] * 6 + [cut] * (MAX_LIMIT - 6)
    done = replace(job, state=State.COMPLETED, result=fill(character, MIB), dead_letter=False)
    for answer in (
        views.detail(job),
        views.detail(done),
        views.wrapped(job),
        views.acknowledged(done),
        views.failed(job),
        views.result(done),
        views.retries(job),
        jobs_page(PageWindow(MAX_LIMIT), Page(listed, "c" * 80)),
        # A request cannot bring more contents than fit into it.
        views.batch([replace(job, errors=None)] * 6),
    ):
        assert sent(answer) < LAMBDA_BYTES


def jobs_page(window: PageWindow, page: Page[Job]) -> dict[str, Any]:
    found = views.JobsPageAnswer.of(paging.listed(window, page, always=True))
    return cast("dict[str, Any]", found)


def test_no_number_of_jobs_is_too_large_to_send() -> None:
    page = jobs_page(PageWindow(MAX_LIMIT), Page([LARGE] * MAX_LIMIT))
    assert sent(page) < LAMBDA_BYTES
    assert [job["id"] for job in page["jobs"]] == [ID] * MAX_LIMIT
    assert "args" in page["jobs"][0]
    assert "args" in page["jobs"][-1]["omitted"]
    name = "a" + ".b" * 127
    many = replace(LARGE, type=name, queue=name, content={"args": ["x" * 5_000], '"' * 900: 1})
    batch = views.batch([many] * MAX_BATCH)
    assert sent(batch) < LAMBDA_BYTES
    assert batch["count"] == len(batch["jobs"]) == MAX_BATCH


@KINDS
def test_no_page_of_workers_is_too_large_to_send(character: str) -> None:
    info = {"labels": {"a": fill(character, MAX_INFO_BYTES - 30)}}
    worker = Worker(id=fill("x", MAX_ID_BYTES), info=info)
    listed = paging.listed(PageWindow(MAX_LIMIT), Page([workers._Known(worker, 0)] * MAX_LIMIT))
    page: Any = workers.WorkersAnswer.of(listed)
    assert sent(page) < LAMBDA_BYTES


def test_a_fetched_job_is_never_cut() -> None:
    (shown,) = views.fetched([replace(LARGE, state=State.ACTIVE, dead_letter=False)])["jobs"]
    assert shown["args"] == (LARGE.content or {})["args"]
    assert "omitted" not in shown


def test_a_job_with_everything_at_its_limit_is_shown_whole() -> None:
    failures = tuple([failure(attempt=n) for n in range(1_000)])
    job = replace(LARGE, result=LARGE.content, errors=failures)
    shown = views.detail(job)["job"]
    assert shown["result"] == LARGE.content
    assert "omitted" not in shown
    assert shown["errors"][-1]["attempt"] == 999
    assert len(shown["errors"]) + shown["errors_omitted"] == 1_000
    more = views.retries(job)
    assert len(more["retries"]) > len(shown["errors"])
    assert len(more["retries"]) + more["errors_omitted"] == 1_000


def test_a_result_that_does_not_fit_can_be_read_elsewhere() -> None:
    text = fill("é", MIB)
    job = replace(
        LARGE, state=State.COMPLETED, dead_letter=False, content={"args": [text]}, result=text
    )
    shown = views.detail(job)
    assert "result" not in shown["job"]
    assert shown["job"]["omitted"] == ["result"]
    assert shown["job"]["args"] == [text]
    # The top level names what it lacks itself.
    assert shown["omitted"] == ["args", "meta", "result"]
    assert views.result(job)["result"] == text


def test_a_short_history_is_whole() -> None:
    short = replace(failure(), message="no", details=None)
    job = replace(LARGE, content={}, errors=tuple([short] * 20))
    assert len(views.whole(job)["errors"]) == 20
    assert "errors_omitted" not in views.whole(job)


def test_what_is_left_out_of_a_large_job_is_named() -> None:
    large = {**(LARGE.content or {}), "x_own": 1, "tags": ["a"], "options": {"a": 1}}
    job = replace(LARGE, content=large, errors=(failure(),), priority=7)
    shown: dict[str, Any] = {**views.detail(job)}
    assert shown["job"]["x_own"] == 1
    assert "omitted" not in shown["job"]
    assert shown["omitted"] == ["args", "meta", "error", "errors", "options", "tags", "*"]
    missing = shown["job"].keys() - shown.keys()
    assert missing == {"args", "meta", "error", "errors", "options", "tags", "x_own"}
    assert (shown["id"], shown["priority"], shown["state"]) == (ID, 7, "discarded")
    assert shown["metadata"].keys() == {"created_at", "discarded_at"}


def test_a_dead_letter_keeps_its_times_when_cut() -> None:
    content = {**(LARGE.content or {}), "metadata": {"own": 1}}
    shown: dict[str, Any] = {**views.detail(replace(LARGE, content=content))}
    assert shown["job"]["metadata"]["own"] == 1
    assert shown["metadata"].keys() == {"created_at", "discarded_at"}
    assert "metadata" in shown["omitted"]
    live = replace(LARGE, content=content, dead_letter=False)
    assert "metadata" not in views.detail(live).keys() - {"job"}


def test_contents_that_were_not_loaded_are_named() -> None:
    unloaded = replace(LARGE, content=None, content_ref="abc", content_bytes=9_999)
    for shown in (
        views.whole(unloaded),
        views.failed(unloaded)["job"],
        jobs_page(PageWindow(), Page([unloaded]))["jobs"][0],
    ):
        assert shown["omitted"] == ["args", "meta", "*"]
        assert shown["id"] == ID


def test_in_a_listing_small_jobs_stay_whole_beside_large_ones() -> None:
    small = replace(LARGE, content={"args": ["small"], "x": 1})
    page = jobs_page(PageWindow(), Page([LARGE, LARGE, LARGE, small, LARGE, small]))
    assert page["items"] == page["jobs"]
    cut = ["omitted" in job for job in page["jobs"]]
    assert cut == [False, True, True, False, True, False]
    assert "omitted" not in jobs_page(PageWindow(), Page([small]))["jobs"][0]


def test_a_client_cannot_fake_what_is_omitted() -> None:
    job = replace(LARGE, content={"args": [], "omitted": "lie", "errors_omitted": -1})
    assert not {"omitted", "errors_omitted"} & views.whole(job).keys()


def test_every_field_of_a_job_is_small_or_large() -> None:
    """A field that nobody sorted would be cut, and told as one of the client's own."""
    described = set(answers.Job.__annotations__) - {"omitted", "errors_omitted"}
    assert described == views.SMALL_FIELDS | set(views.LARGE_FIELDS)


@given(st.text())
def test_the_size_is_what_lambda_counts_at_most(text: str) -> None:
    value = {"a": text.encode("utf-8", "replace").decode()}
    body = jsontext.dumps(value)
    for escaped in (True, False):
        as_sent = json.dumps({"body": body}, ensure_ascii=escaped).encode()
        assert len(as_sent) - len('{"body": ""}') <= views.sent_bytes(value)


@pytest.mark.parametrize("shape", [views.wrapped, views.detail, views.whole])
def test_a_small_job_is_shown_as_it_is(shape: Callable[[Job], Mapping[str, Any]]) -> None:
    job = replace(LARGE, content={"args": [1], "meta": {"a": 1}, "x_own": None})
    shown = shape(job)
    assert "omitted" not in shown
    whole = shown.get("job", shown)
    assert (whole["args"], whole["meta"], whole["x_own"]) == ([1], {"a": 1}, None)


def test_a_heartbeat_is_small_enough() -> None:
    ids = [ID] * models.MAX_ACTIVE_JOBS
    assert sent({"jobs_extended": ids, "cancelled_jobs": ids}) < LAMBDA_BYTES // 10
