from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain import times
from ojs.domain.errors import InvalidRequest, OjsError
from ojs.domain.job import retry
from ojs.domain.job.copies import CopyTarget, Origin
from ojs.domain.job.retention import DEAD_LETTERS, DeadLetterRetention, PruningPolicy, Retention
from ojs.domain.queue import config as queue_config
from ojs.domain.queue.config import Layers, QueueConfig

# One value for each field that an operator may set, and what is in force then.
FIELDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "max_size": (100, {"max_size": 100}),
    "max_size_bytes": (4_096, {"max_size_bytes": 4_096}),
    "overflow_policy": ("block", {"overflow_policy": "block"}),
    "warning_threshold": (0.5, {"warning_threshold": 0.5}),
    "concurrency": (7, {"concurrency": 7}),
    "rate_limit": (
        {"limit": 10, "period": "PT1M"},
        {"rate_limit": 10, "rate_period_ms": 60_000},
    ),
    "visibility_timeout": (300, {"visibility_ms": 300_000}),
    "default_timeout": (60, {"timeout_ms": 60_000}),
    "dead_letter_queue": ("dlq", {"dead_letter_queue": "dlq"}),
    "dead_letter_max_size": (50, {"dead_letter_max_size": 50}),
    "dead_letter_ttl": (
        "P2D",
        {
            "dead_letter_ttl_ms": 172_800_000,
            "dead_letter": DeadLetterRetention(max_age_ms=172_800_000),
        },
    ),
    "dead_letter": (
        {"retention": {"max_age": "P365D", "max_count": 50_000}, "pruning_policy": "archive"},
        {"dead_letter": DeadLetterRetention(365 * 86_400_000, 50_000, PruningPolicy.ARCHIVE)},
    ),
    "allowed_job_types": (["a.*"], {"allowed_job_types": ("a.*",)}),
    "producers": (["web"], {"producers": ("web",)}),
    "lanes": (4, {"lanes": 4}),
}


def _in_force(own: dict[str, Any], inherited: dict[str, Any] | None = None) -> QueueConfig:
    layer = queue_config.merge({}, queue_config.parse(own))
    below = queue_config.merge({}, queue_config.parse(inherited or {}))
    return Layers(layer, below).in_force()


@pytest.mark.requirement("QC-4")
def test_without_configuration_the_system_s_defaults_hold() -> None:
    config = _in_force({})
    assert config == QueueConfig()
    assert not config.bounded
    assert config.retry == retry.DEFAULT
    assert config.allows_type("anything.at-all")
    assert config.allows_producer(None)


@pytest.mark.parametrize("name", FIELDS)
def test_each_field_set_is_in_force_and_no_other_changes(name: str) -> None:
    value, expected = FIELDS[name]
    config = _in_force({name: value})
    changed = {
        field: getattr(config, field)
        for field in vars(QueueConfig())
        if getattr(config, field) != getattr(QueueConfig(), field)
    }
    assert changed == expected


@pytest.mark.requirement("QC-38")
@pytest.mark.parametrize("name", FIELDS)
def test_the_queue_s_own_field_wins_over_the_inherited_one_field_by_field(name: str) -> None:
    value, expected = FIELDS[name]
    other = "max_size" if name != "max_size" else "lanes"
    config = _in_force({name: value}, {other: 3})
    assert all(getattr(config, field) == found for field, found in expected.items())
    assert getattr(config, other) == 3
    assert getattr(_in_force({}, {name: value}), next(iter(expected))) == next(
        iter(expected.values())
    )


def test_nested_objects_are_merged_not_replaced() -> None:
    layer = queue_config.merge({}, queue_config.parse({"retention": {"completed": "P3D"}}))
    layer = queue_config.merge(layer, queue_config.parse({"retention": {"cancelled": "P1D"}}))
    assert layer == {"retention": {"completed": "P3D", "cancelled": "P1D"}}
    layer = queue_config.merge(layer, queue_config.parse({"retention": {"completed": None}}))
    assert layer == {"retention": {"cancelled": "P1D"}}
    layer = queue_config.merge(layer, queue_config.parse({"default_retry": {"max_attempts": 9}}))
    below = {"default_retry": {"jitter": False}}
    config = Layers(layer, below).in_force()
    assert (config.retry.max_attempts, config.retry.jitter) == (9, False)
    assert config.retention.cancelled_s == 86_400
    assert config.retention.completed_s == 7 * 86_400


