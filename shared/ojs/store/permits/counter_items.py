"""What the stores of permits have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from ojs.records import record
from ojs.store.table.values import Item, Value, number

# Newer than every configuration: the limit that is stored with the counter is not applied.
ANY_VERSION = 2**53


@record(frozen=True)
class PermitGrant:
    """The number of jobs that may be dispatched, and the limit's use after that.

    `throttled_since_ms` is the time since when the limit is known to throttle. `unchanged` is the
    condition expression that the counter still has the value that was read. `counted_at` is the
    sort key of its item, "" for a single item.
    """

    count: int
    limit: int
    current: int
    throttled_since_ms: int | None = None
    unchanged: tuple[str, Mapping[str, Value]] = ("", {})
    counted_at: str = ""

    @property
    def full(self) -> bool:
        """Whether the limit allows no other dispatch now."""
        return self.current >= self.limit


class CounterUpdate(TypedDict, total=False):
    """What a write changes of a counter item, and its condition, as an `Update` has them."""

    set: Mapping[str, Value]
    remove: Sequence[str]
    add: Mapping[str, int]
    condition: str | None
    values: Mapping[str, Value]


def throttled_since_ms(item: Item) -> int | None:
    """Return since when a limit is known to throttle, or None if it doesn't."""
    return number(item, "held") or None
