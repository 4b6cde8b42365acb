"""Due notes: which lines have an entry that is due, by intervals of five minutes.

A line is a lane's partition of starts, retries, ends of leases and ticks (`keys.due`), that of its
deadlines (`keys.expiry`), or a slot of staged batches (`keys.staged`). The job sweep reads only
lines that were noted for the present interval or for one that ended recently, so its cost does not
grow with the number of queues.

- Before a write that puts an entry into a line, a container notes the line for the interval in
  which the entry is due. It does so once for each line and interval: one write. Without the note
  the entry is not written.
- An entry that is due later than AHEAD_MS needs no note. The sweep reads all lines of each queue
  once an hour, and notes the next entry that it finds within AHEAD_MS. Each entry is found twice
  that way before it is due. The same holds for entries of earlier versions and for lost notes.
- The sweep reads each slot of staged batches once an hour, for a batch whose write comes late.
- An interval is read until SETTLED_MS after its end: longer than a request, the index delay, and
  clock differences. Then the sweep stores that it is done.
"""

from __future__ import annotations

from collections.abc import Iterable

from ojs.bounded import BoundedSet
from ojs.clock import Clock
from ojs.domain.errors import BackendTimeout, BackendUnavailable
from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.errors import WriteNotApplied
from ojs.store.table.races import wins
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Item, number

BUCKET_MS = 5 * 60_000
AHEAD_MS = 130 * 60_000
SETTLED_MS = 10 * 60_000
# If the oldest interval is this old, the sweep was out of service: it reads all lines of all
# queues.
LATE_MS = 30 * 60_000
# An interval whose lines were all read this long after its end is read again when it settles.
_SHOWN_MS = 60_000
# Longer than any failure of the sweeps that could go unnoticed.
_KEPT_S = 7 * 86_400
_REMEMBERED = 20_000
_DONE = (keys.DUE_NOTES, keys.RECORD)


@record(frozen=True)
class DueLines:
    """The lines that a sweep reads, as noted at `at_ms`.

    `done` is the first interval that was not done, None if that is not stored; `settled` is the
    first one that still has to be read after this sweep.
    """

    done: int | None
    settled: int
    lines: list[str]
    at_ms: int = 0

    @property
    def late(self) -> bool:
        """Whether the sweep was out of service, so that all lines must be read."""
        return self.done is None or (self.settled - self.done) * BUCKET_MS > LATE_MS


class DueNotes:
    """The store of due notes, for one container."""

    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        # Notes that this container wrote or read: line and interval.
        self._noted: BoundedSet[tuple[str, int]] = BoundedSet(_REMEMBERED)
        # The first interval that was not done, as this container knows it. An old value is smaller:
        # more is read.
        self._done: int | None = None
        # Intervals before this one were read after their end, and are not read until they settle.
        self._shown = 0

    def note(self, entries: Iterable[tuple[str, int]]) -> None:
        """Note lines, each for the time (ms) at which an entry in it is due. Call it before the
        entries are written. No call for lines that this container has noted for these intervals.

        Raises WriteNotApplied if that fails: then the entries must not be written. Raises OjsError.
        """
        now_ms = self._clock.now_ms()
        notes = {
            (line, max(due_ms, now_ms) // BUCKET_MS)
            for line, due_ms in entries
            if due_ms <= now_ms + AHEAD_MS
        }
        new = sorted(one for one in notes if one not in self._noted)
        if not new:
            return
        try:
            self._table.write_many(_item(*one) for one in new)
        except WriteNotApplied:
            raise
        except (BackendUnavailable, BackendTimeout) as error:
            # The notes might have been written. The entries were certainly not.
            raise WriteNotApplied(error.message) from error
        # After the write: a concurrent request must not rely on a note that might fail.
        for one in new:
            self._noted.add(one)

    # --- the sweep --------------------------------------------------------------------------------

    def lines(self) -> DueLines:
        """Return the lines to read now. One call for each interval that is read: the present one,
        the one before for a minute, and one that settles. One more in a new container, or after
        another one stored what is done. Raises OjsError.
        """
        now_ms = self._clock.now_ms()
        if self._done is None and (item := self._table.get(*_DONE, consistent=False)):
            self._done = number(item, "done")
        done = self._done
        settled = max((now_ms - SETTLED_MS) // BUCKET_MS, done or 0)
        found = DueLines(done, settled, [], now_ms)
        # After an outage, all lines are read instead.
        lines: dict[str, None] = {}
        first = settled if found.late or done is None else done
        for bucket in range(first, now_ms // BUCKET_MS + 1):
            if bucket < settled or bucket >= self._shown:
                lines |= dict.fromkeys(self.noted(bucket))
        found.lines.extend(lines)
        return found

    def noted(self, bucket: int) -> list[str]:
        """Return the lines that are noted for an interval; may be stale. One call."""
        found = self._table.query_all(
            "pk = :bucket", {":bucket": keys.due_notes(bucket)}, consistent=False
        )
        lines = [str(item["sk"]) for item in found]
        for line in lines:
            self._noted.add((line, bucket))
        return lines

    def advance(self, found: DueLines) -> None:
        """Store that all these lines were read, and noted again if an entry is left."""
        self._shown = max(self._shown, (found.at_ms - _SHOWN_MS) // BUCKET_MS)
        if found.done == found.settled:
            return
        condition = "attribute_not_exists(pk)" if found.done is None else "#done = :done"
        values = {} if found.done is None else {":done": found.done}
        # Unknown until the write succeeds.
        self._done = None
        # Race: another sweep. Each has read the intervals that it stores as done.
        if wins(
            lambda: self._table.update(
                Update(*_DONE, set={"done": found.settled}, condition=condition, values=values),
                tell_loser=False,
            )
        ):
            self._done = found.settled


def _item(line: str, bucket: int) -> Item:
    ttl = bucket * BUCKET_MS // 1_000 + _KEPT_S
    return {"pk": keys.due_notes(bucket), "sk": line, "ttl": ttl}
