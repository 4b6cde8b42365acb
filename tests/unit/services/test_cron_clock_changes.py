"""The firing of cron jobs at every change of clocks, compared with an evaluator of each minute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import cache
from itertools import pairwise
from typing import Any, cast

import pytest

from ojs.domain import times
from ojs.domain.cron import zones
from ojs.domain.cron.cron import Cron, CronRun, SkipReason
from ojs.domain.cron.definition import CronDefinition, OverlapPolicy
from ojs.services.crons.firing import CronFiring
from ojs.services.jobs.enqueue import Pushed
from tests.spread import spread
from tests.unit.domain.cron.oracle import (
    DAY_S,
    HOUR_S,
    MINUTE_S,
    Case,
    changes,
    changing_zones,
    instant,
    zone,
)

START, END = instant("2024-01-01"), instant("2031-01-01")
WEEK_S = 7 * DAY_S
PARTS = 20
ANY, HOURS, SIXTY = (lambda _day: True), frozenset(range(24)), frozenset(range(60))


def case(
    text: str,
    minutes: set[int],
    hours: set[int] | frozenset[int],
    day: Callable[[date], bool] = ANY,
) -> Case:
    return Case(text, frozenset(minutes), frozenset(hours), text.split()[1].startswith("*"), day)


CASES = [
    case("0 1-4 * * *", {0}, {1, 2, 3, 4}),
    case("30 1-3 * * *", {30}, {1, 2, 3}),
    case("0 2 * * *", {0}, {2}),
    case("30 2 * * *", {30}, {2}),
    case("0 3 * * *", {0}, {3}),
    case("*/15 0-3 * * *", {0, 15, 30, 45}, {0, 1, 2, 3}),
    case("0 * * * *", {0}, HOURS),
    case("*/20 * * * *", {0, 20, 40}, HOURS),
    case("0 */2 * * *", {0}, set(range(0, 24, 2))),
    case("30 */3 * * *", {30}, set(range(0, 24, 3))),
    case("0,59 0,1,23 * * *", {0, 59}, {0, 1, 23}),
    case("0 0 * * SUN", {0}, {0}, lambda day: day.weekday() == 6),
    case("45 2,3 * * SAT,SUN", {45}, {2, 3}, lambda day: day.weekday() > 4),
    case("0,1,30 0-23 * * *", {0, 1, 30}, HOURS),
]


@dataclass
class Clock:
    ms: int = 0

    def now_ms(self) -> int:
        return self.ms


@dataclass
class Table:
    """One cron job, and what became of its ticks; each write takes effect."""

    cron: Cron
    clock: Clock
    fired: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    next: Cron | None = None

    def revoked(self, _line: object) -> bool:
        return False

    def get(self, _name: str) -> Cron:
        return self.cron

    def advance(self, _before: Cron, after: Cron, run: CronRun | None) -> Cron:
        assert run is not None
        assert run.reason is SkipReason.DST
        self.skipped.append((run.scheduled_ms or 0) // 1_000)
        self.cron = after
        return after

    def replacing(self, _before: Cron, after: Cron) -> tuple[Cron, None]:
        self.next = after
        return after, None

    def logging(self, _run: CronRun, _after: Cron) -> None: ...

    def push(self, request: Any, **_more: Any) -> Pushed:
        assert self.next is not None
        told = request.meta["cron_triggered_at"]
        self.fired.append(times.timestamp_ms(told, now_ms=0) // 1_000)
        self.cron = self.next
        return Pushed(cast("Any", None))


def fired(text: str, name: str, start: int, end: int) -> Table:
    """A cron job from `start` to `end` (s), looked at whenever it is due."""
    definition = CronDefinition(text, {"type": "a", "args": []}, name, OverlapPolicy.ALLOW)
    clock = Clock()
    cron = replace(Cron("c", definition, 0, 0), op="o").after(start * 1_000, anchor_ms=0)
    table = Table(cron, clock)
    crons = cast("Any", table)
    firing = CronFiring(
        crons=crons, jobs=crons, enqueue=crons, transitions=crons, makers=crons, clock=clock
    )
    while table.cron.due_ms is not None and table.cron.due_ms <= end * 1_000:
        clock.ms = table.cron.due_ms
        firing.fire("c")
    return table


def local_minutes(name: str, start: int, end: int) -> list[tuple[int, datetime]]:
    clocks = zone(name)
    first = start // MINUTE_S * MINUTE_S + MINUTE_S
    return [(at, datetime.fromtimestamp(at, clocks)) for at in range(first, end + 1, MINUTE_S)]


def offsets(name: str, change: int) -> tuple[timedelta | None, ...]:
    """The offset of a zone at each minute of the hour in which its clocks change."""
    minutes = range(change, change + HOUR_S + 1, MINUTE_S)
    return tuple(datetime.fromtimestamp(at, zone(name)).utcoffset() for at in minutes)


@cache
def transitions() -> list[tuple[str, int]]:
    """Each change of the clocks once, with one of the zones that have it. What fires near a change
    follows from the change alone, as no zone has another one within a week.
    """
    found: dict[tuple[object, ...], tuple[str, int]] = {}
    for name in changing_zones(START, END):
        near = changes(name, START - WEEK_S, END + WEEK_S)
        assert all(later - change > WEEK_S for change, later in pairwise(near)), name
        for change in changes(name, START, END):
            found.setdefault((change, *offsets(name, change)), (name, change))
    return list(found.values())


def test_a_tick_at_the_instant_of_the_change_fires_after_the_skipped_time_is_noted() -> None:
    start = instant("2027-03-27T23:30")
    table = fired("0 1-4 * * *", "Europe/Berlin", start, start + 3 * HOUR_S)
    hours = [instant(f"2027-03-28T0{hour}:00") for hour in (0, 1, 2)]
    assert (table.fired, table.skipped) == (hours, hours[1:2])


def test_the_jitter_of_a_tick_at_the_change_counts() -> None:
    definition = CronDefinition("0 2,3 * * *", {}, "Europe/Berlin", jitter_ms=60_000)
    gap_ms = instant("2027-03-28T01:00") * 1_000
    cron = Cron("c", definition, 0, 0).after(gap_ms - 1, anchor_ms=0)
    after = cron.after_gap(gap_ms)
    assert (cron.due_ms, after.gap_ms, after.tick_ms) == (gap_ms, None, gap_ms)
    assert gap_ms < (after.due_ms or 0) <= gap_ms + 60_000


# To find the changes takes seconds, which collecting tests would take in each process.
@pytest.mark.parametrize("part", spread(range(PARTS), PARTS))
def test_every_change_of_every_zone(part: int) -> None:
    for name, change in transitions()[part::PARTS]:
        start, end = change - 3 * HOUR_S, change + 5 * HOUR_S
        minutes = local_minutes(name, start, end)
        for each in CASES:
            wanted = [
                at
                for at, local in minutes
                if (each.starred_hours or not local.fold) and each.names(local)
            ]
            found = fired(each.text, name, start, end).fired
            assert found == wanted, f"{each.text} in {name} at {times.format_ms(change * 1_000)}"


def test_each_zone_has_its_changes_for_the_code_too() -> None:
    for name in changing_zones(START, END):
        clocks = zones.bundled().zone(name)
        for change in changes(name, START, END):
            at = clocks.change(change, change + HOUR_S)
            assert at is not None
            seconds = (clocks.offset_s(at - 1), clocks.offset_s(at))
            ends = offsets(name, change)
            assert [timedelta(seconds=each) for each in seconds] == [ends[0], ends[-1]], name
