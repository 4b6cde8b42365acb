"""How far the replay rules of queues have come.

    V|{queue}  {rule}   upto: the place in the queue's line of dead letters that was looked at last
                        mark: what the rule was then; a rule that was changed begins anew

Dead letters become due in the order in which they stand, so what a rule has looked at it never
looks at again, whether it matched or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ojs.domain.dead_letter.replay_rules import ReplayRule
from ojs.domain.queue.queue import Queue
from ojs.store.queues.queues import from_item
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Put, Table
from ojs.store.table.values import Item

# Of a rule that is gone with its queue; one that is there renews it daily.
_KEPT_S = 30 * 86_400
_RENEWED_S = 86_400


@dataclass(frozen=True)
class ReplayCursor:
    """How far a rule has come."""

    queue: str
    rule: str
    mark: str
    upto: str
    rev: int
    ends_s: int

    def lapses(self, now_ms: int) -> bool:
        """Whether it should be written again, lest it be forgotten."""
        return self.ends_s - now_ms // 1000 < _KEPT_S - _RENEWED_S


class ReplayCursors:
    """The store of it."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def ruled(self, names: Sequence[str]) -> list[Queue]:
        """Those of the queues that have rules. One call for a hundred."""
        wanted = {name: (keys.queue(name), keys.HEAD) for name in names}
        found = self._table.batch_get(wanted.values(), consistent=False)
        there = (from_item(name, found[key]) for name, key in wanted.items() if key in found)
        return [queue for queue in there if queue.layers.replay_rules]

    def cursors(self, queue: str) -> dict[str, ReplayCursor]:
        """How far the rules of a queue have come, by name. One query; there are few."""
        found = self._table.query_all("pk = :queue", {":queue": keys.replays(queue)})
        return {str(item["sk"]): _cursor(queue, item) for item in found}

    def move(
        self, queue: str, rule: ReplayRule, seen: ReplayCursor | None, upto: str, *, now_ms: int
    ) -> ReplayCursor | None:
        """Note that a rule has looked at everything up to a place; None when others did so."""
        rev = 1 if seen is None else seen.rev + 1
        ends_s = now_ms // 1000 + _KEPT_S
        item: Item = {
            "pk": keys.replays(queue),
            "sk": rule.name,
            "mark": rule.mark,
            "upto": upto,
            "rev": rev,
            "ttl": ends_s,
        }
        cursor = _cursor(queue, item)
        # Race: another sweep that looks at the same jobs. What both found is replayed once, by the
        # condition on its head; the one that loses here leaves the rest to the other.
        condition = "attribute_not_exists(pk)" if seen is None else "#rev = :seen"
        try:
            self._table.put(Put(item, condition, {} if seen is None else {":seen": seen.rev}))
        except LostRace as lost:
            return cursor if lost.item == item else None
        return cursor

    def forget(self, cursors: Iterable[ReplayCursor]) -> None:
        """Drop those of rules that are gone."""
        self._table.write_many(
            deletes=[(keys.replays(cursor.queue), cursor.rule) for cursor in cursors]
        )


def _cursor(queue: str, item: Item) -> ReplayCursor:
    return ReplayCursor(
        queue=queue,
        rule=str(item["sk"]),
        mark=str(item["mark"]),
        upto=str(item["upto"]),
        rev=int(item["rev"]),
        ends_s=int(item["ttl"]),
    )
