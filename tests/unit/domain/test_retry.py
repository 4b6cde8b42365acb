from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ojs.domain.job.retry import DEFAULT, BackoffStrategy, RetryPolicy
from tests.unit.domain.arbitrary import policies, texts

chances = st.floats(0, 1, exclude_max=True)
counts = st.integers(-1, 10_000) | st.sampled_from((10**9, 10**400))


def _steady(
    strategy: BackoffStrategy,
    *,
    initial_ms: int = 1_000,
    max_ms: int = 10**15,
    coefficient: float = 2.0,
) -> RetryPolicy:
    return RetryPolicy(
        initial_ms=initial_ms,
        max_ms=max_ms,
        coefficient=coefficient,
        strategy=strategy,
        jitter=False,
    )


def test_the_defaults_are_those_of_the_specification() -> None:
    assert RetryPolicy() == DEFAULT
    assert (DEFAULT.max_attempts, DEFAULT.initial_ms, DEFAULT.max_ms) == (3, 1_000, 300_000)
    assert (DEFAULT.coefficient, DEFAULT.jitter) == (2.0, True)
    assert (DEFAULT.strategy, DEFAULT.on_exhaustion) == ("exponential", "dead_letter")
    assert DEFAULT.non_retryable == ()


@given(policies, counts, chances)
@example(RetryPolicy(initial_ms=1, coefficient=1_000.0, max_ms=1), 10**400, 0.999999)
def test_a_delay_is_never_negative_and_never_above_the_longest_interval(
    policy: RetryPolicy, failures: int, chance: float
) -> None:
    assert 0 <= policy.delay_ms(failures, chance) <= policy.max_ms


@given(policies, counts, chances)
def test_jitter_stays_between_half_and_one_and_a_half_of_the_plain_delay(
    policy: RetryPolicy, failures: int, chance: float
) -> None:
    plain = replace(policy, jitter=False).delay_ms(failures, chance)
    jittered = replace(policy, jitter=True).delay_ms(failures, chance)
    # One ms either way: both are rounded.
    assert plain * 0.5 - 1 <= jittered <= min(plain * 1.5 + 1, policy.max_ms)


@given(policies, st.integers(1, 100))
def test_jitter_reaches_both_ends_of_its_range(policy: RetryPolicy, failures: int) -> None:
    policy = replace(policy, jitter=True)
    plain = replace(policy, jitter=False).delay_ms(failures, 0)
    assert abs(policy.delay_ms(failures, 0.0) - plain * 0.5) <= 1
    longest = min(plain * 1.5, policy.max_ms)
    assert abs(policy.delay_ms(failures, 1 - 1e-12) - longest) <= 1


@given(policies, counts, chances, chances)
def test_without_jitter_chance_plays_no_part(
    policy: RetryPolicy, failures: int, one: float, other: float
) -> None:
    steady = replace(policy, jitter=False)
    assert steady.delay_ms(failures, one) == steady.delay_ms(failures, other)


@given(policies, st.integers(1, 500), st.integers(0, 500))
def test_without_jitter_a_later_try_never_waits_less(
    policy: RetryPolicy, failures: int, more: int
) -> None:
    steady = replace(policy, jitter=False)
    assert steady.delay_ms(failures, 0) <= steady.delay_ms(failures + more, 0)


@given(st.integers(1, 10_000), st.integers(1, 12), st.integers(100, 400))
def test_exponential_is_the_interval_times_the_coefficient_to_the_power_of_n_less_one(
    initial_ms: int, failures: int, hundredths: int
) -> None:
    policy = _steady(
        BackoffStrategy.EXPONENTIAL, initial_ms=initial_ms, coefficient=hundredths / 100
    )
    expected = initial_ms * (Decimal(hundredths) / 100) ** (failures - 1)
    assert abs(policy.delay_ms(failures, 0) - expected) <= 1


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_linear_is_the_interval_times_n(initial_ms: int, failures: int) -> None:
    policy = _steady(BackoffStrategy.LINEAR, initial_ms=initial_ms)
    assert policy.delay_ms(failures, 0) == initial_ms * failures


