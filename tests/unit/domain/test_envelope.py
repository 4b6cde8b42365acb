from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ojs.domain import jsontext, times
from ojs.domain.errors import (
    InvalidRequest,
    MetadataTooLarge,
    NotFound,
    OjsError,
    PayloadTooLarge,
    Unsupported,
    ValidationFailed,
)
from ojs.domain.job import envelope, foreign
from ojs.domain.job.envelope import (
    MAX_JOB_BYTES,
    MAX_META_BYTES,
    SYSTEM_FIELDS,
    JobRequest,
    Options,
    Specification,
)
from ojs.domain.job.retry import BackoffStrategy, OnExhaustion, RetryPolicy
from tests.spread import examples
from tests.unit.domain.arbitrary import NOW_MS, exactly, json_objects, json_values, texts

JOB_ID = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"
FUTURE = "2099-12-31T23:59:59Z"
PAST = "2020-01-01T00:00:00Z"
KNOWN = {name for name in JobRequest.model_fields if name != "schema_"} | {"schema"}


def _request(**given: Any) -> dict[str, Any]:
    return {"type": "email.send", "args": [], **given}


def _resolved(raw: object, *, base: RetryPolicy | None = None) -> Specification:
    request = envelope.parse(raw)
    if base is None:
        return envelope.resolve(request, now_ms=NOW_MS)
    return envelope.resolve(request, now_ms=NOW_MS, base=base)


# --- what is accepted ---------------------------------------------------------------------------


@pytest.mark.requirement("C-2")
def test_a_request_of_type_and_args_alone_takes_all_defaults() -> None:
    assert _resolved({"type": "a", "args": [1]}) == Specification(
        id=None,
        type="a",
        queue="default",
        priority=0,
        pending=False,
        scheduled_ms=None,
        expires_ms=None,
        timeout_ms=None,
        visibility_ms=None,
        policy=RetryPolicy(),
        unique=None,
        content={"args": [1]},
    )


@pytest.mark.requirement("C-1")
def test_the_flat_envelope_of_the_core_specification_is_accepted() -> None:
    found = _resolved(
        {
            "specversion": "1.0.0-rc.1",
            "id": JOB_ID,
            "type": "email.send",
            "queue": "mail",
            "args": ["a"],
            "meta": {"trace_id": "t"},
            "priority": 5,
            "timeout": 30,
            "scheduled_at": FUTURE,
            "expires_at": FUTURE,
            "retry": {"max_attempts": 5},
            "unique": {"keys": ["type", "args"], "period": "PT1H"},
            "schema": "https://example.com/schema.json",
        }
    )
    assert (found.id, found.type, found.queue, found.priority) == (JOB_ID, "email.send", "mail", 5)
    assert found.timeout_ms == 30_000
    assert found.scheduled_ms == found.expires_ms == times.timestamp_ms(FUTURE, now_ms=0)
    assert found.policy == RetryPolicy(max_attempts=5)
    assert found.unique is not None
    assert found.content == {
        "specversion": "1.0.0-rc.1",
        "args": ["a"],
        "meta": {"trace_id": "t"},
        "timeout": 30,
        "timeout_ms": 30_000,
        "scheduled_at": FUTURE,
        "expires_at": FUTURE,
        "retry": {"max_attempts": 5},
        "unique": {"keys": ["type", "args"], "period": "PT1H"},
        "schema": "https://example.com/schema.json",
    }


# Field, value in the flat form, value in `options`, and where it ends up.
CHOICES: list[tuple[str, Any, Any, Callable[[Specification], Any]]] = [
    ("queue", "flat", "chosen", lambda found: found.queue),
    ("priority", 1, -7, lambda found: found.priority),
    ("priority", 1, 0, lambda found: found.priority),
    ("timeout_ms", 1, 2_000, lambda found: found.timeout_ms),
    ("visibility_timeout_ms", 1, 2_000, lambda found: found.visibility_ms),
    ("pending", False, True, lambda found: found.pending),
    ("pending", True, False, lambda found: found.pending),
    ("tags", ["a"], ["b"], lambda found: found.content["tags"]),
    ("tags", ["a"], [], lambda found: found.content["tags"]),
    ("scheduled_at", "+PT1S", FUTURE, lambda found: found.content["scheduled_at"]),
    ("delay_until", "+PT1S", FUTURE, lambda found: found.content["scheduled_at"]),
    ("expires_at", "+PT1S", FUTURE, lambda found: found.content["expires_at"]),
    ("max_attempts", 5, 0, lambda found: found.policy.max_attempts),
    ("retry", {"max_attempts": 5}, {"max_attempts": 7}, lambda found: found.content["retry"]),
    ("unique", {"keys": ["args"]}, {"keys": ["queue"]}, lambda found: found.content["unique"]),
]


