"""Concurrency semaphores: how many permits the running jobs of a queue, a pool or a worker have.

A permit is acquired before a job is claimed and released when it stops running
(`ojs.store.permits.counter_items`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ojs.store.permits.counter_items import (
    CounterStore,
    CounterValue,
    PermitGrant,
    throttled_since_ms,
    value_from,
)
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.values import Item, Value, number


@dataclass(frozen=True)
class PermitRequest:
    """A request for up to `count` permits under a limit, of which the next write asks for `wanted`.

    `version` is that of the configuration with this limit; a newer one stored with the semaphore
    takes precedence. Without a limit, permits are only counted.
    """

    count: int
    limit: int | None
    version: int
    wanted: int

    @classmethod
    def of(cls, count: int, *, limit: int | None, version: int) -> PermitRequest:
        """The first attempt."""
        return cls(count, limit, version, count if limit is None else min(count, limit))

    def write(self, now_ms: int) -> tuple[dict[str, Value], list[str], dict[str, Value]]:
        """What to set, the conditions and their values, beside adding `wanted` to `n`."""
        setting: dict[str, Value] = {"at": now_ms}
        # Race: other fetches, and an operator who changes the limit. Each fetch takes only what is
        # left under the latest limit; one that asks for more than that, or knows an older limit,
        # gets the item, and asks again for the rest (`after_lost_race`).
        conditions = ["(attribute_not_exists(#v) OR #v <= :version)"]
        values: dict[str, Value] = {":version": self.version}
        if self.limit is not None:
            conditions.append("(attribute_not_exists(#n) OR #n <= :room)")
            values[":room"] = self.limit - self.wanted
            setting |= {"limit": self.limit, "v": self.version}
        return setting, conditions, values

    def after_lost_race(self, item: Item) -> PermitRequest:
        """The next attempt, for at least one permit fewer, or under a newer limit."""
        limit, version, wanted = self.limit, self.version, self.wanted
        if number(item, "v") > version:
            version, limit = number(item, "v"), number(item, "limit")
            wanted = self.count + 1
        wanted = min(wanted - 1, (limit or 0) - number(item, "n"))
        return replace(self, limit=limit, version=version, wanted=wanted)


class ConcurrencySemaphore(CounterStore):
    """The store of semaphores."""

    SORT_KEY = keys.SEMAPHORE

    def acquire(
        self,
        name: str,
        *,
        count: int,
        limit: int | None,
        version: int,
        now_ms: int,
        kept_s: int | None = None,
    ) -> PermitGrant:
        """Acquire up to `count` of `limit` permits; how many were free (see `PermitRequest`).

        `kept_s` is the item's time to live in seconds, refreshed on each call.
        """
        request = PermitRequest.of(count, limit=limit, version=version)
        item: Item = {}
        while request.wanted > 0:
            setting, conditions, values = request.write(now_ms)
            if kept_s is not None:
                setting["ttl"] = now_ms // 1000 + kept_s
            try:
                item = self._update(
                    name,
                    set=setting,
                    add={"n": request.wanted},
                    condition=" AND ".join(conditions),
                    values=values,
                )
            except LostRace as lost:
                item = lost.item or {}
                request = request.after_lost_race(item)
            else:
                break
        taken = number(item, "n")
        return PermitGrant(
            max(0, request.wanted),
            request.limit or 0,
            taken,
            throttled_since_ms(item),
            ("#n = :n", {":n": taken}),
        )

    def release(self, name: str, *, count: int, now_ms: int) -> None:
        """Release permits. If this fails, the semaphore is repaired by a sweep."""
        self._lower(name, {"n": count}, now_ms=now_ms)

    def set_limit(self, name: str, *, limit: int, version: int, now_ms: int) -> None:
        """Apply a new limit also to fetches that still know the old one."""
        # Race: another operator's later change: that one counts.
        with suppress(LostRace):
            self._update(
                name,
                set={"limit": limit, "v": version, "at": now_ms},
                condition="attribute_not_exists(#v) OR #v <= :version",
                values={":version": version},
            )

    def values(self, names: Sequence[str]) -> dict[str, CounterValue]:
        """How many permits are taken of each semaphore, consistently."""
        found = self._table.batch_get((keys.counter(name), keys.SEMAPHORE) for name in names)
        return {
            name: value_from(found.get((keys.counter(name), keys.SEMAPHORE), {})) for name in names
        }

    def remove(self, name: str, *, before_ms: int) -> None:
        """Delete the semaphore of a deleted queue, unless it changed since `before_ms`."""
        self._remove(name, keys.SEMAPHORE, before_ms=before_ms)
