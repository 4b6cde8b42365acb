"""Limiters: what is counted for each key of job-level rate limits, one item a key.

A fetch takes under a limit before it claims: one conditional write on the version it decided on, so
that no limit is ever passed. Every call may be repeated: a lost answer is recognised by the write's
token, and a place is named by the position in line that its job was taken from, which is new for
each attempt.

If we die after taking and before the claim, a place is taken by a job that does not run. It is not
lost: the job that stands at that position may be claimed with it; and whoever finds no room looks
whether the jobs that take it still do (`heal`). The same heals a place that was not given back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

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
    cell_name,
    place_of,
)
from ojs.domain.rate_limit.window import RateWindow
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value

_TRIES = 24
# Longer than any job may be active: no place is forgotten while its job runs.
KEPT_S = 400 * 86_400
# A place taken so long ago without a claim is not about to be claimed.
SETTLED_MS = 5_000
CHECK_EVERY_MS = 5_000
_CHECKED_AT_ONCE = 25
_PLACE, _QUEUE = "h_", "q|"


@dataclass(frozen=True)
class LimitRequest:
    """A job that a fetch would claim for `lease_ms`, and where it stands in line."""

    job_id: str
    order: str
    lease_ms: int

    @property
    def place(self) -> str:
        """The name of the place it would take."""
        return place_of(self.job_id, self.order)


@dataclass(frozen=True)
class LimitGrant:
    """What was taken for some jobs, by place; `before` is the cell without it."""

    cell: str
    names: tuple[str, ...]
    now_ms: int
    places: bool
    before: LimiterState
    after: LimiterState

    def place(self, job_id: str, order: str) -> str | None:
        """The place that a job of these takes; None where active jobs take none."""
        return place_of(job_id, order) if self.places else None


class KeyLimits:
    """The store of limiters."""

    def __init__(self, table: Table, ids: IdSource) -> None:
        self._table = table
        self._ids = ids

    # --- what is there ----------------------------------------------------------------------

    def get(self, name: str, *, consistent: bool = True) -> LimiterState | None:
        """What is counted under a cell's name (`ojs.domain.rate_limit.limiter.cell_name`)."""
        item = self._table.get(keys.limiter(name), keys.HEAD, consistent=consistent)
        return cell_from(item) if item else None

    def get_many(self, names: Iterable[str], *, consistent: bool = True) -> dict[str, LimiterState]:
        """The same of several, by name; a cell without anything where there is none."""
        wanted = list(dict.fromkeys(names))
        found = self._table.batch_get(
            ((keys.limiter(name), keys.HEAD) for name in wanted), consistent=consistent
        )
        return {name: cell_from(found.get((keys.limiter(name), keys.HEAD))) for name in wanted}

    def keys(self, *, limit: int, after: str | None = None) -> tuple[list[str], str | None]:
        """A page of all keys, in order, and where to go on."""
        condition, values = "pk = :all", {":all": keys.LIMITERS}
        if after is not None:
            condition += " AND sk > :after"
            values[":after"] = after
        found = self._table.query(condition, values, limit=limit)
        names = [str(item["sk"]) for item in found.items]
        return names, (names[-1] if found.last and names else None)

    def register(self, limit: RateLimit, queue: str, *, now_ms: int) -> LimiterState:
        """Make a key known, with the bounds of a job that is about to be pushed."""
        key = limit.key_in(queue)
        ttl = now_ms // 1000 + KEPT_S
        # The list first: a key that is counted but not listed could not be found.
        self._table.put(Put({"pk": keys.LIMITERS, "sk": key, "ttl": ttl}))
        setting: dict[str, Value] = {"key": key, "ttl": ttl, "bounds": limit.bounds.compact()}
        if limit.bounds.concurrency is not None:
            # From now on all active jobs of the key take a place, also those without this limit.
            setting["counted"] = 1
        item = self._table.update(
            Update(
                keys.limiter(cell_name(key)), keys.HEAD, set=setting, add={f"{_QUEUE}{queue}": 1}
            )
        )
        return cell_from(item)

    # --- take and give back -----------------------------------------------------------------

    def take(
        self,
        name: str,
        bounds: LimitBounds,
        asked: Sequence[LimitRequest],
        *,
        now_ms: int,
        seen: LimiterState,
    ) -> tuple[LimitGrant | None, LimitDecision, LimiterState]:
        """Take for the first of `asked` for which there is room; also why not, and the cell now.

        `seen` is the cell as it was read last. Raises OjsError: then nobody knows, and what may
        have been taken heals.
        """
        cell = seen
        for _ in range(_TRIES):
            names, verdict = _chosen(cell, bounds, asked, now_ms)
            if not names:
                return None, verdict, cell
            places = cell.takes_places(bounds, now_ms)
            holders = {
                one.place: Holder(one.job_id, now_ms + one.lease_ms, now_ms)
                for one in asked
                if places and one.place in names
            }
            after = cell.taking(bounds, holders, now_ms, len(names))
            after = replace(after, op=self._ids.token())
            # Race: any number of fetches. Each decides on a version of the cell, and whoever finds
            # another one decides anew on that.
            try:
                self._table.update(_write(name, cell, after, now_ms=now_ms))
            except LostRace as lost:
                there = cell_from(lost.item)
                if there.op != after.op:
                    cell = there
                    continue
            return LimitGrant(name, names, now_ms, places, cell, after), verdict, after
        return None, LimitDecision(0), cell

    def give_back(self, taken: LimitGrant, names: Sequence[str], *, started: bool = False) -> None:
        """Undo what was taken for jobs that were not claimed. Should it fail, it heals.

        Where they may have `started` after all, and ended, only the places are given back.
        """
        cell = taken.after
        gone = frozenset(names)
        for _ in range(_TRIES):
            after = cell.giving_back(gone, taken.now_ms, 0 if started else len(gone))
            if not started and cell.op == taken.after.op and len(gone) == len(taken.names):
                # Nobody took anything since: the last start is the one before.
                after = replace(after, last_ms=taken.before.last_ms)
            after = replace(after, op=self._ids.token())
            # Race: as in `take`.
            try:
                self._table.update(_write(taken.cell, cell, after, now_ms=taken.now_ms))
            except LostRace as lost:
                there = cell_from(lost.item)
                if there.op != after.op:
                    cell = there
                    continue
            except OjsError:
                return
            return

    def release(self, job: Job) -> None:
        """Give back the place of a job that is not active any more. Should it fail, it heals.

        Does not change the version: whoever decides on one with more places taken is only more
        careful.
        """
        if job.limit is None or job.place is None:
            return
        self._remove(cell_name(job.limit.key_in(job.queue)), job.place)

    def _remove(self, cell: str, name: str) -> None:
        place = f"{_PLACE}{name}"
        # Race: it was given back already, by our own lost call or by whoever healed the cell.
        try:
            self._table.update(
                Update(
                    keys.limiter(cell),
                    keys.HEAD,
                    remove=[place],
                    condition=f"attribute_exists(#{place})",
                )
            )
        except (LostRace, OjsError):
            return

    def take_again(self, job: Job, *, now_ms: int, lease_ms: int) -> str | None:
        """A place for a job that goes on with the attempt it lost: its name, "" if it needs none,
        None if none is free.
        """
        if job.limit is None or job.order is None:
            return ""
        place = place_of(job.id, job.order)
        name = cell_name(job.limit.key_in(job.queue))
        # It has started before: neither rate nor spacing nor a pause are asked.
        bounds = LimitBounds(concurrency=job.limit.bounds.concurrency)
        cell = self.get(name) or LimiterState()
        for _ in range(_TRIES):
            if not cell.takes_places(bounds, now_ms):
                return ""
            most = cell.in_force(bounds, now_ms).concurrency
            others = len(cell.holders.keys() - {place})
            if most is not None and others >= most:
                return None
            holder = Holder(job.id, now_ms + lease_ms, now_ms)
            after = replace(cell, holders={**cell.holders, place: holder}, op=self._ids.token())
            # Race: as in `take`.
            try:
                self._table.update(_write(name, cell, after, now_ms=now_ms))
            except LostRace as lost:
                there = cell_from(lost.item)
                if there.op != after.op:
                    cell = there
                    continue
            return place
        return None

    def heal(
        self,
        name: str,
        cell: LimiterState,
        heads: Callable[[Iterable[str]], Mapping[str, Job]],
        *,
        now_ms: int,
        choose: Callable[[int], int],
    ) -> bool:
        """Give back places whose jobs do not take them; whether there were any.

        Looks at a few at a time, and not again for a while, whoever asks.
        """
        old = [
            (name, holder)
            for name, holder in cell.holders.items()
            if now_ms - holder.taken_ms >= SETTLED_MS
        ]
        if not old or now_ms - cell.checked_ms < CHECK_EVERY_MS:
            return False
        # Race: others who find no room. One of them looks, for all.
        try:
            self._table.update(
                Update(
                    keys.limiter(name),
                    keys.HEAD,
                    set={"checked": now_ms},
                    condition="attribute_not_exists(#checked) OR #checked = :seen",
                    values={":seen": cell.checked_ms},
                )
            )
        except LostRace:
            return False
        start = choose(len(old))
        looked_at = (old[start:] + old[:start])[:_CHECKED_AT_ONCE]
        found = heads(holder.job_id for _, holder in looked_at)
        gone = [
            place
            for place, holder in looked_at
            if not _takes(found.get(holder.job_id), place, holder, now_ms)
        ]
        for place in gone:
            self._remove(name, place)
        return bool(gone)

    # --- by hand ----------------------------------------------------------------------------

    def pause(self, job: Job, *, until_ms: int, reason: str, now_ms: int) -> None:
        """Start no job of the same key before `until_ms`; a later end that was told stays."""
        if job.limit is None:
            return
        key = job.limit.key_in(job.queue)
        # Race: two workers are told to wait. The later end counts.
        try:
            self._change(key, {"paused": until_ms}, "#paused < :paused", now_ms=now_ms)
        except LostRace:
            return
        # Its stream record becomes the event.
        self._table.put(
            Put(
                {
                    "pk": keys.limiter(cell_name(key)),
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
        """Lay bounds over those of a key's jobs, in place of what was laid over them before."""
        self._table.put(Put({"pk": keys.LIMITERS, "sk": key, "ttl": now_ms // 1000 + KEPT_S}))
        setting: dict[str, Value] = {"over": override.compact()}
        if override.bounds.concurrency is not None:
            setting["counted"] = 1
        return self._change(key, setting, None, now_ms=now_ms)

    def lift(self, key: str) -> LimiterState | None:
        """Take the override and the pause of a key back; None for a key that is not known."""
        try:
            item = self._table.update(
                Update(
                    keys.limiter(cell_name(key)),
                    keys.HEAD,
                    set={"op": self._ids.token()},
                    remove=["over", "paused"],
                    # A key nobody used does not come to be by this.
                    condition="attribute_exists(pk)",
                )
            )
        except LostRace:
            return None
        return cell_from(item)

    def _change(
        self, key: str, setting: Mapping[str, Value], condition: str | None, *, now_ms: int
    ) -> LimiterState:
        """A change that every fetch must see: those that decided without it decide anew."""
        unless = None
        values: dict[str, Value] = {}
        if condition is not None:
            unless = f"attribute_not_exists(#paused) OR {condition}"
            values = {f":{name}": value for name, value in setting.items()}
        item = self._table.update(
            Update(
                keys.limiter(cell_name(key)),
                keys.HEAD,
                set={
                    **setting,
                    "key": key,
                    "op": self._ids.token(),
                    "ttl": now_ms // 1000 + KEPT_S,
                },
                condition=unless,
                values=values,
            )
        )
        return cell_from(item)


def as_found(cell: LimiterState) -> tuple[str, Mapping[str, Value]]:
    """The condition that nobody took under a limit since it was read."""
    if cell.op is None:
        return "attribute_not_exists(#op)", {}
    return "#op = :op", {":op": cell.op}


def _chosen(
    cell: LimiterState, bounds: LimitBounds, asked: Sequence[LimitRequest], now_ms: int
) -> tuple[tuple[str, ...], LimitDecision]:
    """The places of those that may be claimed now, and what stands in the way of the others.

    One that has its place already is being claimed by somebody, or its fetch died: then the
    place is its own, and it needs no other.
    """
    free = [one.place for one in asked if one.place not in cell.holders]
    left = [
        one.place
        for one in asked
        if one.place in cell.holders and now_ms - cell.holders[one.place].taken_ms >= SETTLED_MS
    ]
    if left:
        others = {name: holder for name, holder in cell.holders.items() if name not in left}
        verdict = replace(cell, holders=others).room(bounds, now_ms, len(left))
        if verdict.count:
            return tuple(left[: verdict.count]), verdict
    if not free:
        # Somebody else is at it. The limit may have room all the same.
        return (), LimitDecision(0, free_ms=now_ms)
    verdict = cell.room(bounds, now_ms, len(free))
    return tuple(free[: verdict.count]), verdict


def _takes(job: Job | None, place: str, holder: Holder, now_ms: int) -> bool:
    """Whether a place is still a job's: it is active with it, or may yet be claimed with it.

    A claim needs the job to stand at the very position the place is named by; and one that comes
    after the end of its lease makes nothing but a job whose lease is over.
    """
    if job is None:
        return False
    if job.state is State.ACTIVE:
        return job.place == place
    stands = job.state is State.AVAILABLE and place_of(job.id, job.order or "") == place
    return stands and now_ms < holder.until_ms


def _write(name: str, before: LimiterState, after: LimiterState, *, now_ms: int) -> Update:
    """The write that makes one version of a cell the next."""
    added = {o: h for o, h in after.holders.items() if before.holders.get(o) != h}
    removed = [f"{_PLACE}{held}" for held in before.holders if held not in after.holders]
    setting: dict[str, Value] = {
        "op": after.op or "",
        "ttl": now_ms // 1000 + KEPT_S,
        "passed": jsontext.dumps(
            {str(period): window.pairs() for period, window in sorted(after.windows.items())}
        ),
        **{
            f"{_PLACE}{order}": f"{holder.job_id}|{holder.until_ms}|{holder.taken_ms}"
            for order, holder in added.items()
        },
    }
    if after.last_ms is not None:
        setting["last"] = after.last_ms
    elif before.last_ms is not None:
        removed.append("last")
    return Update(
        keys.limiter(name),
        keys.HEAD,
        set=setting,
        remove=removed,
        condition="attribute_not_exists(#op)" if before.op is None else "#op = :seen",
        values={} if before.op is None else {":seen": before.op},
    )


def cell_from(item: Item | None) -> LimiterState:
    """The cell an item holds."""
    if item is None:
        return LimiterState()

    def number(name: str) -> int | None:
        value = item.get(name)
        return value if isinstance(value, int) else None

    holders = {}
    for name, value in item.items():
        if name.startswith(_PLACE):
            job_id, until_ms, taken_ms = str(value).split("|")
            holders[name.removeprefix(_PLACE)] = Holder(job_id, int(until_ms), int(taken_ms))
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
        held_ms=number("held"),
        op=str(item["op"]) if "op" in item else None,
    )
