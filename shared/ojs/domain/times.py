"""Timestamps and durations: RFC 3339, ISO 8601 durations, and relative times such as `+PT2S`."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import isodate

_TIMESTAMP = re.compile(
    r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})"
)
_DURATION = re.compile(
    r"P(?=.)(\d+(\.\d+)?W|(\d+(\.\d+)?D)?(T(?=.)(\d+(\.\d+)?H)?(\d+(\.\d+)?M)?(\d+(\.\d+)?S)?)?)"
)
_SHORT = re.compile(
    r"(?=.)(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?(?:(\d{1,9})ms)?"
)
_SHORT_UNITS_MS = (86_400_000, 3_600_000, 60_000, 1_000, 1)
_UNITS = ((86_400_000, "P", "D"), (3_600_000, "PT", "H"), (60_000, "PT", "M"), (1_000, "PT", "S"))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)

# The latest time that RFC 3339 and the zero-padded index keys can represent.
MAX_MS = 253_402_300_799_999
MAX_DURATION_MS = 100 * 366 * 86_400_000


def duration_ms(text: object) -> int:
    """Convert an ISO 8601 duration such as `PT1.5S` or `P7D` to milliseconds.

    Years and months are rejected, because they have no fixed length. Raises ValueError with the
    rule.
    """
    if not isinstance(text, str) or len(text) > 64 or not _DURATION.fullmatch(text):
        raise ValueError("must be an ISO 8601 duration of weeks, days, hours, minutes, or seconds")
    try:
        ms = _length_ms(text)
    except (ArithmeticError, ValueError):
        raise ValueError("must be a duration of at most 100 years") from None
    if ms > MAX_DURATION_MS:
        raise ValueError("must be a duration of at most 100 years")
    return ms


@lru_cache(256)
def _length_ms(text: str) -> int:
    # Cached, because configurations and policies use the same few durations.
    length: timedelta = isodate.parse_duration(text)
    return length // _MILLISECOND


def format_duration(ms: int) -> str:
    """Format milliseconds as an ISO 8601 duration in seconds: `PT90S`, `PT0.25S`."""
    seconds, rest = divmod(ms, 1000)
    return f"PT{seconds}.{rest:03d}".rstrip("0") + "S" if rest else f"PT{seconds}S"


def round_duration(ms: int) -> str:
    """Format ms as an ISO 8601 duration in the largest whole unit: `PT1M`, `P7D`, `PT0.250S`."""
    for unit, before, after in _UNITS:
        if ms % unit == 0:
            return f"{before}{ms // unit}{after}"
    return f"PT{ms // 1_000}.{ms % 1_000:03d}S"


def iso_duration(text: object) -> str:
    """Convert a duration from a client to ISO 8601: `7d` to `P7D`. Raises ValueError."""
    ms = short_duration_ms(text)
    return str(text) if _DURATION.fullmatch(str(text)) else round_duration(ms)


def short_duration_ms(text: object) -> int:
    """Convert a short duration such as `1h30m`, or an ISO 8601 duration, to milliseconds.

    Raises ValueError with the violated rule.
    """
    found = _SHORT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        try:
            return duration_ms(text)
        except ValueError as error:
            raise ValueError(f"{error}, or a short duration such as 7d or 1h30m") from None
    parts = zip(found.groups(default="0"), _SHORT_UNITS_MS, strict=True)
    ms = sum(int(number) * unit for number, unit in parts)
    if ms > MAX_DURATION_MS:
        raise ValueError("must be a duration of at most 100 years")
    return ms


def timestamp_ms(text: object, *, now_ms: int) -> int:
    """Convert an RFC 3339 timestamp, or `+` and a duration from now, to ms since the epoch.

    Raises ValueError with the violated rule.
    """
    if isinstance(text, str) and text.startswith("+"):
        return min(now_ms + duration_ms(text[1:]), MAX_MS)
    return moment_ms(text, or_else=", or '+' and an ISO 8601 duration")


def moment_ms(text: object, *, or_else: str = "") -> int:
    """Convert an RFC 3339 timestamp to ms since the epoch.

    Args:
        text: The timestamp.
        or_else: What else is allowed, for the error.

    Raises:
        ValueError: The text breaks a rule. The error contains the rule.
    """
    rule = f"must be an RFC 3339 timestamp with a time zone{or_else}"
    if not isinstance(text, str) or not _TIMESTAMP.fullmatch(text):
        raise ValueError(rule)
    try:
        moment = datetime.fromisoformat(text.upper())
        ms = (moment - _EPOCH) // _MILLISECOND
    except (ArithmeticError, ValueError):
        raise ValueError("must be an existing date and time") from None
    return max(0, min(ms, MAX_MS))


def format_ms(ms: int) -> str:
    """Format ms since the epoch as RFC 3339 in UTC: `2026-02-12T10:30:00.000Z`."""
    moment = _EPOCH + timedelta(milliseconds=ms)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
