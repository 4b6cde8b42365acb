"""Sequencers: each pool's next dispatch number, and the permits of its running jobs.

Both are in one item, so that a fetch gets its numbers and its permits by one write. Numbers are
given out by adding, without a condition: any number of fetches get numbers of their own and none
waits for another. What is done with a number (`ojs.domain.pool.dispatch`) is not stored: if its
fetch dies, the queue it stands for misses that one dispatch.

Permits are released when a job has stopped running, as those of queues are
(`ojs.services.permits.repair`), and under the same rules: never too few are counted. So no call
here is repeated by the SDK: after a lost answer, a repetition might count twice.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from ojs.domain.pool.pool import Pool, pool_semaphore
from ojs.store.permits.semaphore import PermitRequest
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Item, Value, number


@dataclass(frozen=True)
class SequencerState:
    """A pool's sequencer as it was read.

    `permits` is how many are taken; `overrides` is when queues were served as starving last (ms, by
    `keys.override`).
    """

    next_number: int = 0
    permits: int = 0
    overrides: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class SequenceRange:
    """The numbers a fetch got: `count` of them from `first` on.

    `overridden` says whether the first one is for the starving queue it asked for.
    """

    count: int
    first: int = 0
    overridden: bool = False


@dataclass(frozen=True)
class StarvationOverride:
    """A starving queue that must be served next; `seen_ms` is when it was served as such last, None
    if never.
    """

    queue: str
    seen_ms: int | None


class Sequencer:
    """The store of sequencers. `table` must not repeat calls."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def next_numbers(
        self,
        pool: Pool,
        count: int,
        *,
        now_ms: int,
        override: StarvationOverride | None = None,
        empty: Collection[str] = (),
    ) -> SequenceRange:
        """Up to `count` numbers, and as many permits where the pool's running jobs need them.

        `override` asks for the first number to be for that queue, which one fetch at a time gets;
        `empty` are starving queues that have no jobs. One write, and one more for each race that
        was lost. Raises OjsError.
        """
        request = PermitRequest.of(count, limit=pool.concurrency, version=pool.version)
        while request.wanted > 0:
            setting: dict[str, Value] = {keys.override(name): now_ms for name in empty}
            add = {"turns": request.wanted}
            conditions: list[str] = []
            values: dict[str, Value] = {}
            if pool.limits_concurrency:
                add["n"] = request.wanted
                permits, conditions, values = request.write(now_ms)
                setting |= permits
            if override is not None:
                name = keys.override(override.queue)
                setting[name] = now_ms
                # Race: another fetch serves this queue, too. One does so out of turn; the loser
                # goes by the numbers it gets.
                if override.seen_ms is None:
                    conditions.append(f"attribute_not_exists(#{name})")
                else:
                    conditions.append(f"#{name} = :forced")
                    values[":forced"] = override.seen_ms
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
                if override is not None and _overridden_ms(found, override) != override.seen_ms:
                    # Other conditions may have failed as well: the next attempt shows that.
                    override = None
                    continue
                request = request.after_lost_race(found)
            else:
                first = number(item, "turns") - request.wanted
                return SequenceRange(request.wanted, first, override is not None)
        return SequenceRange(0)


def key_of(pool: str) -> tuple[str, str]:
    """Key of a pool's sequencer, which is also its semaphore (`ojs.store.permits.semaphore`)."""
    return keys.counter(pool_semaphore(pool)), keys.SEMAPHORE


def from_item(item: Item) -> SequencerState:
    """The sequencer an item holds."""
    overrides = {
        name: value
        for name, value in item.items()
        if name.startswith(keys.OVERRIDE) and isinstance(value, int)
    }
    return SequencerState(number(item, "turns"), number(item, "n"), overrides)


def _overridden_ms(item: Item, override: StarvationOverride) -> int | None:
    name = keys.override(override.queue)
    return number(item, name) if name in item else None