@pytest.mark.requirement("BP-h")
@pytest.mark.parametrize(
    ("raw", "layer"),
    [
        ({"max_depth": 5}, {"max_size": 5}),
        ({"strategy": "block"}, {"overflow_policy": "block"}),
        ({"backpressure": {"max_depth": 5}}, {"max_size": 5}),
        (
            {"backpressure": {"strategy": "drop_oldest", "warning_threshold": 0.9}},
            {"overflow_policy": "drop_oldest", "warning_threshold": 0.9},
        ),
        ({"max_size": 5, "backpressure": {"max_depth": 5}}, {"max_size": 5}),
        ({"backpressure": {"warning_threshold": Decimal("0.25")}}, {"warning_threshold": 0.25}),
    ],
)
def test_both_bodies_set_one_stored_bound(raw: dict[str, Any], layer: dict[str, Any]) -> None:
    """Conflict 8 of the register."""
    assert queue_config.merge({}, queue_config.parse(raw)) == layer


@pytest.mark.requirement("BP-i")
@pytest.mark.parametrize("name", ["max_size", "max_size_bytes", "max_depth"])
def test_a_bound_of_zero_is_no_bound_whatever_is_inherited(name: str) -> None:
    config = _in_force({name: 0}, {"max_size": 5, "max_size_bytes": 5})
    assert getattr(config, "max_size" if name == "max_depth" else name) is None


@pytest.mark.parametrize("name", FIELDS)
def test_null_takes_a_field_back_to_the_layer_below(name: str) -> None:
    value, expected = FIELDS[name]
    layer = queue_config.merge({}, queue_config.parse({name: value}))
    layer = queue_config.merge(layer, queue_config.parse({name: None}))
    assert layer == {}
    assert Layers(layer, {name: value}).in_force() == _in_force({name: value})
    assert expected


BAD: list[tuple[dict[str, Any], str]] = [
    ({"rate_limit": {"limit": 1, "period": "PT0S"}}, "rate_limit.period"),
    (
        {"default_retry": {"initial_interval": "PT9S", "max_interval": "PT1S"}},
        "default_retry.max_interval",
    ),
    ({"retention": {"discarded": "PT0S"}}, "retention.discarded"),
    ({"producers": ["a\ud800"]}, "producers[0]"),
    ({"dead_letter_ttl": "PT0S"}, "dead_letter_ttl"),
    ({"dead_letter": {"retention": {"max_age": "PT0S"}}}, "dead_letter.retention.max_age"),
    ({"dead_letter": {"retention": {"max_count": 1.0}}}, "dead_letter.retention.max_count"),
]


