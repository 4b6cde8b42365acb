"""When schedules fire where clocks change, against an oracle that looks at every minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain import times
from ojs.domain.cron.schedule import MAX_SKIPPED, Schedule, preview
from tests.unit.domain.cron import oracle
from tests.unit.domain.cron.oracle import DAY_S, HOUR_S, Case

TEN_YEARS = (oracle.instant("2025-01-01"), oracle.instant("2035-01-01"))
NEW_YORK, LORD_HOWE, SANTIAGO = "America/New_York", "Australia/Lord_Howe", "America/Santiago"


def shown(expression: str, zone: str, after: str, count: int) -> list[str]:
    firings = preview(expression, zone, oracle.instant(after) * 1000, count)
    return [each.local for each in firings]


def skipped(expression: str, zone: str, after: str) -> list[str]:
    (firing,) = preview(expression, zone, oracle.instant(after) * 1000, 1)
    assert firing.tick.skipped_count == len(firing.tick.skipped)
    return [each.local for each in firing.tick.skipped]


@pytest.mark.requirement("CRON-16")
def test_a_time_that_the_clocks_jump_over_does_not_fire_and_is_told() -> None:
    after = "2026-03-07T12:00"
    assert shown("30 2 * * *", NEW_YORK, after, 2) == [
        "2026-03-09T02:30:00-04:00", "2026-03-10T02:30:00-04:00",
    ]  # fmt: skip
    (firing,) = preview("30 2 * * *", NEW_YORK, oracle.instant(after) * 1000, 1)
    (gap,) = firing.tick.skipped
    assert gap.local == "2026-03-08T02:30:00"
    assert gap.at_ms == oracle.instant("2026-03-08T07:00") * 1000
    # The next tick does not tell it again.
    assert skipped("30 2 * * *", NEW_YORK, "2026-03-09T12:00") == []


@pytest.mark.requirement("CRON-17")
def test_a_time_that_comes_twice_fires_the_first_time() -> None:
    """Whenever it is asked: before, between and after the two."""
    first, next_day = "2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"
    assert shown("30 1 * * *", NEW_YORK, "2026-10-31T12:00", 2) == [first, next_day]
    assert shown("30 1 * * *", NEW_YORK, "2026-11-01T05:29", 2) == [first, next_day]
    for after in ("2026-11-01T05:30", "2026-11-01T06:10", "2026-11-01T06:30", "2026-11-01T08:00"):
        assert shown("30 1 * * *", NEW_YORK, after, 1) == [next_day]
    # Also 1:45, which the clocks had shown when it was asked at 1:15 for the second time.
    assert shown("45 1,3 * * *", NEW_YORK, "2026-11-01T06:15", 1) == ["2026-11-01T03:45:00-05:00"]


def test_starred_hours_follow_absolute_time() -> None:
    assert shown("30 * * * *", NEW_YORK, "2026-11-01T05:00", 3) == [
        "2026-11-01T01:30:00-04:00", "2026-11-01T01:30:00-05:00", "2026-11-01T02:30:00-05:00",
    ]  # fmt: skip
    assert shown("30 * * * *", NEW_YORK, "2026-03-08T06:00", 2) == [
        "2026-03-08T01:30:00-05:00", "2026-03-08T03:30:00-04:00",
    ]  # fmt: skip
    assert skipped("30 * * * *", NEW_YORK, "2026-03-08T06:45") == []
    assert shown("0 */2 * * *", NEW_YORK, "2026-11-01T03:00", 3) == [
        "2026-11-01T00:00:00-04:00", "2026-11-01T02:00:00-05:00", "2026-11-01T04:00:00-05:00",
    ]  # fmt: skip


def test_starred_hours_with_a_step_tell_the_hour_that_is_lost() -> None:
    assert shown("0 */2 * * *", NEW_YORK, "2026-03-08T06:00", 1) == ["2026-03-08T04:00:00-04:00"]
    assert skipped("0 */2 * * *", NEW_YORK, "2026-03-08T06:00") == ["2026-03-08T02:00:00"]


def test_every_second_of_both_hours_fires() -> None:
    """An hour is repeated, so 7 200 seconds of that hour fire."""
    schedule = Schedule.parse("*/10 * * * * *", NEW_YORK)
    start, end = (oracle.instant(f"2026-11-01T0{hour}:00") * 1000 for hour in (5, 7))
    at_ms, count = start - 1, 0
    while (tick := schedule.next_after(at_ms, anchor_ms=0)) and tick.at_ms < end:
        at_ms, count = tick.at_ms, count + 1
    assert count == 720


def test_clocks_that_change_by_half_an_hour() -> None:
    """Lord Howe: from 2:00 to 2:30 in October, from 2:00 back to 1:30 in April."""
    assert skipped("*/20 2 * * *", LORD_HOWE, "2026-10-03T12:00") == [
        "2026-10-04T02:00:00", "2026-10-04T02:20:00",
    ]  # fmt: skip
    assert shown("*/20 2 * * *", LORD_HOWE, "2026-10-03T12:00", 1) == ["2026-10-04T02:40:00+11:00"]
    assert shown("40 1 * * *", LORD_HOWE, "2026-04-04T12:00", 2) == [
        "2026-04-05T01:40:00+11:00", "2026-04-06T01:40:00+10:30",
    ]  # fmt: skip
    assert shown("40 * * * *", LORD_HOWE, "2026-04-04T14:00", 3) == [
        "2026-04-05T01:40:00+11:00", "2026-04-05T01:40:00+10:30", "2026-04-05T02:40:00+10:30",
    ]  # fmt: skip


def test_midnight_may_be_skipped_or_come_twice() -> None:
    """Santiago: clocks change at midnight."""
    assert skipped("@daily", SANTIAGO, "2026-09-05T12:00") == ["2026-09-06T00:00:00"]
    assert shown("30 23 * * *", SANTIAGO, "2026-04-04T12:00", 2) == [
        "2026-04-04T23:30:00-03:00", "2026-04-05T23:30:00-04:00",
    ]  # fmt: skip


def test_a_whole_day_that_a_zone_left_out() -> None:
    assert skipped("0 9 * * *", "Pacific/Apia", "2011-12-29T20:00") == ["2011-12-30T09:00:00"]
    assert shown("0 9 30 12 *", "Pacific/Apia", "2011-06-01", 1) == ["2012-12-30T09:00:00+14:00"]


def test_a_schedule_that_always_falls_into_the_gap_never_fires() -> None:
    schedule = Schedule.parse("30 2 */1 3 SUN#2", NEW_YORK)
    assert schedule.next_after(TEN_YEARS[0] * 1000, anchor_ms=0) is None


def test_of_many_skipped_times_the_first_are_named_and_all_counted() -> None:
    after_ms = oracle.instant("2026-03-08T06:00") * 1000
    tick = Schedule.parse("* * 2 * * *", NEW_YORK).next_after(after_ms, anchor_ms=0)
    assert tick is not None
    assert tick.skipped_count == 3_600
    assert [each.local for each in tick.skipped[:2]] == [
        "2026-03-08T02:00:00",
        "2026-03-08T02:00:01",
    ]
    assert len(tick.skipped) == MAX_SKIPPED


# --- against the oracle --------------------------------------------------------------------------


def agree(case: Case, zone: str, start: int, end: int) -> None:
    """Code and oracle say the same of the time between two instants, in s, with one change."""
    schedule = Schedule.parse(case.text, zone)
    instants, named, count = oracle.told(schedule, start, end)
    expected = oracle.skips(case, zone, start, end)
    assert instants == oracle.fires(case, zone, start, end)
    assert named == expected[:MAX_SKIPPED]
    assert count == len(expected)


@st.composite
def near_changes(draw: st.DrawFn) -> tuple[str, int, int]:
    """A zone, and a time of some hours in which its clocks change."""
    zone = draw(st.sampled_from(oracle.changing_zones(*ONE_YEAR)))
    change = draw(st.sampled_from(oracle.changes(zone, *ONE_YEAR)))
    before, after = draw(st.integers(1, 8 * 60)), draw(st.integers(130, 8 * 60))
    return zone, change - before * 60, change + after * 60


ONE_YEAR = (oracle.instant("2026-01-01"), oracle.instant("2027-01-01"))


@given(oracle.cases(), near_changes())
def test_near_changes_the_oracle_agrees(case: Case, when: tuple[str, int, int]) -> None:
    agree(case, *when)


def case(minutes: str, hours: str, *, names: tuple[set[int], set[int]]) -> Case:
    return Case(
        f"{minutes} {hours} * * *", frozenset(names[0]), frozenset(names[1]), hours[0] == "*",
        lambda _day: True,
    )  # fmt: skip


ALL_HOURS = set(range(24))
EVERY_DAY = [
    case("*/7", "*", names=(set(range(0, 60, 7)), ALL_HOURS)),
    case("30", "*/2", names=({30}, set(range(0, 24, 2)))),
    case("0,15,45", "0-3,23", names=({0, 15, 45}, {0, 1, 2, 3, 23})),
    case("*", "1,2", names=(set(range(60)), {1, 2})),
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(4))
def test_near_all_changes_of_ten_years_the_oracle_agrees(part: int) -> None:
    """In all zones; each change meets one of the expressions, each expression all zones."""
    zones = oracle.changing_zones(*TEN_YEARS)
    assert len(zones) > 40
    for number, zone in enumerate(zones):
        for place, change in enumerate(oracle.changes(zone, *TEN_YEARS)):
            if (number + place) % 4 == part:
                each = EVERY_DAY[(number // 4 + place) % 4]
                agree(each, zone, change - 4 * HOUR_S - 60, change + 4 * HOUR_S)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("zone", "end"),
    [
        (NEW_YORK, "2028-01-01"),
        pytest.param(NEW_YORK, "2035-01-01", marks=pytest.mark.whole),
        pytest.param("Africa/Casablanca", "2035-01-01", marks=pytest.mark.whole),
    ],
)
def test_in_all_minutes_of_ten_years_the_oracle_agrees(zone: str, end: str) -> None:
    """Also where changes are far away, and with days that come seldom."""
    each = Case(
        "30 0-3 8-14 * SUN#2,1L", frozenset({30}), frozenset({0, 1, 2, 3}), False,
        lambda day: 8 <= day.day <= 14 or oracle.nth(0, 2)(day) or oracle.last(1)(day),
    )  # fmt: skip
    agree(each, zone, TEN_YEARS[0], oracle.instant(end))


@pytest.mark.exhaustive
def test_clocks_stay_changed_for_longer_than_changes_are_looked_for() -> None:
    """`TimeZone.change` compares offsets every four days. Zones of ten years, hour by hour."""
    for zone in oracle.changing_zones(*TEN_YEARS):
        found = oracle.changes(zone, *TEN_YEARS)
        assert all(later - earlier > 4 * DAY_S for earlier, later in pairwise(found)), zone


# --- @every --------------------------------------------------------------------------------------


@pytest.mark.requirement("CRON-32")
@pytest.mark.parametrize(
    ("text", "interval_ms"),
    [
        ("1s", 1_000), ("1500ms", 1_500), ("45s", 45_000), ("5m", 300_000), ("1h30m", 5_400_000),
        ("2h45m30s", 9_930_000), ("PT1H30M", 5_400_000), ("PT1.5S", 1_500), ("7d", 604_800_000),
    ],
)  # fmt: skip
def test_every_counts_from_its_anchor(text: str, interval_ms: int) -> None:
    schedule = Schedule.parse(f"@every {text}", NEW_YORK)
    anchor_ms = 1_770_892_200_007

    def next_after(ms: int) -> int:
        tick = schedule.next_after(ms, anchor_ms=anchor_ms)
        assert tick is not None
        assert not tick.skipped
        return tick.at_ms

    assert next_after(anchor_ms) == anchor_ms + interval_ms
    # However late the last tick was evaluated: no drift.
    assert next_after(anchor_ms + interval_ms - 1) == anchor_ms + interval_ms
    # After an outage it goes on from now.
    late_ms = anchor_ms + 10 * interval_ms + 13
    assert next_after(late_ms) == late_ms + interval_ms


def test_every_knows_no_daylight_saving() -> None:
    after_ms = oracle.instant("2026-03-08T06:30") * 1000
    firings = preview("@every 1h", NEW_YORK, after_ms, 3)
    assert [each.tick.at_ms - after_ms for each in firings] == [3_600_000, 7_200_000, 10_800_000]
    assert firings[0].local == "2026-03-08T03:30:00-04:00"


# --- limits, and time needed ---------------------------------------------------------------------


@pytest.mark.parametrize("expression", ["* * * * *", "@yearly", "@every 1s", "* * * * * *"])
@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "Pacific/Midway"])
@pytest.mark.parametrize(
    "after_ms", [0, 1, times.MAX_MS, times.MAX_MS - 1_000, times.MAX_MS - 3 * 86_400_000]
)
def test_the_ends_of_time(expression: str, zone: str, after_ms: int) -> None:
    for each in preview(expression, zone, after_ms, 3):
        assert after_ms < each.tick.at_ms < times.MAX_MS
        assert datetime.fromisoformat(each.local).timestamp() == each.tick.at_ms // 1000


def test_preview_counts() -> None:
    assert len(preview("@daily", "UTC", 0, 100)) == 100
    assert preview("0 0 31 2 *", "UTC", 0, 5) == []
    assert len(preview("0 0 29 2 *", "UTC", times.MAX_MS - 3 * 366 * 86_400_000, 5)) <= 1


@given(oracle.cases(), st.sampled_from(["UTC", NEW_YORK, LORD_HOWE]), st.integers(0, 4 * 10**12))
def test_ticks_are_whole_seconds_and_go_forward(case: Case, zone: str, after_ms: int) -> None:
    for each in preview(case.text, zone, after_ms, 3):
        assert each.tick.at_ms > after_ms
        assert each.tick.at_ms % 60_000 == 0
        after_ms = each.tick.at_ms


@pytest.mark.parametrize(
    ("expression", "zone"),
    [
        ("0 0 31 2 *", NEW_YORK), ("0 0 29 2 *", NEW_YORK), ("0 * 29 2 *", NEW_YORK),
        ("30 2 */1 3 SUN#2", NEW_YORK), ("* * * * * *", "UTC"), ("0 0 * 2 MON#5", "UTC"),
    ],
)  # fmt: skip
def test_the_search_does_not_go_minute_by_minute(expression: str, zone: str) -> None:
    """At most 10 ms; that of a neighbour on the machine does not count."""
    schedule = Schedule.parse(expression, zone)
    after_ms = oracle.instant("2096-03-01") * 1000

    def took_s(act: Callable[[], object]) -> float:
        start = time.process_time()
        act()
        return time.process_time() - start

    search = lambda: schedule.next_after(after_ms, anchor_ms=0)  # noqa: E731 - named for reading
    assert min(took_s(search) for _ in range(5)) < 0.010
