"""The schedule of a cron job: an expression in a time zone (ojs-cron, sections 3 to 5)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from ojs.domain import times
from ojs.domain.cron import zones
from ojs.domain.cron.expression import DAY_S, CronExpression
from ojs.domain.errors import naming_field
from ojs.records import record

# Up to eight years can pass between two February 29ths. If an expression has no tick in that time,
# its registration is rejected.
SEARCHED_S = 8 * 366 * DAY_S
LACKS_DAYS = (
    "Some months don't have the day of the month in the expression. In these months, the cron job "
    "doesn't run on that day. Use L for the last day of each month."
)
# Maximum number of skipped local times that are listed for one change of the clocks. Further ones
# are only counted.
MAX_SKIPPED = 60
MAX_CHARACTERS = 500
MIN_INTERVAL_MS = 1_000
# The local times of later instants can be in the year 10000, which `datetime` doesn't support.
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
    """A local time of the expression that a change of the clocks skips."""

    local: str
    """The local time without an offset, because it has none: `2026-03-08T02:30:00`."""
    at_ms: int
    """When the clocks jump, in ms since the epoch."""


class Tick(NamedTuple):
    """The next tick, and the local times that are skipped before it."""

    at_ms: int
    """In ms since the epoch."""
    skipped: tuple[SkippedTime, ...] = ()
    """The first local times that don't exist, at most `MAX_SKIPPED`."""
    skipped_count: int = 0
    """The total number of skipped local times."""


@record(frozen=True, slots=True)
class Schedule:
    """An expression with its time zone. Times in milliseconds since the epoch.

    If `has_seconds`, its times or its interval are not whole minutes.
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
        """Parse an expression.

        Args:
            expression: Cron expression, alias such as `@daily`, or `@every` with a duration.
            timezone: `UTC` or an IANA name.
            field: The client's name of the expression, for errors. Default: `expression`.
            data: Time zone data. Default: the bundled data.

        Raises:
            InvalidRequest: `expression` or `timezone` is invalid. The error names the field.
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
        """Return the first tick later than `ms`, or None if there is none within eight years.

        `anchor_ms` is the time of the previous tick, or of the registration. `@every` adds its
        interval to `anchor_ms`, or to `ms` if that result is not later than `ms`. Other expressions
        ignore `anchor_ms`.
        """
        if self._expression is None:
            at_ms = anchor_ms + self._interval_ms
            if at_ms <= ms:
                at_ms = ms + self._interval_ms
            return Tick(at_ms) if at_ms <= _END_S * 1000 else None
        return _next(self._expression, self._zone, ms // 1000)

    @property
    def warning(self) -> str | None:
        """A warning about unexpected behavior of the expression, or None."""
        return LACKS_DAYS if self._expression and self._expression.lacks_days else None

    def local(self, ms: int) -> str:
        """Return the local time of an instant, with its offset: `2026-03-08T03:30:00-04:00`."""
        return self._zone.local(ms // 1000).isoformat()


class Firing(NamedTuple):
    """A future tick, as returned by `preview`."""

    tick: Tick
    local: str
    """The local time of the tick, with its offset."""


def preview(
    expression: str, timezone: str, after_ms: int, count: int, *, field: str = "expression"
) -> list[Firing]:
    """Compute the next ticks of an expression.

    Args:
        expression: Cron expression.
        timezone: `UTC` or an IANA name.
        after_ms: Ticks later than this time are returned, in milliseconds since the epoch.
        count: Maximum number of ticks. The caller limits it.
        field: The client's name of the expression, for errors. Default: `expression`.

    Returns:
        Ticks in order. Fewer than `count` if no further tick follows within eight years.

    Raises:
        InvalidRequest: `expression` or `timezone` is invalid.
    """
    schedule = Schedule.parse(expression, timezone, field=field)
    firings: list[Firing] = []
    while len(firings) < count and (tick := schedule.next_after(after_ms, anchor_ms=after_ms)):
        firings.append(Firing(tick, schedule.local(tick.at_ms)))
        after_ms = tick.at_ms
    return firings


def zone_data_version() -> str:
    """Return the version of the time zone data that schedules use, for example `2026f`."""
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
    """Return the first tick later than an instant. Instants and local times are in seconds.

    The search covers one period between two changes of the clocks at a time. An hour field with `*`
    follows absolute time: it fires in both of two equal hours. Other hours fire only in the first
    one.
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
            # If all hours match, no tick is lost: the next tick follows after one absolute hour.
            while found is not None and found < new and len(expression.hours) < 24:
                count += 1
                if len(skipped) < MAX_SKIPPED:
                    skipped.append(SkippedTime(_naive(found), change * 1000))
                found = expression.next_after(found, last)
        local = (new if old < new or expression.starred_hours else old) - 1
        after, offset = change, new - change
    return None


def _shown_before(zone: zones.TimeZone, instant: int) -> int:
    """Return the latest local time before the most recent change of the clocks within one day."""
    change = zone.change(instant - DAY_S, instant) or instant + 1
    return change - 1 + zone.offset_s(change - 1)


def _naive(local_s: int) -> str:
    return datetime.fromtimestamp(local_s, UTC).strftime("%Y-%m-%dT%H:%M:%S")
