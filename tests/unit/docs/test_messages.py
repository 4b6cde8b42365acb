"""Error texts: a reason is a predicate of its field, a message is full sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from ojs.domain import errors
from tests.unit.docs import messages


def test_reasons_are_predicates_and_messages_are_sentences() -> None:
    found = list(messages.all_messages())
    assert len(found) > 450
    assert [f"{each} {each.fault}" for each in found if each.fault] == []


@pytest.mark.parametrize("reason", ["must be 1. Send 1", "must be 1. Send 1.", "must be 1"])
def test_the_message_of_a_field_error_ends_with_one_period(reason: str) -> None:
    error = errors.InvalidRequest("queues", reason)
    assert error.message == f"'queues': {reason.rstrip('.')}."
    assert error.details["reason"] == reason


@pytest.mark.parametrize(
    "error",
    [
        errors.BackendUnavailable("DynamoDB throttled the request.", retry_after_s=5),
        errors.BackendContended("Too many concurrent requests."),
        errors.UnknownForm("a state", "parked"),
        errors.QueueFull("q", depth=9, bound=9, strategy="reject"),
        errors.QueueFull("q", depth=9, bound=9, strategy="reject", message="No capacity."),
    ],
)
def test_an_error_to_retry_says_when(error: errors.OjsError) -> None:
    assert error.message.endswith(f" Retry after {error.retry_after_s} s.")
    assert error.message.count("Retry after") == 1


def faults(text: str) -> list[str | None]:
    return [each.fault for each in messages.of_file(Path("a.py"), text)]


def test_a_reason_is_checked() -> None:
    assert faults('InvalidRequest("a", "Must be 1")') == ["must begin in lower case"]
    assert faults('errors.InvalidRequest("a", reason="must be 1.")') == [
        "must not end with a period"
    ]
    assert faults("with naming_field('a', 1, 'must be 1'): ...") == [None]
    assert faults('InvalidRequest("a", f"{b} is unknown. Did you mean {c}")') == [None]


def test_a_message_is_checked() -> None:
    assert faults('R = "No step failed"\nConflict(R)') == ["must end with a period"]
    assert faults('Conflict("A." if b else "B")') == [None, "must end with a period"]
