"""Reads the event log: the most recent events, older pages, or all events after a position.

Writers of the log don't wait for each other, so a page can appear whose key is slightly earlier
than the key of a page that was read before. A reader that follows the log therefore rereads the
last HOLD_BACK_MS, and its cursor lists the pages of this time that it has read. So no event is
lost or duplicated if each page appears within HOLD_BACK_MS of the time in its key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain, islice
from typing import Any

from ojs.clock import Clock
from ojs.domain import ids, jsontext
from ojs.domain.errors import BAD_CURSOR, InvalidRequest
from ojs.domain.events.query import EVENT_PREFIX, RETAIN_MS, EventFilter, EventPage
from ojs.records import record
from ojs.store.derived import event_log
from ojs.store.derived.event_log import Budget, EventLog, StoredPage, just_after, just_before
from ojs.store.table import keys

HOLD_BACK_MS = 10_000
# Maximum number of pages in the last HOLD_BACK_MS that a cursor can list. If more are written,
# followers lag by up to HOLD_BACK_MS.
MAX_NAMED = 50
# Maximum difference (ms) between the time of an event and that of its page. If the DynamoDB stream
# has a longer delay, `until` does not find the event.
LATE_MS = 3_600_000
# Maximum size of the events in one response, in bytes of JSON. A Lambda response has at most 6 MB
# and contains the events twice. Quoting can double their size.
MAX_ANSWER_BYTES = 1_300_000
# Maximum time (ms) by which the clocks of writers can be ahead of the reader's clock.
_AHEAD_MS = 60_000
_ALL = -1

_INSTANT = r"[0-9]{15}"
_WRITER = r"[A-Za-z0-9_\-]{1,32}"
_COUNT = r"[0-9]{1,6}"
# A cursor can list partly read pages in addition to fully read ones.
_NAMED = rf"(?:,{_WRITER}(?::{_COUNT})?){{0,{10 * MAX_NAMED}}}"
_FOLLOW = re.compile(rf"f({_INSTANT}(?:\|{_WRITER})?~?)({_NAMED})")
_BACK = re.compile(rf"b({_INSTANT}\|{_WRITER}):({_COUNT});(f.*)", re.DOTALL)


@record(frozen=True)
class ForwardCursor:
    """A position to continue from, forward: the first key that can be new.

    `read` has the number of events read, for each page from that key on (`_ALL`: all).
    """

    first: str
    read: Mapping[str, int] = field(default_factory=dict)

    def text(self) -> str:
        """Return the text form of the cursor."""
        named = (f",{token}" if n == _ALL else f",{token}:{n}" for token, n in self.read.items())
        return f"f{self.first}{''.join(named)}"


@record(frozen=True)
class BackwardCursor:
    """A position to continue from, backward: the first `left` events of a page, then older pages.

    `follow` is the start of the listing, for readers that continue forward from there.
    """

    key: str
    left: int
    follow: ForwardCursor

    def text(self) -> str:
        """Return the text form of the cursor."""
        return f"b{self.key}:{self.left};{self.follow.text()}"


@record
class _Found:
    """The events found for one response."""

    wanted: EventFilter
    limit: int
    events: list[dict[str, Any]] = field(default_factory=list)
    room: int = field(default_factory=lambda: MAX_ANSWER_BYTES)

    @property
    def full(self) -> bool:
        """Whether the requested number of events is found."""
        return len(self.events) == self.limit

    def read(self, page: StoredPage) -> list[dict[str, Any]]:
        """Return the events of a page, oldest first. Empty if no event can match."""
        wanted = self.wanted
        named = (names for names in (wanted.queues, wanted.job_types) if names)
        return page.events() if all(map(page.names_any, named)) else []

    def take(self, event: dict[str, Any], *, show: bool = True) -> bool:
        """Add an event if it matches. Return false if it doesn't fit into the response."""
        if not self.wanted.matches(event):
            return True
        if self.full:
            return False
        size = jsontext.size_of(event) if show else 0
        if self.events and size > self.room:
            return False
        self.room -= size
        self.events.append(event)
        return True


