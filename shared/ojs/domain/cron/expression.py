"""Parses cron expressions of five or six fields and finds their local times (ojs-cron, section 3).

No public library supports all of it: `W`, the seconds in the first field, and errors that name the
field and the rule. A local time is a number of seconds since the epoch, as if it were in UTC.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from datetime import date
from functools import cache
from typing import NamedTuple

from ojs.records import record

DAY_S = 86_400
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_LAST_DAY = date.max.toordinal() - _EPOCH_DAY
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
# Days by month. February has 28, because most years have no February 29.
_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
# One item of a list: a value or `*`, the end of a range, a step.
_ITEM = re.compile(r"([^-/]+)(?:-([^-/]+))?(?:/([^-/]+))?")
_NUMBER = re.compile(r"[0-9]{1,9}")
_LAST_OR_NEAREST = re.compile(r"L|LW|([0-9]{1,9})W")
# Syntax of other schedulers, by its first characters, and what to write instead.
_NOT_HERE = {
    "?": "? is not supported. Use * instead",
    "H": "H is not supported. Use a number, and set jitter to spread cron jobs",
    "L-": "days before the last day are not supported. Use L, LW, or a day such as 28",
}
_WEEKDAY_OF_MONTH = re.compile(r"([0-9]{1,9}|[A-Z]{3})(?:L|#(.*))")


class _Month(NamedTuple):
    """A month of `length` days. Its first day is the weekday `first`; Sunday is 0."""

    first: int
    length: int

    @classmethod
    def of(cls, year: int, month: int) -> _Month:
        leap_day = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return cls(date(year, month, 1).isoweekday() % 7, _LENGTHS[month] + leap_day)

    def days(self, weekday: int) -> range:
        """All days of the month on a weekday. Sunday is 0 or 7."""
        return range(1 + (weekday - self.first) % 7, self.length + 1, 7)

    def nearest(self, day: int) -> Iterable[int]:
        """Return the nearest day from Monday to Friday, or nothing if the month
        has no such `day`.
        """
        if day > self.length:
            return ()
        match (self.first + day - 1) % 7:
            case 6:
                return (day - 1 if day > 1 else day + 2,)
            case 0:
                return (day + 1 if day < self.length else day - 2,)
        return (day,)


# A function that returns the days of a month that a list item matches.
_Days = Callable[[_Month], Iterable[int]]


class _Field(NamedTuple):
    """One of the six fields: its minimum, its maximum, and the names of its values."""

    title: str
    least: int
    most: int
    names: tuple[str, ...] = ()

    def read(self, text: str) -> tuple[frozenset[int], list[_Days]]:
        """Parse a field. Returns its values, and functions for its items with `L`, `W`, or `#`.

        Raises ValueError with the violated rule.
        """
        values: set[int] = set()
        special: list[_Days] = []
        for item in text.split(","):
            if days := self._special(item):
                special.append(days)
            else:
                values.update(self._values(item))
        return frozenset(values), special

    def _values(self, item: str) -> range:
        if rule := _NOT_HERE.get(item[:1]) or _NOT_HERE.get(item[:2]):
            raise self._wrong(item, rule)
        found = _ITEM.fullmatch(item)
        if found is None:
            raise self._wrong(item, "must be a value, a range, or *, optionally with a step")
        low, high, step = found.groups()
        if low == "*" and high is not None:
            raise self._wrong(item, "* can't be part of a range")
        first = self.least if low == "*" else self._value(low)
        if high is not None:
            last = self._end(first, high)
            if last < first:
                raise self._wrong(item, "the start of the range must not be greater than its end")
        else:
            last = first if step is None and low != "*" else self.most
        return range(first, last + 1, self._step(item, step))

    def _end(self, first: int, text: str) -> int:
        """Return the end of a range. Sunday can end a week, as in `FRI-SUN`."""
        last = self._value(text)
        return 7 if self is DAY_OF_WEEK and text == "SUN" and first > 0 else last

    def _step(self, item: str, text: str | None) -> int:
        if text is None:
            return 1
        span = self.most - self.least + (self is not DAY_OF_WEEK)
        if not _NUMBER.fullmatch(text) or not 1 <= int(text) <= span:
            raise self._wrong(item, f"the step must be a whole number from 1 to {span}")
        return int(text)

    def _value(self, text: str) -> int:
        if text in self.names:
            # Months are counted from 1, weekdays from 0.
            return self.names.index(text) + self.least
        if not _NUMBER.fullmatch(text):
            named = f" or a name such as {self.names[1]}" if self.names else ""
            raise self._wrong(text, f"must be a whole number{named}")
        value = int(text)
        if not self.least <= value <= self.most:
            raise self._wrong(text, f"must be from {self.least} to {self.most}")
        return value

    def _special(self, item: str) -> _Days | None:
        if item in self.names:
            return None
        if found := _LAST_OR_NEAREST.fullmatch(item):
            return self._last_or_nearest(item, found[1])
        if found := _WEEKDAY_OF_MONTH.fullmatch(item):
            return self._weekday_of_month(item, found[1], found[2])
        return None

    def _last_or_nearest(self, item: str, day_text: str | None) -> _Days:
        if self is DAY_OF_WEEK and item == "L":
            raise self._wrong(item, "L must follow a weekday, for example 5L")
        if self is not DAY_OF_MONTH:
            raise self._wrong(item, f"{item[-1]} is allowed only in the day of month")
        if day_text is not None:
            day = self._value(day_text)
            return lambda month: month.nearest(day)
        if item == "L":
            return lambda month: (month.length,)
        return lambda month: month.nearest(month.length)

    def _weekday_of_month(self, item: str, name: str, nth_text: str | None) -> _Days:
        if self is DAY_OF_MONTH and nth_text is None:
            raise self._wrong(item, "L must be alone or followed by W in the day of month")
        if self is not DAY_OF_WEEK:
            character = "L" if nth_text is None else "#"
            raise self._wrong(item, f"{character} is allowed only in the day of week")
        weekday = self._value(name)
        if nth_text is None:
            return lambda month: month.days(weekday)[-1:]
        if nth_text not in {"1", "2", "3", "4", "5"}:
            raise self._wrong(item, "# must be followed by 1 to 5, for example MON#2")
        nth = int(nth_text)
        return lambda month: month.days(weekday)[nth - 1 : nth]

    def _wrong(self, text: str, rule: str) -> ValueError:
        return ValueError(f"{self.title} '{text}': {rule}")


DAY_OF_MONTH = _Field("day of month", 1, 31)
DAY_OF_WEEK = _Field("day of week", 0, 7, _WEEKDAYS)
_FIELDS = (
    _Field("second", 0, 59),
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    DAY_OF_MONTH,
    _Field("month", 1, 12, _MONTHS),
    DAY_OF_WEEK,
)


@record(frozen=True, slots=True)
class CronExpression:
    """A parsed cron expression: the local times that it matches."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: frozenset[int]
    starred_hours: bool
    """Whether the hours are written with `*`, which follows absolute time."""
    lacks_days: bool
    """Whether a month in the expression is shorter than one of its days, for example day 31 in
    April.
    """
    _days: Callable[[_Month], tuple[int, ...]]

    @classmethod
    def parse(cls, text: str) -> CronExpression:
        """Parse an expression of five fields, or of six fields with the seconds first.

        Raises ValueError with the field and the rule.
        """
        parts = text.upper().split()
        if parts and parts[0].startswith(("CRON_TZ=", "TZ=")):
            raise ValueError("must not contain a time zone. Set the field timezone instead")
        if len(parts) not in {5, 6}:
            raise ValueError(
                "must have five fields (minute, hour, day of month, month, day of week), or six "
                f"with the seconds first, but has {len(parts)}"
            )
        if len(parts) == 5:
            parts.insert(0, "0")
        read = [each.read(part) for each, part in zip(_FIELDS, parts, strict=True)]
        seconds, minutes, hours, days, months, _ = (values for values, _ in read)
        # Rule of crontab(5): if one of the two day fields starts with `*`, both must match.
        # Otherwise one match is enough.
        every_day = parts[3].startswith("*")
        both = every_day or parts[5].startswith("*")
        lacks_days = not every_day and any(
            day > _LENGTHS[month] for day in days for month in months
        )
        return cls(
            tuple(sorted(seconds)),
            tuple(sorted(minutes)),
            tuple(sorted(hours)),
            months,
            parts[2].startswith("*"),
            lacks_days,
            _both_or_either(both, _days_of_month(*read[3]), _days_of_week(*read[5])),
        )

    def next_after(self, local_s: int, until_s: int) -> int | None:
        """Return the first matching local time later than `local_s` and at
        most `until_s`, or None.
        """
        day, second = divmod(local_s + 1, DAY_S)
        found = self._day_from(day, until_s // DAY_S)
        if found == day:
            time_of_day = self._time_from(second)
            if time_of_day is not None:
                return self._until(found * DAY_S + time_of_day, until_s)
            found = self._day_from(day + 1, until_s // DAY_S)
        if found is None:
            return None
        first = self.hours[0] * 3600 + self.minutes[0] * 60 + self.seconds[0]
        return self._until(found * DAY_S + first, until_s)

    @staticmethod
    def _until(local_s: int, until_s: int) -> int | None:
        return local_s if local_s <= until_s else None

    def _day_from(self, day: int, until: int) -> int | None:
        """Return the first matching day from `day` to `until` (days since the epoch), or None."""
        until = min(until, _LAST_DAY)
        while day <= until:
            begin = date.fromordinal(_EPOCH_DAY + day)
            month = _Month.of(begin.year, begin.month)
            if begin.month in self.months:
                for each in self._days(month):
                    if each >= begin.day:
                        found = day + each - begin.day
                        return found if found <= until else None
            day += month.length - begin.day + 1
        return None

    def _time_from(self, second: int) -> int | None:
        """Return the first matching second of the day from `second`, or None."""
        hour, rest = divmod(second, 3600)
        minute, second = divmod(rest, 60)
        if hour in self.hours:
            if minute in self.minutes:
                found = _from(self.seconds, second)
                if found is not None:
                    return hour * 3600 + minute * 60 + found
            found = _from(self.minutes, minute + 1)
            if found is not None:
                return hour * 3600 + found * 60 + self.seconds[0]
        found = _from(self.hours, hour + 1)
        if found is None:
            return None
        return found * 3600 + self.minutes[0] * 60 + self.seconds[0]


def _from(values: tuple[int, ...], least: int) -> int | None:
    at = bisect_left(values, least)
    return values[at] if at < len(values) else None


def _days_of_month(values: frozenset[int], special: list[_Days]) -> _Days:
    def days(month: _Month) -> Iterable[int]:
        yield from (day for day in values if day <= month.length)
        for each in special:
            yield from each(month)

    return days


def _days_of_week(values: frozenset[int], special: list[_Days]) -> _Days:
    def days(month: _Month) -> Iterable[int]:
        for weekday in values:
            yield from month.days(weekday)
        for each in special:
            yield from each(month)

    return days


def _both_or_either(both: bool, one: _Days, other: _Days) -> Callable[[_Month], tuple[int, ...]]:
    """Return the matching days of a month, in order. Cached: there are 28 kinds of months."""

    @cache
    def days(month: _Month) -> tuple[int, ...]:
        first, second = set(one(month)), set(other(month))
        return tuple(sorted(first & second if both else first | second))

    return days
