"""Finds the worker pool of a fetch and the queues that the fetch can claim jobs from.

A worker names its pool when it registers, fetches, or sends a heartbeat, and the worker's record
stores it. A configured pool sets the queues and their order. The fetch can only omit some of them.
If the pool is not configured, the fetch names the queues. Workers that name no pool belong to the
pool `default`. Each queue's item lists its pools, so a fetch without pools makes no further read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain.access import ANYBODY, Principal
from ojs.domain.errors import InvalidRequest, TenantSuspended
from ojs.domain.pool.pool import DEFAULT_POOL, Pool
from ojs.domain.pool.worker import Worker
from ojs.domain.queue.queue import Queue
from ojs.records import record
from ojs.store.deployment.maintenance import MaintenanceStore
from ojs.store.permits import sequencer
from ojs.store.permits.sequencer import SequencerState
from ojs.store.queues import pools as store
from ojs.store.queues import workers as worker_store
from ojs.store.queues.queues import QueueStore
from ojs.store.queues.workers import WorkerStore
from ojs.store.table.errors import UnreadableItem
from ojs.store.table.values import Item

_REMEMBERED = 10_000
_Key = tuple[str, str]


@record(frozen=True)
class FetchContext:
    """The initial state of a fetch.

    Attributes:
        queues: The queues that it can claim jobs from, in order.
        worker: Its worker, if known.
        pool: Its pool, if configured.
        sequencer_state: State of the pool's sequencer.
        errors: The queues that can't be read.
        maintenance: Whether maintenance mode is enabled.
        names: All queues of the worker, also paused ones.
    """

    queues: Sequence[Queue]
    worker: Worker | None
    pool: Pool | None
    sequencer_state: SequencerState
    errors: Sequence[UnreadableItem] = ()
    # Whether no jobs are dispatched, because maintenance mode is enabled.
    maintenance: bool = False
    names: Sequence[str] = ()


class Membership:
    """Reads the context of a fetch. One instance per container."""

    def __init__(
        self,
        *,
        queues: QueueStore,
        workers: WorkerStore,
        maintenance: MaintenanceStore,
        clock: Clock,
    ) -> None:
        self._queues = queues
        self._workers = workers
        self._maintenance = maintenance
        self._clock = clock
        # Values from earlier fetches, used to read queues, worker, and pool in one call. The
        # result of the read shows whether they are still correct.
        self._pool_of: BoundedMap[_Key, str] = BoundedMap(_REMEMBERED)
        self._queues_of: BoundedMap[str, tuple[str, ...]] = BoundedMap(_REMEMBERED)

    def read(
        self,
        names: Sequence[str] | None,
        worker_id: str | None,
        declared: str | None,
        caller: Principal = ANYBODY,
    ) -> FetchContext:
        """Return the context of a fetch.

        Makes one call, and a second one if the container has not seen the worker or its pool
        before. The first fetch of a worker that declares a pool writes the worker's record.

        Args:
            names: Names of the queues. None: all queues of the pool.
            worker_id: ID of the worker.
            declared: Name of the pool that the worker declares.
            caller: The caller.

        Returns:
            The context.

        Raises:
            Conflict: The worker belongs to another pool.
            InvalidRequest: `names` is None, and the pool is not configured.
            TenantSuspended: The tenants of all queues are suspended.
        """
        worker_key = worker_store.key_of(worker_id, caller) if worker_id else None
        guess = declared or (self._pool_of.get(worker_key) if worker_key else None)
        known = self._queues_of.get(guess, ()) if guess else ()
        wanted = list(dict.fromkeys(known if names is None else names))
        own = [] if worker_key is None else [worker_key]
        if worker_id and caller.bound_by_key:
            own.append(worker_store.key_of(worker_id))
        others = [*own, *(_of_pool(guess) if guess else [])]
        unread, asked_ms = self._maintenance.list_unread(), self._clock.now_ms()
        errors: dict[str, UnreadableItem] = {}
        found, items = self._queues.current_many(
            wanted, [*others, *unread], unreadable=errors.setdefault
        )
        if unread:
            self._maintenance.note(items, asked_ms=asked_ms)
        record = items.get(worker_key) if worker_key else None
        if record is None and worker_id and caller.bound_by_key:
            record = worker_store.of_before(items, worker_id)
        worker = worker_store.from_item(record) if record is not None else None
        name: str | None = self._belongs(worker_id, worker, declared, caller)
        of_default = any(DEFAULT_POOL in queue.pools for queue in found.values())
        if name == DEFAULT_POOL and names is not None and not of_default:
            name = None
        if name is None:
            pool, state = None, SequencerState()
        else:
            if name != guess:
                _, items = self._queues.current_many((), _of_pool(name))
            pool, state = _pool(items, name)
        if pool is None:
            self._remember(worker_key, name, None)
            if names is None:
                raise InvalidRequest("queues", "is required unless the worker's pool has queues")
            allowed = wanted
        else:
            self._remember(worker_key, name, pool)
            allowed = [each for each in pool.queues if names is None or each in wanted]
            if missing := [each for each in allowed if each not in found]:
                more, _ = self._queues.current_many(missing, unreadable=errors.setdefault)
                found |= more
        isolated = (None, name or DEFAULT_POOL)
        mine = [
            each for each in allowed if each not in found or found[each].isolated_by in isolated
        ]
        there = _of_active_tenants([found[each] for each in mine if each in found])
        open_queues = [queue for queue in there if queue.hands_out]
        return FetchContext(
            open_queues,
            worker,
            pool,
            state,
            list(errors.values()),
            maintenance=self._maintenance.on(),
            names=mine,
        )

    def _belongs(
        self, worker_id: str | None, worker: Worker | None, declared: str | None, caller: Principal
    ) -> str:
        """Return the pool of a fetch. Records it if the worker declares a new one."""
        recorded = (worker and worker.pool) or DEFAULT_POOL
        if worker_id and declared and declared != recorded:
            self._workers.join(worker_id, declared, now_ms=self._clock.now_ms(), caller=caller)
        return declared or recorded

    def _remember(self, worker: _Key | None, name: str | None, pool: Pool | None) -> None:
        if worker and name is not None:
            self._pool_of.put(worker, name)
        elif worker:
            self._pool_of.forget(worker)
        if pool is not None:
            self._queues_of.put(pool.name, pool.queues)
        elif name is not None:
            self._queues_of.forget(name)


def _of_active_tenants(queues: Sequence[Queue]) -> Sequence[Queue]:
    """Return the queues whose tenant is not suspended. Raises TenantSuspended if all are."""
    kept = [queue for queue in queues if queue.tenant is None or not queue.tenant.suspended]
    if not kept and (tenant := next((queue.tenant for queue in queues), None)) is not None:
        raise TenantSuspended(tenant.id)
    return kept


def _of_pool(name: str) -> list[_Key]:
    return [store.key_of(name), sequencer.key_of(name)]


def _pool(items: Mapping[_Key, Item], name: str) -> tuple[Pool | None, SequencerState]:
    config, state = (items.get(key) for key in _of_pool(name))
    if config is None:
        return None, SequencerState()
    return store.POOL.of(config), sequencer.from_item(state or {})