class Events:
    """Reads the event log, with a bounded number of calls and bytes per request."""

    def __init__(self, event_log: EventLog, clock: Clock) -> None:
        self._log = event_log
        self._clock = clock

    def list(
        self,
        wanted: EventFilter,
        *,
        limit: int,
        skip: int = 0,
        after: str | None = None,
        cursor: str | None = None,
    ) -> EventPage:
        """Return matching events: the most recent ones, older ones, or those after a position.

        A response can have few events, or none, although more exist. The cursor of each response is
        beyond the previous one.

        Args:
            wanted: The filter.
            limit: Maximum number of events.
            skip: Number of the most recent events to omit.
            after: An event ID or a cursor. Returns the events recorded since then, oldest first.
            cursor: A cursor of an earlier response. A backward cursor returns older events.

        Returns:
            The events, with the cursors to continue from.

        Raises:
            InvalidRequest: The ID or the cursor is invalid.
        """
        now_ms = self._clock.now_ms()
        if after is not None and after.startswith(EVENT_PREFIX):
            return self._forward(wanted, limit, *self._position_after(after, now_ms), now_ms=now_ms)
        if after is not None:
            forward = _forward_cursor(after, "after", now_ms)
        elif cursor is None:
            return self._latest(wanted, limit, skip, now_ms=now_ms)
        elif cursor.startswith("f"):
            forward = _forward_cursor(cursor, "cursor", now_ms)
        else:
            return self._older(wanted, limit, _backward_cursor(cursor, now_ms), now_ms=now_ms)
        return self._forward(wanted, limit, forward, Budget(), now_ms=now_ms)

    def find_end(self) -> str:
        """Return the cursor after the latest event."""
        return self._young(Budget(), self._clock.now_ms())[1].text()

    def list_since(self, wanted: EventFilter, *, limit: int) -> EventPage:
        """The first `limit` events that match, oldest first, from the filter's `since_ms` on."""
        now_ms = self._clock.now_ms()
        first = ForwardCursor(_earliest(wanted, now_ms))
        return self._forward(wanted, limit, first, Budget(), now_ms=now_ms)

    # --- forward ------------------------------------------------------------------------------

    def _forward(
        self, wanted: EventFilter, limit: int, cursor: ForwardCursor, budget: Budget, *, now_ms: int
    ) -> EventPage:
        horizon = keys.instant(now_ms - HOLD_BACK_MS)
        first = max(cursor.first, _earliest(wanted, now_ms))
        found = _Found(wanted, limit)
        # The keys of the listed pages. None if not found yet.
        page_keys: dict[str, str | None] = dict.fromkeys(cursor.read)
        read = dict(cursor.read)
        read_up_to: str | None = None
        more = too_many_young = False
        last = _latest_key(wanted, now_ms)
        for page in self._log.forward(first, last, budget):
            young = sum(key is None or key > horizon for key in page_keys.values())
            new_and_young = page.token not in read and page.key > horizon
            too_many_young = new_and_young and young >= MAX_NAMED
            if too_many_young:
                break
            if read.get(page.token) != _ALL:
                if found.full:
                    more = True
                    break
                taken = self._take(page, found, read.get(page.token, 0), budget)
                if taken != _ALL:
                    more = True
                    if taken:
                        read[page.token], page_keys[page.token] = taken, page.key
                    break
            read[page.token], page_keys[page.token] = _ALL, page.key
            read_up_to = just_after(page.key)
        ended = not (more or too_many_young or budget.exhausted)
        if ended:
            first = max(first, min(horizon, last))
        elif read_up_to is not None:
            first = max(first, min(read_up_to, horizon))
        # The cursor need not list pages before the position, or listed pages that are deleted.
        kept = {
            token: read[token]
            for token, key in page_keys.items()
            if (not ended if key is None else key >= first)
        }
        follow = ForwardCursor(first, kept)
        return EventPage(found.events, follow.text(), more or budget.exhausted)

    @staticmethod
    def _take(page: StoredPage, found: _Found, start: int, budget: Budget) -> int:
        """Add the events of a page from `start` on. Return how many were read, or _ALL."""
        budget.spend(page)
        events = found.read(page)
        for at in range(start, len(events)):
            if not found.take(events[at]):
                return at
        return _ALL

    def _position_after(self, event_id: str, now_ms: int) -> tuple[ForwardCursor, Budget]:
        """Return the position after an event, and the remaining budget.

        The ID contains the time of the event, not its position, so the log is searched from that
        time on. If the event is not found, because it is too old or never existed, its time is the
        position.
        """
        if not ids.is_uuid7(event_id.removeprefix(EVENT_PREFIX)):
            rule = "must be the id of an event or a cursor from a previous response"
            raise InvalidRequest("after", rule, value=event_id)
        happened_ms = int(event_id.removeprefix(EVENT_PREFIX).replace("-", "")[:12], 16)
        happened_ms = min(happened_ms, now_ms + _AHEAD_MS)
        # The clock of the page's writer can be behind.
        position = ForwardCursor(keys.instant(max(0, happened_ms - HOLD_BACK_MS)))
        first = max(position.first, _earliest(EventFilter(), now_ms))
        budget = Budget.half()
        for page in self._log.forward(first, _latest_key(EventFilter(), now_ms), budget):
            budget.spend(page)
            for at, event in enumerate(page.events(), start=1):
                if event["id"] == event_id:
                    position = ForwardCursor(page.key, {page.token: at})
                    break
            else:
                continue
            break
        return position, Budget.half()

    # --- back ---------------------------------------------------------------------------------

    def _latest(self, wanted: EventFilter, limit: int, skip: int, *, now_ms: int) -> EventPage:
        budget = Budget()
        # Read all recent pages first, because the cursor lists them.
        young, follow = self._young(budget, now_ms)
        last = keys.upto(now_ms - HOLD_BACK_MS - 1)
        pages = chain(reversed(young), self._before(wanted, last, budget, now_ms))
        whole = ((page, None) for page in pages)
        return self._back(_Found(wanted, skip + limit), skip, whole, budget, follow)

    def _young(self, budget: Budget, now_ms: int) -> tuple[Sequence[StoredPage], ForwardCursor]:
        """Return the recent pages, and the position after them. Pages beyond the number that a
        cursor can list count as not written yet.
        """
        horizon = keys.instant(now_ms - HOLD_BACK_MS)
        until = _latest_key(EventFilter(), now_ms)
        young = list(islice(self._log.forward(horizon, until, budget), MAX_NAMED))
        return young, ForwardCursor(horizon, {page.token: _ALL for page in young})

    def _older(
        self, wanted: EventFilter, limit: int, back: BackwardCursor, *, now_ms: int
    ) -> EventPage:
        budget = Budget()
        last = back.key if back.left else just_before(back.key)
        # Of the recent pages, show only those from the start of the listing. Other pages have
        # appeared since then, and are shown when the reader continues forward.
        pages = (
            (page, back.left if page.key == back.key else None)
            for page in self._before(wanted, last, budget, now_ms)
            if page.key < back.follow.first or page.token in back.follow.read
        )
        return self._back(_Found(wanted, limit), 0, pages, budget, back.follow)

    def _before(
        self, wanted: EventFilter, last: str, budget: Budget, now_ms: int
    ) -> Iterator[StoredPage]:
        last = min(last, _latest_key(wanted, now_ms))
        return self._log.backward(last, _earliest(wanted, now_ms), budget)

    @staticmethod
    def _back(
        found: _Found,
        skip: int,
        pages: Iterable[tuple[StoredPage, int | None]],
        budget: Budget,
        follow: ForwardCursor,
    ) -> EventPage:
        """Collect events from pages, newest first.

        Each page has the number of its events to read. The most recent `skip` found events are
        omitted.
        """
        position: tuple[str, int] | None = None
        more = False
        for page, left in pages:
            if found.full:
                more = True
                break
            budget.spend(page)
            events = found.read(page)[:left]
            position = page.key, 0
            while events:
                if not found.take(events[-1], show=len(found.events) >= skip):
                    position, more = (page.key, len(events)), True
                    break
                events.pop()
            if more:
                break
        older = None
        if position is not None and (more or budget.exhausted):
            older = BackwardCursor(*position, follow).text()
        shown = found.events[skip:]
        return EventPage(shown[::-1], follow.text(), has_more=False, older=older)


