"""Limiters: what is counted for each key of job-level rate limits, one item a key.

A fetch acquires permits of a limit before it claims jobs, by one conditional write on the version
it decided on, so that no limit is ever exceeded. Every call may be repeated: a lost answer is
recognised by the write's token, and a permit is named by the position in line that its job was
taken from, which is new for each attempt.

If a function dies after acquiring and before the claim, a permit belongs to a job that does not
run. It is not lost: the job at that position may be claimed with it, and a fetch that finds no room
checks whether the jobs with permits still need them (`repair`). That also releases a permit whose
release failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Unpack

from ojs.domain import jsontext
from ojs.domain.errors import OjsError
from ojs.domain.ids import IdSource
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.rate_limit.limiter import (
    Holder,
    LimitBounds,
    LimitDecision,
    LimiterState,
    Override,
    RateLimit,
    limiter_name,
    permit_name,
)
from ojs.domain.rate_limit.window import RateWindow
from ojs.store.permits.counter_items import CounterUpdate
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value

_TRIES = 24
# Longer than any job may be active: no permit expires while its job runs.
KEPT_S = 400 * 86_400
# A permit acquired so long ago without a claim is not about to be used.
SETTLED_MS = 5_000
CHECK_EVERY_MS = 5_000
_CHECKED_AT_ONCE = 25
_PERMIT, _QUEUE = "h_", "q|"
_PERMIT_FORM = re.compile(r"([^|]+)\|(\d+)\|(\d+)")


@dataclass(frozen=True)
class LimitRequest:
    """A job that a fetch would claim for `lease_ms`, and its position in line."""

    job_id: str
    order: str
    lease_ms: int

    @property
    def permit(self) -> str:
        """The name of the permit it would have."""
        return permit_name(self.job_id, self.order)


@dataclass(frozen=True)
class LimitGrant:
    """What was acquired for some jobs: `names` are their permits, `before` is the state without.

    Jobs have permits only where running jobs are limited (`takes_permits`).
    """

    limiter: str
    names: tuple[str, ...]
    now_ms: int
    takes_permits: bool
    before: LimiterState
    after: LimiterState

    def permit(self, job_id: str, order: str) -> str | None:
        """The permit that one of these jobs has; None where running jobs have none."""
        return permit_name(job_id, order) if self.takes_permits else None


class KeyLimits:
    """The store of limiters' states."""

    def __init__(self, table: Table, ids: IdSource) -> None:
        self._table = table
        self._ids = ids

    # --- read and register ------------------------------------------------------------------

    def get(self, name: str, *, consistent: bool = True) -> LimiterState | None:
        """The state under a name of `ojs.domain.rate_limit.limiter.limiter_name`."""
        item = self._table.get(keys.limiter(name), keys.RECORD, consistent=consistent)
        return limiter_from(item) if item else None

    def get_many(self, names: Iterable[str], *, consistent: bool = True) -> dict[str, LimiterState]:
        """Several states by name; an empty one where none is stored."""
        wanted = list(dict.fromkeys(names))
        found = self._table.batch_get(
            ((keys.limiter(name), keys.RECORD) for name in wanted), consistent=consistent
        )
        return {name: limiter_from(found.get((keys.limiter(name), keys.RECORD))) for name in wanted}

    def keys(self, *, limit: int, after: str | None = None) -> tuple[list[str], str | None]:
        """A page of all keys, in order, and the key to continue after."""
        condition, values = "pk = :all", {":all": keys.LIMITERS}
        if after is not None:
            condition += " AND sk > :after"
            values[":after"] = after
        found = self._table.query(condition, values, limit=limit)
        names = [str(item["sk"]) for item in found.items]
        return names, (names[-1] if found.last and names else None)

    def register(self, limit: RateLimit, queue: str, *, now_ms: int) -> LimiterState:
        """Register a key, with the bounds of a job that is about to be pushed."""
        key = limit.key_in(queue)
        ttl = now_ms // 1000 + KEPT_S
        # The list first: a key that is counted but not listed could not be found.
        self._table.put(Put({"pk": keys.LIMITERS, "sk": key, "ttl": ttl}))
        setting: dict[str, Value] = {"key": key, "ttl": ttl, "bounds": limit.bounds.compact()}
        if limit.bounds.concurrency is not None:
            # From now on all active jobs of the key have a permit, also those without this limit.
            setting["counted"] = 1
        item = self._update(limiter_name(key), set=setting, add={f"{_QUEUE}{queue}": 1})
        return limiter_from(item)

    # --- acquire and release ----------------------------------------------------------------

    def acquire(
        self,
        name: str,
        bounds: LimitBounds,
        requests: Sequence[LimitRequest],
        *,
        now_ms: int,
        seen: LimiterState,
    ) -> tuple[LimitGrant | None, LimitDecision, LimiterState]:
        """Acquire permits for the first of these jobs, as far as there is room.

        Returns what was granted, why not more, and the limiter's state now. `seen` is the state as
        it was read last. Raises OjsError: then it is unknown whether permits were acquired, and
        those are repaired.
        """
        names: tuple[str, ...] = ()
        decision = LimitDecision(0)
        takes_permits = False

        def change(limiter: LimiterState) -> LimiterState | None:
            nonlocal names, decision, takes_permits
            names, decision = _chosen(limiter, bounds, requests, now_ms)
            if not names:
                return None
            takes_permits = limiter.takes_permits(bounds, now_ms)
            holders = {
                one.permit: Holder(one.job_id, now_ms + one.lease_ms, now_ms)
                for one in requests
                if takes_permits and one.permit in names
            }
            return limiter.with_starts(bounds, holders, now_ms, len(names))

        before, after = self._swap(name, seen, change, now_ms=now_ms)
        if after is None:
            return None, LimitDecision(0) if names else decision, before
        return LimitGrant(name, names, now_ms, takes_permits, before, after), decision, after

    def roll_back(self, grant: LimitGrant, names: Sequence[str], *, started: bool = False) -> None:
        """Undo what was acquired for jobs that were not claimed. If this fails, it is repaired.

        Where the jobs may have `started` after all, and ended, only the permits are released.
        """
        gone = frozenset(names)

        def change(limiter: LimiterState) -> LimiterState:
            after = limiter.without_starts(gone, grant.now_ms, 0 if started else len(gone))
            if not started and limiter.op == grant.after.op and len(gone) == len(grant.names):
                # Nothing was acquired since: the last start is the one before.
                after = replace(after, last_ms=grant.before.last_ms)
            return after

        with suppress(OjsError):
            self._swap(grant.limiter, grant.after, change, now_ms=grant.now_ms)

    def _swap(
        self,
        name: str,
        limiter: LimiterState,
        change: Callable[[LimiterState], LimiterState | None],
        *,
        now_ms: int,
    ) -> tuple[LimiterState, LimiterState | None]:
        """Store what `change` makes of a limiter's state: the state before and after.

        The latter is None if nothing was stored: `change` returned None, or every write lost its
        race. Raises OjsError.
        """
        for _ in range(_TRIES):
            after = change(limiter)
            if after is None:
                break
            token = self._ids.token()
            after = replace(after, op=token)
            # Race: any number of fetches. Each decides on a version of the state; a fetch that
            # finds another version decides again on that.
            try:
                self._table.update(_write(name, limiter, after, now_ms=now_ms), own=("op", token))
            except LostRace as lost:
                limiter = limiter_from(lost.item)
            else:
                return limiter, after
        return limiter, None

    def release(self, job: Job) -> None:
        """Release the permit of a job that is not active any more. If this fails, it is repaired.

        Does not change the version: a fetch that decides on one with more permits taken only grants
        less.
        """
        if job.limit is None or job.key_permit is None:
            return
        self._remove(limiter_name(job.limit.key_in(job.queue)), job.key_permit)

    def _remove(self, limiter: str, name: str) -> None:
        permit = f"{_PERMIT}{name}"
        # Race: it was released already, by our own call whose answer was lost, or by a repair.
        with suppress(LostRace, OjsError):
            self._update(limiter, remove=[permit], condition=f"attribute_exists(#{permit})")

    def reacquire(self, job: Job, *, now_ms: int, lease_ms: int) -> str | None:
        """The permit of a job that goes on after its lease ended: its name, "" if it needs none,
        None if none is free.
        """
        if job.limit is None or job.order is None:
            return ""
        permit = permit_name(job.id, job.order)
        name = limiter_name(job.limit.key_in(job.queue))
        # The job has started before: rate, spacing and pause do not apply.
        bounds = LimitBounds(concurrency=job.limit.bounds.concurrency)
        needed = True

        def change(limiter: LimiterState) -> LimiterState | None:
            nonlocal needed
            needed = limiter.takes_permits(bounds, now_ms)
            most = limiter.in_force(bounds, now_ms).concurrency
            others = len(limiter.holders.keys() - {permit})
            if not needed or (most is not None and others >= most):
                return None
            holder = Holder(job.id, now_ms + lease_ms, now_ms)
            return replace(limiter, holders={**limiter.holders, permit: holder})

        _, after = self._swap(name, self.get(name) or LimiterState(), change, now_ms=now_ms)
        if not needed:
            return ""
        return None if after is None else permit

    def repair(
        self,
        name: str,
        limiter: LimiterState,
        heads: Callable[[Iterable[str]], Mapping[str, Job]],
        *,
        now_ms: int,
        choose: Callable[[int], int],
    ) -> bool:
        """Release permits whose jobs do not need them; whether there were any.

        Checks a few permits at a time, and each limiter at most once in CHECK_EVERY_MS.
        """
        old = [
            (name, holder)
            for name, holder in limiter.holders.items()
            if now_ms - holder.taken_ms >= SETTLED_MS
        ]
        if not old or now_ms - limiter.checked_ms < CHECK_EVERY_MS:
            return False
        # Race: other fetches that find no room. One of them checks for all.
        try:
            self._update(
                name,
                set={"checked": now_ms},
                condition="attribute_not_exists(#checked) OR #checked = :seen",
                values={":seen": limiter.checked_ms},
            )
        except LostRace:
            return False
        start = choose(len(old))
        checked = (old[start:] + old[:start])[:_CHECKED_AT_ONCE]
        found = heads(holder.job_id for _, holder in checked)
        gone = [
            permit
            for permit, holder in checked
            if not _needed(found.get(holder.job_id), permit, holder, now_ms)
        ]
        for permit in gone:
            self._remove(name, permit)
        return bool(gone)

    # --- by hand ----------------------------------------------------------------------------

    def pause(self, job: Job, *, until_ms: int, reason: str, now_ms: int) -> None:
        """Start no job of the key before `until_ms`, unless it is paused for longer already."""
        if job.limit is None:
            return
        key = job.limit.key_in(job.queue)
        # Race: two workers report a pause. The later end counts.
        try:
            self._update(
                limiter_name(key),
                set=self._new_version(key, now_ms) | {"paused": until_ms},
                condition="attribute_not_exists(#paused) OR #paused < :paused",
                values={":paused": until_ms},
            )
        except LostRace:
            return
        # Its stream record becomes the event.
        self._table.put(
            Put(
                {
                    "pk": keys.limiter(limiter_name(key)),
                    "sk": keys.ADJUSTED,
                    "key": key,
                    "until": until_ms,
                    "reason": reason,
                    "job": job.id,
                    "at": now_ms,
                    "ttl": now_ms // 1000 + KEPT_S,
                }
            )
        )

    def override(self, key: str, override: Override, *, now_ms: int) -> LimiterState:
        """Override the bounds of a key's jobs; replaces an earlier override."""
        self._table.put(Put({"pk": keys.LIMITERS, "sk": key, "ttl": now_ms // 1000 + KEPT_S}))
        setting = self._new_version(key, now_ms) | {"over": override.compact()}
        if override.bounds.concurrency is not None:
            setting["counted"] = 1
        return limiter_from(self._update(limiter_name(key), set=setting))

    def lift(self, key: str) -> LimiterState | None:
        """Remove the override and the pause of a key; None for a key that is not registered."""
        try:
            item = self._update(
                limiter_name(key),
                set={"op": self._ids.token()},
                remove=["over", "paused"],
                # This must not create a key that was never used.
                condition="attribute_exists(pk)",
            )
        except LostRace:
            return None
        return limiter_from(item)

    def _new_version(self, key: str, now_ms: int) -> dict[str, Value]:
        """What each change by hand sets: fetches that decided on the old version decide again."""
        return {"key": key, "op": self._ids.token(), "ttl": now_ms // 1000 + KEPT_S}

    def _update(self, limiter: str, **change: Unpack[CounterUpdate]) -> Item:
        """Write a change of a limiter, with the fields of `Update`. Raises LostRace."""
        return self._table.update(Update(keys.limiter(limiter), keys.RECORD, **change))


def unchanged(limiter: LimiterState) -> tuple[str, Mapping[str, Value]]:
    """The condition that a limiter has the version that was read."""
    if limiter.op is None:
        return "attribute_not_exists(#op)", {}
    return "#op = :op", {":op": limiter.op}


def _chosen(
    limiter: LimiterState, bounds: LimitBounds, requests: Sequence[LimitRequest], now_ms: int
) -> tuple[tuple[str, ...], LimitDecision]:
    """The permits of the jobs that may be claimed now, and why the others may not.

    A job that has a permit already is being claimed by another fetch, or that fetch died: then the
    job is claimed with this permit.
    """
    free = [one.permit for one in requests if one.permit not in limiter.holders]
    left = [
        one.permit
        for one in requests
        if one.permit in limiter.holders
        and now_ms - limiter.holders[one.permit].taken_ms >= SETTLED_MS
    ]
    if left:
        others = {name: holder for name, holder in limiter.holders.items() if name not in left}
        decision = replace(limiter, holders=others).room(bounds, now_ms, len(left))
        if decision.count:
            return tuple(left[: decision.count]), decision
    if not free:
        # Another fetch is claiming them. The limit may have room all the same.
        return (), LimitDecision(0, free_ms=now_ms)
    decision = limiter.room(bounds, now_ms, len(free))
    return tuple(free[: decision.count]), decision


def _needed(job: Job | None, permit: str, holder: Holder, now_ms: int) -> bool:
    """Whether a job is active with this permit, or may yet be claimed with it.

    A claim needs the job to be at the position that the permit is named by. A claim after the end
    of its lease only makes a job whose lease has ended.
    """
    if job is None:
        return False
    if job.state is State.ACTIVE:
        return job.key_permit == permit
    in_line = job.state is State.AVAILABLE and permit_name(job.id, job.order or "") == permit
    return in_line and now_ms < holder.until_ms


def _write(name: str, before: LimiterState, after: LimiterState, *, now_ms: int) -> Update:
    """The write that replaces one version of a limiter's state by the next."""
    added = {o: h for o, h in after.holders.items() if before.holders.get(o) != h}
    removed = [f"{_PERMIT}{name}" for name in before.holders if name not in after.holders]
    setting: dict[str, Value] = {
        "op": after.op or "",
        "ttl": now_ms // 1000 + KEPT_S,
        "passed": jsontext.dumps(
            {str(period): window.pairs() for period, window in sorted(after.windows.items())}
        ),
        **{
            f"{_PERMIT}{order}": f"{holder.job_id}|{holder.until_ms}|{holder.taken_ms}"
            for order, holder in added.items()
        },
    }
    if after.last_ms is not None:
        setting["last"] = after.last_ms
    elif before.last_ms is not None:
        removed.append("last")
    return Update(
        keys.limiter(name),
        keys.RECORD,
        set=setting,
        remove=removed,
        condition="attribute_not_exists(#op)" if before.op is None else "#op = :seen",
        values={} if before.op is None else {":seen": before.op},
    )


def limiter_from(item: Item | None) -> LimiterState:
    """The limiter's state that an item holds."""
    if item is None:
        return LimiterState()

    def number(name: str) -> int | None:
        value = item.get(name)
        return value if isinstance(value, int) else None

    holders = {}
    for name, value in item.items():
        # A permit in a form that only a newer version knows is not counted, and stays as it is.
        if name.startswith(_PERMIT) and (holder := _PERMIT_FORM.fullmatch(str(value))):
            job_id, until_ms, taken_ms = holder.groups()
            holders[name.removeprefix(_PERMIT)] = Holder(job_id, int(until_ms), int(taken_ms))
    passed = jsontext.stored(str(item.get("passed", "{}")))
    return LimiterState(
        key=str(item["key"]) if "key" in item else None,
        holders=holders,
        windows={
            int(period): RateWindow(tuple((at, n) for at, n in pairs))
            for period, pairs in passed.items()
        },
        last_ms=number("last"),
        paused_ms=number("paused"),
        override=Override.of(str(item["over"])) if "over" in item else None,
        counted="counted" in item,
        bounds=LimitBounds.of(str(item.get("bounds", ""))),
        queues=tuple(sorted(name.removeprefix(_QUEUE) for name in item if name.startswith(_QUEUE))),
        checked_ms=number("checked") or 0,
        throttled_since_ms=number("held"),
        op=str(item["op"]) if "op" in item else None,
    )