@pytest.mark.parametrize(("name", "flat", "chosen", "where"), CHOICES)
def test_options_win_over_the_flat_form(
    name: str, flat: Any, chosen: Any, where: Callable[[Specification], Any]
) -> None:
    assert where(_resolved(_request(**{name: flat}))) == flat or name.endswith(("_at", "_until"))
    assert where(_resolved(_request(**{name: flat}, options={name: chosen}))) == chosen
    assert where(_resolved(_request(options={name: chosen}))) == chosen
    assert where(_resolved(_request(**{name: chosen}, options={name: None}))) == chosen


@pytest.mark.parametrize(
    ("raw", "scheduled_at"),
    [
        ({"delay_until": "+PT1S", "options": {"scheduled_at": FUTURE}}, FUTURE),
        ({"scheduled_at": "+PT1S", "options": {"delay_until": FUTURE}}, FUTURE),
        ({"scheduled_at": "+PT1S", "delay_until": FUTURE}, FUTURE),
        ({"options": {"scheduled_at": "+PT1S", "delay_until": FUTURE}}, FUTURE),
    ],
)
def test_of_two_names_for_the_start_the_one_in_options_wins_and_then_delay_until(
    raw: dict[str, Any], scheduled_at: str
) -> None:
    found = _resolved(_request(**raw))
    assert found.content["scheduled_at"] == scheduled_at
    assert found.scheduled_ms == times.timestamp_ms(scheduled_at, now_ms=NOW_MS)
    assert "delay_until" not in found.content


@pytest.mark.parametrize(
    ("raw", "timeout_ms"),
    [
        ({"timeout": 3}, 3_000),
        ({"timeout": 3, "timeout_ms": 5}, 5),
        ({"timeout_ms": 5, "options": {"timeout": 3}}, 3_000),
        ({"timeout": 3, "options": {"timeout_ms": 5}}, 5),
        ({"options": {"timeout": 3, "timeout_ms": 5}}, 5),
    ],
)
def test_a_timeout_in_options_wins_in_seconds_or_milliseconds(
    raw: dict[str, Any], timeout_ms: int
) -> None:
    found = _resolved(_request(**raw))
    assert found.timeout_ms == found.content["timeout_ms"] == timeout_ms


@pytest.mark.parametrize(
    ("raw", "max_attempts"),
    [
        ({"max_attempts": 5}, 5),
        ({"retry": {"max_attempts": 4}, "max_attempts": 5}, 4),
        ({"retry": {"jitter": False}, "max_attempts": 5}, 5),
        ({"options": {"retry": {"max_attempts": 4}, "max_attempts": 5}}, 4),
        ({"options": {"retry": {"max_attempts": 4}}, "max_attempts": 5}, 4),
        ({"options": {"retry": {"jitter": False}}, "max_attempts": 5}, 5),
        ({"options": {"max_attempts": 5}, "retry": {"max_attempts": 4}}, 5),
        ({"options": {"max_attempts": 5}, "retry": {"jitter": False}}, 5),
    ],
)
def test_the_number_of_attempts_may_stand_in_the_policy_or_beside_it(
    raw: dict[str, Any], max_attempts: int
) -> None:
    assert _resolved(_request(**raw)).policy.max_attempts == max_attempts


@pytest.mark.parametrize(
    "name",
    ["a", "email.send", "dlq.test.list-first", "a_b.c-d.e9", "a-", "a.b_", "a" * 255],
)
def test_a_type_of_lowercase_dotted_segments_is_accepted(name: str) -> None:
    assert _resolved({"type": name, "args": []}).type == name


@pytest.mark.parametrize("name", ["a", "0", "9-lives", "a.b-c", "a..b", "q" * 255])
def test_a_queue_of_lowercase_letters_digits_hyphens_and_dots_is_accepted(name: str) -> None:
    assert _resolved(_request(queue=name)).queue == name


@pytest.mark.parametrize("version", ["1", "1.0", "1.0.0", "1.0.12", "1.0.0-rc.1", "1.0-rc.2"])
def test_a_compatible_specversion_is_accepted(version: str) -> None:
    found = _resolved(_request(specversion=version)).content.get("specversion", "1.0")
    assert found == version


# --- times --------------------------------------------------------------------------------------


