"""Rate limits of jobs: what may be asked for, and what may start."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain.errors import ValidationFailed
from ojs.domain.job import envelope
from ojs.domain.rate_limit.limiter import (
    CONCURRENCY,
    MAX_CONCURRENCY,
    MAX_RATE,
    MAX_WINDOWS,
    PAUSE,
    RATE,
    THROTTLE,
    LimitBounds,
    LimiterState,
    LimitSpec,
    OnLimit,
    Override,
    OverrideRequest,
    Rate,
    RateLimit,
    limiter_name,
)
from ojs.store.table.values import size

NOW_MS = 1_780_000_000_000
MINUTE = 60_000


def asked(**limit: Any) -> RateLimit | None:
    request = envelope.parse({"type": "a", "args": [], "options": {"rate_limit": limit}})
    return envelope.resolve(request, now_ms=NOW_MS).limit


@pytest.mark.parametrize(
    ("limit", "meant"),
    [
        ({"max_per_second": 3}, RateLimit(None, LimitBounds(rate=Rate(3, 1_000)))),
        (
            {"key": "k", "rate": 2, "period": "minute"},
            RateLimit("k", LimitBounds(rate=Rate(2, MINUTE))),
        ),
        (
            {"key": "k", "rate": 2, "period": "PT2S"},
            RateLimit("k", LimitBounds(rate=Rate(2, 2_000))),
        ),
        ({"key": "k", "concurrency": 0}, RateLimit("k", LimitBounds(0))),
        ({"key": "k"}, RateLimit("k")),
        (
            {
                "key": "k",
                "concurrency": 5,
                "rate": {"limit": 100, "period": "PT1M"},
                "throttle": {"limit": 10, "period": "PT1S"},
                "on_limit": "drop",
            },
            RateLimit("k", LimitBounds(5, Rate(100, MINUTE), Rate(10, 1_000)), OnLimit.DROP),
        ),
    ],
)
def test_each_form_means_what_it_says(limit: dict[str, Any], meant: RateLimit) -> None:
    assert asked(**limit) == meant


@pytest.mark.parametrize(
    ("limit", "field"),
    [
        ({}, ""),
        ({"on_limit": "wait"}, ""),
        ({"key": ""}, ".key"),
        ({"key": ".a"}, ".key"),
        ({"key": "a b"}, ".key"),
        ({"key": "a" * 256}, ".key"),
        ({"concurrency": -1}, ".concurrency"),
        ({"concurrency": MAX_CONCURRENCY + 1}, ".concurrency"),
        ({"concurrency": True}, ".concurrency"),
        ({"max_per_second": 0}, ".max_per_second"),
        ({"max_per_second": 1, "rate": 1, "period": "day"}, ""),
        ({"rate": 1}, ""),
        ({"rate": {"limit": 1, "period": "PT1S"}, "period": "second"}, ""),
        ({"rate": 0, "period": "second"}, ".rate"),
        ({"rate": 1, "period": "fortnight"}, ".period"),
        ({"rate": {"limit": 1}}, ".rate.period"),
        ({"rate": {"limit": 1, "period": "second"}}, ".rate.period"),
        ({"rate": {"limit": 1, "period": "PT0S"}}, ".rate.period"),
        ({"rate": {"limit": 1, "period": "P32D"}}, ".rate.period"),
        ({"throttle": {"limit": 1_001, "period": "PT1S"}}, ".throttle"),
        ({"key": "k", "on_limit": "queue"}, ".on_limit"),
        ({"key": "k", "burst": 5}, ".burst"),
    ],
)
def test_what_cannot_be_is_refused_and_named(limit: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        asked(**limit)
    assert caught.value.field == f"options.rate_limit{field}"


rates = st.none() | st.builds(Rate, st.integers(1, MAX_RATE), st.integers(1, 10**9))
bounds = st.builds(LimitBounds, st.none() | st.integers(0, MAX_CONCURRENCY), rates, rates)
limits = st.builds(
    RateLimit,
    st.none() | st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9._:\-]{0,254}", fullmatch=True),
    bounds,
    st.sampled_from(["wait", "reschedule", "drop"]),
)


@given(limits)
def test_what_is_stored_is_what_was_asked(limit: RateLimit) -> None:
    assert RateLimit.of(limit.compact()) == limit
    hint = LimitSpec.of(limit.spec("mail"))
    assert hint == LimitSpec(limiter_name(limit.key_in("mail")), limit.bounds, limit.on_limit)
    assert "|" not in limit.spec("mail")
    # Besides the key a limit takes little of a job record, and of its place in line.
    assert size({"limit": limit.compact()}) - len(limit.key or "") <= 60
    assert len(limit.spec("mail")) <= 70


@given(bounds, st.none() | st.integers(0, 10**13), st.sets(st.sampled_from(["rate", "throttle"])))
def test_an_override_is_read_as_it_was_written(
    laid: LimitBounds, until_ms: int | None, named: set[str]
) -> None:
    override = Override(laid, frozenset({*named, "concurrency"}), until_ms)
    assert Override.of(override.compact()) == override


@given(st.data())
def test_a_refusal_says_when_there_is_room_again(data: st.DataObject) -> None:
    rate = Rate(data.draw(st.integers(1, 5)), data.draw(st.sampled_from([7, 1_000, MINUTE])))
    # Others with the same key, under another rate.
    other = Rate(data.draw(st.integers(1, 5)), 3 * rate.period_ms)
    limiter, now_ms = LimiterState(), NOW_MS
    for _ in range(40):
        now_ms += data.draw(st.integers(0, rate.period_ms // 2))
        mine = LimitBounds(rate=data.draw(st.sampled_from([rate, other])))
        decision = limiter.room(mine, now_ms, data.draw(st.integers(1, 4)))
        if not decision.count:
            assert decision.strategy == RATE
            assert decision.free_ms is not None
            assert limiter.room(mine, decision.free_ms, 1).count == 1
            assert now_ms < decision.free_ms <= now_ms + mine_period(mine) * 1.2 + 1
            continue
        limiter = limiter.with_starts(mine, now_ms, decision.count)


def mine_period(asked_for: LimitBounds) -> int:
    assert asked_for.rate is not None
    return asked_for.rate.period_ms


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 800), st.integers(1, 4)), max_size=60))
def test_a_sliding_window_is_strict(limit: int, tries: list[tuple[int, int]]) -> None:
    limiter, now_ms, starts = LimiterState(), NOW_MS, list[int]()
    mine = LimitBounds(rate=Rate(limit, 1_000))
    for pause_ms, wanted in tries:
        now_ms += pause_ms
        count = limiter.room(mine, now_ms, wanted).count
        if count:
            limiter = limiter.with_starts(mine, now_ms, count)
            starts += [now_ms] * count
    for at in starts:
        assert sum(at <= other < at + 1_000 for other in starts) <= limit


@given(st.lists(st.integers(0, 400), max_size=60))
def test_throttled_starts_are_never_closer_than_their_spacing(pauses: list[int]) -> None:
    limiter, now_ms, starts = LimiterState(), NOW_MS, list[int]()
    mine = LimitBounds(throttle=Rate(3, 1_000))
    for pause_ms in pauses:
        now_ms += pause_ms
        decision = limiter.room(mine, now_ms, 5)
        if decision.count:
            assert decision.count == 1
            limiter = limiter.with_starts(mine, now_ms, 1)
            starts.append(now_ms)
        else:
            assert (decision.strategy, decision.free_ms) == (THROTTLE, starts[-1] + 334)
    assert all(later - earlier >= 334 for earlier, later in itertools.pairwise(starts))


def test_of_several_limits_the_tightest_counts() -> None:
    limiter = LimiterState(active=3)
    assert limiter.room(LimitBounds(5), NOW_MS, 10).count == 2
    assert limiter.room(LimitBounds(5, Rate(1, MINUTE)), NOW_MS, 10).count == 1
    assert limiter.room(LimitBounds(3, Rate(1, MINUTE)), NOW_MS, 10).strategy == CONCURRENCY
    assert limiter.room(LimitBounds(), NOW_MS, 10).count == 10
    assert (
        replace(limiter, counted=True).room(LimitBounds(), NOW_MS, 2_000).count
        == MAX_CONCURRENCY - 3
    )


def test_while_a_key_is_paused_nothing_starts() -> None:
    limiter = LimiterState(paused_ms=NOW_MS + 5)
    decision = limiter.room(LimitBounds(), NOW_MS, 1)
    assert (decision.count, decision.strategy, decision.free_ms) == (0, PAUSE, NOW_MS + 5)
    assert limiter.room(LimitBounds(), NOW_MS + 5, 1).count == 1


def test_an_override_replaces_what_it_names_and_lifts_what_it_says_is_null() -> None:
    request = OverrideRequest(concurrency=None, rate=None)
    override = request.override(NOW_MS + 10)
    limiter = LimiterState(override=override)
    mine = LimitBounds(1, Rate(1, MINUTE), Rate(1, MINUTE))
    assert limiter.in_force(mine, NOW_MS) == LimitBounds(None, None, Rate(1, MINUTE))
    assert limiter.in_force(mine, NOW_MS + 10) == mine


def test_what_is_given_back_was_never_started() -> None:
    mine = LimitBounds(5, Rate(5, MINUTE))
    before = LimiterState().with_starts(mine, NOW_MS, 1)
    after = before.with_starts(mine, NOW_MS, 1).without_starts(NOW_MS, 1)
    assert after.windows == before.windows


@pytest.mark.parametrize(
    ("limiter", "of", "counted"),
    [
        (LimiterState(), None, False),
        (LimiterState(counted=True), MAX_CONCURRENCY, False),
        (LimiterState(timed=True), None, True),
        (LimiterState(override=OverrideRequest(concurrency=3).override(None)), 3, False),
        (LimiterState(override=OverrideRequest(concurrency=None).override(None)), None, False),
        (
            LimiterState(
                counted=True, override=OverrideRequest(throttle=None, concurrency=2).override(None)
            ),
            2,
            False,
        ),
    ],
)
def test_what_a_start_takes_follows_from_the_key_and_the_bounds_in_force(
    limiter: LimiterState, of: int | None, counted: bool
) -> None:
    bare = LimitBounds()
    assert (limiter.permits(bare, NOW_MS), limiter.counts_starts(bare, NOW_MS)) == (of, counted)
    own = LimitBounds(7, throttle=Rate(1, MINUTE))
    lifted = limiter.override is not None and "throttle" in limiter.override.named
    assert limiter.counts_starts(own, NOW_MS) is not lifted
    if limiter.override is None:
        assert limiter.permits(own, NOW_MS) == 7


def test_a_key_counts_so_many_periods_and_starts_no_job_with_another_one() -> None:
    limiter = LimiterState()
    for n in range(MAX_WINDOWS):
        limiter = limiter.with_starts(LimitBounds(rate=Rate(9, MINUTE + n)), NOW_MS, 1)
    ninth = LimitBounds(rate=Rate(9, MINUTE + MAX_WINDOWS))
    assert limiter.room(ninth, NOW_MS, 1).count == 0
    assert limiter.room(ninth, NOW_MS + 2 * MINUTE, 1).count == 1
