"""Limiters: the state of job-level rate limits, one limiter per key of a rate limit.

Permits of running jobs are stored in a semaphore (`ojs.store.permits.semaphore`) in the same
partition. The limiter itself counts starts of jobs. Each write requires the version of the state
that the decision was made on, so the rate is never exceeded. When the first job of a key has a rate
or a throttle, the limiter starts to count all starts of the key. A key without a rate or a throttle
needs no such write.

Version 0.2 stored the permits in the limiter. Each of these permits counts until its job finishes,
or until a check shows that the job doesn't run with it (`drop_left`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Unpack

from ojs.domain import jsontext
from ojs.domain.errors import OjsError
from ojs.domain.ids import IdSource
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.rate_limit.limiter import (
    LimitBounds,
    LimitDecision,
    LimiterState,
    Override,
    RateLimit,
    limiter_name,
)
from ojs.domain.rate_limit.window import RateWindow
from ojs.records import record
from ojs.store.permits import semaphore
from ojs.store.permits.counter_items import CounterUpdate
from ojs.store.permits.semaphore import GONE_MS
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.races import lost_race, wins
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value

_TRIES = 24
# Retention of a limiter's items. It is longer than a job can be active, so that no permit is
# deleted while its job runs.
KEPT_S = 400 * 86_400
_CHECKED_AT_ONCE = 25
_PERMIT, _QUEUE = "h_", "q|"
# A permit of version 0.2: job ID, end of the job's first lease (ms), and time of acquisition (ms).
_PERMIT_FORM = re.compile(r"([^|]+)\|\d+\|(\d+)")


@record(frozen=True)
class StartGrant:
    """Starts that were counted at `now_ms`, and the limiter's state before and after."""

    limiter: str
    count: int
    now_ms: int
    before: LimiterState
    after: LimiterState