@pytest.mark.parametrize(("raw", "field"), BAD)
def test_a_bad_value_is_refused_and_its_field_named(raw: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        queue_config.parse(raw)
    assert refused.value.code == "invalid_request"
    assert refused.value.field == field


@pytest.mark.parametrize("raw", [None, [], "x", 5])
def test_a_configuration_that_is_no_object_is_refused(raw: object) -> None:
    with pytest.raises(InvalidRequest):
        queue_config.parse(raw)


@pytest.mark.requirement("BP-e", "BP-f")
def test_drop_oldest_is_chosen_for_each_queue_never_for_all() -> None:
    assert QueueConfig().overflow_policy == "reject"
    assert queue_config.parse({"overflow_policy": "drop_oldest"})
    with pytest.raises(InvalidRequest) as refused:
        queue_config.parse({"overflow_policy": "drop_oldest"}, policy=True)
    assert refused.value.field == "overflow_policy"
    for raw, field in (
        ({"strategy": "drop_oldest"}, "strategy"),
        ({"backpressure": {"strategy": "drop_oldest"}}, "backpressure.strategy"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            queue_config.parse(raw, policy=True)
        assert refused.value.field == field


def test_a_retry_policy_is_kept_under_one_name_for_each_field() -> None:
    def policy(layer: dict[str, Any], **given: Any) -> dict[str, Any]:
        return queue_config.merge(layer, queue_config.parse({"default_retry": given}))

    layer = policy({}, initial_interval="PT5S", backoff_strategy="linear")
    layer = policy(layer, initial_interval_ms=250, max_interval_ms=90_000, backoff_type="constant")
    assert layer["default_retry"] == {
        "initial_interval": "PT0.25S", "max_interval": "PT90S", "backoff_strategy": "constant",
    }  # fmt: skip
    retry = Layers(layer).in_force().retry
    assert (retry.initial_ms, retry.max_ms, retry.strategy) == (250, 90_000, "constant")
    # Given both, they must say the same; null under either takes the field back.
    layer = policy(layer, initial_interval="PT2S", initial_interval_ms=2_000)
    assert layer["default_retry"]["initial_interval"] == "PT2S"
    layer = policy(layer, initial_interval_ms=None, backoff_type=None)
    assert layer["default_retry"] == {"max_interval": "PT90S"}


def test_all_that_is_set_has_a_bound() -> None:
    names = [f"a.{'x' * 90}{n:03d}" for n in range(40)]
    with pytest.raises(InvalidRequest) as refused:
        queue_config.parse({"lanes": 2, "producers": names}, prefix="c.")
    assert refused.value.field == "c.producers"
    half = queue_config.merge({}, queue_config.parse({"producers": names[:20]}))
    with pytest.raises(InvalidRequest) as refused:
        queue_config.merge(half, queue_config.parse({"allowed_job_types": names[20:]}))
    assert refused.value.field == "allowed_job_types"
    assert queue_config.merge(half, {"producers": None}) == {}


@pytest.mark.requirement("QC-32")
def test_a_dead_letter_queue_is_another_queue() -> None:
    changes = queue_config.parse({"dead_letter_queue": "dlq"})
    queue_config.check_name("mail", changes)
    with pytest.raises(InvalidRequest) as refused:
        queue_config.check_name("dlq", changes, prefix="config.")
    assert refused.value.field == "config.dead_letter_queue"
    # What the policy names is no reason to refuse that very queue: it has just none.
    policy = {"dead_letter_queue": "dlq", "dead_letter_max_size": 5, "lanes": 2}
    assert queue_config.inherited(policy, "mail") == policy
    assert queue_config.inherited(policy, "dlq") == {"dead_letter_max_size": 5, "lanes": 2}


@pytest.mark.requirement("QC-34")
def test_where_dead_letters_go_is_shown_with_how_long_they_wait_there() -> None:
    """P30D unless something else is said, and no bound."""
    assert "dead_letter_ttl" not in queue_config.shown(Layers())
    layers = Layers({"dead_letter_max_size": 0}, {"dead_letter_queue": "dlq"})
    shown, sources = queue_config.shown(layers), queue_config.sources(layers)
    assert (shown["dead_letter_queue"], shown["dead_letter_ttl"]) == ("dlq", "P30D")
    assert "dead_letter_max_size" not in shown
    assert sources["dead_letter_queue"] == "_default"
    assert sources["dead_letter_ttl"] == "system"
    assert layers.in_force().copies_to == CopyTarget("dlq")
    assert layers.in_force().retention == Retention()
    layers = Layers({"dead_letter_queue": "x", "dead_letter_max_size": 7, "dead_letter_ttl": "P1D"})
    assert layers.in_force().copies_to == CopyTarget("x", 7, 86_400_000)
    assert layers.in_force().dead_letter.max_age_ms == 86_400_000
    assert Layers({"dead_letter_ttl": "P1D"}).in_force().copies_to is None


def kept(own: dict[str, Any], inherited: dict[str, Any]) -> DeadLetterRetention:
    return Layers(own, inherited).in_force().dead_letter


def max_age(text: str) -> dict[str, Any]:
    return {"dead_letter": {"retention": {"max_age": text}}}


@pytest.mark.requirement("DL-10")
def test_dead_letters_are_kept_by_age_and_number() -> None:
    assert Layers().in_force().dead_letter == DEAD_LETTERS
    assert (DEAD_LETTERS.max_age_ms, DEAD_LETTERS.max_count) == (180 * 86_400_000, 10_000)
    assert queue_config.shown(Layers())["dead_letter"] == {
        "retention": {"max_age": "P180D", "max_count": 10_000},
        "pruning_policy": "delete",
    }


@pytest.mark.requirement("DL-11")
def test_some_retention_always_applies() -> None:
    """Null takes back to what is below, and nothing means that there is no end."""
    layer = queue_config.merge({}, queue_config.parse(max_age("P1D")))
    for nothing in (
        {"dead_letter": None},
        {"dead_letter": {"retention": None}},
        max_age("") | {"dead_letter": {"retention": {"max_age": None, "max_count": None}}},
    ):
        assert queue_config.merge(layer, queue_config.parse(nothing)) == {}
    assert kept({}, {}) == DEAD_LETTERS


@pytest.mark.requirement("DL-12")
def test_a_queue_s_own_numbers_come_before_those_of_all() -> None:
    policy = max_age("P365D")["dead_letter"] | {"pruning_policy": "archive"}
    own = queue_config.merge(
        {}, queue_config.parse({"dead_letter": {"retention": {"max_count": 5}}})
    )
    layers = Layers(own, {"dead_letter": policy})
    assert layers.in_force().dead_letter == DeadLetterRetention(
        365 * 86_400_000, 5, PruningPolicy.ARCHIVE
    )
    shown = queue_config.shown(layers)["dead_letter"]
    assert shown["retention"] == {"max_age": "P365D", "max_count": 5}
    assert queue_config.sources(layers)["dead_letter"] == "queue"
    assert queue_config.sources(Layers({}, {"dead_letter": policy}))["dead_letter"] == "_default"
    # An update leaves what it does not name.
    more = queue_config.merge(
        own, queue_config.parse({"dead_letter": {"pruning_policy": "delete"}})
    )
    assert more == {"dead_letter": {"retention": {"max_count": 5}, "pruning_policy": "delete"}}


@pytest.mark.parametrize(
    ("own", "inherited", "days"),
    [
        ({"dead_letter_ttl": "P1D"}, {}, 1),
        ({}, {"dead_letter_ttl": "P2D"}, 2),
        ({"dead_letter_ttl": "P1D"} | max_age("P3D"), {}, 3),
        ({"dead_letter_ttl": "P1D"}, max_age("P4D"), 1),
        (max_age("P3D"), {"dead_letter_ttl": "P2D"}, 3),
        ({}, {"dead_letter_ttl": "P2D"} | max_age("P5D"), 5),
    ],
)
def test_dead_letter_ttl_is_another_name_of_max_age(
    own: dict[str, Any], inherited: dict[str, Any], days: int
) -> None:
    layers = Layers(own, inherited)
    assert layers.in_force().dead_letter.max_age_ms == days * 86_400_000
    assert queue_config.shown(layers)["dead_letter"]["retention"]["max_age"] == f"P{days}D"
    assert queue_config.sources(layers)["dead_letter"] == ("queue" if own else "_default")


@given(
    st.sampled_from(["a", "d-l.q", "9" * 255]),
    st.none() | st.integers(1, queue_config.MAX_BOUND),
    st.integers(1, times.MAX_DURATION_MS),
)
def test_where_copies_go_is_read_back_as_it_was_written(
    queue: str, max_size: int | None, ttl_ms: int
) -> None:
    target = CopyTarget(queue, max_size, ttl_ms)
    assert CopyTarget.of(target.compact()) == target
    assert CopyTarget.of(CopyTarget(queue, max_size).compact()) == CopyTarget(queue, max_size)
    assert CopyTarget(queue).compact() == queue
    for origin in (Origin("id", max_size), Origin("id")):
        assert Origin.of(origin.compact()) == origin


def test_keys_that_nobody_knows_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"'c\.colour': is not a known field. Known fields: "):
        queue_config.parse({"colour": "red"}, prefix="c.")


@pytest.mark.requirement("QC-35")
@pytest.mark.parametrize(
    ("pattern", "job_type", "allowed"),
    [
        ("payment.*", "payment.charge", True),
        ("payment.*", "payment.charge.retry", True),
        ("payment.*", "payments.charge", False),
        ("payment.charge", "payment.charge", True),
        ("payment.charge", "payment.charged", False),
        ("*", "a", True),
        ("*.audit", "payment.audit", True),
    ],
)
def test_job_types_are_matched_with_wildcards(pattern: str, job_type: str, allowed: bool) -> None:
    assert _in_force({"allowed_job_types": [pattern]}).allows_type(job_type) is allowed


@pytest.mark.requirement("QC-36")
def test_only_listed_producers_are_admitted() -> None:
    config = _in_force({"producers": ["web", "cli"]})
    assert config.allows_producer("web")
    assert not config.allows_producer("other")
    assert not config.allows_producer(None)


@pytest.mark.requirement("QC-44", "QC-46")
def test_what_is_shown_is_the_merged_document_with_both_names_of_the_bounds() -> None:
    own = queue_config.merge(
        {}, queue_config.parse({"max_size": 10, "retention": {"completed": "P3D"}})
    )
    shown = queue_config.shown(Layers(own, {"default_timeout": 60}))
    assert shown["max_size"] == shown["backpressure"]["max_depth"] == 10
    assert shown["retention"] == {"completed": "P3D", "discarded": "P30D", "cancelled": "P7D"}
    assert shown["default_timeout"] == 60
    assert shown["default_retry"]["jitter"] is True
    assert shown["default_retry"]["on_exhaustion"] == "dead_letter"
    assert "max_size_bytes" not in shown
    sources = queue_config.sources(Layers(own, {"default_timeout": 60}))
    assert (sources["max_size"], sources["default_timeout"], sources["lanes"]) == (
        "queue",
        "_default",
        "system",
    )


def test_lanes_do_not_become_fewer() -> None:
    with pytest.raises(InvalidRequest) as refused:
        queue_config.check(Layers({"lanes": 4}), {"lanes": 2})
    assert refused.value.field == "lanes"
    queue_config.check(Layers({"lanes": 4}), {"lanes": 8})


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from([*FIELDS, "default_retry", "retention", "backpressure", "max_depth"]),
        anything,
        max_size=3,
    )
)
def test_whatever_is_sent_is_taken_or_refused_and_what_is_taken_can_be_in_force(
    raw: dict[str, Any],
) -> None:
    try:
        changes = queue_config.parse(raw)
    except OjsError:
        return
    layers = Layers(queue_config.merge({}, changes))
    assert isinstance(layers.in_force(), QueueConfig)
    assert queue_config.shown(layers)
