"""Reads counters: those of a queue's own items, and those that the shards of the stream still have.

The list of these shards is one item, `S|*`/`shards`. The projection records there every few minutes
that a shard is in use. A sweep moves the levels of an unused shard into the queue's own items, and
then removes the shard from the list. Its items keep their position for two days, since stream
records can be redelivered. Late counts make the shard listed again.
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
# for CLOSED_MS as closed: so no container writes to a shard that isn't in the list.
NOTED_MS = 5 * 60_000
CLOSED_MS = 10 * 60_000
# Stream records are kept for a day, and cannot be delivered again afterwards.
_POSITION_KEPT_S = 2 * 86_400
_LISTED = keys.stats(keys.ALL_QUEUES), keys.SHARDS
_ENTRY = "s_"
# What half a read unit has, where a read may be behind.
_HALF_UNIT_BYTES = 4_096
_OF_ALL = keys.stats(keys.ALL_QUEUES)
_STATS = keys.stats("")
Key = tuple[str, str]


@record(frozen=True)
class ShardPosition:
    """A shard in the list, and when it was last noted to be in use. `entry` is its attribute."""

    shard: str
    at_ms: int
    entry: str


def _notes(item: Item) -> list[ShardPosition]:
    texts = ((name, str(text)) for name, text in item.items() if name.startswith(_ENTRY))
    parts = ((name, *text.split("|", 1)) for name, text in texts)
    return [ShardPosition(shard, int(at_ms), name) for name, at_ms, shard in parts]


class ShardCounters:
    """Counters of queues, wherever they stand."""

    def __init__(self, table: Table) -> None:
        self._table = table
        # The shards known so far. Other listed shards are read by a second call.
        self._shards: Sequence[str] = ()

    # --- reading ------------------------------------------------------------------------------

    def batch_get(self, wanted: Iterable[Key], *, consistent: bool = True) -> dict[Key, Item]:
        """Return items by key, as `Table.batch_get` does; items of statistics include the counters
        of shards.

        As many calls as for these items, and one more for each queue and open shard. If a shard is
        new, the calls are repeated.
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
        """Do the same as `batch_get` for items of one queue, and as `recent`, in one call."""
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
                merged = _merged(key, found.get(key), counts[key[0].removeprefix(_STATS)])
                if merged is not None:
                    found[key] = merged

    def outline(self, wanted: Iterable[Key]) -> tuple[dict[Key, Item], ShardActivity, bool]:
        """Do the same as `batch_get`, always in one call and eventually consistent.

        Also return `recent` of the first queue, and whether the counters are complete: they aren't
        if a shard is new.
        """
        wanted = list(dict.fromkeys(wanted))
        names = [pk.removeprefix(_STATS) for pk, _ in wanted if _is_counted(pk)]
        known = set(self._shards)
        found = self._table.batch_get([_LISTED, *wanted, *_keys(known, names)], consistent=False)
        self._shards = [note.shard for note in _notes(found.get(_LISTED, {}))]
        for key in wanted:
            if _is_counted(key[0]):
                merged = _merged(
                    key, found.get(key), self._counts(key[0].removeprefix(_STATS), found)
                )
                if merged is not None:
                    found[key] = merged
        recent = ShardActivity(self._counts(names[0], found) if names else ())
        return found, recent, known.issuperset(self._shards)

    def levels(self, names: Sequence[str]) -> tuple[dict[str, Item], int, float]:
        """Return each queue's levels, where counted, and the calls and read units that this took.
        Eventually consistent.

        The names are in order. One call for each known shard, as a query costs less than single
        reads of its items, and one for each 100 queues.
        """
        found: dict[Key, Item] = {}
        units = 0.0
        for shard in self._shards:
            # Read before the queues' own items, which include counters that are handed over in
            # between.
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
            name: merged
            for name, key in own.items()
            if (merged := _merged(key, found.get(key), self._counts(name, found))) is not None
        }
        calls = len(self._shards) + ceil((len(own) + 1) / MAX_BATCH_GET)
        return levels, calls, units + (len(own) + 1) / 2

    def of_queues(self, names: Sequence[str]) -> dict[str, list[ShardCounts]]:
        """Return what the open shards have counted of these queues, in order of name, by queue.

        Eventually consistent. Many queues take a query per known shard, which costs less than
        single reads, and few queues a call for a hundred items. A new shard takes one call more.
        """
        found: dict[Key, Item] = {}
        many = len(names) > MAX_BATCH_GET
        if not names:
            return {}
        if many:
            listed = [note.shard for note in _notes(self._table.get(*_LISTED) or {})]
            for shard in listed:
                of_shard = self._table.query_all(
                    "pk = :shard AND sk BETWEEN :first AND :last",
                    {":shard": keys.shard_stats(shard), ":first": names[0], ":last": names[-1]},
                    consistent=False,
                )
                found |= {(str(item["pk"]), str(item["sk"])): item for item in of_shard}
            self._shards = listed
        else:
            found = self._read(names, (), consistent=False)
        counted: dict[str, list[ShardCounts]] = {name: [] for name in names}
        for shard in self._shards:
            for name in names:
                if (item := found.get((keys.shard_stats(shard), name))) is not None:
                    counted[name].append(ShardCounts.of(shard, name, item))
        return counted

    def look(self) -> int:
        """Return the number of open shards. One call."""
        self._shards = [note.shard for note in _notes(self._table.get(*_LISTED) or {})]
        return len(self._shards)

    @property
    def shards(self) -> int:
        """Return the number of known open shards: each is one more item to read for each queue."""
        return len(self._shards)

    def recent(self, name: str, *, consistent: bool = True) -> ShardActivity:
        """Return the shards' counters of a queue's days and minutes.

        Call this before you read the queue's own items. Counters that are handed over in between
        are then in those items, and left out here.
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
        """Note that a shard is in use; returns since when any has been (ms)."""
        # No condition: of two notes the last holds, and both are of now.
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
        """Move the counters of closed shards into the queues' own items; return how many items were
        moved.

        One call when no shard is closed. Raises OjsError.
        """
        folded = 0
        notes = _notes(self._table.get(*_LISTED) or {})
        closed = [note for note in notes if note.at_ms < now_ms - CLOSED_MS]
        left = {taker(note.shard) for note in notes}
        for note in closed:
            moved = self._fold(note.shard, left, now_ms, go_on)
            folded += moved
            # Next time: until then a reader may have a queue's item from before.
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
            # Race: a late record was counted. The shard is in use, or is checked in a minute.
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
        # What belongs to no queue has events, and no counters.
        if counts.name != keys.ALL_QUEUES:
            pk = keys.stats(counts.name)
            own = self._table.get(pk, keys.NOW) or {}
            changed_ms = max(counts.changed_ms, number(own, "changed"))
            # The marks of shards that aren't in the list now have no use.
            gone = [name for name in own if name.startswith(TAKER) and name not in listed]
            total: dict[str, Value] = {
                "changed": changed_ms,
                taker(counts.shard): counts.generation,
            }
            writes.append(Update(pk, keys.NOW, set=total, remove=gone, add=counts.levels))
        self._table.transact(writes)

    def _forget(self, note: ShardPosition) -> None:
        # Race: the shard is used again. Then it stays in the list.
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
    """What the shards have of a queue's days and minutes."""

    def __init__(self, counts: Sequence[ShardCounts]) -> None:
        self._counts = counts

    def between(self, first: str, last: str) -> list[str]:
        """Return the sort keys of the days or minutes with counters, from one to another."""
        return [sk for one in self._counts for sk in one.recent if first <= sk <= last]

    def added(self, pk: str, sk: str, own: Item | None) -> Item | None:
        """Return the item of a day or minute, including counters of shards.

        Args:
            pk: Partition key of the item.
            sk: Sort key of the item.
            own: The queue's own item as read, or None.

        Returns:
            None if neither the queue nor a shard has counters.
        """
        merged: Item = dict(own or {"pk": pk, "sk": sk})
        there = own is not None
        for one in self._counts:
            if sk in one.recent and number(merged, taker(one.shard)) < one.part:
                _add(merged, one.recent[sk])
                there = True
        return merged if there else None


def _merged(key: Key, own: Item | None, counts: Sequence[ShardCounts]) -> Item | None:
    pk, sk = key
    if sk != keys.NOW:
        return ShardActivity(counts).added(pk, sk, own)
    merged: Item = dict(own or {"pk": pk, "sk": sk})
    for one in counts:
        if number(merged, taker(one.shard)) < one.generation:
            _add(merged, one.levels)
        merged["changed"] = max(number(merged, "changed"), one.changed_ms)
    return merged if own is not None or counts else None


def _is_counted(pk: str) -> bool:
    return pk.startswith(_STATS) and pk != _OF_ALL


def _keys(shards: Iterable[str], names: Iterable[str]) -> list[Key]:
    return [(keys.shard_stats(shard), name) for shard in shards for name in names]


def _add(item: Item, counts: Mapping[str, int]) -> None:
    for name, count in counts.items():
        item[name] = number(item, name) + count
