"""What a fetch does with the connection of its worker: lists it while it has a free slot, and tells
when the next fetch is due in case that no ring comes.

A listed worker is rung for new jobs (`ojs.services.realtime.rings`). The first worker that fetches
after a lost ring rings the others. So the more workers listen, the more rarely each one looks.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ojs.clock import Clock
from ojs.domain.access import ANYBODY, Principal
from ojs.domain.errors import OjsError, PermissionDenied, forbidden
from ojs.domain.realtime import Connection, Listener, group_of, owner_of
from ojs.records import record
from ojs.services.jobs.fetch import WorkerFetch
from ojs.services.permits.kinds import KEY_AGAIN_MS
from ojs.services.realtime.rings import Rings
from ojs.store.queues.workers import WorkerStore
from ojs.store.realtime.connections import ConnectionStore
from ojs.store.realtime.directory import RealtimeDirectory
from ojs.store.realtime.listeners import MOST_COUNTED, ListenerStore

# When a worker looks again that has just been listed, or whose fetch ended early (ms): what was
# pushed before is in the index by then.
_AGAIN_MS = 500
# When a listed worker fetches without a ring: this for each two workers, up to `_MOST_TIMES` of it.
FALLBACK_MS = 25_000
_MOST_TIMES = 12
_SOONEST_MS = 100
# The part of this time by which it is shorter or longer, for up to `_FEW` workers and for more.
_FEW, _FEW_SPREAD, _SPREAD = 2, 0.1, 0.9
# Workers that wait for the same job look within this time each, up to `_MOST_APART_MS`.
_APART_MS = 20
_MOST_APART_MS = 1_000
# How old (ms) the directory can be that tells whether it is whole.
_WHOLE_MS = 300_000


@record(frozen=True)
class ListenerState:
    """What the fetch tells the worker.

    Attributes:
        listed: Whether the worker is listed now. None: unknown, a write failed.
        next_ms: Maximum time (ms) to the next fetch. None: as without a connection.
    """

    listed: bool | None = False
    next_ms: int | None = None


class Listening:
    """Lists idle workers. One instance per container."""

    def __init__(
        self,
        *,
        connections: ConnectionStore,
        listeners: ListenerStore,
        realtime_directory: RealtimeDirectory,
        workers: WorkerStore,
        rings: Rings,
        clock: Clock,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Create the service. `chance` returns a random number from 0 up to 1."""
        self._connections = connections
        self._listeners = listeners
        self._directory = realtime_directory
        self._workers = workers
        self._rings = rings
        self._clock = clock
        self._chance = chance

    def update(
        self,
        seen: WorkerFetch,
        *,
        worker_id: str | None = None,
        caller: Principal = ANYBODY,
    ) -> ListenerState | None:
        """Note rings for jobs that are left, and list or delist the worker after its fetch.

        A listed worker with a free slot costs half a read unit, one that is listed 1 RU and 1 WU,
        one that is delisted 1 WU. If the process dies in between, the next fetch does it.

        Returns:
            What to tell the worker; None without a connection.

        Raises:
            PermissionDenied: The connection belongs to another caller.
        """
        for queue, sure in seen.in_line.items():
            self._rings.note_more_in_line(queue, sure=sure)
        if seen.connection is None:
            return None
        group = group_of(seen.names)
        try:
            if seen.full or seen.stopped:
                return self._delist(group, seen.connection, seen, owner_of(caller))
            return self._listed(group, seen.connection, seen, worker_id, caller)
        except PermissionDenied:
            raise
        except OjsError:
            # The jobs must reach the worker.
            return ListenerState(None)

    def _delist(self, group: str, connection: str, seen: WorkerFetch, owner: str) -> ListenerState:
        if seen.listed is not False and not self._listeners.remove_own(group, connection, owner):
            raise forbidden()
        return ListenerState(next_ms=self._fallback_ms(1) if seen.stopped else None)

    def _listed(
        self,
        group: str,
        name: str,
        seen: WorkerFetch,
        worker_id: str | None,
        caller: Principal,
    ) -> ListenerState:
        now_ms, owner = self._clock.now_ms(), owner_of(caller)
        if seen.listed is True:
            found = self._listeners.list_first(group, now_ms=now_ms)
            here = any((each.connection, each.owner) == (name, owner) for each in found)
            if here or len(found) == MOST_COUNTED:
                self._directory.note_group(group, seen.names)
                return ListenerState(listed=True, next_ms=self._next_ms(seen, len(found), now_ms))
            # Its connection seemed to have ended, or its pool has other queues now.
        connection = self._connections.get(name, now_ms=now_ms)
        if connection is None:
            return ListenerState()
        if owner_of(connection.principal) != owner:
            raise forbidden()
        if not self._directory.read(remembered_ms=_WHOLE_MS).whole:
            return ListenerState()
        if not self._list(group, connection, seen, worker_id, caller):
            return ListenerState()
        return ListenerState(listed=True, next_ms=min(_AGAIN_MS, self._next_ms(seen, 1, now_ms)))

    def _list(
        self,
        group: str,
        connection: Connection,
        seen: WorkerFetch,
        worker_id: str | None,
        caller: Principal,
    ) -> bool:
        """List a worker; return False if its connection has ended since it was read."""
        listener = Listener(
            connection.id, worker_id, connection.until_ms, owner_of(caller), caller.tenant
        )
        self._listeners.add(group, listener)
        if self._directory.note_group(group, seen.names):
            # This container rings the first listener of a group at once.
            self._directory.forget()
        if connection.group == group:
            return True
        # Once for each connection, for its end and for directives to its worker.
        if connection.group is not None:
            self._listeners.remove(connection.group, connection.id)
        if not self._connections.set_group(connection.id, group):
            self._listeners.remove(group, connection.id)
            return False
        if worker_id is not None:
            self._workers.touch(
                worker_id, now_ms=self._clock.now_ms(), caller=caller, connection=connection.id
            )
        return True

    def _next_ms(self, seen: WorkerFetch, listeners: int, now_ms: int) -> int:
        """Return the maximum time (ms) to the next fetch of a listed worker."""
        waits = [self._fallback_ms(listeners)]
        if seen.in_doubt:
            waits.append(_AGAIN_MS)
        starts = [queue.config.start_every_ms or 0 for queue in seen.held_back]
        starts += [KEY_AGAIN_MS if ms is None else ms - now_ms for ms in seen.keys_wait]
        starts += [] if seen.starts_ms is None else [seen.starts_ms - now_ms]
        if starts:
            apart_ms = min(_MOST_APART_MS, _APART_MS * listeners)
            waits.append(max(_SOONEST_MS, min(starts)) + int(apart_ms * self._chance()))
        return min(waits)

    def _fallback_ms(self, listeners: int) -> int:
        mean_ms = FALLBACK_MS * max(1.0, min(_MOST_TIMES, listeners / 2))
        # Those that were rung together would look together again.
        spread = _FEW_SPREAD if listeners <= _FEW else _SPREAD
        return int(mean_ms * (1 + spread * (2 * self._chance() - 1)))
