"""A pool's ledger: which turns were given out, and how many places its running jobs take.

Both are in one item, so that a fetch has its turns and its places by one write. Turns are given
out by adding to a number, without a condition: any number of fetchers get turns of their own and
none waits for another. What is done with a turn (`ojs.domain.pool.dispatch`) is not written down: one that
nobody uses, since whoever had it died, is a turn the less for its queue, once.

Places are given back when a job has stopped running, as those of a queue with `concurrency` are
(`ojs.services.permits.repair`), and under the same rules: never too few count. So no call here is repeated
by the SDK: a lost answer might count twice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ojs.domain.pool.pool import Pool, gate_of
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Item, Value


@dataclass(frozen=True)
class SequencerState:
    """A pool's ledger as it was read: the next turn, and when queues had a turn of their own (ms,
    by `keys.forced`).
    """

    next_turn: int = 0
    seats: int = 0
    forced: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SequenceRange:
    """Turns that a fetch has: so many from `first` on. `forced` says whether it is to serve the
    queue that it asked to.
    """

    count: int
    first: int = 0
    forced: bool = False


@dataclass(frozen=True)
class StarvationOverride:
    """A queue that is to be served whatever the strategy says, as its time is over: what the ledger
    said when, None for never.
    """

    queue: str
    seen_ms: int | None


class Sequencer:
    """The store of ledgers. `table` must have a client that does not repeat calls."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def draw(
        self,
        pool: Pool,
        count: int,
        *,
        now_ms: int,
        forced: StarvationOverride | None = None,
        passed: Collection[str] = (),
    ) -> SequenceRange:
        """Up to `count` turns, and as many places where the pool's running jobs take such.

        `forced` asks for the first of them to be for that queue, which one fetch at a time gets;
        `passed` are queues whose time was over, too, but which have no jobs. One write, and one
        more for each race that was lost. Raises OjsError.
        """
        limit, version = pool.concurrency, pool.version
        wanted = count if limit is None else min(count, limit)
        while wanted > 0:
            conditions: list[str] = []
            values: dict[str, Value] = {}
            setting: dict[str, Value] = {keys.forced(name): now_ms for name in passed}
            add = {"turns": wanted}
            if pool.seated:
                add["n"] = wanted
                setting["at"] = now_ms
                conditions.append("(attribute_not_exists(#v) OR #v <= :version)")
                values[":version"] = version
            if limit is not None:
                conditions.append("(attribute_not_exists(#n) OR #n <= :room)")
                values[":room"] = limit - wanted
                setting |= {"limit": limit, "v": version}
            if forced is not None:
                name = keys.forced(forced.queue)
                setting[name] = now_ms
                # Race: another fetch serves this queue, too. One does so out of turn; the other
                # goes by the turns it gets.
                if forced.seen_ms is None:
                    conditions.append(f"attribute_not_exists(#{name})")
                else:
                    conditions.append(f"#{name} = :forced")
                    values[":forced"] = forced.seen_ms
            # Race: other fetches, and an operator who changes the limit. Each takes only what is
            # left under the latest limit; whoever asks for more than that, or knows an older one,
            # sees what holds and how many are taken, and asks again for the rest.
            try:
                item = self._table.update(
                    Update(
                        *key_of(pool.name),
                        set=setting,
                        add=add,
                        condition=" AND ".join(conditions) or None,
                        values=values,
                    )
                )
            except LostRace as lost:
                found = lost.item or {}
                if forced is not None and _forced_at(found, forced.queue) != forced.seen_ms:
                    # Other conditions may have failed as well: that shows the next time.
                    forced = None
                    continue
                if _number(found, "v") > version:
                    version, limit = _number(found, "v"), _number(found, "limit")
                    wanted = count + 1
                # At least one fewer each time, so that this ends.
                wanted = min(wanted - 1, (limit or 0) - _number(found, "n"))
            else:
                return SequenceRange(wanted, _number(item, "turns") - wanted, forced is not None)
        return SequenceRange(0)


def key_of(pool: str) -> tuple[str, str]:
    """Key of a pool's ledger. It is the item in which its gate counts the places of running jobs
    (`ojs.store.permits.counters`).
    """
    return keys.gate(gate_of(pool)), keys.SLOTS


def from_item(item: Item) -> SequencerState:
    """The ledger an item holds."""
    forced = {
        name: value
        for name, value in item.items()
        if name.startswith(keys.FORCED) and isinstance(value, int)
    }
    return SequencerState(_number(item, "turns"), _number(item, "n"), forced)


def _forced_at(item: Item, queue: str) -> int | None:
    name = keys.forced(queue)
    return _number(item, name) if name in item else None


def _number(item: Item, name: str) -> int:
    value = item.get(name, 0)
    return value if isinstance(value, int) else 0
