"""Time zones by IANA name, from bundled data (the package `tzdata` on PyPI).

The data of the operating system is never read, so the reported version is the version in use. The
first zone loads `zoneinfo` and `tzdata`. Functions that don't use cron jobs never load them.
"""

from __future__ import annotations

from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

_RULE = (
    "must be UTC or an IANA name of a place, such as Europe/Berlin. Offsets, abbreviations, and "
    "Etc/GMT zones are not supported"
)
_DAY_S = 86_400
_PROBED_EVERY_S = 4 * _DAY_S


class TimeZones:
    """The zones of a folder in the layout of `tzdata`: names in `zones`, data in `zoneinfo`.

    `version` is the IANA version, for example `2026f`.
    """

    def __init__(self, folder: Path, version: str) -> None:
        self.version = version
        self._data = folder / "zoneinfo"
        self._names = frozenset((folder / "zones").read_text("ascii").split())
        self._loaded: dict[str, TimeZone] = {}

    def zone(self, name: str) -> TimeZone:
        """Return the zone with this name.

        Raises ValueError with the violated rule if the name is invalid.
        """
        if name != "UTC" and ("/" not in name or name.startswith("Etc/GMT")):
            raise ValueError(_RULE)
        # This check also rejects a name with `..`, so the name can't leave the folder.
        if name not in self._names:
            raise ValueError(f"is not in the time zone data {self.version}. It {_RULE}")
        if name not in self._loaded:
            self._loaded[name] = TimeZone(self._read(name))
        return self._loaded[name]

    def _read(self, name: str) -> ZoneInfo:
        from zoneinfo import ZoneInfo

        with (self._data / name).open("rb") as file:
            return ZoneInfo.from_file(file, key=name)


@cache
def bundled() -> TimeZones:
    """Return the time zones that are installed with this code."""
    import tzdata

    return TimeZones(Path(tzdata.__file__).parent, tzdata.IANA_VERSION)


class TimeZone:
    """The local time of a zone. Instants are whole seconds since the epoch.

    A local time is a number of seconds since the epoch, as if it were in UTC.
    """

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone

    def offset_s(self, instant: int) -> int:
        """Offset of local time from UTC in seconds. Positive: ahead of UTC."""
        moment = self.local(instant)
        offset = moment.utcoffset()
        assert offset is not None
        return offset.days * _DAY_S + offset.seconds

    def local(self, instant: int) -> datetime:
        """Return the local date and time, with their offset."""
        return datetime.fromtimestamp(instant, self._zone)

    def change(self, after: int, until: int) -> int | None:
        """Return the first instant after `after`, at most `until`, at which the offset changes, or
        None.

        Compares the offsets every four days. No zone changes its offset and back in less time.
        """
        before = self.offset_s(after)
        while after < until:
            probe = min(after + _PROBED_EVERY_S, until)
            if self.offset_s(probe) != before:
                return self._first(after, probe, before)
            after = probe
        return None

    def _first(self, low: int, high: int, before: int) -> int:
        """Return the first instant in (low, high] with an offset other than `before`."""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.offset_s(middle) == before else (low, middle)
        return high
