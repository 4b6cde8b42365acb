"""Types that all stores of limits share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from ojs.records import record
from ojs.store.table.values import Item, Value, number

# A version newer than every configuration. The limit that is stored with the counter is then
# ignored.
ANY_VERSION = 2**53


@record(frozen=True)
class PermitGrant:
    """The number of jobs that a limit allows to dispatch, and the use of the limit after that.

    `throttled_since_ms` is the time (ms) when the limit started to throttle. `unchanged` is the
    condition expression that the counter still has the value that was read. `counted_at` is the
    sort key of the counter item, "" for a single item.
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
    """The changes and the condition of a write of a counter item: some fields of an `Update`."""

    set: Mapping[str, Value]
    remove: Sequence[str]
    add: Mapping[str, int]
    condition: str | None
    values: Mapping[str, Value]


def throttled_since_ms(item: Item) -> int | None:
    """Return the time (ms) when a limit started to throttle, or None if it doesn't throttle."""
    return number(item, "held") or None
