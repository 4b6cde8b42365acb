"""Reads statistics counters: the sum of a queue's own items and the items of open stream shards.

The list of open shards of the DynamoDB stream is one item, `S|*`/`shards`. Every few minutes, the
projection records in the list that a shard is in use. The sweep moves the counts of an unused shard
to the queues' own items, and then removes the shard from the list. The shard's items keep their
position for two days, because stream records can be redelivered. If a late record is counted, the
shard is listed again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil

from ojs.records import record
from ojs.store.derived.shards import TAKER, ShardCounts, tag, taker
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import MAX_BATCH_GET, Put, Table, Update
from ojs.store.table.values import Item, Value, number, size

# A container records a shard as in use every NOTED_MS. The sweep treats a shard without a record
# for CLOSED_MS as closed. So no container writes to a shard that isn't in the list.
NOTED_MS = 5 * 60_000
CLOSED_MS = 10 * 60_000
# Stream records are kept for one day. After that they can't be redelivered.
_POSITION_KEPT_S = 2 * 86_400
_LISTED = keys.stats(keys.ALL_QUEUES), keys.SHARDS
_ENTRY = "s_"
# Bytes that half a read unit covers, for an eventually consistent read.
_HALF_UNIT_BYTES = 4_096
_OF_ALL = keys.stats(keys.ALL_QUEUES)
_STATS = keys.stats("")
Key = tuple[str, str]


@record(frozen=True)
class ShardPosition:
    """A shard in the list, and the last time (ms) when it was recorded as in use.

    `entry` is the name of its attribute in the list.
    """

    shard: str
    at_ms: int
    entry: str


def _notes(item: Item) -> list[ShardPosition]:
    texts = ((name, str(text)) for name, text in item.items() if name.startswith(_ENTRY))
    parts = ((name, *text.split("|", 1)) for name, text in texts)
    return [ShardPosition(shard, int(at_ms), name) for name, at_ms, shard in parts]


class ShardCounters:
    """Reads and moves the statistics counters of queues, in their items and those of shards."""

    def __init__(self, table: Table) -> None:
        self._table = table
        # The shards known to this container. If the list has other shards, a second call reads
        # their items.
        self._shards: Sequence[str] = ()

    # --- reading ------------------------------------------------------------------------------

    def batch_get(self, wanted: Iterable[Key], *, consistent: bool = True) -> dict[Key, Item]:
        """Return items by key, as `Table.batch_get` does.

        Statistics items include the shards' counters.

        This needs the calls for these items, and one more item for each queue and open shard. If a
        shard is new, the calls are repeated.
        """
        wanted = list(dict.fromkeys(wanted))
        names = {pk.removeprefix(_STATS) for pk, _ in wanted if _is_counted(pk)}
        if not names:
            return self._table.batch_get(wanted, consistent=consistent)
        found = self._read(names, wanted, consistent=consistent)
        self._add_shards(wanted, found, {name: self._counts(name, found) for name in names})
        return found

    def batch_get_with_recent(
        self, name: str, wanted: Sequence[Key]
    ) -> tuple[dict[Key, Item], ShardActivity]:
        """Return the items of one queue as `batch_get` does, and the result of `recent`, by one
        call.
        """
        wanted = list(dict.fromkeys(wanted))
        found = self._read({name}, wanted, consistent=True)
        counts = self._counts(name, found)
        self._add_shards(wanted, found, {name: counts})
        return found, ShardActivity(counts)

    def _add_shards(
        self,
        wanted: Sequence[Key],
        found: dict[Key, Item],
        counts: Mapping[str, Sequence[ShardCounts]],
    ) -> None:
        for key in wanted:
            if _is_counted(key[0]):
                whole = merged(key, found.get(key), counts[key[0].removeprefix(_STATS)])
                if whole is not None:
                    found[key] = whole

    def outline(self, wanted: Iterable[Key]) -> tuple[dict[Key, Item], ShardActivity, bool]:
        """Return items as `batch_get` does, always by one eventually consistent call.

        Also return `recent` of the first queue, and whether the counters are complete. They are
        incomplete if a shard is new.
        """
        wanted = list(dict.fromkeys(wanted))
        names = [pk.removeprefix(_STATS) for pk, _ in wanted if _is_counted(pk)]
        known = set(self._shards)
        found = self._table.batch_get([_LISTED, *wanted, *_keys(known, names)], consistent=False)
        self._shards = [note.shard for note in _notes(found.get(_LISTED, {}))]
        for key in wanted:
            if _is_counted(key[0]):
                whole = merged(
                    key, found.get(key), self._counts(key[0].removeprefix(_STATS), found)
                )
                if whole is not None:
                    found[key] = whole
        recent = ShardActivity(self._counts(names[0], found) if names else ())
        return found, recent, known.issuperset(self._shards)

    def levels(self, names: Sequence[str]) -> tuple[dict[str, Item], int, float]:
        """Return the current counts of each queue, and the number of calls and of read units used.

        The read is eventually consistent. Queues without stored counts are not returned. `names`
        must be in order. Makes one call for each known shard, because a query costs less than
        single reads of its items, and one call for each 100 queues.
        """
        found: dict[Key, Item] = {}
        units = 0.0
        for shard in self._shards:
            # The shards are read before the queues' own items. Counts that are moved in between are
            # then found in the queues' own items.
            of_shard = self._table.query_all(
                "pk = :shard AND sk BETWEEN :first AND :last",
                {":shard": keys.shard_stats(shard), ":first": names[0], ":last": names[-1]},
                consistent=False,
            )
            found |= {(str(item["pk"]), str(item["sk"])): item for item in of_shard}
            units += ceil(sum(map(size, of_shard)) / _HALF_UNIT_BYTES + 0.5) / 2
        own = {name: (keys.stats(name), keys.NOW) for name in names}
        found |= self._table.batch_get([_LISTED, *own.values()], consistent=False)
        levels = {
            name: whole
            for name, key in own.items()
            if (whole := merged(key, found.get(key), self._counts(name, found))) is not None
        }
        calls = len(self._shards) + ceil((len(own) + 1) / MAX_BATCH_GET)
        return levels, calls, units + (len(own) + 1) / 2

    def of_queues(self, names: Sequence[str]) -> dict[str, list[ShardCounts]]:
        """Return what the open shards have counted of these queues, in order of name, by queue.

        Eventually consistent. Many queues take a query per shard, which costs less than single
        reads, and few queues a call for a hundred items. Call `fold_closed` before: many queues are
        read from the shards that were open then.
        """
        found: dict[Key, Item] = {}
        many = len(names) > MAX_BATCH_GET
        if not names:
            return {}
        if many:
            for shard in self._shards:
                of_shard = self._table.query_all(
                    "pk = :shard AND sk BETWEEN :first AND :last",
                    {":shard": keys.shard_stats(shard), ":first": names[0], ":last": names[-1]},
                    consistent=False,
                )
                found |= {(str(item["pk"]), str(item["sk"])): item for item in of_shard}
        else:
            found = self._read(names, (), consistent=False)
        counted: dict[str, list[ShardCounts]] = {name: [] for name in names}
        for shard in self._shards:
            for name in names:
                if (item := found.get((keys.shard_stats(shard), name))) is not None:
                    counted[name].append(ShardCounts.of(shard, name, item))
        return counted

    def look(self) -> int:
        """Read the list of shards and return the number of open shards. Makes one call."""
        self._shards = [note.shard for note in _notes(self._table.get(*_LISTED) or {})]
        return len(self._shards)

    @property
    def shards(self) -> int:
        """Return the number of shards known to this container.

        Each is one more item to read per queue.
        """
        return len(self._shards)

    def recent(self, name: str, *, consistent: bool = True) -> ShardActivity:
        """Return the counters of a queue's days and minutes in the items of shards.

        Call this before you read the queue's own items. Counters that are moved in between are then
        in the queue's own items, and are not counted twice.
        """
        if name == keys.ALL_QUEUES:
            return ShardActivity(())
        found = self._read({name}, (), consistent=consistent)
        return ShardActivity(self._counts(name, found))

    def _read(
        self, names: Iterable[str], others: Iterable[Key], *, consistent: bool
    ) -> dict[Key, Item]:
        names, known = list(names), self._shards
        found = self._table.batch_get(
            [_LISTED, *others, *_keys(known, names)], consistent=consistent
        )
        listed = [note.shard for note in _notes(found.get(_LISTED, {}))]
        if new := [shard for shard in listed if shard not in known]:
            found |= self._table.batch_get(_keys(new, names), consistent=consistent)
        self._shards = listed
        return found

    def _counts(self, name: str, found: Mapping[Key, Item]) -> list[ShardCounts]:
        there = ((note.shard, name) for note in _notes(found.get(_LISTED, {})))
        items = ((shard, found.get((keys.shard_stats(shard), name))) for shard, _ in there)
        return [ShardCounts.of(shard, name, item) for shard, item in items if item is not None]

    # --- the projection -----------------------------------------------------------------------

    def note(self, shard: str, *, now_ms: int) -> int:
        """Record that a shard is in use. Return the time (ms) since when any shard was in use."""
        # No condition. If two records are written at the same time, both have about the same time.
        entry: dict[str, Value] = {f"{_ENTRY}{tag(shard)}": f"{now_ms}|{shard}"}
        update = Update(
            *_LISTED,
            set=entry,
            compute={"since": "if_not_exists(#since, :now)"},
            values={":now": now_ms},
        )
        return number(self._table.update(update), "since")

    # --- the sweep ----------------------------------------------------------------------------

    def fold_closed(self, *, now_ms: int, go_on: Callable[[], bool]) -> int:
        """Move the counters of closed shards to the queues' own items.

        Return the number of moved items.

        Makes one call if no shard is closed. Raises OjsError.
        """
        folded = 0
        notes = _notes(self._table.get(*_LISTED) or {})
        self._shards = [note.shard for note in notes]
        closed = [note for note in notes if note.at_ms < now_ms - CLOSED_MS]
        left = {taker(note.shard) for note in notes}
        for note in closed:
            moved = self._fold(note.shard, left, now_ms, go_on)
            folded += moved
            # The shard is removed from the list by the next sweep. Until then, a reader might have
            # read a queue's own item from before the move.
            if not moved and go_on():
                self._forget(note)
        return folded

    def _fold(self, shard: str, listed: set[str], now_ms: int, go_on: Callable[[], bool]) -> int:
        moved = 0
        items = self._table.query_all("pk = :shard", {":shard": keys.shard_stats(shard)})
        for item in items:
            counts = ShardCounts.of(shard, str(item["sk"]), item)
            if counts.folded:
                continue
            moved += 1
            if not go_on():
                break
            # Race: a late record was counted. The shard is in use again, or is checked in one
            # minute.
            with suppress(LostRace):
                self._fold_one(counts, listed, now_ms)
        return moved

    def _fold_one(self, counts: ShardCounts, listed: set[str], now_ms: int) -> None:
        while counts.recent:
            left, moved = counts.handed_over()
            self._table.transact([left.written(), *moved])
            counts = replace(left, rev=left.rev + 1)
        ends_s = now_ms // 1_000 + _POSITION_KEPT_S
        writes: list[Put | Update] = [replace(counts, folded=True).written(ttl_s=ends_s)]
        # Stream records that belong to no queue become events and change no counters.
        if counts.name != keys.ALL_QUEUES:
            pk = keys.stats(counts.name)
            own = self._table.get(pk, keys.NOW) or {}
            changed_ms = max(counts.changed_ms, number(own, "changed"))
            # Attributes that refer to unlisted shards are removed.
            gone = [name for name in own if name.startswith(TAKER) and name not in listed]
            total: dict[str, Value] = {
                "changed": changed_ms,
                taker(counts.shard): counts.generation,
            }
            writes.append(Update(pk, keys.NOW, set=total, remove=gone, add=counts.levels))
        self._table.transact(writes)

    def _forget(self, note: ShardPosition) -> None:
        # Race: the shard is in use again. It then stays in the list.
        with suppress(LostRace):
            self._table.update(
                Update(
                    *_LISTED,
                    remove=[note.entry],
                    condition=f"#{note.entry} = :seen",
                    values={":seen": f"{note.at_ms}|{note.shard}"},
                )
            )


class ShardActivity:
    """The counters of a queue's days and minutes in the items of all shards."""

    def __init__(self, counts: Sequence[ShardCounts]) -> None:
        self._counts = counts

    def between(self, first: str, last: str) -> list[str]:
        """Return the sort keys with counters from `first` to `last`, inclusive."""
        return [sk for one in self._counts for sk in one.recent if first <= sk <= last]

    def added(self, pk: str, sk: str, own: Item | None) -> Item | None:
        """Return the item of a day or minute, including the counters of shards.

        Args:
            pk: Partition key of the item.
            sk: Sort key of the item.
            own: The queue's own item as read, or None.

        Returns:
            The item, or None if neither the queue nor a shard has counters.
        """
        merged: Item = dict(own or {"pk": pk, "sk": sk})
        there = own is not None
        for one in self._counts:
            if sk in one.recent and number(merged, taker(one.shard)) < one.part:
                _add(merged, one.recent[sk])
                there = True
        return merged if there else None


def merged(key: Key, own: Item | None, counts: Sequence[ShardCounts]) -> Item | None:
    """Return a statistics item of a queue, including the counters of shards.

    The shards must be read before the item. None if there are no counters.
    """
    pk, sk = key
    if sk != keys.NOW:
        return ShardActivity(counts).added(pk, sk, own)
    whole: Item = dict(own or {"pk": pk, "sk": sk})
    for one in counts:
        if number(whole, taker(one.shard)) < one.generation:
            _add(whole, one.levels)
        whole["changed"] = max(number(whole, "changed"), one.changed_ms)
    return whole if own is not None or counts else None


def _is_counted(pk: str) -> bool:
    return pk.startswith(_STATS) and pk != _OF_ALL


def _keys(shards: Iterable[str], names: Iterable[str]) -> list[Key]:
    return [(keys.shard_stats(shard), name) for shard in shards for name in names]


def _add(item: Item, counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        item[name] = number(item, name) + count
