"""The counters of a shard of the DynamoDB stream: the changes of each queue that it has counted.

    S|{shard}  {queue}   written only by the projection, which processes one batch of a shard at a
        time
    S|*        shards    the list of shards with such items, and when each was last used

An item has the differences by which this shard changes the current counts of the queue (such as the
number of available jobs), recent activity by day and by minute, and the shard's position. One
conditional write changes all of these together. When the item would exceed 1 KB, recent activity is
moved to the queue's own items (`S|{queue}`). After the shard is closed, the current counts are
moved as well.

A reader adds the items of shards to the queue's own items. The items can be moved during the read.
Therefore, an item that takes over counters stores the name of the shard and the number of the part
that it took over (`f_…`).
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import field, replace
from datetime import UTC, datetime
from typing import Any

from ojs.domain import jsontext
from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.record import Attribute, Record, flag
from ojs.store.table.table import MAX_TRANSACTION, Put, Update
from ojs.store.table.values import Item, Value, size

DAY_KEPT_S = 90 * 86_400
MINUTE_KEPT_S = 25 * 3_600
# A write costs one unit per KB. If an item would be larger, its recent activity is moved.
_FULL_BYTES = 1_000
# Limits of the items that one transaction moves, and of the counters of one item. DynamoDB limits
# an expression to 4 KB.
_MAX_MOVED = MAX_TRANSACTION - 10
_MAX_COUNTERS = 150
TAKER = "f_"
Counts = Mapping[str, int]


@record(frozen=True)
class ShardCounts:
    """The counters of a queue (or a pool) in the item of one stream shard.

    Positions are sequence numbers of stream records. All records up to `position` are counted. The
    events of the records after `page_from` and up to `page_to` are in the event page `page`, if
    that page was written. The events of earlier records are in earlier pages. The events of later
    records are in no page.
    """

    shard: str
    name: str
    rev: int = 0
    position: str = ""
    page: str = ""
    page_from: str = ""
    page_to: str = ""
    levels: Counts = field(default_factory=dict)
    # By sort key of the day or minute.
    recent: Mapping[str, Counts] = field(default_factory=dict)
    # Numbers of the levels and of `recent`: the queue's own items store which ones they took over.
    # They begin at the time (ms): an item that was removed and created again has larger ones. After
    # `recent` was moved, `part` is at least the time when that was (ms).
    generation: int = 0
    part: int = 0
    folded: bool = False
    changed_ms: int = 0

    @classmethod
    def of(cls, shard: str, name: str, item: Item | None) -> ShardCounts:
        """Return the counters in the item of a shard. Without an item, all are zero.

        Args:
            shard: ID of the stream shard.
            name: Name of the queue or pool.
            item: Item as read, or None.
        """
        return SHARD.of(item or {}, shard=shard, name=name)

    def counting(
        self, levels: Counts, recent: Mapping[str, Counts], position: str, *, now_ms: int
    ) -> ShardCounts:
        """Return these counters with additions, up to a position.

        Args:
            levels: Differences of the current counts. Counts that were moved start at zero again.
            recent: Differences by day and minute.
            position: Position of the last counted record.
            now_ms: Current time in milliseconds since the epoch.
        """
        lately = dict.fromkeys((*self.recent, *recent))
        return replace(
            self,
            position=max(self.position, position),
            levels=_added({} if self.folded else self.levels, levels),
            recent={sk: _added(self.recent.get(sk, {}), recent.get(sk, {})) for sk in lately},
            generation=self.generation + self.folded if self.rev else now_ms,
            part=self.part if self.rev else now_ms,
            folded=False,
            changed_ms=now_ms,
        )

    def telling(self, page: str, first: str, last: str) -> ShardCounts:
        """Return these counters with the key of the next event page.

        Args:
            page: Key of the page.
            first: Position of the first stream record with events in the page.
            last: Position of the last stream record.
        """
        # If the previous page was not written, its events are in this page or still missing.
        begin = self.page_from if first <= self.page_to else self.page_to
        return replace(self, page=page, page_from=begin, page_to=last)

    def item(self, *, ttl_s: int | None = None) -> Item:
        """Return the item that replaces the one that was read."""
        return {
            **SHARD.item(
                replace(self, rev=self.rev + 1),
                pk=keys.shard_stats(self.shard),
                sk=self.name,
                ttl=ttl_s,
            ),
            **{name: count for name, count in self.levels.items() if count},
        }

    def full(self) -> bool:
        """Return whether the item is so large that its recent activity must be moved."""
        return bool(self.recent) and size(self.item()) > _FULL_BYTES

    def handed_over(self) -> tuple[ShardCounts, list[Update]]:
        """Return the remaining counters, and the writes that move recent activity.

        The activity moves to the queue's own items.
        """
        moved: list[Update] = []
        left: dict[str, Counts] = {}
        for sk, counts in self.recent.items():
            each = list(counts.items())
            most = _MAX_COUNTERS if len(moved) < _MAX_MOVED else 0
            if add := dict(each[:most]):
                taken: dict[str, Value] = {"ttl": _ends_s(sk), taker(self.shard): self.part}
                moved.append(Update(keys.stats(self.name), sk, set=taken, add=add))
            if rest := dict(each[most:]):
                left[sk] = rest
        return replace(self, recent=left, part=max(self.part + 1, self.changed_ms)), moved

    def written(self, *, ttl_s: int | None = None) -> Put:
        """Return the conditional write of the item."""
        # Race: a redelivery of this shard's records (after a timeout, Lambda can process two at the
        # same time), or the sweep, which moves the current counts. The loser reads again, and
        # counts the records that are not counted yet.
        item = self.item(ttl_s=ttl_s)
        if not self.rev:
            return Put(item, condition="attribute_not_exists(pk)")
        return Put(item, condition="#rev = :read", values={":read": self.rev})


def _levels(item: Mapping[str, Any]) -> Counts:
    own = {"pk", "sk", "ttl", *SHARD.rows}
    return {n: v for n, v in item.items() if n not in own and isinstance(v, int)}


SHARD = Record(
    ShardCounts,
    "counters of shard",
    {
        "rev": "rev",
        "pos": "position",
        "gen": "generation",
        "part": "part",
        "changed": "changed_ms",
        "page": "page",
        "page_from": "page_from",
        "page_to": "page_to",
        "folded": flag("folded"),
        "recent": Attribute(
            "recent",
            lambda recent: zlib.compress(jsontext.dumps(recent).encode("utf-8"), 9),
            lambda packed: jsontext.stored(zlib.decompress(packed).decode("utf-8")),
            "B",
        ),
    },
    apart={"shard": None, "name": None, "levels": _levels},
    always=("rev", "pos", "gen", "part", "changed"),
)


def _added(one: Counts, other: Counts) -> Counts:
    """Return the sums of two mappings, without sums that are zero."""
    names = dict.fromkeys((*one, *other))
    sums = {name: one.get(name, 0) + other.get(name, 0) for name in names}
    return {name: count for name, count in sums.items() if count}


def taker(shard: str) -> str:
    """Return the attribute with the number of the part that an item took over from a shard."""
    return f"{TAKER}{tag(shard)}"


def tag(shard: str) -> str:
    """Return a short name of a stream shard, for the names of attributes."""
    return hashlib.blake2b(shard.encode("utf-8"), digest_size=6).hexdigest()


def _ends_s(sk: str) -> int:
    """Return the time to live (s since the epoch) of the item of a day or of a minute."""
    begun_s = int(datetime.fromisoformat(sk[2:]).replace(tzinfo=UTC).timestamp())
    if sk.startswith(keys.day("")):
        return begun_s + 86_400 + DAY_KEPT_S
    return begun_s + 60 + MINUTE_KEPT_S
