"""Time zones by their IANA names, from the data that the bundle brings (PyPI's `tzdata`).

The machine's own data is never read: the version shown is the one that is used. `zoneinfo` and
`tzdata` are loaded with the first zone, so that functions without periodic jobs never load them.
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
    """The zones of a folder as the package `tzdata` has it: names in `zones`, data in `zoneinfo`.

    `version` is IANA's, such as `2026f`.
    """

    def __init__(self, folder: Path, version: str) -> None:
        self.version = version
        self._data = folder / "zoneinfo"
        self._names = frozenset((folder / "zones").read_text("ascii").split())
        self._loaded: dict[str, TimeZone] = {}

    def zone(self, name: str) -> TimeZone:
        """The zone of this name. Raises ValueError with the rule that the name breaks."""
        if name != "UTC" and ("/" not in name or name.startswith("Etc/GMT")):
            raise ValueError(_RULE)
        # A name with `..` is none of these, and no path.
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
    """The zones that were installed with this code."""
    import tzdata

    return TimeZones(Path(tzdata.__file__).parent, tzdata.IANA_VERSION)


class TimeZone:
    """What the clocks of a zone show. Instants are whole seconds since the epoch.

    A local time is counted in the same way, as if it were one in UTC.
    """

    def __init__(self, zone: ZoneInfo) -> None:
        self._zone = zone

    def offset_s(self, instant: int) -> int:
        """How far local time is ahead of UTC, in seconds."""
        moment = self.local(instant)
        offset = moment.utcoffset()
        assert offset is not None
        return offset.days * _DAY_S + offset.seconds

    def local(self, instant: int) -> datetime:
        """The local date and time, with their offset."""
        return datetime.fromtimestamp(instant, self._zone)

    def change(self, after: int, until: int) -> int | None:
        """The first instant later than `after`, at most `until`, with another offset than before.

        Offsets are compared every four days: no zone goes to another offset and back in less.
        """
        before = self.offset_s(after)
        while after < until:
            probe = min(after + _PROBED_EVERY_S, until)
            if self.offset_s(probe) != before:
                return self._first(after, probe, before)
            after = probe
        return None

    def _first(self, low: int, high: int, before: int) -> int:
        """The first instant of (low, high] without the offset `before`, which `low` has."""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.offset_s(middle) == before else (low, middle)
        return high
