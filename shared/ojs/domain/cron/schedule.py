"""When a periodic job fires: its expression in its time zone (ojs-cron, sections 3 to 5)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from ojs.domain import times
from ojs.domain.cron import zones
from ojs.domain.cron.expression import DAY_S, CronExpression
from ojs.domain.errors import naming_field
from ojs.records import record

# Between two 29ths of February there are up to eight years. What does not come in that time is
# refused at registration.
SEARCHED_S = 8 * 366 * DAY_S
LACKS_DAYS = (
    "Some months don't have the day of the month in the expression. In these months, the cron job "
    "doesn't run on that day. Use L for the last day of each month."
)
# Of the local times that one change of the clocks skips, so many are named; the rest is counted.
MAX_SKIPPED = 60
MAX_CHARACTERS = 500
MIN_INTERVAL_MS = 1_000
# The local times of later instants may be in the year 10000, which does not exist here.
_END_S = times.MAX_MS // 1000 - 2 * DAY_S

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_EVERY = "@every"


class SkippedTime(NamedTuple):
    """A local time named by the expression that the clocks jump over."""

    local: str
    """Without an offset, as it has none: `2026-03-08T02:30:00`."""
    at_ms: int
    """When the clocks jump, in ms since the epoch."""


class Tick(NamedTuple):
    """The next time to fire, and what does not fire before it."""

    at_ms: int
    """In ms since the epoch."""
    skipped: tuple[SkippedTime, ...] = ()
    """At most `MAX_SKIPPED` of the local times that do not exist, the first ones."""
    skipped_count: int = 0
    """How many they are in all."""


@record(frozen=True, slots=True)
class Schedule:
    """An expression with its time zone. All times are ms since the epoch.

    `has_seconds`: it asks for other times than whole minutes, or an interval not of such.
    """

    has_seconds: bool
    _zone: zones.TimeZone
    _expression: CronExpression | None = None
    _interval_ms: int = 0

    @classmethod
    def parse(
        cls,
        expression: str,
        timezone: str,
        *,
        field: str = "expression",
        data: zones.TimeZones | None = None,
    ) -> Schedule:
        """The schedule of an expression in a zone of `data`, which is the bundle's by default.

        Raises InvalidRequest that names `field` (what the client calls the expression) or
        `timezone`, with the rule that is broken.
        """
        with naming_field("timezone", timezone):
            zone = (data or zones.bundled()).zone(timezone)
        with naming_field(field, expression):
            if len(expression) > MAX_CHARACTERS:
                raise ValueError(f"must have at most {MAX_CHARACTERS} characters")
            if not expression.isascii():
                raise ValueError("must contain only ASCII characters")
            words = expression.split()
            if not words:
                raise ValueError("must not be empty")
            if words[0].lower() == _EVERY:
                interval_ms = _interval_ms(words[1:])
                return cls(bool(interval_ms % 60_000), zone, None, interval_ms)
            named = CronExpression.parse(_without_alias(words, expression))
            return cls(named.seconds != (0,), zone, named)

    def next_after(self, ms: int, *, anchor_ms: int) -> Tick | None:
        """The first tick later than `ms`, or None if none comes within eight years.

        `anchor_ms` is the last nominal tick, or at first the registration: `@every` counts from it,
        and from `ms` if that tick has passed. Other expressions do not need it.
        """
        if self._expression is None:
            at_ms = anchor_ms + self._interval_ms
            if at_ms <= ms:
                at_ms = ms + self._interval_ms
            return Tick(at_ms) if at_ms <= _END_S * 1000 else None
        return _next(self._expression, self._zone, ms // 1000)

    @property
    def warning(self) -> str | None:
        """What its author may not expect, if there is something."""
        return LACKS_DAYS if self._expression and self._expression.lacks_days else None

    def local(self, ms: int) -> str:
        """The local time of an instant, with its offset: `2026-03-08T03:30:00-04:00`."""
        return self._zone.local(ms // 1000).isoformat()


class Firing(NamedTuple):
    """A tick to come, as `preview` shows it."""

    tick: Tick
    local: str
    """The local time of the tick, with its offset."""


def preview(
    expression: str, timezone: str, after_ms: int, count: int, *, field: str = "expression"
) -> list[Firing]:
    """The first `count` firings (the caller bounds it) later than `after_ms`; fewer if none comes.

    Raises InvalidRequest as `Schedule.parse` does.
    """
    schedule = Schedule.parse(expression, timezone, field=field)
    firings: list[Firing] = []
    while len(firings) < count and (tick := schedule.next_after(after_ms, anchor_ms=after_ms)):
        firings.append(Firing(tick, schedule.local(tick.at_ms)))
        after_ms = tick.at_ms
    return firings


def zone_data_version() -> str:
    """The version of the time zone data that schedules are made with, such as `2026f`."""
    return zones.bundled().version


def _without_alias(words: list[str], expression: str) -> str:
    if not words[0].startswith("@"):
        return expression
    if len(words) > 1 or words[0].lower() not in _ALIASES:
        known = ", ".join(_ALIASES)
        raise ValueError(f"must be one of {known}, or @every with a duration, if it starts with @")
    return _ALIASES[words[0].lower()]


def _interval_ms(words: list[str]) -> int:
    if len(words) != 1:
        raise ValueError("@every must be followed by one duration, such as 1h30m or PT1H30M")
    try:
        interval_ms = times.short_duration_ms(words[0])
    except ValueError as error:
        raise ValueError(f"the duration of @every {error}") from None
    if not MIN_INTERVAL_MS <= interval_ms <= SEARCHED_S * 1000:
        raise ValueError("the duration of @every must be from one second to eight years")
    return interval_ms


def _next(expression: CronExpression, zone: zones.TimeZone, after: int) -> Tick | None:
    """The first tick later than an instant; instants and local times in s.

    Local time runs evenly until the clocks change, so it is searched in one piece from change to
    change. Hours written with `*` follow absolute time: they fire in both of two equal hours. Other
    hours fire in the first one only.
    """
    end = min(after + SEARCHED_S, _END_S)
    if after >= end:
        return None
    offset = zone.offset_s(after)
    local = after + offset
    if not expression.starred_hours:
        local = max(local, _shown_before(zone, after))
    last = end + offset
    skipped: list[SkippedTime] = []
    count = 0
    while (found := expression.next_after(local, last)) is not None:
        change = zone.change(after, found - offset)
        if change is None:
            return Tick((found - offset) * 1000, tuple(skipped), count)
        old, new = change + offset, change + zone.offset_s(change)
        if old < new:
            # `*` alone loses nothing: it fires an hour of absolute time later, as always.
            while found is not None and found < new and len(expression.hours) < 24:
                count += 1
                if len(skipped) < MAX_SKIPPED:
                    skipped.append(SkippedTime(_naive(found), change * 1000))
                found = expression.next_after(found, last)
        local = (new if old < new or expression.starred_hours else old) - 1
        after, offset = change, new - change
    return None


def _shown_before(zone: zones.TimeZone, instant: int) -> int:
    """The local time up to which the clocks had come when they were last changed within a day."""
    change = zone.change(instant - DAY_S, instant) or instant + 1
    return change - 1 + zone.offset_s(change - 1)


def _naive(local_s: int) -> str:
    return datetime.fromtimestamp(local_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
