"""Rate windows: count the dispatches of each queue with a rate limit in the current window."""

from __future__ import annotations

from functools import partial

from ojs.domain import jsontext
from ojs.domain.rate_limit.window import RateWindow
from ojs.records import record
from ojs.store.permits import semaphore
from ojs.store.permits.counter_items import PermitGrant, throttled_since_ms
from ojs.store.table import keys
from ojs.store.table.races import wins
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Item, number

_TRIES = 5
_KEPT_S = 86_400


@record(frozen=True)
class WindowUse:
    """The recent dispatches of a queue as stored, counted in periods of `period_ms`."""

    window_json: str = "[]"
    period_ms: int = 0

    def window(self, period_ms: int, now_ms: int) -> RateWindow:
        """Return the window of dispatches.

        If `period_ms` differs from the stored length, the counts are converted.
        """
        window = RateWindow(tuple((at, n) for at, n in jsontext.stored(self.window_json)))
        return window.in_period(self.period_ms or period_ms, period_ms, now_ms)


class RateWindowStore:
    """Reads and writes rate windows. `table` must not retry calls."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def acquire(
        self, queue: str, limit: int, period_ms: int, *, count: int, now_ms: int
    ) -> PermitGrant:
        """Count up to `count` dispatches of a queue, up to its limit.

        Args:
            queue: Name of the queue.
            limit: Maximum number of dispatches per period.
            period_ms: Length of the period in milliseconds.
            count: Wanted dispatches. A negative number undoes earlier ones.
            now_ms: Current time in milliseconds since the epoch.

        Returns:
            The number of counted dispatches, and the state of the limit.
        """
        for _ in range(_TRIES):
            item = self._table.get(keys.counter(queue), keys.RATE) or {}
            seen = use_from(item)
            window = seen.window(period_ms, now_ms)
            granted = min(count, window.room(now_ms, limit=limit, period_ms=period_ms))
            # The stored counts have a different period length. They are stored again, in the
            # current period.
            if granted == 0 and seen.period_ms in (0, period_ms):
                used, stored = window.recent(now_ms, period_ms).used, seen.window_json
            else:
                after = window.with_starts(granted, now_ms, period_ms)
                used, stored = after.used, jsontext.dumps(after.pairs())
                # Race: another fetch counts dispatches at the same time. The fetch that loses reads
                # the item again.
                counted = Update(
                    keys.counter(queue),
                    keys.RATE,
                    set={
                        "passed": stored,
                        "period": period_ms,
                        "ttl": (now_ms + period_ms) // 1000 + _KEPT_S,
                    },
                    condition="attribute_not_exists(#passed) OR #passed = :seen",
                    values={":seen": seen.window_json},
                )
                if not wins(partial(self._table.update, counted)):
                    continue
            unchanged = ("#passed = :passed", {":passed": stored})
            return PermitGrant(granted, limit, used, throttled_since_ms(item), unchanged)
        # Every attempt lost its race. It is unknown whether the limit allows a dispatch.
        return PermitGrant(0, limit, 0)

    def usage(self, queue: str, concurrency: int | None) -> tuple[int, WindowUse]:
        """Return the permits in use of a queue's semaphore, and the queue's rate window.

        Makes one call.
        """
        permits, rate = semaphore.keys_of(queue, concurrency), (keys.counter(queue), keys.RATE)
        found = self._table.batch_get([*permits, rate])
        return semaphore.taken(found.get(key) for key in permits), use_from(found.get(rate, {}))


def use_from(item: Item) -> WindowUse:
    """Return the dispatches in the item of a rate window."""
    return WindowUse(str(item.get("passed", "[]")), number(item, "period"))
