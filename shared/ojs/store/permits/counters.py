"""Gates: exact bounded counters, one item for each bounded queue (design section 5, "Gates").

A gate charges a job before it is stored and lets it go when it is done. If we die in between, the
gate counts one too many: the queue refuses early, until the reconcile sweep has counted anew. It
never counts one too few. So no call here is repeated by the SDK: a lost answer might count twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ojs.domain import jsontext
from ojs.domain.errors import OjsError
from ojs.domain.rate_limit.window import RateWindow
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Item, Value

_TRIES = 5
_RATE_KEPT_S = 86_400
# Later than every configuration: whatever limit the gate knows is not asked.
ANY_VERSION = 2**53


@dataclass(frozen=True)
class SuspectedDrift:
    """What was counted of the jobs a gate was charged for, and when (ms), when it counted more."""

    count: int
    size: int
    at_ms: int


@dataclass(frozen=True)
class CounterValue:
    """What a gate counts: jobs and their bytes.

    `loose` and `loose_bytes` are the part that stands for jobs stored before the queue had a bound,
    as last counted; `changed_ms` is when the gate was charged or relieved last. `drain` is how many
    jobs a minute left the queue lately, None when nobody knows. `suspicion` is there when a sweep
    found it to count wrongly, and nobody has passed it since.
    """

    count: int = 0
    size: int = 0
    loose: int = 0
    loose_bytes: int = 0
    changed_ms: int = 0
    drain: int | None = None
    suspicion: SuspectedDrift | None = None

    @property
    def charged(self) -> int:
        """Jobs that it was charged for."""
        return self.count - self.loose

    @property
    def charged_bytes(self) -> int:
        """Their bytes."""
        return self.size - self.loose_bytes


@dataclass(frozen=True)
class PermitGrant:
    """How many jobs may be handed out, and how the limit stands after that.

    `held_ms` is since when it is known to hold jobs back, `seen` the condition that what is counted
    is as it was found.
    """

    count: int
    limit: int
    current: int
    held_ms: int | None = None
    seen: tuple[str, Mapping[str, Value]] = ("", {})

    @property
    def full(self) -> bool:
        """Whether no more may be handed out now."""
        return self.current >= self.limit


@dataclass(frozen=True)
class WindowUse:
    """What passed under a queue's rate limit lately, counted in periods of `period_ms`."""

    text: str = "[]"
    period_ms: int = 0

    def window(self, period_ms: int, now_ms: int) -> RateWindow:
        """In a period of this length."""
        window = RateWindow(tuple((at, n) for at, n in jsontext.stored(self.text)))
        return window.in_period(self.period_ms or period_ms, period_ms, now_ms)


class BoundReached(Exception):
    """The gate has no room for what was asked; `level` is what it counts."""

    def __init__(self, level: CounterValue) -> None:
        super().__init__("no room")
        self.level = level


