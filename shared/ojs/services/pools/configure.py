"""Worker pools: creation, change, listing, deletion (fair-scheduling seed, sections 6 and 10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ojs.clock import Clock
from ojs.domain.errors import BackendUnavailable, Conflict, InvalidRequest, NotFound, QueueNotFound
from ojs.domain.fair_queue.tags import Fairness
from ojs.domain.page import Page
from ojs.domain.pool import pool as domain
from ojs.domain.pool.pool import MAX_POOLS_OF_QUEUE, Pool
from ojs.domain.queue.queue import Queue, QueueState
from ojs.services.jobs.fairness_backfill import FairnessBackfill
from ojs.services.permits.repair import CountedPermits, PermitRepair
from ojs.store.permits.counters import Gates
from ojs.store.queues import pools as store
from ojs.store.queues.queues import QueueStore
from ojs.store.table.errors import LostRace

_TRIES = 5


class PoolConfiguration:
    """Changes pools."""

    def __init__(
        self,
        pools: store.PoolStore,
        queues: QueueStore,
        gates: Gates,
        slots: PermitRepair,
        tagging: FairnessBackfill,
        clock: Clock,
        *,
        strict: bool = False,
    ) -> None:
        self._pools = pools
        self._queues = queues
        self._gates = gates
        self._slots = slots
        self._tagging = tagging
        self._clock = clock
        self._strict = strict

    def put(self, name: str, body: object) -> tuple[Pool, bool]:
        """Make a pool, or replace what it is; whether it is new. Queues not seen yet are made.

        A fetch that is under way goes by the pool as it was. A limit on running jobs holds from the
        answer on; those that run count. Jobs that wait take their turns by tenant where the pool
        says so for the first time. Raises InvalidRequest, Conflict when a queue is isolated,
        QueueNotFound in strict mode, BackendUnavailable when so many jobs run that it must be asked
        again.
        """
        wanted = domain.parse(name, body)
        for _ in range(_TRIES):
            try:
                return self._put(wanted)
            except LostRace:
                continue
        raise BackendUnavailable("Others are changing this pool or its queues; try again.")

    def _put(self, wanted: Pool) -> tuple[Pool, bool]:
        now_ms = self._clock.now_ms()
        before = self._pools.get(wanted.name)
        queues = self._read(wanted, before, now_ms)
        _check(wanted, queues)
        asked = replace(wanted, configured_ms=now_ms)
        limit = wanted.concurrency
        known, untagged, new = before, queues, before is None
        if before is None and limit is not None:
            # Race: a pool of this name was deleted a moment ago, and what its workers were given
            # runs on without a place. So it is made without a limit first, which is then set as for
            # any other; whoever dies in between has no answer, and asks again.
            seating = replace(asked, concurrency=None, seating=True)
            before = self._pools.save(None, seating, list(queues.values()))
            queues = self._read(wanted, before, now_ms)
        begins = before is not None and limit is not None and before.concurrency is None
        # What runs from queues that it had counts, too.
        running = list(queues.values())
        taken = 0
        if before is not None and begins:
            # First every job that is handed out takes a place, then those that run are given one,
            # then the limit is in force: it holds from the answer on.
            before = before if before.seating else self._pools.seat(before)
            taken = self._slots.begin(CountedPermits.of_pool(before, running), now_ms=now_ms)
        stored = self._pools.save(before, asked, list(queues.values()))
        self._tag(untagged, now_ms)
        if limit is not None:
            self._gates.limit_slots(stored.gate, limit=limit, version=stored.version, now_ms=now_ms)
            was = known.concurrency if known is not None else None
            # Nobody fetches for a pool that was not there, unless something ran from before.
            if (not new or taken) and (was is None or limit < was):
                counted = CountedPermits.of_pool(stored, running)
                self._slots.wait(counted, now_ms=now_ms, again=begins)
        return stored, new

    def _tag(self, before: Mapping[str, Queue], now_ms: int) -> None:
        """Begin with the tags of jobs whose tenants share their queue fairly from now on."""
        after, _ = self._queues.get_many(before)
        for name, queue in after.items():
            if before[name].fairness is None and queue.tagging_ms is not None:
                self._tagging.begin(queue, now_ms=now_ms)

    def _read(self, wanted: Pool, before: Pool | None, now_ms: int) -> dict[str, Queue]:
        """The pool's queues, and those that it had."""
        had = before.queues if before is not None else ()
        found, _ = self._queues.get_many(dict.fromkeys((*wanted.queues, *had)))
        for name in wanted.queues:
            if name in found:
                continue
            if self._strict:
                raise QueueNotFound(name)
            found[name] = self._queues.ensure(name, now_ms=now_ms)
        return found

    def get(self, name: str) -> Pool:
        """A pool. Raises NotFound."""
        pool = self._pools.get(name)
        if pool is None:
            raise NotFound("pool", name)
        return pool

    def list(self, *, limit: int, cursor: str | None = None) -> Page[Pool]:
        """A page of pools in order of name. Raises InvalidRequest for a bad cursor."""
        if cursor is not None:
            try:
                domain.check_pool(cursor)
            except ValueError:
                rule = "is not one this server gave"
                raise InvalidRequest("cursor", rule, value=cursor) from None
        names, following = self._pools.names(limit=limit, after=cursor)
        return Page(self._pools.get_many(names), following)

    def delete(self, name: str) -> None:
        """Forget a pool: its workers go on as those of one that is not configured. Raises NotFound,
        BackendUnavailable.
        """
        for tried in range(_TRIES):
            pool = self._pools.get(name)
            if pool is None and tried:
                # By an earlier try of ours whose answer was lost, or by somebody else: it is gone.
                return
            pool = pool or self.get(name)
            found, _ = self._queues.get_many(pool.queues)
            try:
                self._pools.remove(pool, list(found.values()))
            except LostRace:
                continue
            return
        raise BackendUnavailable("Others are changing this pool or its queues; try again.")


def _check(wanted: Pool, queues: Mapping[str, Queue]) -> None:
    """Raise Conflict where another pool, or a deletion, stands in the way."""
    for at, name in enumerate(wanted.queues):
        queue = queues[name]
        others = [other for other in queue.pools if other != wanted.name]
        if queue.state is QueueState.DRAINING:
            raise _conflict(at, name, "is being deleted", [])
        if queue.isolated_by not in (None, wanted.name):
            raise _conflict(at, name, f"is isolated by the pool '{queue.isolated_by}'", others)
        said = [queue.pools[other].fairness for other in others]
        if wanted.fairness is not None and _differs(said, wanted):
            raise _conflict(at, name, "has another tenant_fairness by another pool", others)
        if wanted.isolated and others:
            raise _conflict(at, name, "cannot be isolated: another pool has it", others)
        if len(others) >= MAX_POOLS_OF_QUEUE:
            raise _conflict(at, name, f"is in {MAX_POOLS_OF_QUEUE} pools already", others)


def _differs(said: Sequence[Fairness | None], wanted: Pool) -> bool:
    """Whether other pools of a queue have its tenants share it in another way."""
    return any(fairness not in (None, wanted.fairness) for fairness in said)


def _conflict(at: int, name: str, reason: str, pools: Sequence[str]) -> Conflict:
    return Conflict(
        f"The queue '{name}' {reason}.",
        details={"field": f"queues[{at}]", "queue": name, "reason": reason, "pools": sorted(pools)},
    )
