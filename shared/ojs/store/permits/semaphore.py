"""Concurrency semaphores: permits for the running jobs of a queue, pool, worker, or rate limit key.

A permit is acquired before a job is claimed and released when the job stops running. The name of a
permit (`ojs.domain.job.permits`) identifies the job record. If a process crashes, or a release
fails, the job record shows that the job doesn't run with the permit, and the permit is reclaimed
under traffic.

An item holds as many permits as fit into one write unit (1 KB). A larger limit is split over
several items (shards). A fetch tries two random shards, so it can be rejected while another shard
has a free permit, unless it sets `exact`. After such a limit was lowered, jobs of the shards that
the new limit does not use continue to run in addition to the newly started jobs.

    n          number of acquired permits: those with names, and those of version 0.2 without
    h_{name}   a permit; its value is the time (ms) from which its job must be checked
    limit, v   this shard's part of the limit, and the version of the configuration

Where each job has a separate limit, the limit is not stored (`ANY_VERSION`). The shards of a
smaller limit are the first ones of a larger limit, and none of them has more permits under the
smaller limit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace

from ojs.domain.errors import OjsError
from ojs.domain.job.permits import RunPermits, holder_of
from ojs.domain.job.states import State
from ojs.records import record
from ojs.store.permits.counter_items import ANY_VERSION, PermitGrant, throttled_since_ms
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Item, Value, number

# An item with this number of permits and the name of its queue has at most 1 KB. A write of the
# item then costs one write unit.
SHARD_PERMITS = 24
_SHARDS_TRIED = 2
# Limits beyond 6,144 have shards with more permits. Their writes cost more only when more than
# `SHARD_PERMITS` jobs of a shard run at the same time. A count of all permits reads at most
# MAX_SHARDS items.
MAX_SHARDS = 256
# Maximum number of permits in one write. The name and the value of a permit take up to 75 bytes of
# the 4 KB that an expression can have. A write can also release the same number of permits.
NAMES_A_WRITE = 24
# Maximum number of permits in one check. One call reads the records of their jobs.
_LOOKED_AT = 96
# A permit is checked if no job was claimed with it within this time of its acquisition (ms). Each
# semaphore is checked at most once in this time.
SETTLED_MS = 5_000
# Longer than the maximum duration of a function. A function that acquired a permit this long ago
# can no longer claim a job with it.
GONE_MS = 30_000
# Unnamed permits that no running job has are released only after this time without a change (ms).
# The time is longer than the duration of any function of version 0.2 that acquired an unnamed
# permit, or is about to release one.
_UNNAMED_MS = 60_000
_PERMIT = "h_"
_STATES = frozenset(state.value for state in State)
# States in which the job of a permit can still be claimed.
_CLAIMED = frozenset({"available", "scheduled", "retryable", "active"})


def shards(limit: int | None) -> int:
    """Return the number of shards of a limit. Without a limit, one shard counts the active jobs."""
    return min(MAX_SHARDS, max(1, -(-(limit or 0) // SHARD_PERMITS)))


def _share(limit: int | None, shard: int) -> int | None:
    """Return the maximum number of permits of a shard.

    It increases with the limit and never decreases.
    """
    if limit is None:
        return None
    if limit > MAX_SHARDS * SHARD_PERMITS:
        return limit // MAX_SHARDS + (shard < limit % MAX_SHARDS)
    return max(0, min(SHARD_PERMITS, limit - shard * SHARD_PERMITS))


def key_of(name: str, shard: int = 0) -> tuple[str, str]:
    """Return the key of a shard's item. `name` is the name of a queue, pool, worker, or limiter."""
    return keys.semaphore(name), f"{keys.SEMAPHORE}_{shard}" if shard else keys.SEMAPHORE


def keys_of(name: str, limit: int | None) -> list[tuple[str, str]]:
    """Return the keys of all shards of a semaphore with this limit."""
    return [key_of(name, shard) for shard in range(shards(limit))]


def taken(found: Iterable[Item | None]) -> int:
    """Return the number of permits in use in the given shards."""
    return sum(number(item or {}, "n") for item in found)


def unnamed_permits(item: Item) -> int:
    """Return the number of unnamed permits in a shard. Version 0.2 acquired them."""
    return number(item, "n") - sum(1 for name in item if name.startswith(_PERMIT))


