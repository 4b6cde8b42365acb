"""Worker pools: creation, change, listing, and deletion."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ojs.clock import Clock
from ojs.domain.errors import BAD_CURSOR, Conflict, NotFound, QueueNotFound, naming_field
from ojs.domain.fair_queue.tags import Fairness
from ojs.domain.page import Page
from ojs.domain.pool import pool as domain
from ojs.domain.pool.pool import MAX_POOLS_OF_QUEUE, Pool
from ojs.domain.queue.queue import Queue, QueueState
from ojs.services.permits.repair import CountedPermits, PermitRepair
from ojs.services.queues.fairness_backfill import FairnessBackfill
from ojs.store.permits.semaphore import ConcurrencySemaphore
from ojs.store.queues import pools as store
from ojs.store.queues.queues import QueueStore
from ojs.store.table.races import retry_on_race

if TYPE_CHECKING:
    from ojs.domain.edits import Edit

_BUSY = "Concurrent requests changed this pool or its queues."


class PoolConfiguration:
    """Creates, changes, lists, and deletes worker pools."""

    def __init__(
        self,
        *,
        pools: store.PoolStore,
        queues: QueueStore,
        permit_repair: PermitRepair,
        backfill: FairnessBackfill,
        clock: Clock,
        semaphore: ConcurrencySemaphore,
        strict_queues: bool = False,
        opened: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Create the service.

        Args:
            pools: Store of the pools.
            queues: Store of the queues.
            permit_repair: Gives permits to running jobs.
            backfill: Assigns fairness tags.
            clock: Source of the current time.
            semaphore: Store of the concurrency permits.
            strict_queues: Whether queues must be created explicitly.
            opened: Called with the name of a queue that can now dispatch more jobs.
        """
        self._opened = opened
        self._pools = pools
        self._queues = queues
        self._semaphore = semaphore
        self._repair = permit_repair
        self._backfill = backfill
        self._clock = clock
        self._strict = strict_queues

    def put(self, name: str, body: object, edit: Edit | None = None) -> tuple[Pool, bool]:
        """Create or replace a pool. Return it, and whether it is new. Missing queues are created.

        A fetch in progress uses the previous pool. A concurrency limit applies when this returns,
        and includes the running jobs. If the pool enables tenant fairness, waiting jobs are
        reordered by tenant.

        Raises InvalidRequest, and Conflict if a queue is isolated by another pool. Raises
        QueueNotFound if queues must be created explicitly. Raises BackendUnavailable if too many
        jobs run for one request, and the request must be repeated. Raises PreconditionFailed for
        the precondition of `edit`.
        """
        wanted = domain.parse(name, body)
        stored, new = retry_on_race(lambda: self._put(wanted, edit), busy=_BUSY)
        for queue in stored.queues:
            self._opened(queue)
        return stored, new

    def _put(self, wanted: Pool, edit: Edit | None) -> tuple[Pool, bool]:
        now_ms = self._clock.now_ms()
        before = self._pools.get(wanted.name)
        if edit is not None:
            seen = None if before is None else before.configuration
            edit.change("pool", wanted.name, seen, wanted.configuration)
        queues = self._read(wanted, before, now_ms)
        _check(wanted, queues)
        requested = replace(wanted, configured_ms=now_ms)
        limit = wanted.concurrency
        known, untagged, new = before, queues, before is None
        if before is None and limit is not None:
            # Race: a pool of this name was deleted recently, and its workers still run jobs
            # without permits. So create the pool without a limit, and then set the limit as for an
            # existing pool. After a crash in between, the caller receives no response and repeats
            # the request.
            uncapped = replace(requested, concurrency=None, limiting=True)
            before = self._pools.save(None, uncapped, list(queues.values()))
            if edit is not None:
                edit.note_state(before.configuration)
            queues = self._read(wanted, before, now_ms)
        begins = before is not None and limit is not None and before.concurrency is None
        # Running jobs of the pool's previous queues count too.
        running = list(queues.values())
        taken = 0
        if before is not None and begins:
            # First make each dispatched job acquire a permit, then give permits to the running
            # jobs, then apply the limit. So the limit holds when this returns.
            before = before if before.limiting else self._pools.begin_limit(before)
            taken = self._repair.count_running(
                CountedPermits.of_pool(before, running, limit), now_ms=now_ms
            )
        stored = self._pools.save(before, requested, list(queues.values()))
        self._tag(untagged, now_ms)
        if limit is not None:
            self._semaphore.set_limit(
                stored.semaphore, limit=limit, version=stored.version, now_ms=now_ms
            )
            was = known.concurrency if known is not None else None
            # No worker fetches for a pool that did not exist, unless jobs of an earlier pool still
            # run.
            if (not new or taken) and (was is None or limit < was):
                counted = CountedPermits.of_pool(stored, running)
                self._repair.wait(counted, now_ms=now_ms, again=begins)
        return stored, new

    def _tag(self, before: Mapping[str, Queue], now_ms: int) -> None:
        """Start the fairness backfill of the queues that became fair."""
        after, _ = self._queues.get_many(before)
        for name, queue in after.items():
            if before[name].fairness is None and queue.backfill_since_ms is not None:
                self._backfill.begin(queue, now_ms=now_ms)

    def _read(self, wanted: Pool, before: Pool | None, now_ms: int) -> dict[str, Queue]:
        """Return the requested queues of the pool and its previous queues."""
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
        """Return a pool. Raises NotFound."""
        pool = self._pools.get(name)
        if pool is None:
            raise NotFound("pool", name)
        return pool

    def list(self, *, limit: int, cursor: str | None = None) -> Page[Pool]:
        """Return a page of pools, ordered by name. Raises InvalidRequest for an invalid cursor."""
        if cursor is not None:
            with naming_field("cursor", cursor, BAD_CURSOR):
                domain.check_pool(cursor)
        names, following = self._pools.names(limit=limit, after=cursor)
        return Page(self._pools.get_many(names), following)

    def delete(self, name: str, edit: Edit | None = None) -> None:
        """Delete a pool's configuration. Its workers continue as in a pool without configuration.

        Raises NotFound, BackendUnavailable, PreconditionFailed.
        """
        tried = False

        def attempt() -> None:
            nonlocal tried
            pool = self._pools.get(name)
            if pool is None and tried:
                # Deleted by an earlier attempt without a response, or by another request.
                return
            pool = pool or self.get(name)
            tried = True
            if edit is not None:
                edit.change("pool", name, pool.configuration, None)
            found, _ = self._queues.get_many(pool.queues)
            self._pools.remove(pool, list(found.values()))

        retry_on_race(attempt, busy=_BUSY)


