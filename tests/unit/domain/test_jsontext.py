from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ojs.domain import jsontext
from ojs.domain.errors import InvalidPayload
from tests.unit.domain.arbitrary import exactly, fraction_texts, json_values, texts, whole_numbers


@given(json_values)
def test_every_json_value_comes_back_exactly_number_forms_and_key_order_included(
    value: Any,
) -> None:
    assert exactly(jsontext.loads(jsontext.dumps(value).encode())) == exactly(value)


@given(json_values)
def test_what_was_stored_is_read_back_exactly(value: Any) -> None:
    assert exactly(jsontext.stored(jsontext.dumps(value))) == exactly(value)


@given(json_values)
def test_the_text_is_json_to_any_other_parser(value: Any) -> None:
    there = json.loads(jsontext.dumps(value), parse_float=Decimal)
    assert exactly(there) == exactly(value)


@given(json_values)
def test_the_size_is_that_of_the_compact_utf8_text(value: Any) -> None:
    assert jsontext.size_of(value) == len(jsontext.dumps(value).encode())


@given(fraction_texts)
@example("3.10")
@example("0.1000000000000000055")
@example("-0.0")
@example("1E+2")
@example("0e99")
@example("1.7976931348623157e308")
@example("5e-324")
def test_a_fraction_keeps_every_digit_and_its_scale(text: str) -> None:
    back = jsontext.dumps(jsontext.loads(text))
    assert Decimal(back).as_tuple() == Decimal(text).as_tuple()


@given(whole_numbers)
def test_a_whole_number_of_any_size_stays_the_same_integer(number: int) -> None:
    back = jsontext.loads(str(number))
    assert type(back) is int
    assert jsontext.dumps(back) == str(number)


@given(texts)
def test_a_text_is_the_same_whether_sent_escaped_or_as_it_is(text: str) -> None:
    escaped = json.dumps(text, ensure_ascii=True).encode()
    literal = json.dumps(text, ensure_ascii=False).encode()
    assert jsontext.loads(escaped) == jsontext.loads(literal) == text


def test_composed_and_decomposed_characters_are_not_normalised() -> None:
    composed, decomposed = "\u00e9", "e\u0301"
    back = jsontext.loads(json.dumps([composed, decomposed]))
    assert back == [composed, decomposed]
    assert back[0] != back[1]


def test_characters_beyond_the_basic_plane_are_written_as_they_are_not_as_surrogates() -> None:
    assert jsontext.dumps(jsontext.loads(b'"\\ud83d\\ude00"')) == '"😀"'


@given(st.binary())
@example(b"\xff")
@example(b"")
@example(b"\xef\xbb\xbf")
@example(b"1e99999999999999999999")
@example(b"0e99999999999999999999")
@example(b"1e-99999999999999999999")
@example(b"-1.8e308")
@example(b"-" + b"9" * 5_000)
@example(b"0." + b"1" * 5_000)
@example(b'"\\udead"')
@example(b'{"\\ud800":1}')
@example(b"[" * 100_000)
@example(b'{"a":' * 50_000)
@example(b'["' + b'\\"' * 200_000)
@example(b"]" * 1_000 + b"[" * 1_000)
def test_no_bytes_raise_anything_but_invalid_payload(body: bytes) -> None:
    _parse(body)


@given(st.text('{}[]":,\\ud8dDcC0123456789.-+eEtrufalsn ', max_size=40))
def test_nothing_that_looks_like_json_raises_anything_but_invalid_payload(text: str) -> None:
    _parse(text.encode())


def _parse(body: bytes) -> None:
    """What is accepted must be storable and come back the same."""
    try:
        value = jsontext.loads(body)
    except InvalidPayload:
        return
    stored = jsontext.dumps(value).encode()
    assert jsontext.loads(stored) == value


@pytest.mark.parametrize(
    "body",
    [
        b"", b" \n\t", b"{", b'{"a":}', b"{'a':1}", b"[1,]", b"01", b"+1", b"1.", b".5", b"NaN",
        b"Infinity", b"-Infinity", b"tru", b'"\n"', b'"\\x"', b"{} {}", b'{"a":1,}',
    ],
)  # fmt: skip
def test_what_is_no_json_text_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidPayload):
        jsontext.loads(body)


