from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain import jsontext
from ojs.domain.errors import InvalidRequest
from ojs.domain.job import failure as failures
from ojs.domain.job.failure import (
    MAX_BACKTRACE_CHARACTERS,
    MAX_DETAILS_BYTES,
    MAX_FRAMES,
    MAX_MESSAGE_CHARACTERS,
    MAX_NAME_CHARACTERS,
    Failure,
)
from tests.unit.domain.arbitrary import NOW_MS, exactly, json_objects, json_values, texts
from tests.unit.domain.arbitrary import failures as any_failures

long_texts = st.builds(lambda text, times: text * times, texts, st.integers(0, 30_000))
reports = st.fixed_dictionaries(
    {},
    optional={
        "code": json_values | long_texts,
        "type": json_values | long_texts,
        "message": json_values | long_texts,
        "retryable": json_values,
        "details": json_values | json_objects | st.dictionaries(texts, long_texts, max_size=3),
        "backtrace": json_values | long_texts | st.lists(long_texts, max_size=80),
        "stack_trace": json_values | st.lists(texts),
    },
)


def _reported(error: dict[str, Any]) -> Failure:
    return failures.reported(error, attempt=2, now_ms=NOW_MS)


@given(reports)
def test_any_report_is_refused_with_its_field_or_kept_within_all_caps(
    report: dict[str, Any],
) -> None:
    try:
        failure = _reported(report)
    except InvalidRequest as error:
        field = error.field
    else:
        _assert_within_caps(failure)
        return
    assert field.removeprefix("error.") in {
        "code", "type", "message", "retryable", "details", "backtrace",
    }  # fmt: skip


def _assert_within_caps(failure: Failure) -> None:
    assert 0 < len(failure.code) <= MAX_NAME_CHARACTERS
    assert 0 < len(failure.type) <= MAX_NAME_CHARACTERS
    assert len(failure.message) <= MAX_MESSAGE_CHARACTERS
    assert len(failure.backtrace) <= MAX_FRAMES
    assert sum(map(len, failure.backtrace)) <= MAX_BACKTRACE_CHARACTERS
    assert jsontext.size_of(failure.details) <= MAX_DETAILS_BYTES
    assert (failure.attempt, failure.occurred_ms) == (2, NOW_MS)


@pytest.mark.requirement("C-15")
def test_the_caps_are_those_of_the_core_specification() -> None:
    assert (MAX_FRAMES, MAX_BACKTRACE_CHARACTERS) == (50, 10_000)


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        ({"message": "no"}, "handler_error", "Unknown"),
        ({"code": "timeout"}, "timeout", "timeout"),
        ({"type": "SmtpError"}, "SmtpError", "SmtpError"),
        ({"code": "c", "type": "T"}, "c", "T"),
        ({"code": "c", "details": {"error_class": "C", "error_type": "K"}}, "c", "C"),
        ({"code": "c", "details": {"error_type": "K"}}, "c", "K"),
        ({"code": "c", "details": {"error_class": 7, "error_type": "K"}}, "c", "K"),
        ({"code": "c", "details": {"error_class": ""}}, "c", "c"),
        ({"code": "c", "type": "T", "details": {"error_class": "C"}}, "c", "T"),
        ({"message": "m", "details": {"error_class": "C"}}, "C", "C"),
        ({"code": None, "type": None, "message": ""}, "handler_error", "Unknown"),
    ],
)
def test_the_type_is_the_one_given_else_the_class_in_the_details_else_the_code(
    error: dict[str, Any], code: str, kind: str
) -> None:
    failure = _reported(error)
    assert (failure.code, failure.type) == (code, kind)


@pytest.mark.parametrize(("given", "retryable"), [(True, True), (False, False), (None, True)])
def test_only_an_explicit_false_is_not_retryable(given: bool | None, retryable: bool) -> None:
    assert _reported({"code": "c", "retryable": given}).retryable is retryable
    assert _reported({"code": "c"}).retryable is True


