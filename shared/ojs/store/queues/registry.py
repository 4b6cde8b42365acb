"""The registry of queues: their names, and which of them are idle.

A queue is idle when it has not changed for QUIET_MS: sweeps skip it. So it is marked as active
before something in it changes:

- The projection notes it before it counts the queue's jobs, as gauges follow from its counts.
- A change of the record of a queue is noted, too.

A note is one write. A container makes it once in NOTED_MS for each queue. A sweep marks a queue as
idle if it has no note for QUIET_MS, on the condition that no note is written at the same time. The
difference is longer than any request, than the index delay, and than clock differences. So every
write is either seen before a queue becomes idle, or prevents it.

In the same way a sweep marks a queue as plain, whether it is idle or not, if its record has nothing
that sweeps check each minute. A note of a change of the record removes that mark.

The times at which something is due in a queue are in due notes (`ojs.store.queues.due_notes`).
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
from ojs.domain.tenants import get_tenant, qualified
from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.errors import LostRace, WriteNotApplied
from ojs.store.table.races import wins
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Item, Value, number

NOTED_MS = 5 * 60_000
QUIET_MS = 10 * 60_000
# Maximum number of queues in the per-container cache of records. If there are more, the cache is
# emptied.
_REMEMBERED = 10_000
# Number of queues that one query reads.
QUEUES_A_CALL = 1_000


@record(frozen=True)
class Rest:
    """The state of an idle queue as seen by a sweep: its gauges, as in
    `ojs.domain.stats.QueueGauges`. Times in ms.
    """

    at_ms: int
    levels: StateCounts
    changed_ms: int
    oldest_ms: int | None

    def same(self, other: Rest) -> bool:
        """Return whether another sweep has found the same state."""
        return replace(other, at_ms=self.at_ms) == self


@record(frozen=True)
class RegistryQueue:
    """A queue in the registry. Times in ms.

    `noted_ms` is the time of the last note, `changed_ms` that of the last note of a change of its
    record, and `plain_ms` the time when a sweep saw that its record has nothing that sweeps check
    each minute. Each is None if there is none.
    """

    name: str
    noted_ms: int | None = None
    rest: Rest | None = None
    changed_ms: int | None = None
    plain_ms: int | None = None

    def quiet(self, now_ms: int, for_ms: int = QUIET_MS) -> bool:
        """Return whether the queue has had no note for a time (ms)."""
        return self.noted_ms is None or self.noted_ms <= now_ms - for_ms


class QueueRegistry:
    """Reads and writes the registry, for one container."""

    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock
        # By queue: when this container noted it last, and a change of its record.
        self._noted: BoundedMap[tuple[str, bool], int] = BoundedMap(_REMEMBERED)

    def register(self, name: str) -> None:
        """Add a queue to the registry, or record that it is active.

        Safe to repeat. Raises OjsError.
        """
        now_ms = self._clock.now_ms()
        self._table.update(_noting(name, now_ms, changes=True))
        self._remember(name, now_ms, changes=True)

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

    def note(self, name: str, *, changes: bool = False) -> None:
        """Make sweeps read a queue in the next minutes. One call in NOTED_MS.

        Call it before the write that the sweeps must not miss.

        Args:
            name: Name of the queue.
            changes: Whether the write changes the record of the queue.

        Raises:
            WriteNotApplied: The record isn't stored. The write must not be made.
            OjsError: The outcome is unknown.
        """
        now_ms = self._clock.now_ms()
        noted_ms = self._noted.get((name, changes))
        if noted_ms is not None and 0 <= now_ms - noted_ms < NOTED_MS:
            return
        # Race: the queue is deleted. It must not be added to the registry again. The loser does
        # nothing: a function that adds the queue again also records it as active.
        try:
            noting = _noting(name, now_ms, "attribute_exists(pk)", changes=changes)
            if not wins(lambda: self._table.update(noting, tell_loser=False)):
                return
        except WriteNotApplied:
            raise
        except (BackendUnavailable, BackendTimeout) as error:
            # The record might be stored. The caller's write was certainly not made.
            raise WriteNotApplied(error.message) from error
        # After the write: a concurrent request must not rely on a note that might fail.
        self._remember(name, now_ms, changes=changes)

    def _remember(self, name: str, now_ms: int, *, changes: bool) -> None:
        for each in {False, changes}:
            self._noted.put((name, each), now_ms)

    def all(self, tenant: str | None = None) -> list[RegistryQueue]:
        """Return all queues, or those of a tenant, in order of name.

        The read is eventually consistent. Makes one query for a thousand.
        """
        condition, values = build_registry_condition(keys.QUEUES, tenant)
        found: list[RegistryQueue] = []
        after: dict[str, Any] | None = None
        while True:
            page = self._table.query(condition, values, limit=QUEUES_A_CALL, after=after)
            found += map(_read, page.items)
            after = page.last
            if after is None:
                return [each for each in found if tenant in (None, get_tenant(each.name))]

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

    def mark_plain(self, queue: RegistryQueue, *, now_ms: int) -> bool:
        """Record that sweeps need not read the record of a queue each minute. One call.

        Returns:
            Whether the mark is stored. It isn't if the record has changed or changes.
        """
        condition, values = "attribute_exists(pk) AND attribute_not_exists(#changed)", {}
        if queue.changed_ms is not None:
            if queue.changed_ms > now_ms - QUIET_MS:
                return False
            condition, values = "#changed = :changed", {":changed": queue.changed_ms}
        setting: dict[str, Value] = {"plain": now_ms}
        update = Update(keys.QUEUES, queue.name, set=setting, condition=condition, values=values)
        # Race: another request changes the record, or the queue is deleted. Then the mark is not
        # stored.
        return wins(lambda: self._table.update(update, tell_loser=False))

    def unmark(self, queue: RegistryQueue) -> None:
        """Remove the mark of a queue that sweeps must read each minute after all."""
        # Race: the queue is deleted. Its entry must not be created again.
        with suppress(LostRace):
            self._table.update(
                Update(keys.QUEUES, queue.name, remove=["plain"], condition="attribute_exists(pk)")
            )

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


def build_registry_condition(
    registry: str, tenant: str | None, after: str | None = None
) -> tuple[str, dict[str, Any]]:
    """Return the key condition for the names in a list, or for those of a tenant, and its values.

    `after` omits the names up to this one. The range of `acme` includes the names of the tenant
    `acme:eu`. The caller omits them.
    """
    if tenant is None:
        condition = "pk = :queues" if after is None else "pk = :queues AND sk > :after"
        return condition, {":queues": registry} | ({} if after is None else {":after": after})
    first = qualified(tenant, "")
    # `!` is before all characters of names, and `~` after them.
    values = {":queues": registry, ":first": max(first, f"{after or ''}!"), ":end": f"{first}~"}
    return "pk = :queues AND sk BETWEEN :first AND :end", values


def _noting(name: str, now_ms: int, condition: str | None = None, *, changes: bool) -> Update:
    setting: Mapping[str, Value] = {"at": now_ms} | ({"changed": now_ms} if changes else {})
    removed = ["rest", *(["plain"] if changes else [])]
    return Update(keys.QUEUES, name, set=setting, remove=removed, condition=condition)


def _text(rest: Rest) -> str:
    levels = rest.levels
    states = {state.value: count for state, count in levels.states.items() if count}
    # In place of the time of its next entry, which version 0.2 stored.
    times = [rest.at_ms, None, rest.changed_ms, rest.oldest_ms]
    return jsontext.dumps([*times, levels.dead, states])


def _read(item: Item) -> RegistryQueue:
    noted_ms, changed_ms, plain_ms = (
        None if name not in item else number(item, name) for name in ("at", "changed", "plain")
    )
    queue = RegistryQueue(str(item["sk"]), noted_ms, None, changed_ms, plain_ms)
    if "rest" not in item:
        return queue
    # An entry that can't be read is checked each minute, like any queue that is not idle.
    try:
        at_ms, _, changed_ms, oldest_ms, dead, counted = jsontext.stored(str(item["rest"]))
        states = {state: int(counted.get(state.value, 0)) for state in State}
        rest = Rest(at_ms, StateCounts(states, dead), changed_ms, oldest_ms)
    except (ValueError, TypeError, AttributeError):
        return queue
    return replace(queue, rest=rest)