@given(st.integers(1, 10**10))
def test_a_relative_start_counts_from_now_and_is_shown_as_an_instant(ms: int) -> None:
    text = f"+PT{ms // 1000}.{ms % 1000:03d}S"
    found = _resolved(_request(options={"scheduled_at": text}, expires_at=text))
    assert found.scheduled_ms == found.expires_ms == NOW_MS + ms
    assert found.content["scheduled_at"] == times.format_ms(NOW_MS + ms)
    assert found.content["expires_at"] == times.format_ms(NOW_MS + ms)


@pytest.mark.parametrize("text", [PAST, times.format_ms(NOW_MS), "+PT0S"])
def test_a_start_that_is_not_in_the_future_is_no_start_but_is_still_shown(text: str) -> None:
    found = _resolved(_request(scheduled_at=text))
    assert found.scheduled_ms is None
    shown = found.content["scheduled_at"]
    assert shown == (text if text == PAST else times.format_ms(NOW_MS))


@pytest.mark.parametrize("text", [FUTURE, "2099-12-31t23:59:59.5+01:00", PAST])
def test_an_absolute_deadline_is_shown_as_it_was_written(text: str) -> None:
    found = _resolved(_request(expires_at=text))
    assert found.content["expires_at"] == text
    assert found.expires_ms == times.timestamp_ms(text, now_ms=NOW_MS)


def test_a_pending_job_may_not_have_a_start_in_the_future_but_may_have_one_in_the_past() -> None:
    assert _resolved(_request(pending=True, scheduled_at=PAST)).pending
    with pytest.raises(InvalidRequest) as caught:
        _resolved(_request(scheduled_at=FUTURE, options={"pending": True}))
    assert caught.value.field == "options.pending"


# --- what is kept and what is ignored -----------------------------------------------------------


unknown_names = texts.filter(lambda name: name not in KNOWN | SYSTEM_FIELDS)


@given(st.dictionaries(unknown_names, json_values, max_size=3))
@example({"version": 2, "x_team": "core", "ext_ai": {"model": None}, "": 0})
@example({"schema_": 1, "choose": 2, "model_config": 3, "__dict__": 4, "model_extra": 5})
def test_unknown_keys_are_kept_at_the_top_level_exactly_as_sent(unknown: dict[str, Any]) -> None:
    found = _resolved(_request(**unknown)).content
    assert exactly({name: found[name] for name in unknown}) == exactly(unknown)
    assert found.keys() == unknown.keys() | {"args"}


@given(texts.filter(lambda name: name not in Options.model_fields), json_values)
def test_an_unknown_option_is_refused_and_named(name: str, value: Any) -> None:
    with pytest.raises(OjsError) as caught:
        _resolved(_request(options={"priority": 1, name: value}))
    assert caught.value.code == "invalid_request"
    assert caught.value.details["reason"].startswith("is not a known field")


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("delay", "delay_until"), ("delay_seconds", "delay_until"), ("countdown", "delay_until"),
        ("retries", "retry"), ("attempts", "retry"), ("backoff", "retry"), ("cron", "/cron"),
        ("depends_on", "/workflows"), ("dedup_id", "unique"), ("kwargs", "args"),
        ("ttl", "expires"),
        ("MessageGroupId", "rate_limit"), ("meta", "outside options"), ("id", "outside options"),
        ("priorty", "Did you mean 'priority'?"), ("zzz", "Known fields: delay_until"),
    ],
)  # fmt: skip
def test_what_other_queues_call_an_option_is_explained(name: str, here: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _resolved(_request(options={name: 5}))
    assert caught.value.field == f"options.{name}"
    assert here in caught.value.reason


def test_a_name_from_elsewhere_is_no_option_here() -> None:
    """Otherwise its explanation could never be read."""
    assert not foreign._IN_OPTIONS.keys() & Options.model_fields.keys()
    known = {field.alias or name for name, field in envelope.JobRequest.model_fields.items()}
    assert not foreign._MISPLACED.keys() & known


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("delay", "Use delay_until"), ("retries", "Use retry"),
        ("cron", "/cron"), ("schedule", "delay_until"), ("kwargs", "args"),
        ("option", "Did you mean 'options'?"), ("priorty", "Did you mean 'priority'?"),
        ("schema_", "Did you mean 'schema'?"),
    ],
)  # fmt: skip
def test_what_looks_like_an_option_at_the_top_level_is_warned_of(name: str, told: str) -> None:
    request = envelope.parse(_request(**{name: 5}))
    assert _resolved(_request(**{name: 5})).content[name] == 5
    (warning,) = envelope.warnings(request, "jobs[3].")
    assert warning.startswith(f"'jobs[3].{name}' is stored as data and has no effect. ")
    assert told in warning