class KeyLimits:
    """Reads and writes the states of limiters."""

    def __init__(self, table: Table, ids: IdSource) -> None:
        self._table = table
        self._ids = ids

    # --- read and register ------------------------------------------------------------------

    def get(self, name: str) -> LimiterState | None:
        """Read the state of a limiter. `name` is a result of `limiter_name`."""
        state = self.get_many({name: 1})[name]
        return None if state.key is None else state

    def get_many(
        self, limits: Mapping[str, int | None], *, whole: bool = True, consistent: bool = True
    ) -> dict[str, LimiterState]:
        """Read several limiter states by name. A state that isn't stored is returned as empty.

        Args:
            limits: By name: the limit, which determines the semaphore shards to read in the same
                call. None: no shard.
            whole: Whether to read also the shards of larger limits that other jobs of the key have.
                This takes one more call.
            consistent: Whether the read is strongly consistent.
        """
        found = self._read(limits, consistent)
        if not whole:
            return found
        larger = {name: state.most for name, state in found.items()}
        more = {name: most for name, most in larger.items() if most > (limits[name] or 0)}
        return found | self._read(more, consistent)

    def _read(self, limits: Mapping[str, int | None], consistent: bool) -> dict[str, LimiterState]:
        shards = {
            name: [] if limit is None else semaphore.keys_of(keys.limiter(name), limit)
            for name, limit in limits.items()
        }
        records = {name: (keys.limiter(name), keys.RECORD) for name in limits}
        found = self._table.batch_get(
            [*records.values(), *(key for of_one in shards.values() for key in of_one)],
            consistent=consistent,
        )
        return {
            name: limiter_from(found.get(key), [found[at] for at in shards[name] if at in found])
            for name, key in records.items()
        }

    def keys(self, *, limit: int, after: str | None = None) -> tuple[list[str], str | None]:
        """Return a page of all keys, in order, and the key of the next page."""
        condition, values = "pk = :all", {":all": keys.LIMITERS}
        if after is not None:
            condition += " AND sk > :after"
            values[":after"] = after
        found = self._table.query(condition, values, limit=limit)
        names = [str(item["sk"]) for item in found.items]
        return names, (names[-1] if found.last and names else None)

    def register(self, limit: RateLimit, queue: str, *, now_ms: int) -> LimiterState:
        """Register a key with the limits of a job that is about to be enqueued.

        Args:
            limit: Rate limit of the job.
            queue: Queue of the job.
            now_ms: Current time in milliseconds since the epoch.
        """
        key = limit.key_in(queue)
        ttl = now_ms // 1000 + KEPT_S
        # Add the key to the list before its counter is created: a counter without a list entry
        # could not be found.
        self._table.put(Put({"pk": keys.LIMITERS, "sk": key, "ttl": ttl}))
        setting: dict[str, Value] = {"key": key, "ttl": ttl, "bounds": limit.bounds.compact()}
        if limit.bounds.concurrency is not None:
            # From now on, each active job of the key acquires a permit, even if the job doesn't
            # have this limit.
            setting["counted"] = 1
        if limit.bounds.timed:
            setting["timed"] = 1
        item = self._update(limiter_name(key), set=setting, add={f"{_QUEUE}{queue}": 1})
        return limiter_from(item)

    def raise_most(self, name: str, most: int) -> None:
        """Store a limit that is larger than all earlier limits of the key's permits."""
        # Race: another fetch stores a larger limit. The larger limit is kept.
        with suppress(LostRace):
            self._update(
                name,
                set={"most": most},
                condition="attribute_not_exists(#most) OR #most < :most",
                values={":most": most},
            )

    # --- starts -----------------------------------------------------------------------------

    def count_starts(
        self, name: str, bounds: LimitBounds, wanted: int, *, now_ms: int, seen: LimiterState
    ) -> tuple[StartGrant | None, LimitDecision, LimiterState]:
        """Count up to `wanted` starts of jobs, up to the limits.

        Args:
            name: Name of the limiter.
            bounds: Limits of the jobs.
            wanted: Maximum number of starts.
            now_ms: Current time in milliseconds since the epoch.
            seen: State as last read.

        Returns:
            The counted starts, the reason if they are fewer than `wanted`, and the limiter's
                current state.

        Raises:
            OjsError: A call failed. It is unknown whether the starts were counted.
        """
        decision = LimitDecision(0)

        def change(limiter: LimiterState) -> LimiterState | None:
            nonlocal decision
            decision = limiter.room(bounds, now_ms, wanted)
            return limiter.with_starts(bounds, now_ms, decision.count) if decision.count else None

        before, after = self._swap(name, seen, change, now_ms=now_ms)
        if after is None:
            return None, decision if not decision.count else LimitDecision(0), before
        return StartGrant(name, decision.count, now_ms, before, after), decision, after

    def roll_back(self, grant: StartGrant, count: int) -> None:
        """Undo counted starts that did not happen.

        If this fails, they count until their period ends.
        """

        def change(limiter: LimiterState) -> LimiterState:
            after = limiter.without_starts(grant.now_ms, count)
            if limiter.op == grant.after.op and count == grant.count:
                # No start was counted since. The previous state has the time of the last start.
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
        """Store the state that `change` returns for a limiter. Return the states before and after.

        The state after is None if nothing was stored, because `change` returned None or because
        every write lost its race.

        Raises:
            OjsError: A call failed.
        """
        for _ in range(_TRIES):
            after = change(limiter)
            if after is None:
                break
            token = self._ids.token()
            after = replace(after, op=token)
            # Race: any number of fetches. Each decides on one version of the state. If the stored
            # version is different, the fetch decides again.
            write = _write(name, limiter, after, now_ms=now_ms)
            lost = lost_race(partial(self._table.update, write, own=("op", token)))
            if lost is None:
                return limiter, after
            limiter = replace(limiter_from(lost.item), active=limiter.active)
        return limiter, None

    # --- permits of version 0.2 -------------------------------------------------------------

    def release_left(self, job: Job) -> None:
        """Release the permit of a job that version 0.2 claimed.

        If this fails, a later check releases it.
        """
        if job.limit is not None and job.key_permit is not None:
            self._remove_left(limiter_name(job.limit.key_in(job.queue)), job.key_permit)

    def _remove_left(self, limiter: str, name: str) -> None:
        permit = f"{_PERMIT}{name}"
        # Race: the permit was released already, by an earlier attempt whose response was lost, or
        # because its job did not run.
        with suppress(LostRace, OjsError):
            self._update(limiter, remove=[permit], condition=f"attribute_exists(#{permit})")

    def drop_left(
        self,
        name: str,
        limiter: LimiterState,
        records: Callable[[Iterable[str]], Mapping[str, Job]],
        *,
        now_ms: int,
    ) -> None:
        """Release permits of version 0.2 whose jobs don't run with them.

        Each call checks only some of the permits.

        Args:
            name: Name of the limiter.
            limiter: State as read.
            records: Returns the records of jobs by ID.
            now_ms: Current time in milliseconds since the epoch.
        """
        settled = {
            permit: job_id
            for permit, (job_id, taken_ms) in limiter.left.items()
            if now_ms - taken_ms >= GONE_MS
        }
        checked = dict(list(settled.items())[:_CHECKED_AT_ONCE])
        found = records(checked.values()) if checked else {}
        for permit, job_id in checked.items():
            job = found.get(job_id)
            if job is None or job.state is not State.ACTIVE or job.key_permit != permit:
                self._remove_left(name, permit)

    # --- manual changes ---------------------------------------------------------------------

    def pause(self, job: Job, *, until_ms: int, reason: str, now_ms: int) -> None:
        """Pause a key: none of its jobs starts before `until_ms`.

        A stored later end takes precedence.

        Args:
            job: Job whose worker requests the pause.
            until_ms: End of the pause in milliseconds since the epoch.
            reason: Reason from the worker.
            now_ms: Current time in milliseconds since the epoch.
        """
        if job.limit is None:
            return
        key = job.limit.key_in(job.queue)
        # Race: two workers report a pause. The later end takes precedence.
        if not wins(
            lambda: self._update(
                limiter_name(key),
                set=self._new_version(key, now_ms) | {"paused": until_ms},
                condition="attribute_not_exists(#paused) OR #paused < :paused",
                values={":paused": until_ms},
            )
        ):
            return
        # The stream record of this item becomes the event.
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

    def override(self, key: str, override: Override, *, seen: Override | None, now_ms: int) -> None:
        """Override the limits of a key's jobs.

        Args:
            key: The key.
            override: New limits.
            seen: Override as read, which is replaced.
            now_ms: Current time in milliseconds since the epoch.

        Raises:
            LostRace: There is another override.
        """
        self._table.put(Put({"pk": keys.LIMITERS, "sk": key, "ttl": now_ms // 1000 + KEPT_S}))
        setting = self._new_version(key, now_ms) | {"over": override.compact()}
        if override.bounds.concurrency is not None:
            setting["counted"] = 1
        if override.bounds.timed:
            setting["timed"] = 1
        condition, values = _as_read(seen)
        self._set(key, Update(*_key(key), set=setting, condition=condition, values=values))

    def lift(self, key: str, *, seen: Override | None) -> bool:
        """Remove the override and the pause of a key. Return false if the key is not registered.

        Raises:
            LostRace: There is another override than `seen`.
        """
        condition, values = _as_read(seen)
        update = Update(
            *_key(key),
            set={"op": self._ids.token()},
            remove=["over", "paused"],
            # The condition prevents that this write creates a key that was never used.
            condition=f"attribute_exists(pk) AND {condition}",
            values=values,
        )
        lost = lost_race(lambda: self._set(key, update))
        if lost is not None and lost.item:
            raise lost
        return lost is None

    def _set(self, key: str, update: Update) -> None:
        # Race: another operator overrides or lifts the limits of the key. The loser reads again. If
        # the token is stored, our own write succeeded and its response was lost.
        self._table.update(update, own=("op", str(update.set["op"])))

    def _new_version(self, key: str, now_ms: int) -> dict[str, Value]:
        """Return the attributes that each manual change sets: a new version of the state.

        Fetches that decided on the previous version then decide again.
        """
        return {"key": key, "op": self._ids.token(), "ttl": now_ms // 1000 + KEPT_S}

    def _update(self, limiter: str, **change: Unpack[CounterUpdate]) -> Item:
        """Change a limiter's item.

        The keyword arguments are fields of `Update`. Raises LostRace.
        """
        return self._table.update(Update(keys.limiter(limiter), keys.RECORD, **change))


def _key(key: str) -> tuple[str, str]:
    return keys.limiter(limiter_name(key)), keys.RECORD


def _as_read(seen: Override | None) -> tuple[str, dict[str, Value]]:
    """Return the condition that the override of a key has not changed since it was read."""
    if seen is None:
        return "attribute_not_exists(#over)", {}
    return "#over = :seen", {":seen": seen.compact()}


def unchanged(limiter: LimiterState) -> tuple[str, Mapping[str, Value]]:
    """Return the condition that a limiter still has the version that was read."""
    if limiter.op is None:
        return "attribute_not_exists(#op)", {}
    return "#op = :op", {":op": limiter.op}


def _write(name: str, before: LimiterState, after: LimiterState, *, now_ms: int) -> Update:
    """Return the write that replaces one version of a limiter's state with the next."""
    setting: dict[str, Value] = {
        "op": after.op or "",
        "ttl": now_ms // 1000 + KEPT_S,
        "timed": 1,
        "passed": jsontext.dumps(
            {str(period): window.pairs() for period, window in sorted(after.windows.items())}
        ),
    }
    if after.last_ms is not None:
        setting["last"] = after.last_ms
    return Update(
        keys.limiter(name),
        keys.RECORD,
        set=setting,
        remove=["last"] if after.last_ms is None and before.last_ms is not None else [],
        condition="attribute_not_exists(#op)" if before.op is None else "#op = :seen",
        values={} if before.op is None else {":seen": before.op},
    )


def limiter_from(record: Item | None, shards: Iterable[Item] = ()) -> LimiterState:
    """Return the state of a limiter from its item, including the permits of the given shards."""
    item = record or {}
    found = list(shards)

    def number(name: str) -> int | None:
        value = item.get(name)
        return value if isinstance(value, int) else None

    left = {
        name.removeprefix(_PERMIT): (permit[1], int(permit[2]))
        for name, value in item.items()
        # If only a newer version can read a permit, the permit is neither counted nor changed.
        if name.startswith(_PERMIT) and (permit := _PERMIT_FORM.fullmatch(str(value)))
    }
    passed = jsontext.stored(str(item.get("passed", "{}")))
    bounds = LimitBounds.of(str(item.get("bounds", "")))
    looks = [at for shard in found if (at := semaphore.look_ms(shard)) is not None]
    return LimiterState(
        key=str(item["key"]) if "key" in item else None,
        active=semaphore.taken(found) + len(left),
        look_ms=min(looks, default=None),
        most=number("most") or 0,
        left=left,
        windows={
            int(period): RateWindow(tuple((at, n) for at, n in pairs))
            for period, pairs in passed.items()
        },
        last_ms=number("last"),
        paused_ms=number("paused"),
        override=Override.of(str(item["over"])) if "over" in item else None,
        counted="counted" in item,
        # Version 0.2 counted all starts. It did not record which keys need this.
        timed="timed" in item or bool(passed) or bounds.timed,
        bounds=bounds,
        queues=tuple(sorted(name.removeprefix(_QUEUE) for name in item if name.startswith(_QUEUE))),
        throttled_since_ms=number("held"),
        op=str(item["op"]) if "op" in item else None,
    )
