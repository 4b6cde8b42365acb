"""The registry of queues: their names, and which of them are idle.

Sweeps skip an idle queue until its next entry is due. A queue becomes idle if it has not changed
for QUIET_MS. Before a queue changes, it is recorded as active in the registry:

- A container does this before a write that gives a job a start time, a deadline, or a lease, and
  before it changes the queue itself.
- The projection does this before it counts the queue's jobs, because the queue's gauges depend on
  its counts.

The record is one write. A container makes it once in NOTED_MS for each queue. The sweep marks a
queue as idle if it has no record for QUIET_MS, on the condition that no record is written at the
same time. The difference between QUIET_MS and NOTED_MS is longer than any request, the index delay,
and clock differences together. So every write is either found before a queue becomes idle, or
prevents it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.errors import BackendTimeout, BackendUnavailable
from ojs.domain.job.states import State
from ojs.domain.stats import StateCounts
from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.errors import LostRace, WriteNotApplied
from ojs.store.table.races import wins
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Item, Value

NOTED_MS = 5 * 60_000
QUIET_MS = 10 * 60_000
# Maximum number of queues in the per-container cache of records. If there are more, the cache is
# emptied.
_REMEMBERED = 10_000
# Number of queues that one query reads.
QUEUES_A_CALL = 1_000


@record(frozen=True)
class Rest:
    """The state of an idle queue as found by a sweep. Times in ms.

    It has the time when the queue's next entry is due (None: never), and the gauges of
    `ojs.domain.stats.QueueGauges`.
    """

    at_ms: int
    next_ms: int | None
    levels: StateCounts
    changed_ms: int
    oldest_ms: int | None

    def same(self, other: Rest) -> bool:
        """Return whether another sweep has found the same state."""
        return replace(other, at_ms=self.at_ms) == self


@record(frozen=True)
class RegistryQueue:
    """A queue in the registry.

    `noted_ms` is the time of its last record, None if it has none yet.
    """

    name: str
    noted_ms: int | None = None
    rest: Rest | None = None

    def quiet(self, now_ms: int) -> bool:
        """Return whether the queue has no record within the last QUIET_MS."""
        return self.noted_ms is None or self.noted_ms <= now_ms - QUIET_MS


class QueueRegistry:
    """Reads and writes the registry, for one container."""

    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        # By queue: the time of this container's last record.
        self._noted: BoundedMap[str, int] = BoundedMap(_REMEMBERED)

    def register(self, name: str) -> None:
        """Add a queue to the registry, or record that it is active.

        Safe to repeat. Raises OjsError.
        """
        now_ms = self._clock.now_ms()
        self._table.update(_noting(name, now_ms))
        self._noted.put(name, now_ms)

    def remove(self, name: str, *, before_ms: int) -> None:
        """Remove a deleted queue, unless it was recorded as active since `before_ms`.

        Safe to repeat.
        """
        # Race: another container has deleted the queue as well, it was created again, and this
        # write takes effect late. The entry is kept, because sweeps would not read the new queue
        # without it. If the clock of another container is ahead, the entry can be kept as well, and
        # sweeps read an empty queue.
        with suppress(LostRace):
            self._table.delete(
                keys.QUEUES,
                name,
                condition="attribute_not_exists(#at) OR #at <= :before",
                values={":before": before_ms},
            )

    def note(self, name: str) -> None:
        """Record that a queue is active, so that sweeps read it. Makes one call in NOTED_MS.

        Call it before the write that the sweeps must not miss.

        Raises:
            WriteNotApplied: The record isn't stored. The write must not be made.
            OjsError: The outcome is unknown.
        """
        now_ms = self._clock.now_ms()
        noted_ms = self._noted.get(name)
        if noted_ms is not None and 0 <= now_ms - noted_ms < NOTED_MS:
            return
        # Race: the queue is deleted. It must not be added to the registry again. The loser does
        # nothing: a function that adds the queue again also records it as active.
        try:
            noting = _noting(name, now_ms, "attribute_exists(pk)")
            if not wins(lambda: self._table.update(noting, tell_loser=False)):
                return
        except WriteNotApplied:
            raise
        except (BackendUnavailable, BackendTimeout) as error:
            # The record might be stored. The caller's write was certainly not made.
            raise WriteNotApplied(error.message) from error
        # The cache is updated after the write, because a concurrent request must not rely on a
        # record that might fail.
        self._noted.put(name, now_ms)

    def all(self) -> list[RegistryQueue]:
        """Return all queues in order of name.

        The read is eventually consistent. Makes one query for a thousand.
        """
        found: list[RegistryQueue] = []
        after: dict[str, Any] | None = None
        while True:
            page = self._table.query(
                "pk = :all", {":all": keys.QUEUES}, limit=QUEUES_A_CALL, after=after
            )
            found += map(_read, page.items)
            after = page.last
            if after is None:
                return found

    def count(self, most: int) -> int:
        """Return the number of queues, up to `most`. The read is eventually consistent."""
        count, after = 0, None
        while count < most:
            limit = min(QUEUES_A_CALL, most - count)
            page = self._table.query("pk = :all", {":all": keys.QUEUES}, limit=limit, after=after)
            count += len(page.items)
            after = page.last
            if after is None:
                break
        return count

    def let_rest(self, queue: RegistryQueue, rest: Rest) -> bool:
        """Mark a queue as idle.

        Return false if it was recorded as active since it was read. Makes one call.
        """
        condition, values = "attribute_exists(pk) AND attribute_not_exists(#at)", {}
        if queue.noted_ms is not None:
            condition, values = "#at = :noted", {":noted": queue.noted_ms}
        # Race: a container records the queue as active, or the queue is deleted. Sweeps then
        # continue to read it, or it stays deleted. Race: another sweep. Both have the same result,
        # because no container recorded the queue as active.
        return wins(
            lambda: self._table.update(
                Update(
                    keys.QUEUES,
                    queue.name,
                    set={"rest": _text(rest)},
                    condition=condition,
                    values=values,
                ),
                tell_loser=False,
            )
        )


def _noting(name: str, now_ms: int, condition: str | None = None) -> Update:
    setting: Mapping[str, Value] = {"at": now_ms}
    return Update(keys.QUEUES, name, set=setting, remove=["rest"], condition=condition)


def _text(rest: Rest) -> str:
    levels = rest.levels
    states = {state.value: count for state, count in levels.states.items() if count}
    times = [rest.at_ms, rest.next_ms, rest.changed_ms, rest.oldest_ms]
    return jsontext.dumps([*times, levels.dead, states])


def _read(item: Item) -> RegistryQueue:
    name, stored = str(item["sk"]), item.get("at")
    noted_ms = None if stored is None else int(str(stored))
    if "rest" not in item:
        return RegistryQueue(name, noted_ms)
    # The sweep checks a queue whose entry can't be read every minute, like any queue that is not
    # idle.
    try:
        at_ms, next_ms, changed_ms, oldest_ms, dead, counted = jsontext.stored(str(item["rest"]))
        states = {state: int(counted.get(state.value, 0)) for state in State}
        rest = Rest(at_ms, next_ms, StateCounts(states, dead), changed_ms, oldest_ms)
    except (ValueError, TypeError, AttributeError):
        return RegistryQueue(name, noted_ms)
    return RegistryQueue(name, noted_ms, rest)
