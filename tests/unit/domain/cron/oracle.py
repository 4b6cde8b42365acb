"""An evaluator of cron schedules that is obviously right: it looks at every minute.

It never reads an expression. The strategies make each field twice: as text, for the code, and as a
question about a date or a number, for the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from importlib import resources
from itertools import pairwise
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from ojs.domain.cron.schedule import Schedule

MINUTE = timedelta(minutes=1)
MINUTE_S = 60
HOUR_S = 3_600
DAY_S = 86_400
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")


def instant(text: str) -> int:
    """Seconds since the epoch of a time in UTC, such as `2026-03-08` or `2026-03-08T07:00`."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


@cache
def zone_names() -> tuple[str, ...]:
    """All zones with a place, one for each content."""
    data = resources.files("tzdata")
    names = [name for name in data.joinpath("zones").read_text("ascii").split() if "/" in name]
    names = [name for name in names if not name.startswith("Etc/")]
    contents = {data.joinpath("zoneinfo", name).read_bytes(): name for name in sorted(names)}
    return tuple(sorted(contents.values()))


@cache
def zone(name: str) -> ZoneInfo:
    with resources.files("tzdata").joinpath("zoneinfo", name).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


@cache
def changes(name: str, start: int, end: int) -> tuple[int, ...]:
    """The hours in which the clocks of a zone change; instants in s."""

    def offset(at: int) -> timedelta | None:
        return datetime.fromtimestamp(at, zone(name)).utcoffset()

    found = []
    before = offset(start)
    for day, next_day in pairwise(range(start, end, DAY_S)):
        after = offset(next_day)
        if after != before:
            hours = range(day, next_day, HOUR_S)
            found += [hour for hour in hours if offset(hour) != offset(hour + HOUR_S)]
        before = after
    return tuple(found)


def changing_zones(start: int, end: int) -> list[str]:
    return [name for name in zone_names() if changes(name, start, end)]