@given(st.integers(1, 1_000), st.integers(1, 100), st.integers(1, 4))
def test_polynomial_is_the_interval_times_n_to_the_power_of_the_coefficient(
    initial_ms: int, failures: int, power: int
) -> None:
    policy = _steady(BackoffStrategy.POLYNOMIAL, initial_ms=initial_ms, coefficient=float(power))
    assert policy.delay_ms(failures, 0) == initial_ms * failures**power


@given(st.integers(1, 10_000), st.integers(1, 10_000))
def test_constant_is_the_interval_however_often(initial_ms: int, failures: int) -> None:
    policy = _steady(BackoffStrategy.CONSTANT, initial_ms=initial_ms)
    assert policy.delay_ms(failures, 0) == initial_ms


@pytest.mark.parametrize(
    ("strategy", "delays"),
    [
        (BackoffStrategy.EXPONENTIAL, [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]),
        (BackoffStrategy.LINEAR, [1_000, 2_000, 3_000, 4_000, 5_000, 6_000]),
        (BackoffStrategy.POLYNOMIAL, [1_000, 4_000, 9_000, 10_000, 10_000, 10_000]),
        (BackoffStrategy.CONSTANT, [1_000] * 6),
    ],
)
def test_the_first_delays_of_each_strategy_capped_at_ten_seconds(
    strategy: BackoffStrategy, delays: list[int]
) -> None:
    policy = _steady(strategy, max_ms=10_000)
    assert [policy.delay_ms(failures, 0.9) for failures in range(1, 7)] == delays


@pytest.mark.parametrize("strategy", [each for each in BackoffStrategy if each != "constant"])
def test_a_count_beyond_all_floats_waits_the_longest_interval(strategy: BackoffStrategy) -> None:
    policy = _steady(strategy, max_ms=300_000, coefficient=1_000.0)
    assert policy.delay_ms(10**400, 0) == 300_000


def test_the_cap_holds_before_and_after_jitter() -> None:
    policy = RetryPolicy(initial_ms=1_000, max_ms=4_000)
    # 2^9 s is cut to 4 s first: at the lowest chance half of that is left, not 4 s.
    assert policy.delay_ms(10, 0.0) == 2_000
    assert policy.delay_ms(10, 0.99) == 4_000


@given(policies)
def test_the_compact_form_gives_back_the_same_policy(policy: RetryPolicy) -> None:
    assert RetryPolicy.of(policy.compact()) == policy


@pytest.mark.parametrize("strategy", BackoffStrategy)
@given(policies, counts, chances)
def test_a_policy_from_its_compact_form_waits_as_long(
    strategy: BackoffStrategy, policy: RetryPolicy, failures: int, chance: float
) -> None:
    policy = replace(policy, strategy=strategy)
    again = RetryPolicy.of(policy.compact())
    assert again.delay_ms(failures, chance) == policy.delay_ms(failures, chance)


def test_the_default_policy_takes_no_room() -> None:
    assert DEFAULT.compact() == "{}"
    assert RetryPolicy(max_attempts=5).compact() == '{"max_attempts":5}'


@given(policies, st.lists(texts, max_size=3))
def test_it_gives_up_exactly_on_the_names_listed_and_on_listed_beginnings(
    policy: RetryPolicy, names: list[str]
) -> None:
    expected = any(
        name != "" and (name == pattern or (pattern[-1] == "*" and name.startswith(pattern[:-1])))
        for name in names
        for pattern in policy.non_retryable
    )
    assert policy.gives_up_on(names) is expected


@pytest.mark.parametrize(
    ("pattern", "name", "gives_up"),
    [
        ("Auth.*", "Auth.TokenExpired", True),
        ("Auth.*", "Auth.", True),
        ("Auth.*", "Auth", False),
        ("Auth.*", "AuthError", False),
        ("Auth.*", "Auth.*", True),
        ("Auth", "Auth.TokenExpired", False),
        ("auth.*", "Auth.TokenExpired", False),
        ("*", "anything", True),
        ("*", "", False),
        ("*", None, False),
        ("ValueError", "ValueError", True),
        ("ValueError", "valueerror", False),
        ("a*b", "axb", False),
    ],
)
def test_patterns_are_exact_names_or_beginnings_with_a_star(
    pattern: str, name: str | None, gives_up: bool
) -> None:
    assert RetryPolicy(non_retryable=("Other", pattern)).gives_up_on([name]) is gives_up
