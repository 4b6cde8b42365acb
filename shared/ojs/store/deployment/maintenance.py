"""Storage of maintenance mode, and a per-container cache of it.

A container uses its cached copy for NOTICED_MS. After that, the next fetch reads the item in a call
that it makes anyway. This needs no additional call, and one read unit in NOTICED_MS.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ojs.bounded import CachedItem
from ojs.clock import Clock
from ojs.domain.maintenance import NOTICED_MS, Maintenance
from ojs.store.table import keys
from ojs.store.table.races import retry_on_race
from ojs.store.table.record import Record
from ojs.store.table.table import Put, Table
from ojs.store.table.values import Item, Value

_KEY = (keys.DEPLOYMENT, keys.MAINTENANCE)
# This attribute exists while maintenance mode is enabled.
_SINCE = "since"
MAINTENANCE = Record(
    Maintenance,
    "the maintenance mode",
    {_SINCE: "since_ms", "reason": "reason", "duration": "duration_ms"},
)
_BUSY = "Concurrent requests changed the maintenance mode."


class MaintenanceStore:
    """Reads and writes maintenance mode, for one container."""

    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        self._cached = CachedItem(_KEY, clock, NOTICED_MS)

    def on(self) -> bool:
        """Return whether maintenance mode is enabled, according to the cache of this container.

        The cache is renewed by at most one call in NOTICED_MS. Raises OjsError if the call fails.
        """
        if self.list_unread():
            asked_ms = self._clock.now_ms()
            found = self._table.get(*_KEY)
            self.note({_KEY: found} if found else {}, asked_ms=asked_ms)
        return _SINCE in (self._cached.item or {})

    def list_unread(self) -> Sequence[tuple[str, str]]:
        """Return the keys to read with the next call: the maintenance item's key if the cache is
        too old.
        """
        return self._cached.list_unread()

    def note(self, items: Mapping[tuple[str, str], Item], *, asked_ms: int) -> None:
        """Cache the result of a strongly consistent read of `unread` that started at `asked_ms`."""
        self._cached.note(items, asked_ms=asked_ms)

    def read(self, *, consistent: bool = True) -> Maintenance | None:
        """Read the current maintenance, or None if the mode is disabled. Makes one call.

        Raise UnreadableItem or OjsError.
        """
        item = self._table.get(*_KEY, consistent=consistent)
        return None if item is None or _SINCE not in item else MAINTENANCE.of(item)

    def begin(self, reason: str | None, duration_ms: int | None, *, now_ms: int) -> Maintenance:
        """Enable maintenance mode, or change its reason and duration. Safe to repeat.

        If it is enabled already, its start time stays.

        Args:
            reason: Reason for users, or None.
            duration_ms: Expected duration in milliseconds, or None.
            now_ms: Current time in milliseconds since the epoch.

        Raises:
            OjsError: A call failed.
        """

        def attempt() -> Item:
            seen: Any = self._table.get(*_KEY) or {}
            began = Maintenance(seen.get(_SINCE, now_ms), reason, duration_ms)
            return self._replace(seen, MAINTENANCE.item(began))

        return MAINTENANCE.of(retry_on_race(attempt, busy=_BUSY))

    def end(self) -> None:
        """Disable maintenance mode. Safe to repeat. Raises OjsError."""

        def attempt() -> None:
            seen = self._table.get(*_KEY) or {}
            if _SINCE in seen:
                self._replace(seen, {})

        retry_on_race(attempt, busy=_BUSY)
        self.note({}, asked_ms=self._clock.now_ms())

    def _replace(self, seen: Item, said: Mapping[str, Value]) -> Item:
        """Replace the item if it is unchanged since `seen` was read. Raises LostRace otherwise."""
        number = int(str(seen.get("rev", 0)))
        item: Item = {"pk": _KEY[0], "sk": _KEY[1], "rev": number + 1, **said}
        # Race: two operators, or a late attempt of the same request. The loser reads again. The
        # reason and the duration of the last request are stored, and the start time is kept.
        condition, values = "attribute_not_exists(pk)", {}
        if number:
            condition, values = "#rev = :seen", {":seen": number}
        self._table.put(Put(item, condition, values))
        self.note({_KEY: item}, asked_ms=self._clock.now_ms())
        return item
