"""Whose pool a fetch is for, and what it may take from (fair-scheduling seed, section 6).

A worker says which pool it belongs to when it registers, fetches or beats; it is kept with its
record. A pool that is configured decides on queues and their order, whatever the fetch wishes; the
fetch's own list of queues may leave some of them out. One that is not leaves everything as wished.
Workers that name none belong to the pool `default`, which queues know of by themselves: for a fetch
that has nothing to do with pools nothing more is read.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ojs.clock import Clock
from ojs.domain.errors import InvalidRequest
from ojs.domain.pool.pool import DEFAULT_POOL, Pool
from ojs.domain.pool.worker import Worker
from ojs.domain.queue.queue import Queue
from ojs.store.permits import sequencer as ledgers
from ojs.store.permits.sequencer import SequencerState
from ojs.store.queues import pools as store
from ojs.store.queues import workers as worker_store
from ojs.store.queues.queues import QueueStore
from ojs.store.queues.workers import WorkerStore
from ojs.store.table.values import Item

_REMEMBERED = 10_000
_Key = tuple[str, str]
T = TypeVar("T")


@dataclass(frozen=True)
class FetchContext:
    """What a fetch begins with: the queues it may take from, in order; its worker, if that is
    known; its pool, if that is configured, with its ledger.
    """

    queues: Sequence[Queue]
    worker: Worker | None
    pool: Pool | None
    ledger: SequencerState


class Membership:
    """Reads what a fetch begins with. One for each container."""

    def __init__(self, queues: QueueStore, workers: WorkerStore, clock: Clock) -> None:
        self._queues = queues
        self._workers = workers
        self._clock = clock
        # What was true a moment ago: it is read in one call with what tells whether it still is.
        self._pool_of: OrderedDict[str, str] = OrderedDict()
        self._queues_of: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def read(
        self, names: Sequence[str] | None, worker_id: str | None, declared: str | None
    ) -> FetchContext:
        """The queues of these names, or all of the pool's where there are none.

        One call, and one more where the container has not seen the worker or its pool before; the
        first fetch of a worker that declares a pool writes its record. Raises Conflict when it
        belongs to another, InvalidRequest when there are no queues to be known of.
        """
        guess = declared or (self._pool_of.get(worker_id) if worker_id else None)
        known = self._queues_of.get(guess, ()) if guess else ()
        wanted = list(dict.fromkeys(known if names is None else names))
        worker_key = worker_store.key_of(worker_id) if worker_id else None
        others = [*([worker_key] if worker_key else []), *(_of_pool(guess) if guess else [])]
        found, items = self._queues.get_many(wanted, others)
        record = items.get(worker_key) if worker_key else None
        worker = worker_store.from_item(record) if record is not None else None
        name = self._belongs(worker_id, worker, declared)
        if name == DEFAULT_POOL and names is not None and not _of_default(found):
            name = None
        if name is None:
            pool, state = None, SequencerState()
        else:
            if name != guess:
                _, items = self._queues.get_many((), _of_pool(name))
            pool, state = _pool(items, name)
        if pool is None:
            self._remember(worker_id, name, None)
            if names is None:
                raise InvalidRequest("queues", "is required unless the worker's pool has queues")
            allowed = [each for each in wanted if each in found]
        else:
            self._remember(worker_id, name, pool)
            allowed = [each for each in pool.queues if names is None or each in wanted]
            if missing := [each for each in allowed if each not in found]:
                more, _ = self._queues.get_many(missing)
                found |= more
        mine = name or DEFAULT_POOL
        open_queues = [
            found[each]
            for each in allowed
            if each in found and found[each].hands_out and found[each].isolated_by in (None, mine)
        ]
        return FetchContext(open_queues, worker, pool, state)

    def _belongs(
        self,
        worker_id: str | None,
        worker: Worker | None,
        declared: str | None,
    ) -> str | None:
        """The pool that a fetch is for."""
        recorded = worker.pool if worker is not None else None
        if worker_id and declared and declared != recorded and _matters(declared, recorded):
            self._workers.join(worker_id, declared, now_ms=self._clock.now_ms())
        return declared or recorded or DEFAULT_POOL

    def _remember(self, worker_id: str | None, name: str | None, pool: Pool | None) -> None:
        with self._lock:
            if worker_id and name is not None:
                _put(self._pool_of, worker_id, name)
            elif worker_id:
                self._pool_of.pop(worker_id, None)
            if pool is not None:
                _put(self._queues_of, pool.name, pool.queues)
            elif name is not None:
                self._queues_of.pop(name, None)


def _matters(declared: str, recorded: str | None) -> bool:
    """Whether a declaration is news: a record without a pool is of the default one."""
    return recorded is not None or declared != DEFAULT_POOL


def _of_default(found: Mapping[str, Queue]) -> bool:
    """Whether any of these queues is in the pool of workers that name none."""
    return any(DEFAULT_POOL in queue.pools for queue in found.values())


def _of_pool(name: str) -> list[_Key]:
    return [store.key_of(name), ledgers.key_of(name)]


def _pool(items: Mapping[_Key, Item], name: str) -> tuple[Pool | None, SequencerState]:
    config, ledger = (items.get(key) for key in _of_pool(name))
    if config is None:
        return None, SequencerState()
    return store.from_item(config), ledgers.from_item(ledger or {})


def _put(memory: OrderedDict[str, T], key: str, value: T) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > _REMEMBERED:
        memory.popitem(last=False)
