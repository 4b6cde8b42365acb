"""Sequencers: each pool's next dispatch number.

A fetch gets numbers by an unconditional addition: any number of fetches get separate numbers, and
none waits for another. How a number is used (`ojs.domain.pool.dispatch`) is not stored: if the
fetch crashes, the queue that the number belongs to misses that one dispatch.

The item is also a shard of the pool's semaphore (`ojs.store.permits.semaphore`), so the same read
shows whether the pool has free permits.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field
from functools import partial

from ojs.domain.pool.pool import pool_semaphore
from ojs.records import record
from ojs.store.permits import semaphore
from ojs.store.table import keys
from ojs.store.table.races import unless_lost
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Item, Value, number


@record(frozen=True)
class SequencerState:
    """A pool's sequencer as last read.

    `permits` is the number of acquired permits in the semaphore's first shard. `overrides` is when
    queues were last served as starving (ms, by `keys.override`).
    """

    next_number: int = 0
    permits: int = 0
    overrides: dict[str, int] = field(default_factory=dict)


@record(frozen=True)
class SequenceRange:
    """The numbers that a fetch got: `count` of them from `first` on.

    `overridden`: the first one is for the starving queue that the fetch asked for.
    """

    count: int
    first: int = 0
    overridden: bool = False


@record(frozen=True)
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
        pool: str,
        count: int,
        *,
        now_ms: int,
        override: StarvationOverride | None = None,
        empty: Collection[str] = (),
    ) -> SequenceRange:
        """Return the next `count` numbers of a pool. One write, and one more if `override` lost.

        Args:
            pool: Name of the pool.
            count: How many numbers.
            now_ms: Current time in milliseconds since the epoch.
            override: A starving queue that the first number is requested for. Only one concurrent
                fetch gets it.
            empty: Starving queues that have no jobs.

        Raises:
            OjsError: A write failed.
        """
        while True:
            setting: dict[str, Value] = {keys.override(name): now_ms for name in empty}
            condition, values = None, dict[str, Value]()
            if override is not None:
                name = keys.override(override.queue)
                setting[name] = now_ms
                # Race: another fetch serves this queue, too. One does so out of turn; the loser
                # goes by the numbers it gets.
                condition = f"attribute_not_exists(#{name})"
                if override.seen_ms is not None:
                    condition, values = f"#{name} = :forced", {":forced": override.seen_ms}
            update = Update(
                *key_of(pool),
                set=setting,
                add={"turns": count},
                condition=condition,
                values=values,
            )
            item = unless_lost(partial(self._table.update, update))
            if item is not None:
                return SequenceRange(count, number(item, "turns") - count, override is not None)
            override = None


def key_of(pool: str) -> tuple[str, str]:
    """Return the key of a pool's sequencer."""
    return semaphore.key_of(pool_semaphore(pool))


def from_item(item: Item) -> SequencerState:
    """Read a sequencer from its item."""
    overrides = {
        name: value
        for name, value in item.items()
        if name.startswith(keys.OVERRIDE) and isinstance(value, int)
    }
    return SequencerState(number(item, "turns"), number(item, "n"), overrides)
