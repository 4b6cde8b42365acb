"""Queue records and their replicas: a request reads any of them, a change writes all of them.

Every enqueue and fetch reads the record of its queue. One partition allows 3,000 reads per second,
so a queue with several lanes has replicas of its record in separate partitions. A change writes the
record and its replicas in one transaction, on the condition that the number of replicas is the
expected one. So after a change was confirmed, every read returns it, also a read of a replica.

The sweep creates replicas from the current record. They are removed when the queue is deleted, or
when a change would have to write too many of them in one transaction. The sweep then creates them
again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from ojs.bounded import BoundedMap
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Delete, OwnMark, Put, Table, Update
from ojs.store.table.values import Item, Value, number

# Maximum number of copies that one transaction can write: a record and its replicas.
MAX_COPIES = 8
# Maximum number of queues in the per-container cache of the number of replicas.
_REMEMBERED = 1_000
_VALUE = re.compile(r":\w+")
Key = tuple[str, str]


def replicas_for(lanes: int) -> int:
    """Return the number of replicas that the record of a queue with `lanes` lanes must have."""
    return min(lanes, MAX_COPIES) - 1


def on_all(change: Update | Delete, name: str, replicas: int) -> list[Update | Delete]:
    """Return the writes of one transaction that change a queue's record and its replicas.

    The record's write is the first.

    Args:
        change: Change of the record. Alternatives in its condition must be in parentheses.
        name: Name of the queue.
        replicas: Expected number of replicas.
    """
    # Race: replicas are created or removed at the same time. The loser reads the new number.
    as_many = "#replicas = :replicas" if replicas else "attribute_not_exists(#replicas)"
    seen: dict[str, Value] = {":replicas": replicas} if replicas else {}
    condition = f"{change.condition} AND {as_many}"
    values = {**change.values, **seen}
    copies = [(keys.replica(name, n), keys.REPLICA) for n in range(1, replicas + 1)]
    if isinstance(change, Delete):
        own = replace(change, condition=condition, values=values)
        return [own, *(Delete(*key) for key in copies)]
    # This attribute counts the changes, so that replicas are created from the current record.
    change = replace(change, add={**change.add, "rev": 1})
    computed = _VALUE.findall(" ".join(change.compute.values()))
    mirrored = replace(
        change,
        # If a replica doesn't exist, the write must not create an item that has only this change.
        condition="attribute_exists(pk)",
        values={name: value for name, value in change.values.items() if name in computed},
    )
    return [
        replace(change, condition=condition, values=values),
        *(replace(mirrored, pk=pk, sk=sk) for pk, sk in copies),
    ]


class QueueRecords:
    """Reads and writes queue records and their replicas, for one container."""

    def __init__(self, table: Table, *, choose: Callable[[int], int] = random.randrange) -> None:
        self._table = table
        self._choose = choose
        # Per-container cache: the number of replicas of each queue's record when it was last read.
        # A queue that is missing here is read from its record, which has the number.
        self._replicas: BoundedMap[str, int] = BoundedMap(_REMEMBERED)

    def any_copy(self, name: str) -> Item | None:
        """Read the record of a queue or one of its replicas, strongly consistent.

        Makes one call.
        """
        key = self._any(name)
        item = self._table.get(*key)
        if item is None and key != key_of(name):
            # The replicas were removed. The record is read instead.
            item = self._table.get(*key_of(name))
        self._learn(name, item)
        return item

    def any_copies(
        self, names: Iterable[str], others: Sequence[Key] = ()
    ) -> tuple[dict[str, Item], dict[Key, Item]]:
        """Read several queues as `any_copy` does, and other items in the same call."""
        wanted = {name: self._any(name) for name in names}
        found = self._table.batch_get([*wanted.values(), *others])
        gone = [name for name, key in wanted.items() if key not in found and key != key_of(name)]
        if gone:
            wanted |= {name: key_of(name) for name in gone}
            found |= self._table.batch_get(map(key_of, gone))
        for name, key in wanted.items():
            self._learn(name, found.get(key))
        return (
            {name: found[key] for name, key in wanted.items() if key in found},
            {key: found[key] for key in others if key in found},
        )

    def _any(self, name: str) -> Key:
        replicas = self._replicas.get(name)
        chosen = self._choose(replicas + 1) if replicas else 0
        return (keys.replica(name, chosen), keys.REPLICA) if chosen else key_of(name)

    def _learn(self, name: str, item: Item | None) -> None:
        if replicas := _replicas(item):
            self._replicas.put(name, replicas)
        else:
            self._replicas.forget(name)

    def write(self, name: str, change: Update | Delete, *, own: OwnMark | None = None) -> Item:
        """Change a queue's record and its replicas.

        Makes one call without replicas, three with replicas.

        Args:
            name: Name of the queue.
            change: Change of the record.
            own: As for `Table.update`.

        Returns:
            The record after this change, or a later version.

        Raises:
            LostRace: The condition of the change doesn't hold.
        """
        replicas = 0
        while True:
            try:
                return self._write(name, change, replicas, own)
            except LostRace as lost:
                if replicas and lost.item is None:
                    # The condition of the change holds, but a replica is missing.
                    with suppress(LostRace):
                        self.drop(name, replicas)
                    replicas = 0
                    continue
                there = _replicas(lost.item)
                if there == replicas:
                    raise
                replicas = there

    def _write(
        self, name: str, change: Update | Delete, replicas: int, own: OwnMark | None
    ) -> Item:
        writes = on_all(change, name, replicas)
        first = writes[0]
        if replicas:
            self._table.transact(writes)
            if isinstance(first, Delete):
                return {}
            # A transaction doesn't return the written items.
            item = self._table.get(*key_of(name))
            if item is None:
                # The queue was deleted in the meantime.
                raise LostRace([{}])
            return item
        if isinstance(first, Update):
            return self._table.update(first, own=own)
        self._table.delete(first.pk, first.sk, condition=first.condition, values=first.values)
        return {}

    def replicate(self, name: str, replicas: int) -> None:
        """Create the missing replicas of a queue's record, up to `replicas`.

        Makes two calls. Safe to repeat.
        """
        item = self._table.get(*key_of(name))
        if item is None:
            return
        seen: dict[str, Value] = {":created": item.get("created", 0), ":made": replicas}
        unchanged = "attribute_not_exists(#rev)"
        if "rev" in item:
            unchanged, seen = "#rev = :rev", {**seen, ":rev": item["rev"]}
        # Race: the record changes, the queue is deleted (and possibly created again), or another
        # sweep creates replicas for more lanes. The loser does nothing, and the next sweep creates
        # the replicas.
        record = Update(
            *key_of(name),
            set={"replicas": replicas},
            condition=f"#created = :created AND {unchanged} "
            "AND (attribute_not_exists(#replicas) OR #replicas < :made)",
            values=seen,
        )
        copies = [
            Put({**item, "pk": keys.replica(name, n), "sk": keys.REPLICA, "replicas": replicas})
            for n in range(1, replicas + 1)
        ]
        with suppress(LostRace):
            self._table.transact([record, *copies])

    def drop(self, name: str, replicas: int) -> None:
        """Remove all `replicas` replicas of a queue's record. The sweep creates them again.

        Raises:
            LostRace: The record has a different number of replicas.
        """
        # Race: another change removes the replicas, or the sweep creates more. The loser reads
        # again.
        record = Update(
            *key_of(name),
            remove=["replicas"],
            condition="#replicas = :replicas",
            values={":replicas": replicas},
        )
        copies = [Delete(keys.replica(name, n), keys.REPLICA) for n in range(1, replicas + 1)]
        self._table.transact([record, *copies])


def key_of(name: str) -> Key:
    """Return the key of a queue's record."""
    return keys.queue(name), keys.RECORD


def _replicas(item: Item | None) -> int:
    return number(item or {}, "replicas")