def _check(wanted: Pool, queues: Mapping[str, Queue]) -> None:
    """Raise Conflict if another pool or a deletion prevents the pool from having these queues."""
    for at, name in enumerate(wanted.queues):
        queue = queues[name]
        others = [other for other in queue.pools if other != wanted.name]
        if queue.state is QueueState.DRAINING:
            raise _conflict(at, name, "is being deleted. Remove it from queues", [])
        if queue.isolated_by not in (None, wanted.name):
            raise _conflict(
                at,
                name,
                f"is isolated by pool '{queue.isolated_by}'. Remove it there first",
                others,
            )
        configured = [queue.pools[other].fairness for other in others]
        if wanted.fairness is not None and _differs(configured, wanted):
            raise _conflict(
                at,
                name,
                "has a different tenant_fairness in another pool. Use the same value",
                others,
            )
        if wanted.isolated and others:
            raise _conflict(at, name, "can't be isolated, because another pool contains it", others)
        if len(others) >= MAX_POOLS_OF_QUEUE:
            raise _conflict(
                at, name, f"is already in {MAX_POOLS_OF_QUEUE} pools, which is the maximum", others
            )


def _differs(configured: Sequence[Fairness | None], wanted: Pool) -> bool:
    """Return whether other pools configure a different tenant fairness for the queue."""
    return any(fairness not in (None, wanted.fairness) for fairness in configured)


def _conflict(at: int, name: str, reason: str, pools: Sequence[str]) -> Conflict:
    return Conflict(
        f"Queue '{name}' {reason}.",
        details={"field": f"queues[{at}]", "queue": name, "reason": reason, "pools": sorted(pools)},
    )