def test_very_many_unknown_names_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was meant is looked for a bounded number of times."""
    looked: list[str] = []

    def nearest(name: str, *_: Any, **__: Any) -> None:
        looked.append(name)

    monkeypatch.setattr("ojs.domain.requests.nearest", nearest)
    monkeypatch.setattr("ojs.domain.job.foreign.nearest", nearest)
    names = dict.fromkeys((f"none{n}" for n in range(5_000)), 1)
    assert len(envelope.warnings(envelope.parse(_request(**names)))) == 100
    assert len(looked) == foreign.MAX_LOOKED_AT
    looked.clear()
    with pytest.raises(InvalidRequest) as caught:
        _resolved(_request(options=names))
    assert len(caught.value.details["errors"]) == len(looked) == 20


def test_data_of_a_client_are_not_warned_of() -> None:
    own = {"x_delay": 1, "ext_retry": 1, "x-priority": 1}
    assert envelope.warnings(envelope.parse(_request(**own, metadata={}))) == []
    assert envelope.warnings(envelope.parse(_request(priority=1, options={"queue": "q"}))) == []


def test_every_other_unknown_field_is_warned_of() -> None:
    for name in ("webhook", "encryption", "workflow", "data", ""):
        (warning,) = envelope.warnings(envelope.parse(_request(**{name: 1})), "jobs[2].")
        assert warning.startswith(f"'jobs[2].{name}' is stored as data and has no effect. ")


def test_the_time_to_live_of_a_result() -> None:
    for seconds in (0, 1, envelope.MAX_RESULT_TTL_S, None):
        for raw in (_request(result_ttl=seconds), _request(options={"result_ttl": seconds})):
            assert _resolved(raw).result_ttl_s == seconds
    with pytest.raises(Unsupported) as unsupported:
        envelope.parse(_request(options={"result_ttl": -1}))
    assert unsupported.value.details["field"] == "options.result_ttl"
    for wrong in ("1h", -2, 10**12, envelope.MAX_RESULT_TTL_S + 1, 1.5, True, [60]):
        with pytest.raises(InvalidRequest) as caught:
            _resolved(_request(result_ttl=wrong))
        assert caught.value.field == "result_ttl"


def test_metadata_in_options_is_kept_there() -> None:
    found = _resolved(_request(options={"metadata": {"a": Decimal("1.0")}, "queue": "q"}))
    assert exactly(found.content["options"]) == exactly({"metadata": {"a": Decimal("1.0")}})


@pytest.mark.requirement("C-3")
@given(st.lists(json_values, max_size=4), json_objects)
def test_args_and_meta_are_kept_exactly_as_sent(args: list[Any], meta: dict[str, Any]) -> None:
    found = _resolved({"type": "a", "args": args, "meta": meta}).content
    assert exactly(found["args"]) == exactly(args)
    assert exactly(found.get("meta", {})) == exactly(meta)


@pytest.mark.requirement("C-4")
@given(st.sampled_from(sorted(SYSTEM_FIELDS)), json_values)
def test_a_field_the_backend_manages_is_ignored_whatever_a_client_puts_there(
    name: str, value: Any
) -> None:
    assert _resolved(_request(**{name: value})) == _resolved(_request())


@pytest.mark.requirement("C-4")
def test_every_system_managed_attribute_of_the_core_specification_is_ignored() -> None:
    assert {
        "state", "attempt", "created_at", "enqueued_at", "started_at", "completed_at", "error",
        "result",
    } <= SYSTEM_FIELDS  # fmt: skip
    assert SYSTEM_FIELDS.isdisjoint(KNOWN)


@pytest.mark.parametrize("name", sorted(KNOWN - {"type", "args"}))
def test_null_is_as_good_as_not_given(name: str) -> None:
    assert _resolved(_request(**{name: None})) == _resolved(_request())


# --- retry --------------------------------------------------------------------------------------

BASE = RetryPolicy(
    max_attempts=9,
    initial_ms=2_000,
    coefficient=3.0,
    max_ms=60_000,
    jitter=False,
    strategy=BackoffStrategy.LINEAR,
    non_retryable=("Old",),
    on_exhaustion=OnExhaustion.DISCARD,
)


@pytest.mark.parametrize(
    ("field", "value", "changed"),
    [
        ("max_attempts", 4, {"max_attempts": 4}),
        ("max_attempts", 0, {"max_attempts": 0}),
        ("initial_interval", "PT5S", {"initial_ms": 5_000}),
        ("initial_interval_ms", 1, {"initial_ms": 1}),
        ("initial_interval", "5s", {"initial_ms": 5_000}),
        ("base_delay_ms", 2, {"initial_ms": 2}),
        ("initial_delay_ms", 3, {"initial_ms": 3}),
        ("backoff", "linear", {"strategy": "linear"}),
        ("strategy", "polynomial", {"strategy": "polynomial"}),
        ("backoff_coefficient", Decimal("1.5"), {"coefficient": 1.5}),
        ("backoff_coefficient", 1, {"coefficient": 1.0}),
        ("max_interval", "PT5M", {"max_ms": 300_000}),
        ("max_interval", "PT2S", {"max_ms": 2_000}),
        ("max_interval_ms", 2_000, {"max_ms": 2_000}),
        ("jitter", True, {"jitter": True}),
        ("backoff_strategy", "exponential", {"strategy": "exponential"}),
        ("backoff_strategy", "none", {"strategy": "constant"}),
        ("backoff_type", "polynomial", {"strategy": "polynomial"}),
        ("non_retryable_errors", ["A", "B.*"], {"non_retryable": ("A", "B.*")}),
        ("non_retryable_errors", [], {"non_retryable": ()}),
        ("on_exhaustion", "dead_letter", {"on_exhaustion": "dead_letter"}),
        ("initial_interval", "PT2M", {"initial_ms": 120_000, "max_ms": 120_000}),
    ],
)
def test_a_retry_policy_is_laid_over_the_queues_field_by_field(
    field: str, value: Any, changed: dict[str, Any]
) -> None:
    found = _resolved(_request(retry={field: value}), base=BASE).policy
    assert found == RetryPolicy(**{**BASE.__dict__, **changed})


def test_the_retry_policies_of_the_specifications_examples() -> None:
    """ojs-workflows, section 14, and ojs-errors, section 10."""
    raw = {"max_attempts": 3, "backoff": "exponential", "base_delay_ms": 1_000}
    found = _resolved(_request(options={"retry": raw}))
    assert (found.policy.max_attempts, found.policy.initial_ms) == (3, 1_000)
    assert found.policy.strategy == "exponential"
    # It is shown as it was sent.
    assert found.content["retry"] == raw


@pytest.mark.parametrize(
    ("retry", "field"),
    [
        ({"initial_interval": "PT1S", "base_delay_ms": 999}, "initial_interval"),
        ({"initial_interval_ms": 1, "initial_delay_ms": 2}, "initial_interval_ms"),
        ({"base_delay_ms": 1, "initial_delay_ms": 2}, "base_delay_ms"),
        ({"max_interval": "PT1S", "max_interval_ms": 999}, "max_interval"),
        ({"backoff_strategy": "linear", "backoff": "constant"}, "backoff_strategy"),
        ({"backoff_type": "linear", "strategy": "constant"}, "backoff_type"),
    ],
)
def test_names_of_one_retry_setting_must_agree(retry: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        _resolved(_request(options={"retry": retry}))
    assert caught.value.field == f"options.retry.{field}"
    assert "both set the same value" in caught.value.reason
    same = dict.fromkeys(retry, "linear" if "linear" in retry.values() else 1_000)
    same |= {name: "PT1S" for name in same if name.endswith("_interval")}
    _resolved(_request(options={"retry": same}))


def test_without_a_retry_policy_the_queues_holds() -> None:
    assert _resolved(_request(), base=BASE).policy == BASE
    assert _resolved(_request(retry={}), base=BASE).policy == BASE


# --- unique -------------------------------------------------------------------------------------


def test_a_unique_policy_has_the_defaults_of_the_specification() -> None:
    unique = _resolved(_request(unique={})).unique
    assert unique is not None
    assert unique.keys == {"type"}
    assert unique.states == {"available", "active", "scheduled", "retryable", "pending"}
    assert unique.on_conflict == "reject"
    assert (unique.period_ms, unique.args_keys, unique.meta_keys) == (None, None, None)


@pytest.mark.parametrize(
    ("within", "period_ms"),
    [("1h", 3_600_000), ("1h30m5s", 5_405_000), ("2d", 172_800_000), ("5ms", 5), ("PT2S", 2_000)],
)
def test_a_text_as_key_and_a_short_duration_make_a_unique_policy(
    within: str, period_ms: int
) -> None:
    unique = _resolved(_request(unique={"key": "order-17", "within": within})).unique
    assert unique is not None
    assert unique.keys == {"type"}
    assert (unique.custom, unique.period_ms) == ("order-17", period_ms)


@pytest.mark.parametrize("name", ["keys", "key"])
def test_the_type_is_always_part_of_what_makes_a_job_unique(name: str) -> None:
    unique = _resolved(_request(unique={name: ["args", "queue"], "period": "PT2S"})).unique
    assert unique is not None
    assert unique.keys == {"type", "args", "queue"}
    assert unique.period_ms == 2_000


# --- what is refused ----------------------------------------------------------------------------

# The request, and the path of the field that is named. All of these are 400 `invalid_request`.
MALFORMED: list[tuple[Any, str]] = [
    ({"type": "a\n", "args": []}, "type"),
    (_request(scheduled_at="2026-02-30T00:00:00Z"), "scheduled_at"),
]

# The same for rules of the retry and uniqueness policies: 422 `validation_error`.
AGAINST_A_RULE: list[tuple[dict[str, Any], str]] = [
    ({"max_attempts": -1}, "max_attempts"),
    ({"max_attempts": "3"}, "max_attempts"),
    ({"options": {"max_attempts": -1}}, "options.max_attempts"),
    ({"retry": {"max_attempts": -1}}, "retry.max_attempts"),
    ({"retry": {"max_attempts": Decimal("1.5")}}, "retry.max_attempts"),
    ({"retry": {"max_attempts": 10_001}}, "retry.max_attempts"),
    ({"options": {"retry": {"max_attempts": -1}}}, "options.retry.max_attempts"),
    ({"retry": {"backoff_coefficient": Decimal("0.99")}}, "retry.backoff_coefficient"),
    ({"retry": {"backoff_coefficient": 0}}, "retry.backoff_coefficient"),
    ({"retry": {"backoff_coefficient": True}}, "retry.backoff_coefficient"),
    ({"retry": {"backoff_coefficient": "2"}}, "retry.backoff_coefficient"),
    ({"retry": {"initial_interval": "PT0S"}}, "retry.initial_interval"),
    ({"retry": {"initial_interval": "1 s"}}, "retry.initial_interval"),
    ({"retry": {"initial_interval": "-PT1S"}}, "retry.initial_interval"),
    ({"retry": {"initial_interval": 1}}, "retry.initial_interval"),
    ({"retry": {"initial_interval_ms": 0}}, "retry.initial_interval_ms"),
    ({"retry": {"max_interval": "x"}}, "retry.max_interval"),
    ({"retry": {"max_interval": "PT0.5S"}}, "retry.max_interval"),
    ({"retry": {"max_interval_ms": 999}}, "retry.max_interval"),
    (
        {"options": {"retry": {"initial_interval": "PT10S", "max_interval": "PT9S"}}},
        "options.retry.max_interval",
    ),
    ({"retry": {"jitter": "yes"}}, "retry.jitter"),
    ({"retry": {"backoff_strategy": "random"}}, "retry.backoff_strategy"),
    ({"retry": {"non_retryable_errors": "A"}}, "retry.non_retryable_errors"),
    ({"retry": {"non_retryable_errors": [""]}}, "retry.non_retryable_errors[0]"),
    ({"retry": {"on_exhaustion": "keep"}}, "retry.on_exhaustion"),
    ({"retry": {"attempts": 3}}, "retry.attempts"),
    ({"retry": []}, "retry"),
    ({"unique": "yes"}, "unique"),
    ({"unique": {"keys": []}}, "unique.keys"),
    ({"unique": {"keys": ["argz"]}}, "unique.keys[0]"),
    ({"unique": {"keys": ["type", "Args"]}}, "unique.keys[1]"),
    ({"unique": {"key": []}}, "unique.key"),
    ({"unique": {"key": 5}}, "unique.key"),
    ({"unique": {"key": ""}}, "unique.key"),
    ({"unique": {"key": ["argz"]}}, "unique.key[0]"),
    ({"unique": {"keys": ["meta"]}}, "unique.meta_keys"),
    ({"unique": {"keys": ["meta"], "meta_keys": []}}, "unique.meta_keys"),
    ({"unique": {"keys": ["args"], "args_keys": [""]}}, "unique.args_keys[0]"),
    ({"unique": {"period": "1 h"}}, "unique.period"),
    ({"unique": {"period": "PT0S"}}, "unique.period"),
    ({"options": {"unique": {"period": "P1M"}}}, "options.unique.period"),
    ({"unique": {"states": ["done"]}}, "unique.states[0]"),
    ({"unique": {"on_conflict": "merge"}}, "unique.on_conflict"),
    ({"unique": {"within": "1 hour"}}, "unique.within"),
    ({"unique": {"within": "0s"}}, "unique.within"),
    ({"retry": {"non_retryable_errors": ["x" * 250] * 9}}, "retry.non_retryable_errors"),
]


@pytest.mark.parametrize(("raw", "field"), MALFORMED)
def test_a_malformed_request_is_invalid_and_the_field_is_named(raw: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        _resolved(raw)
    assert caught.value.code == "invalid_request"
    assert caught.value.field == caught.value.details["field"] == field
    assert field in caught.value.message


@pytest.mark.parametrize(("given", "field"), AGAINST_A_RULE)
def test_a_broken_rule_of_a_policy_fails_validation_and_the_field_is_named(
    given: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValidationFailed) as caught:
        _resolved(_request(**given))
    assert caught.value.code == "validation_error"
    assert caught.value.field == caught.value.details["field"] == field
    assert field in caught.value.message


# The furthest value that is accepted, and the next one.
LIMITS: list[tuple[Callable[[Any], dict[str, Any]], Any, Any]] = [
    (lambda value: {"priority": value}, 100, 101),
    (lambda value: {"priority": value}, -100, -101),
    (lambda value: {"timeout": value}, 1, 0),
    (lambda value: {"timeout": value}, 31_536_000, 31_536_001),
    (lambda value: {"timeout_ms": value}, 1, 0),
    (lambda value: {"timeout_ms": value}, 31_536_000_000, 31_536_000_001),
    (lambda value: {"visibility_timeout_ms": value}, 1, 0),
    (lambda value: {"visibility_timeout_ms": value}, 43_200_000, 43_200_001),
    (lambda value: {"max_attempts": value}, 0, -1),
    (lambda value: {"max_attempts": value}, 10_000, 10_001),
    (lambda value: {"tags": value}, ["x"] * 100, ["x"] * 101),
    (lambda value: {"tags": [value]}, "x" * 255, "x" * 256),
    (lambda value: {"schema": "urn:" + value}, "x" * 2_044, "x" * 2_045),
    (lambda value: {"retry": {"backoff_coefficient": value}}, 1, Decimal("0.999")),
    (lambda value: {"retry": {"backoff_coefficient": value}}, 1_000, 1_001),
    (lambda value: {"retry": {"initial_interval": value}}, "PT0.001S", "PT0.0009S"),
    (lambda value: {"retry": {"initial_interval": value}}, "P36600D", "P36600DT1S"),
    (lambda value: {"retry": {"max_interval": value}}, "PT1S", "PT0.999S"),
    (lambda value: {"retry": {"max_interval_ms": value}}, 1_000, 999),
    (lambda value: {"retry": {"non_retryable_errors": value}}, ["x"] * 100, ["x"] * 101),
    (lambda value: {"retry": {"non_retryable_errors": [value]}}, "x" * 255, "x" * 256),
    (lambda value: {"unique": {"args_keys": value}}, ["x"] * 50, ["x"] * 51),
    (lambda value: {"unique": {"args_keys": [value]}}, "x" * 255, "x" * 256),
    (lambda value: {"unique": {"period": value}}, "PT0.001S", "PT0.0009S"),
    (lambda value: {"unique": {"states": value}}, ["active"] * 8, ["active"] * 9),
]


@pytest.mark.parametrize(("build", "furthest", "beyond"), LIMITS)
def test_a_limit_is_itself_accepted_and_the_next_value_is_not(
    build: Callable[[Any], dict[str, Any]], furthest: Any, beyond: Any
) -> None:
    _resolved(_request(**build(furthest)))
    with pytest.raises(InvalidRequest):
        _resolved(_request(**build(beyond)))


def test_a_field_that_a_policy_does_not_have_is_refused_as_unknown() -> None:
    with pytest.raises(ValidationFailed, match="is not a known field"):
        envelope.parse(_request(retry={"attempts": 3}))


@pytest.mark.parametrize("missing", ["type", "args"])
def test_a_missing_type_or_args_comes_before_any_broken_rule(missing: str) -> None:
    raw = _request(retry={"max_attempts": -1}, unique={"keys": []}, max_attempts=-1)
    del raw[missing]
    with pytest.raises(InvalidRequest) as caught:
        envelope.parse(raw)
    assert caught.value.code == "invalid_request"
    assert caught.value.field == missing


def test_all_findings_are_listed_and_the_first_is_named() -> None:
    with pytest.raises(InvalidRequest) as caught:
        envelope.parse({"args": {}, "priority": 500, "retry": {"max_attempts": -1}})
    listed = [entry["field"] for entry in caught.value.details["errors"]]
    assert sorted(listed) == ["args", "priority", "retry.max_attempts", "type"]
    assert caught.value.field == listed[0]
    assert listed[-1] == "retry.max_attempts"
    reasons = {entry["field"]: entry["reason"] for entry in caught.value.details["errors"]}
    assert reasons["type"] == "is required"


def test_the_value_at_fault_is_quoted_shortened() -> None:
    with pytest.raises(InvalidRequest) as caught:
        envelope.parse(_request(queue="X" * 5_000))
    assert caught.value.details["value"] == "X" * 100 + "…"


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"args": []}, "jobs[3].type"),
        ([], "jobs[3]"),
        (_request(retry={"max_attempts": -1}), "jobs[3].retry.max_attempts"),
        (_request(expires_at="x"), "jobs[3].expires_at"),
        (_request(specversion="9"), "jobs[3].specversion"),
        (_request(retry={"max_interval": "x"}), "jobs[3].retry.max_interval"),
        (_request(unique={"period": "x"}), "jobs[3].unique.period"),
        (_request(pending=True, scheduled_at=FUTURE), "jobs[3].pending"),
        (_request(rate_limit={}), "jobs[3].rate_limit"),
        (_request(meta={"a": "x" * MAX_META_BYTES}), "jobs[3].meta"),
        ({"type": "a", "args": ["x" * MAX_JOB_BYTES]}, "jobs[3].args"),
    ],
)
def test_in_a_batch_the_path_begins_with_the_place_in_the_array(raw: Any, field: str) -> None:
    with pytest.raises(OjsError) as caught:
        envelope.resolve(envelope.parse(raw, "jobs[3]."), now_ms=NOW_MS, prefix="jobs[3].")
    assert caught.value.details["field"] == field


any_request = st.builds(
    lambda flat, options, rest: {"type": "a", "args": []} | flat | {"options": options} | rest,
    flat=st.dictionaries(st.sampled_from(sorted(KNOWN)), json_values, max_size=2),
    options=st.dictionaries(st.sampled_from(sorted(Options.model_fields)), json_values, max_size=2),
    rest=st.dictionaries(
        st.sampled_from(("retry", "unique", "type", "args", "options")), json_values, max_size=1
    ),
)


@settings(max_examples=examples(200))
@given(any_request)
def test_whatever_the_fields_hold_the_request_is_understood_or_refused_as_such(
    raw: dict[str, Any],
) -> None:
    refusal = None
    try:
        answer = _resolved(raw).content
    except OjsError as error:
        refusal, answer = error.code, error.details
    assert refusal in {None, "invalid_request", "validation_error", "unsupported"}
    # The answer itself can be sent.
    json.loads(jsontext.dumps(answer))


# --- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("character", ["x", "\u00e9", "\U0001f600"])
def test_meta_may_have_64_kib_of_utf8_and_no_more(character: str) -> None:
    room = MAX_META_BYTES - len('{"a":"","b":""}')
    wide, rest = divmod(room, len(character.encode()))
    meta = {"a": character * wide, "b": "x" * rest}
    assert jsontext.size_of(meta) == MAX_META_BYTES == 65_536
    assert _resolved(_request(meta=meta)).content["meta"] == meta
    with pytest.raises(MetadataTooLarge) as caught:
        _resolved(_request(meta=meta | {"b": meta["b"] + "x"}))
    assert caught.value.code == "metadata_too_large"
    assert caught.value.details == {"field": "meta", "size": 65_537, "limit": 65_536}


def test_a_job_may_have_one_mib_and_no_more() -> None:
    args = ["x" * (MAX_JOB_BYTES - len('{"args":[""]}'))]
    assert _resolved(_request(args=args)).content["args"] == args
    with pytest.raises(PayloadTooLarge) as caught:
        _resolved(_request(args=[args[0] + "x"]))
    assert caught.value.code == "payload_too_large"
    assert caught.value.details == {"field": "args", "size": 1_048_577, "limit": 1_048_576}


def test_a_job_that_is_too_large_for_its_unknown_keys_is_refused_as_a_whole() -> None:
    with pytest.raises(PayloadTooLarge) as caught:
        _resolved(_request(x_blob="x" * MAX_JOB_BYTES))
    assert caught.value.details["field"] == "body"


# --- names that handlers check ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (envelope.check_type, "a.b", "A"),
        (envelope.check_queue, "a.b", "a_b"),
        (envelope.check_job_id, JOB_ID, JOB_ID.upper()),
    ],
)
def test_a_name_is_given_back_or_refused_with_the_rule(
    check: Callable[[str], str], good: str, bad: str
) -> None:
    assert check(good) == good
    with pytest.raises(ValueError, match=r"^must "):
        check(bad)


@given(st.text(max_size=8) | st.from_regex(envelope.QUEUE_PATTERN, fullmatch=True))
def test_no_accepted_queue_name_holds_the_separator_of_keys(name: str) -> None:
    try:
        envelope.check_queue(name)
    except ValueError:
        return
    assert "|" not in name
    assert name.isascii()


def test_an_error_of_a_batch_says_which_job_it_is_about() -> None:
    error = NotFound("job", "x")
    assert envelope.at_index(error, 7) is error
    assert error.details["index"] == 7
