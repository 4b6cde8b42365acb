"""What counter items hold, and how a counter that drifted upwards is repaired.

A counter is raised before the job's write and lowered after it. If a function dies in between, the
counter stays one too high until a sweep recounts the jobs; it is never too low. So no write here is
repeated after a try without an answer: it might count twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypedDict, Unpack

from ojs.domain.errors import OjsError
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Item, Value, number

# Newer than every configuration: the limit that is stored with the counter is not applied.
ANY_VERSION = 2**53


@dataclass(frozen=True)
class SuspectedDrift:
    """What a sweep counted, and when (ms), while the counter showed more."""

    count: int
    size: int
    at_ms: int


@dataclass(frozen=True)
class CounterValue:
    """What a counter shows: jobs and their bytes.

    `untracked` and `untracked_bytes` are the part that stands for jobs stored before the queue had
    a bound, as last recounted. `changed_ms` is when the counter was last raised or lowered. `drain`
    is how many jobs a minute left the queue lately, None if unknown. `drift` is what a sweep noted
    when it found the counter too high, unless the counter has changed since.
    """

    count: int = 0
    size: int = 0
    untracked: int = 0
    untracked_bytes: int = 0
    changed_ms: int = 0
    drain: int | None = None
    drift: SuspectedDrift | None = None

    @property
    def tracked(self) -> int:
        """Jobs that were counted one by one."""
        return self.count - self.untracked

    @property
    def tracked_bytes(self) -> int:
        """The bytes of those jobs."""
        return self.size - self.untracked_bytes


@dataclass(frozen=True)
class PermitGrant:
    """How many jobs may be handed out, and the limit's use after that.

    `throttled_since_ms` is since when the limit is known to hold jobs back. `unchanged` is the
    condition expression that the counter still has the value that was read, and `counted_at` the
    sort key of its item, "" for the only one.
    """

    count: int
    limit: int
    current: int
    throttled_since_ms: int | None = None
    unchanged: tuple[str, Mapping[str, Value]] = ("", {})
    counted_at: str = ""

    @property
    def full(self) -> bool:
        """Whether no more may be handed out now."""
        return self.current >= self.limit


class CounterUpdate(TypedDict, total=False):
    """What a write changes of a counter item, and its condition, as an `Update` has them."""

    set: Mapping[str, Value]
    remove: Sequence[str]
    add: Mapping[str, int]
    condition: str | None
    values: Mapping[str, Value]


class CounterStore:
    """Counter items with the sort key `SORT_KEY`, one for each name.

    `table` must not repeat calls (`Table.without_repeats`).
    """

    SORT_KEY: str

    def __init__(self, table: Table) -> None:
        self._table = table

    def record_drift(
        self, name: str, seen: CounterValue, *, count: int, size: int, now_ms: int
    ) -> None:
        """Store what a sweep counted, less than the counter shows, for a later sweep to confirm."""
        # Race: the counter changes meanwhile. Nothing is stored then; the next sweep counts again.
        condition, values = unchanged(seen, *_RAISED)
        with suppress(LostRace):
            self._update(
                name,
                set={"c": count, "c_b": size, "c_at": now_ms, "c_of": seen.changed_ms},
                condition=condition,
                values=values,
            )

    def repair(self, name: str, seen: CounterValue, *, count: int, size: int) -> bool:
        """Set the tracked part to what was counted; False if the counter changed since `seen`."""
        # Race: the counter changes meanwhile, by a job or by another sweep. Then the count is out
        # of date, nothing is written, and the next sweep counts again.
        condition, values = unchanged(seen, *_RAISED)
        try:
            self._update(
                name,
                set={"n": count + seen.untracked, "b": size + seen.untracked_bytes},
                remove=["c", "c_b", "c_at", "c_of"],
                condition=condition,
                values=values,
            )
        except LostRace:
            return False
        return True

    def _lower(self, name: str, amounts: Mapping[str, int], *, now_ms: int) -> None:
        """Lower a counter. If this fails, it stays too high until a sweep repairs it."""
        # Race: the queue is deleted, and its counter with it. Nothing is left to lower.
        with suppress(LostRace, OjsError):
            self._update(
                name,
                set={"at": now_ms},
                add={attribute: -amount for attribute, amount in amounts.items()},
                condition="attribute_exists(pk)",
            )

    def _update(self, name: str, **change: Unpack[CounterUpdate]) -> Item:
        """Write a change of a counter, with the fields of `Update`. Raises LostRace."""
        return self._table.update(Update(keys.counter(name), self.SORT_KEY, **change))

    def _remove(self, name: str, sort_key: str, *, before_ms: int) -> None:
        # Race: the queue is created again, and a job is counted. Then the item belongs to the new
        # queue and stays; what the old queue left in it is repaired like any drift.
        with suppress(LostRace):
            self._table.delete(
                keys.counter(name),
                sort_key,
                condition="#at < :before",
                values={":before": before_ms},
            )


def value_from(item: Item) -> CounterValue:
    """What a counter item shows."""
    drift = None
    if "c" in item and number(item, "c_of") == number(item, "at"):
        drift = SuspectedDrift(number(item, "c"), number(item, "c_b"), number(item, "c_at"))
    return CounterValue(
        count=number(item, "n"),
        size=number(item, "b"),
        untracked=number(item, "loose"),
        untracked_bytes=number(item, "loose_b"),
        changed_ms=number(item, "at"),
        drain=number(item, "drain") if "drain" in item else None,
        drift=drift,
    )


def throttled_since_ms(item: Item) -> int | None:
    """Since when a limit is known to hold jobs back; None if it is not."""
    return number(item, "held") or None


# What every raising or lowering of a counter changes.
_RAISED = ("at", "n", "b")


def unchanged(seen: CounterValue, *names: str) -> tuple[str, dict[str, Value]]:
    """The condition, and its values, that these attributes are as they were read; a missing one
    counts as 0.
    """
    stored = {
        "n": seen.count,
        "b": seen.size,
        "loose": seen.untracked,
        "loose_b": seen.untracked_bytes,
        "at": seen.changed_ms,
    }
    condition = " AND ".join(
        f"#{name} = :{name}"
        if stored[name]
        else f"(attribute_not_exists(#{name}) OR #{name} = :{name})"
        for name in names
    )
    return condition, {f":{name}": stored[name] for name in names}
