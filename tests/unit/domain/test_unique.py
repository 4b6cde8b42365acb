from __future__ import annotations

import hashlib
import unicodedata
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ojs.domain import jsontext
from ojs.domain.errors import ValidationFailed
from ojs.domain.job import envelope
from ojs.domain.job.unique import fingerprint
from tests.spread import examples
from tests.unit.domain.arbitrary import NOW_MS, json_values

ALL = ["type", "queue", "args"]


def _fingerprint(raw: dict[str, Any]) -> str:
    found = envelope.resolve(envelope.parse(raw), now_ms=NOW_MS)
    assert found.unique is not None
    return fingerprint(found, found.unique)


def _of(args: list[Any], **unique: Any) -> str:
    return _fingerprint({"type": "a", "args": args, "unique": {"keys": ["args"], **unique}})


# What RFC 8785 takes for equal, worked out another way: numbers as the numbers they are, texts in
# NFC, objects without order. Whole numbers beyond 2^53 are kept apart on purpose: they are ids.
def _meaning(value: Any) -> Any:
    match value:
        case bool() | None:
            return ("constant", value)
        case int():
            return ("number", value)
        case Decimal():
            whole = value == value.to_integral_value()
            return ("number", int(value) if whole else float(value))
        case str():
            return ("text", unicodedata.normalize("NFC", value))
        case list():
            return ("array", tuple(_meaning(item) for item in value))
        case dict():
            pairs = ((_meaning(name), _meaning(item)) for name, item in value.items())
            return ("object", frozenset(pairs))
    raise TypeError(type(value))


# Few enough values that equal ones in different clothes meet often.
close_scalars = st.sampled_from(
    [
        *(None, True, False, 0, 1, -1, 2**53, 2**53 + 1, 10**20),
        *(Decimal(text) for text in ("0.0", "-0.0", "1.0", "10e-1", "1e20", "9007199254740993.0")),
        *(Decimal(text) for text in ("0.1", "0.10", "0.1000000000000000055", "1e-7", "0.0000001")),
        *("", "1", "true", "null", "\u00e9", "e\u0301", "e"),
    ]
)
close_values = st.recursive(
    close_scalars,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(("a", "b", "\u00e9")), inner, max_size=2)
        | st.dictionaries(st.sampled_from(("b", "a", "e\u0301")), inner, max_size=2)
    ),
    max_leaves=3,
)


@settings(max_examples=examples(400))
@given(close_values, close_values)
def test_two_values_share_a_fingerprint_exactly_when_they_mean_the_same(
    one: Any, other: Any
) -> None:
    assert (_of([one]) == _of([other])) == (_meaning(one) == _meaning(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, Decimal("1.0")),
        (1, Decimal("10e-1")),
        (0, Decimal("-0.0")),
        (100, Decimal("1e2")),
        (2**53, Decimal("9007199254740992.0")),
        (10**20, Decimal("1e20")),
        (10**20, Decimal("100000000000000000000.00")),
        (10**308, Decimal("1e308")),
        (Decimal("0.1"), Decimal("0.10")),
        (Decimal("0.1"), Decimal("0.1000000000000000055")),
        (Decimal("1e-7"), Decimal("0.0000001")),
        (1, Decimal("1.00000000000000000001")),
        ("\u00e9", "e\u0301"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"\u00e9": 1}, {"e\u0301": Decimal("1.0")}),
        ([{"a": [1, {"b": 2, "c": 3}]}], [{"a": [1, {"c": 3, "b": 2}]}]),
    ],
)
def test_values_that_are_equal_by_rfc_8785_have_one_fingerprint(one: Any, other: Any) -> None:
    assert _of([one]) == _of([other])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (1, True),
        (0, False),
        (0, None),
        ("", None),
        ([], {}),
        ([1, 2], [2, 1]),
        ([[1], 2], [1, [2]]),
        (2**53, 2**53 + 1),
        (2**53, Decimal("9007199254740993.0")),
        (Decimal("0.1"), Decimal("0.2")),
        ({"a": 1}, {"a": 1, "b": None}),
        ("A", "a"),
        ("\ufb01", "fi"),
        ("\u00b2", "2"),
    ],
)
def test_values_that_differ_have_different_fingerprints(one: Any, other: Any) -> None:
    assert _of([one]) != _of([other])


@given(json_values)
def test_any_json_value_has_a_fingerprint_and_keeps_it_across_a_round_trip(value: Any) -> None:
    again = jsontext.loads(jsontext.dumps(value))
    assert _of([value]) == _of([again])


@pytest.mark.parametrize("text", ["1.7976931348623157e308", "-1e308", "5e-324", "0e400"])
def test_the_largest_and_smallest_numbers_that_are_accepted_have_a_fingerprint(text: str) -> None:
    assert len(_of([jsontext.loads(text)])) == 64


