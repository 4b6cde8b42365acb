"""Cursors of replay rules: the last dead letter of its queue that each rule has checked.

    V|{queue}  {rule}   upto: the index key of the dead letter that was checked last
                        mark: a digest of the rule; a changed rule starts from the beginning

Dead letters become due in index order, so a rule checks each of them only once.
"""

from __future__ import annotations

from collections.abc import Iterable

from ojs.domain.dead_letter.replay_rules import ReplayRule
from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.races import won_or
from ojs.store.table.table import Put, Table
from ojs.store.table.values import Item

# Time to live of a cursor, for queues that are deleted. Existing rules renew it daily.
_KEPT_S = 30 * 86_400
_RENEWED_S = 86_400


@record(frozen=True)
class ReplayCursor:
    """The position up to which a replay rule has checked the dead letters of its queue."""

    queue: str
    rule: str
    digest: str
    upto: str
    rev: int
    ends_s: int

    def lapses(self, now_ms: int) -> bool:
        """Return whether the cursor must be written again to renew its time to live."""
        return self.ends_s - now_ms // 1000 < _KEPT_S - _RENEWED_S


class ReplayCursors:
    """Reads and writes cursors of replay rules."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def cursors(self, queue: str) -> dict[str, ReplayCursor]:
        """Return the cursors of a queue's rules, by the name of the rule. Makes one query."""
        found = self._table.query_all("pk = :queue", {":queue": keys.replays(queue)})
        return {str(item["sk"]): _cursor(queue, item) for item in found}

    def move(
        self, queue: str, rule: ReplayRule, seen: ReplayCursor | None, upto: str, *, now_ms: int
    ) -> ReplayCursor | None:
        """Advance a rule's cursor.

        Args:
            queue: Name of the queue.
            rule: The replay rule.
            seen: Cursor as read, or None if there was none.
            upto: New position.
            now_ms: Current time in milliseconds since the epoch.

        Returns:
            The new cursor, or None if another sweep has moved it.
        """
        item: Item = {
            "pk": keys.replays(queue),
            "sk": rule.name,
            "mark": rule.digest,
            "upto": upto,
            "rev": 1 if seen is None else seen.rev + 1,
            "ttl": now_ms // 1000 + _KEPT_S,
        }
        cursor = _cursor(queue, item)
        # Race: another sweep checks the same jobs. The condition on each job record ensures that
        # only one of them replays the job. The sweep that loses here leaves the other jobs to the
        # winner.
        condition = "attribute_not_exists(pk)" if seen is None else "#rev = :seen"
        put = Put(item, condition, {} if seen is None else {":seen": seen.rev})
        stored = won_or(lambda: self._table.put(put), lambda lost: lost.item)
        return cursor if stored in (None, item) else None

    def forget(self, cursors: Iterable[ReplayCursor]) -> None:
        """Delete the cursors of removed rules."""
        self._table.write_many(
            deletes=[(keys.replays(cursor.queue), cursor.rule) for cursor in cursors]
        )


def _cursor(queue: str, item: Item) -> ReplayCursor:
    return ReplayCursor(
        queue=queue,
        rule=str(item["sk"]),
        digest=str(item["mark"]),
        upto=str(item["upto"]),
        rev=int(item["rev"]),
        ends_s=int(item["ttl"]),
    )