class Gates:
    """The store of gates. `table` must have a client that does not repeat calls."""

    def __init__(self, table: Table) -> None:
        self._table = table

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
        """Charge `count` jobs of `size` bytes in all, if they stay within the bounds. Raises Full.

        `warn_at` is the part of a bound, 0 to 1, that is worth a warning: the gate's stream record
        tells when it is crossed.
        """
        if (max_count is not None and count > max_count) or (
            max_size is not None and size > max_size
        ):
            raise BoundReached(self.level(queue))
        conditions: list[str] = []
        values: dict[str, Value] = {}
        setting: dict[str, Value] = {"at": now_ms}
        # Race: any number of pushes at once. Each is charged only as long as the sum stays within
        # the bound; the others see how full it is.
        if max_count is not None:
            conditions.append("(attribute_not_exists(#n) OR #n <= :room)")
            values[":room"] = max_count - count
            setting |= {"bound": max_count, "warn": _warning(max_count, warn_at)}
        if max_size is not None:
            conditions.append("(attribute_not_exists(#b) OR #b <= :space)")
            values[":space"] = max_size - size
            setting |= {"bound_b": max_size, "warn_b": _warning(max_size, warn_at)}
        try:
            item = self._table.update(
                Update(
                    keys.gate(queue),
                    keys.DEPTH,
                    set=setting,
                    add={"n": count, "b": size},
                    # Of a bound that is no more nobody shall be warned.
                    remove=[name for name in _BOUNDS if name not in setting],
                    condition=" AND ".join(conditions) or None,
                    values=values,
                )
            )
        except LostRace as lost:
            raise BoundReached(level_from(lost.item or {})) from None
        return level_from(item)

    def release(self, queue: str, *, count: int, size: int, now_ms: int) -> None:
        """Let jobs go that are done. Should it fail, the gate counts too many until healed."""
        try:
            self._table.update(
                Update(
                    keys.gate(queue),
                    keys.DEPTH,
                    set={"at": now_ms},
                    add={"n": -count, "b": -size},
                    # Race: the queue is deleted, and its gate with it. Nothing is left to let go.
                    condition="attribute_exists(pk)",
                )
            )
        except (LostRace, OjsError):
            return

    def level(self, queue: str) -> CounterValue:
        """What the gate counts now."""
        return level_from(self._table.get(keys.gate(queue), keys.DEPTH) or {})

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
        """Note a refusal: its stream record becomes the event and the metric."""
        self._table.update(
            Update(
                keys.gate(queue),
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

    def take_slots(
        self,
        queue: str,
        *,
        count: int,
        limit: int | None,
        version: int,
        now_ms: int,
        kept_s: int | None = None,
    ) -> PermitGrant:
        """Take up to `count` of a queue's `limit` places for running jobs; how many were free.

        `version` is that of the configuration which says so: where the gate knows a later one, that
        one counts. Without a limit they are counted only. A gate that nobody passes any more is
        removed after `kept_s`, if given.
        """
        wanted = count if limit is None else min(count, limit)
        found: Item = {}
        while wanted > 0:
            conditions = ["(attribute_not_exists(#v) OR #v <= :version)"]
            values: dict[str, Value] = {":version": version}
            setting: dict[str, Value] = {"at": now_ms}
            if kept_s is not None:
                setting["ttl"] = now_ms // 1000 + kept_s
            if limit is not None:
                conditions.append("(attribute_not_exists(#n) OR #n <= :room)")
                values[":room"] = limit - wanted
                setting |= {"limit": limit, "v": version}
            # Race: other fetches, and an operator who changes the limit. Each takes only what is
            # left under the latest limit; whoever asks for more than that, or knows an older one,
            # sees what holds and how many are taken, and asks again for the rest.
            try:
                item = self._table.update(
                    Update(
                        keys.gate(queue),
                        keys.SLOTS,
                        set=setting,
                        add={"n": wanted},
                        condition=" AND ".join(conditions),
                        values=values,
                    )
                )
            except LostRace as lost:
                found = lost.item or {}
                if _number(found, "v") > version:
                    version, limit = _number(found, "v"), _number(found, "limit")
                    wanted = count + 1
                # At least one fewer each time, so that this ends.
                wanted = min(wanted - 1, (limit or 0) - _number(found, "n"))
            else:
                taken = _number(item, "n")
                seen = ("#n = :n", {":n": taken})
                return PermitGrant(wanted, limit or 0, taken, _held_ms(item), seen)
        taken = _number(found, "n")
        seen = ("#n = :n", {":n": taken})
        return PermitGrant(0, limit or 0, taken, _held_ms(found), seen)

    def free_slots(self, queue: str, *, count: int, now_ms: int) -> None:
        """Give places back. Should it fail, too many count as taken until healed."""
        try:
            self._table.update(
                Update(
                    keys.gate(queue),
                    keys.SLOTS,
                    set={"at": now_ms},
                    add={"n": -count},
                    # Race: as in `release`.
                    condition="attribute_exists(pk)",
                )
            )
        except (LostRace, OjsError):
            return

    def limit_slots(self, queue: str, *, limit: int, version: int, now_ms: int) -> None:
        """Have a new limit hold for fetches that are under way, too."""
        # Race: another operator's later change: that one counts.
        with suppress(LostRace):
            self._table.update(
                Update(
                    keys.gate(queue),
                    keys.SLOTS,
                    set={"limit": limit, "v": version, "at": now_ms},
                    condition="attribute_not_exists(#v) OR #v <= :version",
                    values={":version": version},
                )
            )

    def slots(self, queues: Sequence[str]) -> dict[str, CounterValue]:
        """How many places for running jobs are taken of each queue, consistently."""
        found = self._table.batch_get((keys.gate(queue), keys.SLOTS) for queue in queues)
        return {
            queue: level_from(found.get((keys.gate(queue), keys.SLOTS), {})) for queue in queues
        }

    def pass_rate(
        self, queue: str, *, count: int, limit: int, period_ms: int, now_ms: int
    ) -> PermitGrant:
        """Pass up to `count` jobs under a rate limit; how many may. Negative gives back."""
        for _ in range(_TRIES):
            item = self._table.get(keys.gate(queue), keys.RATE) or {}
            seen = passed_from(item)
            window = seen.window(period_ms, now_ms)
            granted = min(count, window.room(now_ms, limit=limit, period_ms=period_ms))
            # What was counted in another period is written anew: it is as old as it is from now on.
            if granted == 0 and seen.period_ms in (0, period_ms):
                used = window.recent(now_ms, period_ms).used
                as_found = ("#passed = :passed", {":passed": seen.text})
                return PermitGrant(0, limit, used, _held_ms(item), as_found)
            after = window.taking(granted, now_ms, period_ms)
            # Race: another fetch passes at the same time. The loser looks again.
            try:
                self._table.update(
                    Update(
                        keys.gate(queue),
                        keys.RATE,
                        set={
                            "passed": jsontext.dumps(after.pairs()),
                            "period": period_ms,
                            "ttl": (now_ms + period_ms) // 1000 + _RATE_KEPT_S,
                        },
                        condition="attribute_not_exists(#passed) OR #passed = :seen",
                        values={":seen": seen.text},
                    )
                )
            except LostRace:
                continue
            as_found = ("#passed = :passed", {":passed": jsontext.dumps(after.pairs())})
            return PermitGrant(granted, limit, after.used, _held_ms(item), as_found)
        # Nobody knows whether there is room.
        return PermitGrant(0, limit, 0)

    def standing(self, queue: str) -> tuple[CounterValue, WindowUse]:
        """How many places for running jobs are taken, and what passed lately. One call."""
        slots, rate = (keys.gate(queue), keys.SLOTS), (keys.gate(queue), keys.RATE)
        found = self._table.batch_get([slots, rate])
        return level_from(found.get(slots, {})), passed_from(found.get(rate, {}))

    def recount(
        self, queue: str, seen: CounterValue, *, loose: int, loose_bytes: int, drain: int | None
    ) -> None:
        """Set anew what stands for jobs from before the bound; what was charged stays as it is.

        Losing is no matter.
        """
        # Race: another sweep. The loser's count is as good as the winner's. Pushes and completions
        # meanwhile change what was charged, and do no harm.
        setting: dict[str, Value] = {"loose": loose, "loose_b": loose_bytes}
        if drain is not None:
            setting["drain"] = drain
        try:
            self._table.update(
                Update(
                    keys.gate(queue),
                    keys.DEPTH,
                    set=setting,
                    add={"n": loose - seen.loose, "b": loose_bytes - seen.loose_bytes},
                    condition=_same(seen, "loose", "loose_b"),
                    values=_values(seen, "loose", "loose_b"),
                )
            )
        except LostRace:
            return

    def suspect(
        self,
        queue: str,
        seen: CounterValue,
        *,
        count: int,
        size: int = 0,
        now_ms: int,
        sk: str = keys.DEPTH,
    ) -> None:
        """Note what was counted of the jobs charged for, until a later sweep finds the same.

        The same, with `keys.SLOTS`, of running jobs and the places they take.
        """
        # Race: somebody passes: then there is nothing to note, the next sweep counts again.
        try:
            self._table.update(
                Update(
                    keys.gate(queue),
                    sk,
                    set={"c": count, "c_b": size, "c_at": now_ms, "c_of": seen.changed_ms},
                    condition=_same(seen, *_PASSING),
                    values=_values(seen, *_PASSING),
                )
            )
        except LostRace:
            return

    def heal(
        self, queue: str, seen: CounterValue, *, count: int, size: int = 0, sk: str = keys.DEPTH
    ) -> bool:
        """Set what was charged to what was counted, if nobody passed since `seen`; False if so.

        The same, with `keys.SLOTS`, of the places of running jobs.
        """
        # Race: a push or a completion passes the gate: then what was counted is not true any more,
        # and the next sweep counts again. The same when another sweep sets it right.
        try:
            self._table.update(
                Update(
                    keys.gate(queue),
                    sk,
                    set={"n": count + seen.loose, "b": size + seen.loose_bytes},
                    remove=["c", "c_b", "c_at", "c_of"],
                    condition=_same(seen, *_PASSING),
                    values=_values(seen, *_PASSING),
                )
            )
        except LostRace:
            return False
        return True

    def remove(self, queue: str, *, before_ms: int) -> None:
        """Forget the gate of a queue that is gone, but for what was passed since `before_ms`."""
        for sk in (keys.DEPTH, keys.REFUSED, keys.SLOTS):
            # Race: the queue is made anew, and a push is charged. Then it is the new queue's gate,
            # and stays; a leftover of the old one at it is healed as all are.
            with suppress(LostRace):
                self._table.delete(
                    keys.gate(queue), sk, condition="#at < :before", values={":before": before_ms}
                )


# The bounds as of the last push, from which the projection tells events.
_BOUNDS = ("bound", "warn", "bound_b", "warn_b")


def _warning(bound: int, part: float) -> int:
    return max(1, math.ceil(bound * part))


# What everybody who passes a gate changes.
_PASSING = ("at", "n", "b")


def _values(seen: CounterValue, *names: str) -> dict[str, Value]:
    given = {
        "n": seen.count,
        "b": seen.size,
        "loose": seen.loose,
        "loose_b": seen.loose_bytes,
        "at": seen.changed_ms,
    }
    return {f":{name}": given[name] for name in names}


def _same(seen: CounterValue, *names: str) -> str:
    """The condition that these attributes are as they were seen; one that is not there counts 0."""
    values = _values(seen, *names)
    return " AND ".join(
        f"#{name} = :{name}"
        if values[f":{name}"]
        else f"(attribute_not_exists(#{name}) OR #{name} = :{name})"
        for name in names
    )


def passed_from(item: Item) -> WindowUse:
    """What the item of a queue's rate limit holds."""
    return WindowUse(str(item.get("passed", "[]")), _number(item, "period"))


def _number(item: Item, name: str) -> int:
    value = item.get(name, 0)
    return value if isinstance(value, int) else 0


def _held_ms(item: Item) -> int | None:
    return _number(item, "held") or None


def level_from(item: Item) -> CounterValue:
    """What the item of a gate counts."""

    def number(name: str) -> int:
        return _number(item, name)

    suspicion = None
    if "c" in item and number("c_of") == number("at"):
        suspicion = SuspectedDrift(number("c"), number("c_b"), number("c_at"))
    return CounterValue(
        count=number("n"),
        size=number("b"),
        loose=number("loose"),
        loose_bytes=number("loose_b"),
        changed_ms=number("at"),
        drain=number("drain") if "drain" in item else None,
        suspicion=suspicion,
    )
