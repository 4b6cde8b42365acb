"""The schedule and lock of pruning, and the queues that have dead letters.

The item `PRUNING`/`@` has these attributes:

- done: the five-minute mark (ms) up to which all dead letters were pruned
- holder, until: the sweep that prunes now, and the end of its lock
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import field

from ojs.domain.ids import IdSource
from ojs.domain.queue.config import Layers
from ojs.records import record
from ojs.store.queues.queues import QueueStore
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.races import wins
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Value, projected

# Slightly longer than the maximum duration of the function that prunes.
LOCKED_MS = 60_000
_PAGE = 1_000
_QUEUES = 50  # one call


@record(frozen=True)
class DeadQueue:
    """A queue with dead letters: its configuration, and their number from the projection.

    A deleted queue has the configuration that it had when it was deleted.
    """

    name: str
    layers: Layers
    dead: int


@record
class DeadQueues:
    """All queues with dead letters.

    `own_counts` is true if any queue configures its own maximum number of dead letters.
    """

    queues: list[DeadQueue] = field(default_factory=list)
    own_counts: bool = False


class Pruning:
    """Reads and writes the pruning schedule, and reads the queues to prune."""

    def __init__(self, table: Table, queues: QueueStore, ids: IdSource) -> None:
        self._table = table
        self._queues = queues
        self._ids = ids
        # All was pruned up to this time (ms), as this container knows it.
        self._done_ms = 0

    # --- lock ---------------------------------------------------------------------------------

    def lock(self, due_ms: int, *, now_ms: int) -> str | None:
        """Lock the pruning that is due at a time (ms), and return the token of the lock.

        Return None if the pruning is done, or if another sweep has the lock. Makes one read, unless
        this container knows that it is done, and one write if pruning is due.
        """
        if self._done_ms >= due_ms:
            return None
        item = self._table.get(keys.PRUNING, keys.RECORD) or {}
        self._done_ms = int(item.get("done", 0))
        if self._done_ms >= due_ms or int(item.get("until", 0)) > now_ms:
            return None
        token = self._ids.token()
        # Race: another sweep. One of them gets the lock. The other does nothing, or takes over the
        # lock after it expires because of a crash.
        if not wins(
            lambda: self._table.update(
                Update(
                    keys.PRUNING,
                    keys.RECORD,
                    set={"holder": token, "until": now_ms + LOCKED_MS},
                    condition="(attribute_not_exists(#done) OR #done < :due) "
                    "AND (attribute_not_exists(#until) OR #until <= :now)",
                    values={":due": due_ms, ":now": now_ms},
                ),
                own=("holder", token),
            )
        ):
            return None
        return token

    def unlock(self, token: str, *, done_ms: int | None) -> None:
        """Release the lock. If `done_ms` is given, record that all was pruned up to that time."""
        done: Mapping[str, Value] = {} if done_ms is None else {"done": done_ms}
        # Race: the lock expired and another sweep took it over. That sweep records its own
        # progress.
        with suppress(LostRace):
            self._table.update(
                Update(
                    keys.PRUNING,
                    keys.RECORD,
                    set=done,
                    remove=["holder", "until"],
                    condition="#holder = :token",
                    values={":token": token},
                )
            )
            self._done_ms = done_ms or 0

    # --- queues -------------------------------------------------------------------------------

    def queues(self) -> DeadQueues:
        """Return all queues with dead letters, including deleted queues.

        Makes one query for a thousand names, one call for 50 queues.
        """
        found = DeadQueues()
        there = dict.fromkeys(self._queues.all_names())
        self._read(there, found)
        after: str | None = None
        while True:
            left, after = self._queues.deleted(limit=_PAGE, after=after)
            # A queue that was created again is listed with its new configuration.
            self._read({name: layers for name, _, layers in left if name not in there}, found)
            if after is None:
                return found

    def _read(self, wanted: Mapping[str, Layers | None], found: DeadQueues) -> None:
        """Add the queues with dead letters to `found`. Configurations that are None are read."""
        names = list(wanted)
        for at in range(0, len(names), _QUEUES):
            part = names[at : at + _QUEUES]
            counted = {name: (keys.stats(name), keys.NOW) for name in part}
            unread = [name for name in part if wanted[name] is None]
            queues, items = self._queues.get_many(unread, list(counted.values()))
            for name in part:
                layers = wanted[name] or (queues[name].layers if name in queues else Layers())
                found.own_counts |= layers.own_max_count
                dead = projected(items.get(counted[name], {}), "dead")
                if dead:
                    found.queues.append(DeadQueue(name, layers, dead))

    def policy(self) -> Layers:
        """Return the policy for new queues, which also limits all queues together."""
        return self._queues.policy()
