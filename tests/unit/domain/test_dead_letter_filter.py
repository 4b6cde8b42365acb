"""Which dead letters a filter means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain import jsontext
from ojs.domain.errors import InvalidRequest
from ojs.domain.filters import dead_letters as dead_letter_filter
from ojs.domain.filters.conditions import ArgsMatch
from ojs.domain.filters.dead_letters import EVERYTHING, FIELDS, DeadLetterFilter, parse, parse_bulk
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.requests import FILLED

NOW_MS = 1_800_000_000_000
NOW = "2027-01-15T08:00:00.000Z"
ARGS = [
    {
        "customer_id": "cust_123",
        "amount": 99.5,
        "tries": 1,
        "paid": True,
        "note": None,
        "lines": [{"sku": "a-1", "n": 2}, {"sku": "b'2", "n": 0}],
        "odd key": {"$": "x=y"},
    },
    "cust_9",
]


def letter(**more: Any) -> Job:
    made = Job(
        id="019539a4-0000-7000-8000-000000000001",
        type="invoice.generate",
        queue="billing",
        state=State.DISCARDED,
        created_ms=NOW_MS - 10_000,
        discarded_ms=NOW_MS - 5_000,
        dead_letter=True,
        error_type="DatabaseConnectionError",
        content={"args": jsontext.loads(jsontext.dumps(ARGS)), "meta": {}},
    )
    return replace(made, **more)


def matches(wanted: DeadLetterFilter, job: Job) -> bool:
    return wanted.matches_record(job) and wanted.matches_content(job)


def asked(**fields: Any) -> DeadLetterFilter:
    return parse(fields, now_ms=NOW_MS)


def test_an_empty_filter_means_everything() -> None:
    assert parse({}, now_ms=NOW_MS) == EVERYTHING
    assert EVERYTHING.everything
    assert matches(EVERYTHING, letter())
    # A job that lives is none of them.
    assert not matches(EVERYTHING, letter(dead_letter=False))


@pytest.mark.requirement("DL-21")
@pytest.mark.parametrize(
    ("fields", "meant"),
    [
        ({"queue": "billing"}, True),
        ({"queue": "email"}, False),
        ({"type": "invoice.generate"}, True),
        ({"type": "invoice"}, False),
        ({"error_type": "DatabaseConnectionError"}, True),
        ({"error_type": "Database"}, False),
        ({"since": "2027-01-15T07:59:55Z"}, True),
        ({"since": "2027-01-15T07:59:55.001Z"}, False),
        ({"until": "2027-01-15T07:59:55Z"}, False),
        ({"until": "2027-01-15T07:59:55.001Z"}, True),
        ({"before": "2027-01-15T07:59:55Z"}, False),
        ({"before": "2027-01-15T09:59:55.001+02:00"}, True),
        ({"older_than": "PT5S"}, False),
        ({"older_than": "PT4S"}, True),
        ({"older_than": "4s"}, True),
        ({"older_than": "1d"}, False),
        ({"older_than": "2027-01-15T07:59:56Z"}, True),
        ({"until": NOW, "before": NOW, "older_than": "PT6S"}, False),
        ({"args": "cust_123"}, True),
        ({"args": "cust_124"}, False),
        ({"queue": "billing", "type": "invoice.generate", "args": "cust_9"}, True),
        ({"queue": "billing", "type": "other.type", "args": "cust_9"}, False),
    ],
)
def test_all_that_is_named_must_hold(fields: dict[str, str], meant: bool) -> None:
    assert matches(asked(**fields), letter()) is meant


def test_a_dead_letter_without_an_error_type_is_unknown() -> None:
    assert asked(error_type="Unknown").matches_record(letter(error_type=None))
    assert not asked(error_type="Unknown").matches_record(letter())


def test_an_error_type_is_cut_as_the_record_has_it() -> None:
    long = "ü" * 200
    assert asked(error_type=long).values["error_type"] == "ü" * 127


@pytest.mark.requirement("DL-22")
@pytest.mark.parametrize(
    "path",
    [
        "$",
        "$[0]",
        "$[-1]",
        "$[0].customer_id",
        "$[0]['customer_id']",
        '$[0]["odd key"].*',
        "$[0]['odd key']['$']=x=y",
        "$[*].customer_id",
        "$.*",
        "$[0].note",
        "$[0].note=null",
        "$[0].customer_id=cust_123",
        '$[0].customer_id="cust_123"',
        "$[0].amount=99.5",
        "$[0].amount=9.95e1",
        "$[0].tries=1.0",
        "$[0].paid=true",
        "$[0].lines[1].n=0",
        "$[0].lines[*].sku=a-1",
        "$[0].lines[*].sku=b'2",
        '$[0].lines[0]={"n": 2, "sku": "a-1"}',
        "$[-1]=cust_9",
    ],
)
def test_a_path_that_leads_somewhere(path: str) -> None:
    assert matches(asked(args=path), letter())


@pytest.mark.requirement("DL-22")
@pytest.mark.parametrize(
    "path",
    [
        "$[2]",
        "$[-3]",
        "$.customer_id",
        "$[0].lines[2]",
        "$[0].lines.sku",
        "$[0][0]",
        "$[1][0]",
        "$[0].note=",
        "$[0].paid=1",
        "$[0].tries=true",
        '$[0].tries="1"',
        "$[0].customer_id=cust_12",
        "$[0].customer_id='cust_123'",
        '$[0].lines[0]={"n": 2}',
    ],
)
def test_a_path_that_leads_nowhere(path: str) -> None:
    assert not matches(asked(args=path), letter())


def test_a_text_matches_as_compact_json() -> None:
    assert matches(asked(args='"amount":99.5'), letter())
    assert not matches(asked(args='"amount": 99.5'), letter())
    assert matches(asked(args="ü"), letter(content={"args": ["ü"]}))


def test_a_content_that_is_gone_matches_no_args() -> None:
    assert not matches(asked(args="x"), letter(content=None))
    assert matches(asked(queue="billing"), letter(content=None))
    assert not matches(asked(args="x"), letter(content={}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queue", "Not A Queue"),
        ("queue", 7),
        ("type", "Not.A.Type"),
        ("error_type", ""),
        ("error_type", "x" * 256),
        ("error_type", ["x"]),
        ("since", "yesterday"),
        ("since", "+PT1H"),
        ("since", 1_800_000_000),
        ("since", "2099-01-01T00:00:00Z"),
        ("until", "2027-01-15"),
        ("before", ""),
        ("older_than", ""),
        ("older_than", "30 days"),
        ("older_than", "+P1D"),
        ("older_than", "-P1D"),
        ("older_than", 30),
        ("args", ""),
        ("args", "x" * 1_001),
        ("args", {"a": 1}),
        ("args", "$."),
        ("args", "$x"),
        ("args", "$ [0]"),
        ("args", "$[0"),
        ("args", "$[00]"),
        ("args", "$[-0]"),
        ("args", "$[1:2]"),
        ("args", "$[0,1]"),
        ("args", "$..name"),
        ("args", "$[?(@.a)]"),
        ("args", "$['a"),
        ("args", "$['\\x']"),
        ("args", "$[0].a-b"),
        ("args", "$" + "[0]" * 101),
        ("state", "discarded"),
        ("x" * 3, 1),
    ],
)
def test_what_is_no_filter_names_its_field(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse({field: value}, now_ms=NOW_MS)
    assert refused.value.field == f"filter.{field}"
    with pytest.raises(InvalidRequest) as refused:
        parse({field: value}, now_ms=NOW_MS, prefix="")
    assert refused.value.field == field


@pytest.mark.parametrize("raw", [None, [], "billing", 1])
def test_a_filter_is_an_object(raw: object) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse(raw, now_ms=NOW_MS)
    assert refused.value.field == "filter"


@pytest.mark.parametrize("end", ["until", "before", "older_than"])
def test_a_span_that_ends_before_it_begins_is_refused(end: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        asked(since=NOW, **{end: NOW})
    assert refused.value.field == "filter.since"
    assert end in refused.value.reason


def test_a_moment_that_is_refused_names_no_form_that_is_refused_too() -> None:
    with pytest.raises(InvalidRequest) as refused:
        asked(since="yesterday")
    assert refused.value.reason == "must be an RFC 3339 timestamp with a time zone"


@pytest.mark.parametrize("empty", [None, ""])
@pytest.mark.parametrize("field", FIELDS)
def test_an_empty_field_is_refused_whatever_stands_beside_it(field: str, empty: object) -> None:
    for beside in ({}, {"queue": "billing"}, {"type": "a.b"}):
        with pytest.raises(InvalidRequest) as refused:
            parse({**beside, field: empty}, now_ms=NOW_MS)
        assert (refused.value.field, refused.value.reason) == (f"filter.{field}", FILLED)


def test_a_bulk_operation_is_for_what_one_filter_means() -> None:
    for prefix in ("filter.", ""):
        found = parse_bulk({prefix: {"queue": "billing"}}, None, now_ms=NOW_MS)
        assert found == DeadLetterFilter(queue="billing")


def test_a_bulk_operation_is_for_everything_by_that_word_alone() -> None:
    assert parse_bulk({}, True, now_ms=NOW_MS) == EVERYTHING


@pytest.mark.parametrize(
    ("given", "every", "field"),
    [
        ({}, None, "filter"),
        ({"filter.": {}}, None, "filter"),
        ({"": {}}, None, "filter"),
        ({"filter.": {"queue": ""}}, None, "filter.queue"),
        ({"filter.": {"queue": None}}, None, "filter.queue"),
        ({"": {"args": ""}}, None, "args"),
        ({"filter.": {"queue": "a"}, "": {"type": "b"}}, None, "filter"),
        ({"filter.": {"queue": "a"}}, True, "all"),
        ({"filter.": {}}, True, "all"),
        ({}, False, "all"),
        ({}, "", "all"),
        ({}, "true", "all"),
        ({}, "true,true", "all"),
        ({}, 1, "all"),
        ({}, [], "all"),
    ],
)
def test_a_bulk_operation_that_does_not_say_what_it_is_for(
    given: dict[str, dict[str, object]], every: object, field: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_bulk(given, every, now_ms=NOW_MS)
    assert refused.value.field == field


def test_parameters_of_a_listing() -> None:
    query = {"queue": "billing", "type": "", "limit": "5", "args": "$[0]=1"}
    found = dead_letter_filter.from_query(query, now_ms=NOW_MS)
    assert found == DeadLetterFilter(queue="billing", args=ArgsMatch.of("$[0]=1"))
    assert not found.everything


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"queue": "billing", "type": "a.b", "error_type": "E", "args": "$[0]=1"},
        {"since": "2026-01-01T00:00:00Z", "older_than": "P30D"},
    ],
)
def test_a_filter_can_be_kept(fields: dict[str, str]) -> None:
    found = asked(**fields)
    assert parse(found.to_dict(), now_ms=NOW_MS + 10**9) == found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab'\"\\$=.[]", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab'\"\\.[]", max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(args=st.lists(JSON, max_size=3), data=st.data())
def test_every_place_can_be_named_and_found(args: list[Any], data: st.DataObject) -> None:
    value: Any = args
    path = "$"
    while isinstance(value, list | dict) and value and data.draw(st.booleans()):
        if isinstance(value, list):
            at = data.draw(st.integers(0, len(value) - 1))
            path, value = f"{path}[{at}]", value[at]
        else:
            name = data.draw(st.sampled_from(sorted(value)))
            path, value = f"{path}[{jsontext.dumps(name)}]", value[name]
    assert ArgsMatch.of(path).matches(args)
    assert ArgsMatch.of(f"{path}={jsontext.dumps(value)}").matches(args)


@given(st.text("$.[]*'\"=ab019\\-", max_size=20))
def test_no_text_breaks_it(text: str) -> None:
    try:
        found = ArgsMatch.of(f"${text}")
    except ValueError:
        return
    assert found.matches(ARGS) in (True, False)