@record(frozen=True)
class _Write:
    """An attempt to acquire the `wanted` permits of a shard and release the `returned` ones.

    `version` is the version of the configuration with this limit. If a newer limit is stored with
    the shard, the stored limit applies. If `limit` is None, permits are only counted.
    """

    wanted: Sequence[str]
    returned: Sequence[str]
    limit: int | None
    version: int
    now_ms: int

    @property
    def more(self) -> int:
        """The number of permits by which the write increases the shard's count."""
        return len(self.wanted) - len(self.returned)

    def update(self, key: tuple[str, str], *, ttl: int | None) -> Update:
        """Return the write of this attempt."""
        setting: dict[str, Value] = {"at": self.now_ms}
        if ttl is not None:
            setting["ttl"] = ttl
        # Race: an operator changes the limit. A fetch with an older limit is rejected, receives the
        # item, and retries with the newer limit.
        conditions = ["(attribute_not_exists(#v) OR #v <= :version)"]
        values: dict[str, Value] = {":version": self.version}
        if self.limit is not None:
            if self.version < ANY_VERSION:
                setting |= {"limit": self.limit, "v": self.version}
            # Race: other fetches acquire permits. If not enough permits are free, the fetch
            # receives the item and tries to acquire the missing permits in other shards.
            if self.more > 0:
                conditions.append("(attribute_not_exists(#n) OR #n <= :room)")
                values[":room"] = self.limit - self.more
        # Race: an earlier attempt of this write succeeded, and its response was lost. The permits
        # must not be counted twice.
        conditions.append(f"attribute_not_exists(#{_PERMIT}{self.wanted[0]})")
        # Race: this fetch was slow, and a check released one of its permits, because no job ran
        # with it.
        conditions += [f"attribute_exists(#{_PERMIT}{name})" for name in self.returned]
        look_ms = self.now_ms + SETTLED_MS
        return Update(
            *key,
            set=setting | {f"{_PERMIT}{name}": look_ms for name in self.wanted},
            remove=[f"{_PERMIT}{name}" for name in self.returned],
            add={"n": self.more},
            condition=" AND ".join(conditions),
            values=values,
        )

    def after(self, found: Item) -> _Write:
        """Return the next attempt, with at least one permit fewer, or with a newer limit."""
        limit, version, most = self.limit, self.version, len(self.wanted) - 1
        if number(found, "v") > version:
            version, limit, most = number(found, "v"), number(found, "limit"), len(self.wanted)
        returned = [name for name in self.returned if f"{_PERMIT}{name}" in found]
        if len(returned) < len(self.returned):
            most = len(self.wanted)
        if limit is not None:
            most = min(most, max(0, limit - number(found, "n")) + len(returned))
        return _Write(self.wanted[:most], returned, limit, version, self.now_ms)


@record
class SemaphoreGrant:
    """The permits that a fetch acquired, and the use of the limit after that.

    `permits` maps the name of each permit to its shard. `suspects` are the shards, as read, that
    rejected the fetch and contain permits to check. `unreturned` are the permits that the call
    should have released but did not. `full` is true if each shard that the call could have tried
    had no free permit at some time since the call began.
    """

    permits: dict[str, int] = field(default_factory=dict)
    unreturned: dict[str, int] = field(default_factory=dict)
    grant: PermitGrant = field(default_factory=lambda: PermitGrant(0, 0, 0))
    suspects: dict[int, Item] = field(default_factory=dict)
    full: bool = False
    # By number of each shard that the call tried: whether the shard had no free permit afterwards.
    seen: dict[int, bool] = field(default_factory=dict)


@record(frozen=True)
class Released:
    """The result of a release.

    `full` is true if no permit was free before the release. A fetch might then be waiting for a
    permit. `room` is the number of free permits, or 0 if it is unknown.
    """

    full: bool
    room: int = 0


# The result if a release failed, or if another function had released the permits before.
_UNKNOWN = Released(full=True)