def _earliest(wanted: EventFilter, now_ms: int) -> str:
    """Return the key of the earliest page that can contain a matching event."""
    kept_ms = now_ms - RETAIN_MS
    # The clock of the page's writer can be behind that of the container that changed the job.
    since_ms = kept_ms if wanted.since_ms is None else wanted.since_ms - HOLD_BACK_MS
    return keys.instant(max(0, kept_ms, since_ms))


def _latest_key(wanted: EventFilter, now_ms: int) -> str:
    """Return the key of the last page that can contain a matching event."""
    now_key = keys.upto(now_ms + _AHEAD_MS)
    return (
        now_key if wanted.until_ms is None else min(now_key, keys.upto(wanted.until_ms + LATE_MS))
    )


def _forward_cursor(text: str, name: str, now_ms: int) -> ForwardCursor:
    """Parse the forward cursor of a parameter. Raises InvalidRequest."""
    found = _FOLLOW.fullmatch(text)
    # This server returns no cursor that is ahead of the clock.
    if found is None or event_log.ms_of(found[1]) > now_ms + _AHEAD_MS:
        raise InvalidRequest(name, BAD_CURSOR, value=text)
    read: dict[str, int] = {}
    for part in filter(None, found[2].split(",")):
        token, _, count = part.partition(":")
        read[token] = int(count) if count else _ALL
    return ForwardCursor(found[1], read)


def _backward_cursor(text: str, now_ms: int) -> BackwardCursor:
    """Parse a backward cursor. Raises InvalidRequest."""
    found = _BACK.fullmatch(text)
    if found is None or event_log.ms_of(found[1]) > now_ms + _AHEAD_MS:
        raise InvalidRequest("cursor", BAD_CURSOR, value=text)
    follow = _forward_cursor(found[3], "cursor", now_ms)
    return BackwardCursor(found[1], int(found[2]), follow)