@dataclass(frozen=True)
class Case:
    """An expression, and what it asks of a local minute."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    starred_hours: bool
    day: Callable[[date], bool]

    def names(self, local: datetime) -> bool:
        return local.minute in self.minutes and local.hour in self.hours and self.day(local.date())


def fires(case: Case, name: str, start: int, end: int) -> list[int]:
    """The instants in (start, end] at which it fires, in s."""
    clocks = zone(name)
    found = []
    for at in range(start // MINUTE_S * MINUTE_S + MINUTE_S, end + 1, MINUTE_S):
        local = datetime.fromtimestamp(at, clocks)
        # Of two equal local times the second one has `fold`.
        if (case.starred_hours or not local.fold) and case.names(local):
            found.append(at)
    return found


def skips(case: Case, name: str, start: int, end: int) -> list[str]:
    """The local times that it names and that do not exist, between those of two instants."""
    clocks = zone(name)

    def missing(local: datetime) -> bool:
        there = local.replace(tzinfo=clocks).astimezone(UTC).astimezone(clocks)
        return there.replace(tzinfo=None) != local

    first, last = (datetime.fromtimestamp(at, clocks).replace(tzinfo=None) for at in (start, end))
    found = []
    local = first.replace(second=0) + MINUTE
    while local <= last:
        if case.names(local) and missing(local):
            found.append(local.isoformat())
        local += MINUTE
    return [] if len(case.hours) == 24 else found


def told(schedule: Schedule, start: int, end: int) -> tuple[list[int], list[str], int]:
    """What the code says of the same time: instants, skipped local times, and their number."""
    instants: list[int] = []
    skipped: list[str] = []
    count, after = 0, start * 1000
    while tick := schedule.next_after(after, anchor_ms=start * 1000):
        before_end = [each for each in tick.skipped if each.at_ms <= end * 1000]
        skipped += [each.local for each in before_end]
        count += tick.skipped_count if before_end else 0
        after = tick.at_ms
        if after > end * 1000:
            break
        instants.append(after // 1000)
    return instants, skipped, count


# --- expressions ---------------------------------------------------------------------------------

Question = Callable[[date], bool]


@st.composite
def numbers(draw: st.DrawFn, least: int, most: int) -> tuple[str, frozenset[int]]:
    """A field of numbers, in one of the ways to write it, and the numbers it means."""
    texts, meant = [], set[int]()
    for _ in range(draw(st.integers(1, 3))):
        low = draw(st.integers(least, most))
        high = draw(st.integers(low, most))
        step = draw(st.integers(1, most - least))
        # CronSim takes `5-5/2` for `5/2`.
        stepped = f"/{step}" if low < high else ""
        text, values = draw(
            st.sampled_from(
                [
                    (f"{low}", range(low, low + 1)),
                    (f"{low}-{high}", range(low, high + 1)),
                    (f"{low}-{high}{stepped}", range(low, high + 1, step)),
                    (f"{low}/{step}", range(low, most + 1, step)),
                ]
            )
        )
        texts.append(text)
        meant.update(values)
    return ",".join(texts), frozenset(meant)


@st.composite
def starred(draw: st.DrawFn, least: int, most: int) -> tuple[str, frozenset[int]]:
    step = draw(st.integers(1, most - least))
    return ("*" if step == 1 else f"*/{step}"), frozenset(range(least, most + 1, step))


def some_numbers(least: int, most: int) -> st.SearchStrategy[tuple[str, frozenset[int]]]:
    return st.one_of(numbers(least, most), starred(least, most))


def _last_of_month(day: date) -> bool:
    return (day + timedelta(days=1)).day == 1


def _month_of(day: date) -> Iterator[date]:
    each = day.replace(day=1)
    while each.month == day.month:
        yield each
        each += timedelta(days=1)


def _works(day: date) -> bool:
    return day.isoweekday() <= 5


def nearest(number: int) -> Question:
    def question(day: date) -> bool:
        month = list(_month_of(day))
        if number > len(month):
            return False
        near = min(filter(_works, month), key=lambda each: abs(each.day - number))
        return day == near

    return question


def _last_that_works(day: date) -> bool:
    return day == max(filter(_works, _month_of(day)))


def last(weekday: int) -> Question:
    return lambda day: day == max(each for each in _month_of(day) if _is(weekday, each))


def nth(weekday: int, number: int) -> Question:
    return lambda day: (
        [each for each in _month_of(day) if _is(weekday, each)][number - 1 : number] == [day]
    )


def _is(weekday: int, day: date) -> bool:
    return day.isoweekday() % 7 == weekday % 7


@st.composite
def days_of_month(draw: st.DrawFn, *, for_cronsim: bool) -> tuple[str, Question]:
    text, values = draw(some_numbers(1, 31))
    number = draw(st.integers(1, 31))
    # In a list that is mixed, one of its questions is enough.
    choices: list[tuple[str, Question]] = [
        (text, lambda day: day.day in values),
        ("L", _last_of_month),
        ("LW", _last_that_works),
        (f"{number},L", lambda day: day.day == number or _last_of_month(day)),
    ]
    if not for_cronsim:
        choices.append((f"{number}W", nearest(number)))
    return draw(st.sampled_from(choices))


@st.composite
def days_of_week(draw: st.DrawFn, *, for_cronsim: bool) -> tuple[str, Question]:
    text, values = draw(some_numbers(0, 7))
    weekday, number = draw(st.integers(0, 7)), draw(st.integers(1, 5))
    name = draw(
        st.sampled_from([str(weekday), WEEKDAYS[weekday % 7], WEEKDAYS[weekday % 7].lower()])
    )
    choices: list[tuple[str, Question]] = [
        (text, lambda day: day.isoweekday() in values or day.isoweekday() % 7 in values),
        (name, lambda day: _is(weekday, day)),
        (f"{weekday if for_cronsim else name}L", last(weekday)),
        (f"{name}#{number}", nth(weekday, number)),
    ]
    return draw(st.sampled_from(choices))


def _every_day(_day: date) -> bool:
    return True


@st.composite
def cases(draw: st.DrawFn, *, for_cronsim: bool = False) -> Case:
    """Expressions of five fields. CronSim knows neither `15W` nor `FRIL`."""
    minute_text, minutes = draw(some_numbers(0, 59))
    hour_text, hours = draw(some_numbers(0, 23))
    month_text, months = draw(some_numbers(1, 12))
    every_day: tuple[str, Question] = ("*", _every_day)
    by_month: Question
    by_week: Question
    day_text, by_month = draw(st.just(every_day) | days_of_month(for_cronsim=for_cronsim))
    week_text, by_week = draw(st.just(every_day) | days_of_week(for_cronsim=for_cronsim))
    both = day_text[0] == "*" or week_text[0] == "*"

    def named(day: date) -> bool:
        if day.month not in months:
            return False
        if both:
            return by_month(day) and by_week(day)
        return by_month(day) or by_week(day)

    return Case(
        f"{minute_text} {hour_text} {day_text} {month_text} {week_text}",
        minutes,
        hours,
        hour_text[0] == "*",
        named,
    )
