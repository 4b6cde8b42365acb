"""Depth counters: exact, bounded counts of the jobs in each bounded queue, one item a queue.

A job is added before it is stored, and subtracted when it is done
(`ojs.store.permits.counter_items`).
"""

from __future__ import annotations

import math
from contextlib import suppress

from ojs.store.permits.counter_items import (
    CounterStore,
    CounterValue,
    unchanged,
    value_from,
)
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Update
from ojs.store.table.values import Value

# The bounds as of the last push, from which the projection derives events.
_BOUNDS = ("bound", "warn", "bound_b", "warn_b")
_UNTRACKED = ("loose", "loose_b")


class BoundReached(Exception):
    """The queue has no room for what was requested; `value` is what its counter shows."""

    def __init__(self, value: CounterValue) -> None:
        super().__init__("no room")
        self.value = value


class DepthCounter(CounterStore):
    """The store of depth counters."""

    SORT_KEY = keys.DEPTH

    def reserve(
        self,
        queue: str,
        *,
        count: int,
        size: int,
        max_count: int | None,
        max_size: int | None,
        warn_at: float,
        now_ms: int,
    ) -> CounterValue:
        """Count `count` jobs of `size` bytes in all, if the queue stays within its bounds.

        Either may be 0 or less, for a caller that has room already: then that part is not limited,
        it is lowered. `warn_at` is the fraction of a bound, 0 to 1, from which the stream record
        leads to a warning. Raises BoundReached.
        """
        if (max_count is not None and count > max_count) or (
            max_size is not None and size > max_size
        ):
            raise BoundReached(self.value(queue))
        conditions: list[str] = []
        values: dict[str, Value] = {}
        setting: dict[str, Value] = {"at": now_ms}
        # Race: any number of pushes at once. Each is counted only while the sum stays within the
        # bound; the losers get the counter's value.
        if max_count is not None:
            if count > 0:
                conditions.append("(attribute_not_exists(#n) OR #n <= :room)")
                values[":room"] = max_count - count
            setting |= {"bound": max_count, "warn": _warning(max_count, warn_at)}
        if max_size is not None:
            if size > 0:
                conditions.append("(attribute_not_exists(#b) OR #b <= :space)")
                values[":space"] = max_size - size
            setting |= {"bound_b": max_size, "warn_b": _warning(max_size, warn_at)}
        try:
            item = self._update(
                queue,
                set=setting,
                add={"n": count, "b": size},
                # A bound that was lifted must not lead to warnings.
                remove=[name for name in _BOUNDS if name not in setting],
                condition=" AND ".join(conditions) or None,
                values=values,
            )
        except LostRace as lost:
            raise BoundReached(value_from(lost.item or {})) from None
        return value_from(item)

    def release(self, queue: str, *, count: int, size: int, now_ms: int) -> None:
        """Count jobs no more that are done. If this fails, the counter is repaired by a sweep."""
        self._lower(queue, {"n": count, "b": size}, now_ms=now_ms)

    def value(self, queue: str) -> CounterValue:
        """What the counter shows now, consistently."""
        return value_from(self._table.get(keys.counter(queue), keys.DEPTH) or {})

    def refused(
        self,
        queue: str,
        *,
        count: int,
        depth: int,
        bound: int,
        job_type: str,
        policy: str,
        now_ms: int,
    ) -> None:
        """Store that a push was refused: the stream record becomes the event and the metric."""
        self._table.update(
            Update(
                keys.counter(queue),
                keys.REFUSED,
                set={
                    "type": job_type,
                    "depth": depth,
                    "bound": bound,
                    "policy": policy,
                    "at": now_ms,
                },
                add={"n": count},
            )
        )

    def recount(
        self,
        queue: str,
        seen: CounterValue,
        *,
        untracked: int,
        untracked_bytes: int,
        drain: int | None,
    ) -> None:
        """Set the untracked part to what was counted; the tracked part stays as it is."""
        setting: dict[str, Value] = {"loose": untracked, "loose_b": untracked_bytes}
        if drain is not None:
            setting["drain"] = drain
        # Race: another sweep. The loser's count is as good as the winner's. Pushes and completions
        # meanwhile change the tracked part only, and do no harm.
        condition, values = unchanged(seen, *_UNTRACKED)
        with suppress(LostRace):
            self._update(
                queue,
                set=setting,
                add={"n": untracked - seen.untracked, "b": untracked_bytes - seen.untracked_bytes},
                condition=condition,
                values=values,
            )

    def take_over(self, queue: str, seen: CounterValue, *, count: int, size: int) -> bool:
        """Turn a part of what is untracked into room of the caller, who ended those jobs; False if
        it was recounted since `seen`. The sums stay as they are.
        """
        # Race: a sweep recounts, or another push takes some over. What is left is known to the
        # winner only: the loser has no room, and tries to reserve it.
        condition, values = unchanged(seen, *_UNTRACKED)
        try:
            self._update(
                queue,
                set={"loose": seen.untracked - count, "loose_b": seen.untracked_bytes - size},
                condition=condition,
                values=values,
            )
        except LostRace:
            return False
        return True

    def remove(self, queue: str, *, before_ms: int) -> None:
        """Delete the counter of a deleted queue, unless it changed since `before_ms`."""
        self._remove(queue, keys.DEPTH, before_ms=before_ms)
        self._remove(queue, keys.REFUSED, before_ms=before_ms)


def _warning(bound: int, part: float) -> int:
    return max(1, math.ceil(bound * part))
