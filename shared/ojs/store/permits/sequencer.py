"""Sequencers: the next dispatch number of each worker pool.

Dispatch numbers determine which queue of the pool is served next (`ojs.domain.pool.dispatch`). A
fetch acquires numbers by an unconditional addition. Concurrent fetches receive different numbers,
and none waits for another. The use of a number is not stored. If the fetch crashes, the queue that
the number belongs to misses one dispatch.

The item is also the first shard of the pool's semaphore (`ojs.store.permits.semaphore`). The same
read therefore shows whether the pool has free permits.
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

    `permits` is the number of acquired permits in the semaphore's first shard. `overrides` has the
    times (ms) when starving queues were last served out of order, by `keys.override`.
    """

    next_number: int = 0
    permits: int = 0
    overrides: dict[str, int] = field(default_factory=dict)


@record(frozen=True)
class SequenceRange:
    """The dispatch numbers that a fetch acquired: `count` numbers, starting with `first`.

    `overridden` is true if the first number is for the starving queue that the fetch requested.
    """

    count: int
    first: int = 0
    overridden: bool = False


@record(frozen=True)
class StarvationOverride:
    """A starving queue that must be served next.

    `seen_ms` is the last time (ms) when the queue was served as a starving queue, as read before.
    None if never.
    """

    queue: str
    seen_ms: int | None


class Sequencer:
    """Reads and writes sequencers. `table` must not retry calls."""

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
        """Return the next `count` dispatch numbers of a pool. Makes one write.

        If `override` is given and another fetch serves that queue first, a second write is needed.

        Args:
            pool: Name of the pool.
            count: Number of dispatch numbers.
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
                # Race: another fetch serves this starving queue as well. One of them serves it out
                # of order. The other uses its numbers in the normal order.
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
    """Return the state of a sequencer from its item."""
    overrides = {
        name: value
        for name, value in item.items()
        if name.startswith(keys.OVERRIDE) and isinstance(value, int)
    }
    return SequencerState(number(item, "turns"), number(item, "n"), overrides)