@pytest.mark.parametrize(
    ("error", "field"),
    [
        ({}, "error.message"),
        ({"details": {"a": 1}}, "error.message"),
        ({"message": 5}, "error.message"),
        ({"message": ["m"]}, "error.message"),
        ({"code": 5}, "error.code"),
        ({"code": ""}, "error.code"),
        ({"type": {}}, "error.type"),
        ({"type": ""}, "error.type"),
        ({"code": "c", "retryable": "false"}, "error.retryable"),
        ({"code": "c", "retryable": 0}, "error.retryable"),
        ({"code": "c", "details": ["d"]}, "error.details"),
        ({"code": "c", "details": "d"}, "error.details"),
        ({"code": "c", "backtrace": 5}, "error.backtrace"),
        ({"code": "c", "backtrace": {"frame": 1}}, "error.backtrace"),
        ({"code": "c", "backtrace": ["a", 5]}, "error.backtrace"),
        ({"code": "c", "stack_trace": [None]}, "error.backtrace"),
    ],
)
def test_a_field_of_the_wrong_type_is_refused_by_its_name(
    error: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _reported(error)
    assert caught.value.field == field
    assert caught.value.code == "invalid_request"


@given(st.lists(texts, max_size=120), st.integers(1, 900))
def test_a_backtrace_is_cut_at_its_end_and_otherwise_kept(frames: list[str], times: int) -> None:
    given_frames = [frame * times for frame in frames]
    kept = _reported({"code": "c", "backtrace": given_frames}).backtrace
    assert "".join(given_frames[:MAX_FRAMES])[:MAX_BACKTRACE_CHARACTERS] == "".join(kept)
    assert list(kept[:-1]) == given_frames[: len(kept)][:-1]


@pytest.mark.requirement("C-15")
def test_the_fiftieth_frame_is_kept_and_the_next_is_not() -> None:
    frames = [f"frame {number}" for number in range(51)]
    assert _reported({"code": "c", "backtrace": frames}).backtrace == tuple(frames[:50])


@pytest.mark.requirement("C-15")
def test_ten_thousand_characters_of_backtrace_are_kept_and_no_more() -> None:
    kept = _reported({"code": "c", "backtrace": ["x" * 9_999, "yz", "w"]}).backtrace
    assert kept == ("x" * 9_999, "y")


def test_a_backtrace_sent_as_one_text_is_split_into_its_lines() -> None:
    assert _reported({"code": "c", "backtrace": "a\n  b\r\nc"}).backtrace == ("a", "  b", "c")


def test_a_stack_trace_is_a_backtrace_by_another_name() -> None:
    assert _reported({"code": "c", "stack_trace": ["a"]}).backtrace == ("a",)
    both = {"code": "c", "backtrace": ["b"], "stack_trace": ["a"]}
    assert _reported(both).backtrace == ("b",)


@given(json_objects)
def test_details_that_fit_are_kept_exactly(details: dict[str, Any]) -> None:
    kept = _reported({"code": "c", "details": details}).details
    assert exactly(kept) == exactly(details or None)


def test_details_are_kept_whole_up_to_the_last_byte_that_fits() -> None:
    details = {"host": "h", "dump": "x" * (MAX_DETAILS_BYTES - len('{"host":"h","dump":""}'))}
    assert jsontext.size_of(details) == MAX_DETAILS_BYTES
    assert _reported({"code": "c", "details": details}).details == details
    more = details | {"dump": details["dump"] + "x"}
    assert _reported({"code": "c", "details": more}).details == {"truncated": True, "host": "h"}


@pytest.mark.parametrize(
    ("field", "limit"),
    [
        ("message", MAX_MESSAGE_CHARACTERS),
        ("code", MAX_NAME_CHARACTERS),
        ("type", MAX_NAME_CHARACTERS),
    ],
)
def test_a_text_that_is_too_long_is_cut_at_its_end(field: str, limit: int) -> None:
    text = "".join(chr(ord("a") + number % 26) for number in range(limit + 5))
    assert getattr(_reported({"code": "c", field: text}), field) == text[:limit]


def test_a_class_in_the_details_that_is_too_long_for_a_type_is_cut() -> None:
    failure = _reported({"code": "c", "details": {"error_class": "C" * 300}})
    assert failure.type == "C" * MAX_NAME_CHARACTERS


def test_details_that_do_not_fit_keep_the_scalars_that_do_and_say_so() -> None:
    details = {
        "http_status": 502,
        "ratio": Decimal("0.10"),
        "dump": "x" * MAX_DETAILS_BYTES,
        "rows": [1, 2],
        "nested": {"a": 1},
        "host": "smtp.example.com",
    }
    kept = _reported({"code": "c", "details": details}).details
    assert kept == {
        "truncated": True,
        "http_status": 502,
        "ratio": Decimal("0.10"),
        "host": "smtp.example.com",
    }


def test_a_rule_may_name_the_type_the_class_the_type_in_the_details_or_the_code() -> None:
    failure = _reported(
        {"code": "c", "type": "T", "details": {"error_class": "C", "error_type": "K", "a": 1}}
    )
    assert set(failure.names) == {"c", "T", "C", "K"}
    assert set(_reported({"code": "c", "details": {"error_class": 7}}).names) == {"c"}


@given(any_failures)
def test_what_a_client_sees_of_a_failure_is_absent_or_set_never_null(failure: Failure) -> None:
    shown = failure.to_dict()
    assert None not in shown.values()
    assert shown.keys() >= {"attempt", "code", "type", "message", "retryable", "occurred_at"}
    assert ("backtrace" in shown) == bool(failure.backtrace)
    assert ("details" in shown) == bool(failure.details)
    jsontext.dumps(shown)


@pytest.mark.requirement("C-15")
def test_a_failure_is_shown_with_the_fields_of_the_specification() -> None:
    failure = _reported(
        {"type": "SmtpError", "message": "refused", "backtrace": ["f"], "details": {"port": 587}}
    )
    assert failure.to_dict() == {
        "attempt": 2,
        "code": "SmtpError",
        "type": "SmtpError",
        "message": "refused",
        "retryable": True,
        "backtrace": ["f"],
        "details": {"port": 587},
        "occurred_at": "2026-05-28T20:26:40.000Z",
    }


def test_what_the_backend_observes_bears_its_kind_as_code_and_type() -> None:
    failure = failures.observed("timeout", "too long", attempt=3, now_ms=NOW_MS)
    assert failure == Failure(3, "timeout", "timeout", "too long", NOW_MS)
    assert replace(failure, retryable=False) != failure
    assert failure.retryable is True


def test_what_names_an_error_survives_the_cap_on_details() -> None:
    details = {f"k{n}": "x" * 1_000 for n in range(30)} | {"error_class": "Boom"}
    failure = _reported({"code": "c", "type": "T", "details": details})
    assert failure.details is not None
    assert failure.details["truncated"] is True
    assert "Boom" in failure.names