class ConcurrencySemaphore:
    """Reads and writes semaphores."""

    def __init__(self, table: Table, *, choose: Callable[[int], int] = random.randrange) -> None:
        self._table = table
        self._choose = choose

    def acquire(
        self,
        name: str,
        wanted: Sequence[str],
        *,
        limit: int | None,
        version: int,
        now_ms: int,
        returned: Mapping[str, int] | None = None,
        kept_s: int | None = None,
        limited: bool = True,
        exact: bool = False,
        only: Sequence[int] = (),
    ) -> SemaphoreGrant:
        """Acquire permits with the first of the wanted names, up to the number of free permits.

        The same writes release the `returned` permits.

        Args:
            name: Name of the semaphore.
            wanted: Names of the wanted permits, in order.
            limit: The concurrency limit. None: permits are only counted.
            version: Version of the configuration that has this limit.
            now_ms: Current time in milliseconds since the epoch.
            returned: Permits to release, by name, with their shards.
            kept_s: Time to live of a shard in seconds, renewed on each call. Default: none.
            limited: If false, permits are only counted.
            exact: Before the call is rejected, read all shards and try those with free permits.
            only: Shards to try. Default: all.

        Returns:
            The acquired permits with their shards, and the state of the limit.

        Raises:
            OjsError: A write failed. It is unknown which permits were acquired. Permits that no job
                runs with are reclaimed later.
        """
        result = SemaphoreGrant(unreturned=dict(returned or {}))

        def try_to(tried: Sequence[int]) -> None:
            self._acquire(
                result, name, wanted, limit, version, now_ms, kept_s, tried=tried, limited=limited
            )

        try_to(only or self._pick(limit))
        if len(result.permits) < len(wanted) and result.suspects:
            # Release permits that no job runs with, so that they don't block other fetches.
            healed = [
                shard
                for shard, item in result.suspects.items()
                if self.heal(name, shard, item, now_ms=now_ms)
            ]
            if healed:
                try_to(healed)
        if exact and not only and wanted and not result.permits and shards(limit) > _SHARDS_TRIED:
            found = self.read({name: limit})[name]
            room = {at: (_share(limit, at) or 0) - taken([item]) for at, item in enumerate(found)}
            result.seen |= {at: room[at] <= 0 for at in room}
            free = sorted((at for at in room if room[at] > 0), key=lambda at: -room[at])
            if free:
                try_to(free[:_SHARDS_TRIED])
            if not result.permits:
                result.grant = replace(result.grant, current=taken(found))
        result.full = all(result.seen.get(at, False) for at in only or range(shards(limit)))
        return result

    def _acquire(
        self,
        result: SemaphoreGrant,
        name: str,
        wanted: Sequence[str],
        limit: int | None,
        version: int,
        now_ms: int,
        kept_s: int | None,
        *,
        tried: Sequence[int],
        limited: bool,
    ) -> None:
        result.suspects = {}
        back = result.unreturned
        current, since_ms, in_force, counted_at = 0, None, limit, keys.SEMAPHORE
        unchanged: tuple[str, Mapping[str, Value]] = ("attribute_exists(pk)", {})
        tried = list(dict.fromkeys([*back.values(), *tried]))
        for shard in tried:
            if len(result.permits) == len(wanted):
                break
            share = _share(limit, shard) if limited else None
            ttl = None if kept_s is None else now_ms // 1000 + kept_s
            more = True
            while more:
                left = wanted[len(result.permits) :]
                spare = [permit for permit, at in back.items() if at == shard][:NAMES_A_WRITE]
                most = NAMES_A_WRITE if share is None else share + len(spare)
                asked = left[: min(most, NAMES_A_WRITE)]
                write = _Write(asked, spare, share, version, now_ms)
                write, item = self._write(key_of(name, shard), write, ttl)
                result.permits |= dict.fromkeys(write.wanted, shard)
                if share is not None:
                    result.seen[shard] = number(item, "n") >= (write.limit or 0)
                for permit in spare:
                    if write.wanted or permit not in write.returned:
                        del back[permit]
                # The shard granted all permits of this write. It might have more free permits.
                granted = len(write.wanted) == len(asked) < len(left)
                more = granted and not result.seen.get(shard, False)
            current += number(item, "n")
            since_ms, counted_at = throttled_since_ms(item), key_of(name, shard)[1]
            if shards(limit) == len(tried) == 1:
                in_force = write.limit
                unchanged = ("#n = :n", {":n": number(item, "n")})
            if len(result.permits) < len(wanted) and _suspects(item, now_ms):
                result.suspects[shard] = item
        full = len(result.permits) < len(wanted)
        if in_force is not None and (len(tried) > 1 or shards(limit) > 1):
            current = in_force if full else min(current, in_force - 1)
        result.grant = PermitGrant(
            len(result.permits), in_force or 0, current, since_ms, unchanged, counted_at
        )

    def _write(self, key: tuple[str, str], write: _Write, ttl: int | None) -> tuple[_Write, Item]:
        """Write to a shard, and retry with fewer permits after a rejection.

        Return the last attempt, and the shard's item after it.
        """
        item: Item = {}
        while write.wanted:
            try:
                item = self._table.update(write.update(key, ttl=ttl))
            except LostRace as lost:
                item = lost.item or {}
                if f"{_PERMIT}{write.wanted[0]}" in item:
                    # An earlier try of this write succeeded, and its response was lost.
                    return write, item
                write = write.after(item)
            else:
                return write, item
        return write, item

    def _pick(self, limit: int | None) -> list[int]:
        """Return the shards that a fetch tries."""
        count = shards(limit)
        first = self._choose(count) if count > 1 else 0
        if count == 1:
            return [first]
        return [first, (first + 1 + self._choose(count - 1)) % count][:_SHARDS_TRIED]

    def release(self, name: str, shard: int, permits: Collection[str], *, now_ms: int) -> Released:
        """Release permits of a shard. If this fails, a later check releases them.

        Args:
            name: Name of the semaphore.
            shard: Number of the shard.
            permits: Names of the permits.
            now_ms: Current time in milliseconds since the epoch.

        Returns:
            Whether the shard was full before, and the number of its free permits.
        """
        names = list(permits)
        parts = [names[at : at + NAMES_A_WRITE] for at in range(0, len(names), NAMES_A_WRITE)]
        released = [self._release(name, shard, part, now_ms=now_ms) for part in parts]
        # The last write returns the largest number of free permits. If any write found the shard
        # full, it was full before the release.
        full = any(each.full for each in released)
        return Released(full, released[-1].room) if released else _UNKNOWN

    def _release(self, name: str, shard: int, part: list[str], *, now_ms: int) -> Released:
        left = part
        with suppress(OjsError):
            while left:
                held = [f"{_PERMIT}{permit}" for permit in left]
                # Race: some permits were released already, by an earlier attempt of this call, or
                # because their jobs did not run with them. Only the remaining permits are released.
                try:
                    item = self._table.update(
                        Update(
                            *key_of(name, shard),
                            set={"at": now_ms},
                            remove=held,
                            add={"n": -len(held)},
                            condition=" AND ".join(f"attribute_exists(#{each})" for each in held),
                        )
                    )
                except LostRace as lost:
                    left = [permit for permit in left if f"{_PERMIT}{permit}" in (lost.item or {})]
                else:
                    # If other functions released some of these permits, the result is reported as
                    # unknown.
                    known = "limit" in item and len(left) == len(part)
                    room = number(item, "limit") - number(item, "n")
                    return Released(room <= len(held), max(0, room)) if known else _UNKNOWN
        return _UNKNOWN

    def release_unnamed(self, name: str, *, now_ms: int) -> None:
        """Release an unnamed permit, which belongs to a job that version 0.2 claimed."""
        # Race: the queue is deleted with its semaphore. No permit remains.
        with suppress(LostRace, OjsError):
            self._table.without_repeats().update(
                Update(
                    *key_of(name),
                    set={"at": now_ms},
                    add={"n": -1},
                    condition="attribute_exists(pk)",
                )
            )

    def heal(self, name: str, shard: int, item: Item, *, now_ms: int) -> bool:
        """Release the leaked permits of a shard: those with which no job runs.

        One function at a time checks, at most every 5 seconds. If it fails, the next one checks.

        Args:
            name: Name of the semaphore.
            shard: Number of the shard.
            item: The shard as last read.
            now_ms: Current time in milliseconds since the epoch.

        Returns:
            Whether any permit was released.
        """
        if not _worth_a_look(item, now_ms):
            return False
        oldest = sorted(_suspects(item, now_ms).items(), key=lambda one: one[1])
        suspects, checked_ms = dict(oldest[:_LOOKED_AT]), number(item, "checked")
        healed = False
        with suppress(LostRace, OjsError):
            # Race: other fetches were rejected as well. One of them checks the permits for all.
            self._table.update(
                Update(
                    *key_of(name, shard),
                    set={"checked": now_ms},
                    condition="attribute_not_exists(#checked) OR #checked = :seen",
                    values={":seen": checked_ms},
                ),
                own=("checked", now_ms),
            )
            records = self._table.batch_get(
                (keys.job(holder_of(permit)[0]), keys.RECORD) for permit in suspects
            )
            look_ms = {
                permit: _look_again_ms(
                    records.get((keys.job(holder_of(permit)[0]), keys.RECORD)),
                    holder_of(permit)[1],
                    at_ms,
                    now_ms,
                )
                for permit, at_ms in suspects.items()
            }
            names = list(suspects)
            for at in range(0, len(names), NAMES_A_WRITE):
                part = {permit: suspects[permit] for permit in names[at : at + NAMES_A_WRITE]}
                healed |= self._settle(key_of(name, shard), part, look_ms, now_ms=now_ms)
        return healed

    def _settle(
        self,
        key: tuple[str, str],
        suspects: Mapping[str, int],
        look_ms: Mapping[str, int | None],
        *,
        now_ms: int,
    ) -> bool:
        """Release those of the suspected permits that need no further check.

        Return whether any permit was released. Raises OjsError if a call fails.
        """
        gone = [permit for permit in suspects if look_ms[permit] is None]
        again = {permit: at for permit in suspects if (at := look_ms[permit]) is not None}
        # Race: during the check a job stops running and releases its permit, or another function
        # checks. Then nothing is written, and the next function checks again.
        with suppress(LostRace):
            self._table.update(
                Update(
                    *key,
                    set={"at": now_ms} | {f"{_PERMIT}{name}": at for name, at in again.items()},
                    remove=[f"{_PERMIT}{permit}" for permit in gone],
                    add={"n": -len(gone)},
                    condition=" AND ".join(
                        f"#{_PERMIT}{permit} = :seen_{permit}" for permit in suspects
                    ),
                    values={f":seen_{permit}": at_ms for permit, at_ms in suspects.items()},
                )
            )
            return bool(gone)
        return False

    def heal_all(self, name: str, limit: int, *, now_ms: int, most: int) -> bool:
        """Release the leaked permits of a semaphore.

        Args:
            name: Name of the semaphore.
            limit: Limit of the semaphore, which determines its shards.
            now_ms: Current time in milliseconds since the epoch.
            most: Maximum number of shards to check.

        Returns:
            Whether any permit was released.

        Raises:
            OjsError: The shards could not be read.
        """
        worth = [
            (shard, item)
            for shard, item in enumerate(self.read({name: limit})[name])
            if _worth_a_look(item, now_ms)
        ]
        healed = [self.heal(name, shard, item, now_ms=now_ms) for shard, item in worth[:most]]
        return any(healed)

    def drop_unnamed(self, name: str, item: Item, *, now_ms: int) -> bool:
        """Release a semaphore's unnamed permits. The caller has found that no active job has one.

        The first call only records their number. A call one minute later releases them if the
        number is the same. Until then, a function of version 0.2 might have acquired them for jobs
        that it is about to claim.

        Args:
            name: Name of the semaphore.
            item: The first shard, as read.
            now_ms: Current time in milliseconds since the epoch.

        Returns:
            Whether the permits were released.
        """
        count = unnamed_permits(item)
        noted = number(item, "c") == count and "c_at" in item
        if noted and now_ms - number(item, "c_at") < _UNNAMED_MS:
            return False
        # Race: two sweeps. One of them records the number, and one of them releases the permits.
        condition, values = "attribute_not_exists(#c_at)", dict[str, Value]()
        if "c_at" in item:
            condition, values = "#c_at = :seen", {":seen": number(item, "c_at")}
        change = Update(*key_of(name), set={"c": count, "c_at": now_ms}, condition=condition,
                        values=values)  # fmt: skip
        if noted:
            change = Update(*key_of(name), remove=["c", "c_at"], add={"n": -count},
                            condition=condition, values=values)  # fmt: skip
        with suppress(LostRace):
            self._table.update(change)
            return noted
        return False

    def set_limit(self, name: str, *, limit: int, version: int, now_ms: int) -> None:
        """Store a new limit, so that it also applies to fetches that have read the previous one.

        Args:
            name: Name of the semaphore.
            limit: New limit.
            version: Version of the configuration. A later stored version takes precedence.
            now_ms: Current time in milliseconds since the epoch.
        """
        for shard in sorted({0, *(shard for shard, _ in self.read_all(name))}):
            # Race: another operator changes the limit later. The later change takes precedence.
            with suppress(LostRace):
                self._table.update(
                    Update(
                        *key_of(name, shard),
                        set={"limit": _share(limit, shard) or 0, "v": version, "at": now_ms},
                        condition="attribute_not_exists(#v) OR #v <= :version",
                        values={":version": version},
                    )
                )

    def read(self, limits: Mapping[str, int | None]) -> dict[str, list[Item]]:
        """Read the shards of semaphores, strongly consistent.

        A semaphore without permits has none.
        """
        wanted = {name: keys_of(name, limit) for name, limit in limits.items()}
        found = self._table.batch_get(key for of_one in wanted.values() for key in of_one)
        return {name: [found.get(key, {}) for key in of_one] for name, of_one in wanted.items()}

    def counts(self, limits: Mapping[str, int | None]) -> dict[str, int]:
        """Return the permits in use of each semaphore. The reads are strongly consistent."""
        return {name: taken(found) for name, found in self.read(limits).items()}

    def read_all(self, name: str) -> list[tuple[int, Item]]:
        """Return all shards that a semaphore ever had, by shard number."""
        found = self._table.query_all(
            "pk = :pk AND begins_with(sk, :sk)",
            {":pk": keys.semaphore(name), ":sk": keys.SEMAPHORE},
        )
        return [
            (int(str(item["sk"]).removeprefix(keys.SEMAPHORE).removeprefix("_") or 0), item)
            for item in found
        ]

    def remove(self, name: str, *, before_ms: int) -> None:
        """Delete the semaphore of a deleted queue, unless it changed since `before_ms`."""
        for shard, _ in self.read_all(name):
            # Race: the queue is created again, and its jobs run. The item then belongs to the new
            # queue and is not deleted. Permits of the old queue are reclaimed later.
            with suppress(LostRace):
                self._table.delete(
                    *key_of(name, shard),
                    condition="#at < :before",
                    values={":before": before_ms},
                )


