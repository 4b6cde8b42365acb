"""Reads the event log: pages of events, ordered by the time of writing.

A page has the events of one batch of stream records, as compressed JSON. Its partition key is the
day on which it was written. Its sort key is the time of writing, and a token of the writer.

A page is kept for KEPT_S. If finished jobs must be listed for longer, their events are also stored
in a separate page, without results and errors, which can contain personal data.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from ojs.domain import jsontext, times
from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.table import Table
from ojs.store.table.values import Item

DAY_MS = 86_400_000
# Limits of what one request can read.
MAX_QUERIES = 20
MAX_BYTES = 8_000_000
# A page may be twenty times as large when decompressed.
MAX_UNPACKED_BYTES = 32_000_000
# The number of pages per query increases. One full page might be sufficient, or a hundred small
# pages might be necessary.
_FIRST_LIMIT = 8
_MAX_LIMIT = 128
_INSTANT_DIGITS = 15
KEPT_S = 8 * 86_400
_ENDS = ".ends"
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")


@record(frozen=True)
class StoredPage:
    """A page of events as stored. Pages are ordered by their keys."""

    key: str
    packed: bytes

    @property
    def of_ends(self) -> bool:
        """Whether the page has only final events of jobs. Another page has these events as well."""
        return self.key.endswith(_ENDS)

    @property
    def token(self) -> str:
        """The token that distinguishes the page from others that were written at about the same
        time.
        """
        return self.key[_INSTANT_DIGITS + 1 :]

    @cached_property
    def _text(self) -> str:
        return zlib.decompress(self.packed).decode("utf-8")

    @property
    def unpacked_bytes(self) -> int:
        """Size of the page's JSON, in characters."""
        return len(self._text)

    def names_any(self, names: Sequence[str]) -> bool:
        """Return whether one of these names can be a value in the page.

        Searches the page's JSON text, which is much faster than parsing all events.
        """
        # JSON can escape other characters in more than one way.
        return not all(map(_PLAIN.fullmatch, names)) or any(
            f'"{name}"' in self._text for name in names
        )

    def events(self) -> list[dict[str, Any]]:
        """Return the events, the oldest first."""
        events: list[dict[str, Any]] = jsontext.stored(self._text)
        return events


@record
class Budget:
    """The remaining reads of a request of the event log.

    `exhausted` is true after the first page that exceeds them.
    """

    queries: int = MAX_QUERIES
    bytes: int = MAX_BYTES
    unpacked_bytes: int = MAX_UNPACKED_BYTES
    exhausted: bool = False

    @classmethod
    def half(cls) -> Budget:
        """Return half of the budget of a request."""
        return cls(MAX_QUERIES // 2, MAX_BYTES // 2, MAX_UNPACKED_BYTES // 2)

    def allows(self) -> bool:
        """Return whether the budget allows another page."""
        left = self.queries > 0 and self.bytes > 0 and self.unpacked_bytes > 0
        self.exhausted = self.exhausted or not left
        return left

    def spend(self, page: StoredPage) -> None:
        """Subtract a page from the budget."""
        self.unpacked_bytes -= page.unpacked_bytes


def ends_of(key: str) -> str:
    """Return the key of the page with the final events of the jobs in a page."""
    return f"{key}{_ENDS}"


def just_before(key: str) -> str:
    """Return a key between this page key and the next smaller one."""
    return f"{key[:-1]}{chr(ord(key[-1]) - 1)}~"


def just_after(key: str) -> str:
    """Return a key between this page key and the next larger one."""
    return f"{key}~"


def ms_of(key: str) -> int:
    """Return when a page with this key was written (ms)."""
    return int(key[:_INSTANT_DIGITS])


class EventLog:
    """Reads the log with strong consistency: a page is visible immediately after it is written."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def forward(self, first: str, last: str, budget: Budget) -> Iterator[StoredPage]:
        """Yield the pages with keys from `first` to `last`, inclusive, in ascending order.

        Args:
            first: First key.
            last: Last key.
            budget: Queries and bytes that the request can still read.
        """
        for day_ms in range(_day(first), _day(last) + 1, DAY_MS):
            yield from self._day(day_ms, first, last, budget, forward=True)

    def backward(self, last: str, first: str, budget: Budget) -> Iterator[StoredPage]:
        """Yield the pages with keys from `last` down to `first`, inclusive, in descending order.

        Args:
            last: First key to read.
            first: Last key to read.
            budget: Queries and bytes that the request can still read.
        """
        for day_ms in range(_day(last), _day(first) - 1, -DAY_MS):
            yield from self._day(day_ms, first, last, budget, forward=False)

    def latest_of_day(
        self, before: str, *, limit: int, now_ms: int
    ) -> tuple[list[StoredPage], str | None]:
        """Return the most recent pages of a day before a key, and the key of the next page.

        Makes one query, eventually consistent. If a page has expired, the page with its final
        events is returned instead.

        Args:
            before: Key of that day, after the pages.
            limit: Maximum number of pages.
            now_ms: Current time in milliseconds since the epoch.
        """
        day_ms = _day(before)
        found = self._table.query(
            "pk = :day AND sk BETWEEN :first AND :last",
            {
                ":day": keys.events(times.format_ms(day_ms)[:10]),
                ":first": keys.instant(day_ms),
                ":last": before,
            },
            limit=limit,
            forward=False,
        )
        pages = [page_from(item) for item in found.items]
        there = {page.key for page in pages}
        gone_ms = now_ms - KEPT_S * 1_000
        shown = [
            page
            for page in pages
            if not page.of_ends
            or (ms_of(page.key) < gone_ms and page.key.removesuffix(_ENDS) not in there)
        ]
        return shown, pages[-1].key if found.last is not None else None

    def _day(
        self, day_ms: int, first: str, last: str, budget: Budget, *, forward: bool
    ) -> Iterator[StoredPage]:
        """Yield the pages of one day between two keys."""
        limit = _FIRST_LIMIT
        while first <= last:
            if not budget.allows():
                return
            budget.queries -= 1
            found = self._table.query(
                "pk = :day AND sk BETWEEN :first AND :last",
                {
                    ":day": keys.events(times.format_ms(day_ms)[:10]),
                    ":first": first,
                    ":last": last,
                },
                limit=limit,
                forward=forward,
                consistent=True,
            )
            for page in map(page_from, found.items):
                if page.of_ends:
                    continue
                # The next request reads the pages beyond the budget.
                if not budget.allows():
                    return
                budget.bytes -= len(page.packed)
                yield page
                if forward:
                    first = just_after(page.key)
                else:
                    last = just_before(page.key)
            if found.last is None:
                return
            limit = min(2 * limit, _MAX_LIMIT)


def _day(key: str) -> int:
    """Return the start of the UTC day of a page key, in milliseconds since the epoch."""
    ms = ms_of(key)
    return ms - ms % DAY_MS


def page_from(item: Item) -> StoredPage:
    """Return a page from its item."""
    packed = item["zip"]
    return StoredPage(str(item["sk"]), packed if isinstance(packed, bytes) else b"")
