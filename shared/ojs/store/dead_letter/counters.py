"""Counts of dead letters by job type and by error, and the times of the oldest and newest ones.

    S|{queue}  dead   written by the projection: counts by job type, `t|…`, and by error, `e|…`
    S|*        dead   sums of all queues, written by the metrics sweep

Items stay small: a queue has at most MAX_NAMES names of each kind.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ojs.domain import jsontext
from ojs.domain.dead_letter.statistics import Counts
from ojs.domain.queue.config import DEFAULT_QUEUE_POLICY, Layers
from ojs.domain.stats import OTHER_TYPES
from ojs.records import record
from ojs.store.queues.queues import from_item
from ojs.store.table import keys
from ojs.store.table.races import wins
from ojs.store.table.table import Put, Table
from ojs.store.table.values import Item

BY_TYPE, BY_ERROR = "t", "e"
# Name that counts all job types or errors beyond the limit of names of a queue.
MAX_NAMES = 40
# A revision number that each write of a queue's counts increases.
REVISION = "rev"
_TOGETHER = keys.stats(keys.ALL_QUEUES), keys.DEAD


@record(frozen=True)
class DeadLetterCounts:
    """A queue's dead letters by job type and by error, as stored."""

    queue: str
    item: Item

    def of(self, by: str) -> dict[str, int]:
        """Return the count of each name, including zeros."""
        front = f"{by}|"
        return {
            name.removeprefix(front): int(count)
            for name, count in self.item.items()
            if name.startswith(front)
        }

    def tidied(self) -> Item | None:
        """Return the item without names whose count is zero, if it has many names, otherwise None.

        Names are kept while any dead letter is counted as `other`, because it might belong to one
        of them.
        """
        gone: set[str] = set()
        for by in (BY_TYPE, BY_ERROR):
            found = self.of(by)
            if len(found) > MAX_NAMES // 2 and found.get(OTHER_TYPES, 0) <= 0:
                gone.update(f"{by}|{name}" for name, count in found.items() if count <= 0)
        if not gone:
            return None
        return {name: value for name, value in self.item.items() if name not in gone}


def attribute(by: str, name: str) -> str:
    """Return the attribute with the count of a name."""
    return f"{by}|{name}"


def named(known: Iterable[str], wanted: Iterable[tuple[str, str]]) -> set[str]:
    """Return the attributes of a queue's counts: existing ones, and new ones up to the limit."""
    there = set(known)
    taken = {by: sum(name.startswith(f"{by}|") for name in there) for by in (BY_TYPE, BY_ERROR)}
    for by, name in wanted:
        if attribute(by, name) not in there and taken[by] < MAX_NAMES:
            there.add(attribute(by, name))
            taken[by] += 1
    return there


class DeadLetterCounters:
    """Reads and writes the counts of dead letters."""

    def __init__(self, table: Table) -> None:
        self._table = table

    # --- the metrics sweep --------------------------------------------------------------------

    def named(self, queues: Sequence[str]) -> tuple[list[DeadLetterCounts], Counts]:
        """Return the counts of these queues, without zeros, and the stored sums of all queues.

        Makes one call for about 100 queues.
        """
        wanted = {queue: (keys.stats(queue), keys.DEAD) for queue in queues}
        found = self._table.batch_get([*wanted.values(), _TOGETHER], consistent=False)
        named = [
            DeadLetterCounts(queue, found[key]) for queue, key in wanted.items() if key in found
        ]
        return named, _counts(found.get(_TOGETHER), None)

    def tidy(self, counted: DeadLetterCounts) -> bool:
        """Remove names whose count is zero. Return false if nothing was removed."""
        item = counted.tidied()
        if item is None:
            return False
        revision = int(item[REVISION])
        # Race: the projection counts, or another sweep removes names. The loser retries in the next
        # minute.
        return wins(
            lambda: self._table.put(
                Put(
                    {**item, REVISION: revision + 1},
                    condition="#rev = :read",
                    values={":read": revision},
                )
            )
        )

    def save(self, counts: Counts, *, now_ms: int) -> bool:
        """Store the sums of all queues. Return false if a later sweep has stored them already."""
        texts = jsontext.dumps([counts.by_queue, counts.by_error_type, counts.by_type])
        item: Item = {
            "pk": keys.stats(keys.ALL_QUEUES),
            "sk": keys.DEAD,
            "zip": zlib.compress(texts.encode("utf-8")),
            "total": counts.total,
            "at": now_ms,
        }
        # Race: two sweeps. The one that started later wins. The counts of the other are dropped.
        return wins(
            lambda: self._table.put(
                Put(
                    item,
                    condition="attribute_not_exists(pk) OR #at <= :at",
                    values={":at": now_ms},
                )
            )
        )

    # --- reads --------------------------------------------------------------------------------

    def counts(self) -> tuple[Counts, Layers]:
        """Return the sums of all queues, and the policy for new queues. Makes one call."""
        policy = keys.queue(DEFAULT_QUEUE_POLICY), keys.RECORD
        swept = keys.stats(keys.ALL_QUEUES), keys.NOW
        found = self._table.batch_get([_TOGETHER, policy, swept])
        layers = from_item(DEFAULT_QUEUE_POLICY, found.get(policy, {})).layers
        # A queue's counts are written only when they change, the sums by each sweep.
        at_ms = found.get(swept, {}).get("at")
        return _counts(found.get(_TOGETHER), None if at_ms is None else int(at_ms)), layers

    def ends(self) -> tuple[int | None, int | None]:
        """Return when the oldest and the newest dead letters were discarded (ms).

        Makes two queries of the index.
        """
        oldest, newest = (self._end(forward=forward) for forward in (True, False))
        return oldest, newest

    def _end(self, *, forward: bool) -> int | None:
        found = self._table.query(
            "epk = :dead", {":dead": keys.all_dead()}, index="expiry", limit=1, forward=forward
        )
        return keys.instant_of(str(found.items[0]["esk"])) if found.items else None

    def total(self, queue: str | None) -> int:
        """Return the number of dead letters of a queue (from the projection) or of all (from the
        sweep).

        Makes one call.
        """
        pk = keys.stats(keys.ALL_QUEUES if queue is None else queue)
        item = self._table.get(pk, keys.NOW, consistent=False) or {}
        return max(0, int(item.get("dead", 0)))


def _counts(item: Mapping[str, Any] | None, at_ms: int | None) -> Counts:
    if item is None:
        return Counts(at_ms=at_ms)
    texts = jsontext.stored(zlib.decompress(item["zip"]).decode("utf-8"))
    by_queue, by_error_type, by_type = texts
    return Counts(int(item["total"]), by_queue, by_error_type, by_type, at_ms)