def look_ms(item: Item) -> int | None:
    """Return the time (ms) of the next check of a shard's permits, or None if it has no permits."""
    first_ms = min(_suspects(item, ANY_VERSION).values(), default=None)
    return None if first_ms is None else max(first_ms, number(item, "checked") + SETTLED_MS)


def _worth_a_look(item: Item, now_ms: int) -> bool:
    at_ms = look_ms(item)
    return at_ms is not None and at_ms <= now_ms


def _suspects(item: Item, now_ms: int) -> dict[str, int]:
    """Return the permits of a shard that are due for a check, with the due time (ms)."""
    return {
        name.removeprefix(_PERMIT): at_ms
        for name, at_ms in item.items()
        # If only a newer version can read a permit, the permit is not changed.
        if name.startswith(_PERMIT) and isinstance(at_ms, int) and at_ms <= now_ms
    }


def _look_again_ms(record: Item | None, run: str, at_ms: int, now_ms: int) -> int | None:
    """Return the next time (ms) to check a permit whose check was due at `at_ms`.

    Return None if the permit can be released.
    """
    if record is None:
        return None
    state = record["state"]
    runs = state == State.ACTIVE.value
    if runs and RunPermits.of(str(record.get("permits", ""))).run == run:
        # The job's lease might have been renewed. A worker whose lease expired might also still
        # report.
        return max(now_ms + SETTLED_MS, number(record, "lease_until"))
    if state in _CLAIMED and now_ms - at_ms < GONE_MS:
        # A fetch might be about to claim the job with this permit: from `available`, when it is
        # due, or after its current lease expires.
        return at_ms
    return None if state in _STATES else now_ms + SETTLED_MS