@pytest.mark.parametrize(
    "text",
    [
        "1e309", "1.8e308", "-1.8e308", "1e-324", "-1e-400", "1e99999999999999999999",
        "1e-99999999999999999999", "0." + "0" * 998 + "1",
    ],
)  # fmt: skip
def test_a_fraction_no_double_can_hold_is_refused(text: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        jsontext.loads(f"[{text}]")
    assert caught.value.details["reason"] == "number out of range"


def test_an_integer_of_more_than_a_thousand_digits_is_refused() -> None:
    assert jsontext.loads("9" * 1_000) == 10**1_000 - 1
    with pytest.raises(InvalidPayload, match="1000 digits"):
        jsontext.loads("9" * 1_001)


def test_a_fraction_of_more_than_a_thousand_characters_is_refused() -> None:
    longest = "1." + "1" * 998
    assert jsontext.dumps(jsontext.loads(longest)) == longest
    with pytest.raises(InvalidPayload):
        jsontext.loads(longest + "1")


@pytest.mark.parametrize(
    "text",
    [
        '"\\ud800"',
        '"\\udc00"',
        '"\\udc00\\ud800"',
        '"\\ud83dx"',
        '{"\\uD800":1}',
        '["a","\\uDFFF"]',
    ],
)
def test_an_unpaired_surrogate_is_refused(text: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        jsontext.loads(text)
    assert caught.value.details["reason"] == "unpaired surrogate"


def test_an_escaped_backslash_before_u_is_no_surrogate() -> None:
    assert jsontext.loads('"\\\\ud800"') == "\\ud800"


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('[{"a":', "}]")])
def test_nesting_is_accepted_up_to_the_limit_and_refused_beyond(opening: str, closing: str) -> None:
    def nested(times: int) -> str:
        return opening * times + "1" + closing * times

    fitting = jsontext.MAX_DEPTH // sum(opening.count(mark) for mark in "[{")
    jsontext.loads(nested(fitting))
    with pytest.raises(InvalidPayload, match="levels of nesting"):
        jsontext.loads(nested(fitting + 1))


def test_what_stands_beside_the_deepest_place_changes_nothing_about_the_limit() -> None:
    def beside(times: int) -> str:
        return "[" + "[]," * 200 + "[" * times + "]" * times + "]"

    jsontext.loads(beside(jsontext.MAX_DEPTH - 1))
    with pytest.raises(InvalidPayload, match="levels of nesting"):
        jsontext.loads(beside(jsontext.MAX_DEPTH))


def test_brackets_inside_strings_do_not_count_as_nesting() -> None:
    text = '\\"[{' * 1_000
    assert jsontext.loads(f'["{text}"]') == ['"[{' * 1_000]


def test_many_brackets_side_by_side_are_not_deep() -> None:
    assert len(jsontext.loads("[" + ",".join(["[]"] * 5_000) + "]")) == 5_000


@pytest.mark.parametrize(
    "text", ['{"a":1,"a":1}', '[{"b":{"a":1,"\\u0061":2}}]', '{"b":1,"a":1,"c":[],"a":{}}']
)
def test_a_key_that_an_object_has_twice_is_refused(text: str) -> None:
    with pytest.raises(InvalidPayload, match="has the key 'a' more than once"):
        jsontext.loads(text)


def test_a_control_character_is_named_without_a_placeholder() -> None:
    with pytest.raises(InvalidPayload, match=r"JSON: Invalid control character at line 1"):
        jsontext.loads('{"a": "\x01"}')


def test_a_syntax_error_names_its_place() -> None:
    with pytest.raises(InvalidPayload) as caught:
        jsontext.loads(b'{\n"a": oops}')
    assert caught.value.details == {"position": 7, "line": 2, "column": 6}


def test_bytes_that_are_no_utf8_are_refused_with_their_place() -> None:
    with pytest.raises(InvalidPayload) as caught:
        jsontext.loads(b'{"a":"\xff"}')
    assert caught.value.details == {"position": 6}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), Decimal("NaN"), Decimal("Infinity")])
def test_what_is_no_json_number_is_never_written(value: Any) -> None:
    with pytest.raises(ValueError, match=r"JSON|convert"):
        jsontext.dumps({"a": value})