@pytest.mark.parametrize(
    ("unique", "canonical"),
    [
        ({}, '{"type":"email.send"}'),
        ({"keys": ["type"]}, '{"type":"email.send"}'),
        ({"keys": ["queue"]}, '{"queue":"notifications","type":"email.send"}'),
        (
            {"keys": ["type", "queue", "args"]},
            '{"args":[{"locale":"en","user_id":42},7],"queue":"notifications","type":"email.send"}',
        ),
        (
            {"keys": ["type", "queue", "args"], "args_keys": ["user_id"]},
            '{"args":{"user_id":42},"queue":"notifications","type":"email.send"}',
        ),
        (
            {"keys": ["meta"], "meta_keys": ["tenant_id"]},
            '{"meta":{"tenant_id":"acme"},"type":"email.send"}',
        ),
    ],
)
def test_the_fingerprint_is_the_sha_256_of_the_canonical_json_of_the_chosen_dimensions(
    unique: dict[str, Any], canonical: str
) -> None:
    raw = {
        "type": "email.send",
        "queue": "notifications",
        "args": [{"user_id": 42, "locale": "en"}, 7],
        "meta": {"trace_id": "abc123", "tenant_id": "acme"},
        "unique": unique,
    }
    assert _fingerprint(raw) == hashlib.sha256(canonical.encode()).hexdigest()


@pytest.mark.parametrize(
    ("dimension", "changed"),
    [
        ("type", {"type": "b"}),
        ("queue", {"queue": "other"}),
        ("args", {"args": [2]}),
        ("meta", {"meta": {"tenant_id": "y", "trace_id": "1"}}),
    ],
)
@pytest.mark.parametrize("chosen", ["type", "queue", "args", "meta"])
def test_only_the_chosen_dimensions_and_the_type_count(
    chosen: str, dimension: str, changed: dict[str, Any]
) -> None:
    raw: dict[str, Any] = {
        "type": "a",
        "args": [1],
        "meta": {"tenant_id": "x", "trace_id": "1"},
        "unique": {"keys": [chosen], "meta_keys": ["tenant_id"]},
    }
    same = _fingerprint(raw) == _fingerprint(raw | changed)
    assert same == (dimension not in {chosen, "type"})


def test_meta_keys_that_were_not_named_do_not_count() -> None:
    unique = {"keys": ["meta"], "meta_keys": ["tenant_id"]}
    one = {"type": "a", "args": [], "meta": {"tenant_id": "x", "trace": 1}, "unique": unique}
    other = one | {"meta": {"trace": 2, "tenant_id": "x", "more": None}}
    assert _fingerprint(one) == _fingerprint(other)


def test_args_keys_are_looked_up_in_the_objects_among_the_args() -> None:
    keys = {"args_keys": ["user", "order"]}
    assert _of([{"user": 1, "x": 2}, "text", {"order": 3}], **keys) == _of(
        [{"order": 3, "user": 1}], **keys
    )


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"unique": {"keys": ["args"], "args_keys": ["user"]}}, "unique.args_keys"),
        (
            {"args": [{"user": 1}], "unique": {"keys": ["args"], "args_keys": ["user", "o"]}},
            "unique.args_keys",
        ),
        (
            {"args": ["user"], "unique": {"keys": ["args"], "args_keys": ["user"]}},
            "unique.args_keys",
        ),
        ({"unique": {"keys": ["meta"], "meta_keys": ["tenant"]}}, "unique.meta_keys"),
        (
            {"meta": {"a": 1}, "unique": {"keys": ["meta"], "meta_keys": ["tenant"]}},
            "unique.meta_keys",
        ),
    ],
)
def test_a_key_that_the_job_does_not_have_fails_validation(raw: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        _fingerprint({"type": "a", "args": [], **raw})
    assert caught.value.field == field


def test_in_a_batch_the_path_of_a_missing_key_is_whole() -> None:
    options = {"unique": {"keys": ["args"], "args_keys": ["user"]}}
    request = envelope.parse({"type": "a", "args": [], "options": options})
    found = envelope.resolve(request, now_ms=NOW_MS, prefix="jobs[2].")
    assert found.unique is not None
    with pytest.raises(ValidationFailed) as caught:
        fingerprint(found, found.unique)
    assert caught.value.field == "jobs[2].options.unique.args_keys"


def test_a_key_whose_value_is_null_is_there() -> None:
    assert _of([{"user": None}], args_keys=["user"]) != _of([{"user": 0}], args_keys=["user"])


def test_a_key_of_ones_own_is_all_that_counts_besides_the_type() -> None:
    mine = {"keys": None, "key": "order-17"}
    assert _of([1], **mine) == _of([2], **mine)
    assert _of([1], **mine) != _of([1], keys=None, key="order-18")
    other_type = {"type": "b", "args": [1], "unique": {"key": "order-17"}}
    assert _of([1], **mine) != _fingerprint(other_type)
