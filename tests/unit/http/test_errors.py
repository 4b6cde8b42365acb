"""Errors as responses: the wait of the Retry-After header is the one in the message."""

from __future__ import annotations

import pytest

from ojs.domain.errors import (
    BackendUnavailable,
    InvalidRequest,
    OjsError,
    QueueFull,
    QueueMayStay,
    StoredError,
    UnknownForm,
)
from ojs.http.binding import errors


def full(retry_after_s: int = 5) -> QueueFull:
    return QueueFull("q", depth=9, bound=9, strategy="reject", retry_after_s=retry_after_s)


def again(error: OjsError) -> StoredError:
    """The error as it is returned to a request with the same idempotency key."""
    return StoredError(error.code, error.message, retryable=error.retryable, details=error.details)


WAITING = [
    BackendUnavailable("DynamoDB throttled the request."),
    BackendUnavailable(BackendUnavailable("It failed.", retry_after_s=5).message),
    UnknownForm("a state", "parked"),
    full(),
    full(30),
    QueueMayStay("q"),
    again(full(30)),
    again(QueueMayStay("q")),
    errors.JobsRefused([full(5), full(30), BackendUnavailable("It failed.")], {}),
]


@pytest.mark.parametrize("error", WAITING, ids=lambda error: type(error).__name__)
def test_the_message_has_the_wait_of_the_header(error: OjsError) -> None:
    wait = errors.headers(error)["Retry-After"]
    assert error.message.endswith(f". Retry after {wait} s.")
    assert error.message.count("Retry after") == 1


def test_many_rejected_jobs_wait_for_the_longest() -> None:
    refused = errors.JobsRefused([full(5), full(30)], {})
    assert errors.headers(refused)["Retry-After"] == "30"
    assert refused.message == (
        "No job was stored. jobs[0]: Queue 'q' doesn't have enough capacity: it contains 9 of at "
        "most 9 jobs. Retry after 30 s."
    )


def test_jobs_that_cannot_be_retried_have_no_wait() -> None:
    refused = errors.JobsRefused([full(5), InvalidRequest("type", "is required")], {})
    assert "Retry-After" not in errors.headers(refused)
    assert "Retry after" not in refused.message
