"""The schedule and lock of pruning, and the queues that have dead letters.

PRUNING  @   done: the five-minute mark (ms) up to which everything was pruned
             holder, until: the sweep that prunes now, and when its lock expires
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ojs.domain.ids import IdSource
from ojs.domain.queue.config import Layers
from ojs.store.queues.queues import QueueStore, from_item
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Table, Update
from ojs.store.table.values import Value

# A little longer than the function that prunes may run.
TURN_MS = 60_000
_PAGE = 1_000
_QUEUES = 50  # one call


@dataclass(frozen=True)
class DeadQueue:
    """A queue with dead letters: its configuration, and their number as projected.

    A deleted queue has the configuration that it had when it was deleted.
    """

    name: str
    layers: Layers
    dead: int


@dataclass
class DeadQueues:
    """All queues with dead letters. `own_counts`: whether any queue at all configures its own
    number of dead letters to keep.
    """

    queues: list[DeadQueue] = field(default_factory=list)
    own_counts: bool = False


class Pruning:
    """The store of the schedule, and of what to prune."""

    def __init__(self, table: Table, queues: QueueStore, ids: IdSource) -> None:
        self._table = table
        self._queues = queues
        self._ids = ids

    # --- lock ---------------------------------------------------------------------------------

    def take(self, mark_ms: int, *, now_ms: int) -> str | None:
        """Lock the pruning of a five-minute mark; returns the lock's token, or None when the mark
        is done or another sweep has the lock.

        One read, and one write if there is something to do.
        """
        item = self._table.get(keys.PRUNING, keys.HEAD) or {}
        if int(item.get("done", 0)) >= mark_ms or int(item.get("until", 0)) > now_ms:
            return None
        token = self._ids.token()
        # Race: another sweep. One gets the lock; the other leaves the work to it, or takes over
        # when the lock expires after a crash.
        try:
            self._table.update(
                Update(
                    keys.PRUNING,
                    keys.HEAD,
                    set={"holder": token, "until": now_ms + TURN_MS},
                    condition="(attribute_not_exists(#done) OR #done < :mark) "
                    "AND (attribute_not_exists(#until) OR #until <= :now)",
                    values={":mark": mark_ms, ":now": now_ms},
                ),
                own=("holder", token),
            )
        except LostRace:
            return None
        return token

    def give_back(self, token: str, *, done_ms: int | None) -> None:
        """Release the lock; if `done_ms` is given, everything was pruned up to that mark."""
        done: Mapping[str, Value] = {} if done_ms is None else {"done": done_ms}
        # Race: the lock expired and another sweep took over. That one records what is done.
        with suppress(LostRace):
            self._table.update(
                Update(
                    keys.PRUNING,
                    keys.HEAD,
                    set=done,
                    remove=["holder", "until"],
                    condition="#holder = :token",
                    values={":token": token},
                )
            )

    # --- queues -------------------------------------------------------------------------------

    def queues(self) -> DeadQueues:
        """All queues with dead letters, including deleted queues.

        One query for a thousand names, one call for 50 queues.
        """
        found = DeadQueues()
        there: set[str] = set()
        after: str | None = None
        while True:
            names, after = self._queues.names(limit=_PAGE, after=after)
            there.update(names)
            for at in range(0, len(names), _QUEUES):
                self._read(dict.fromkeys(names[at : at + _QUEUES]), found)
            if after is None:
                break
        while True:
            left, after = self._queues.deleted_layers(limit=_PAGE, after=after)
            # A queue that was created again has its own configuration.
            gone = [(name, layers) for name, layers in left if name not in there]
            for at in range(0, len(gone), _QUEUES):
                self._read(dict(gone[at : at + _QUEUES]), found)
            if after is None:
                return found

    def _read(self, wanted: Mapping[str, Layers | None], found: DeadQueues) -> None:
        """Add the queues with dead letters; configurations that are not given are read."""
        configured = [(keys.queue(name), keys.HEAD) for name in wanted if wanted[name] is None]
        counted = {name: (keys.stats(name), keys.NOW) for name in wanted}
        items = self._table.batch_get([*configured, *counted.values()])
        for name, known in wanted.items():
            layers = known or from_item(name, items.get((keys.queue(name), keys.HEAD), {})).layers
            found.own_counts |= layers.own_max_count
            dead = int(items.get(counted[name], {}).get("dead", 0))
            if dead > 0:
                found.queues.append(DeadQueue(name, layers, dead))

    def policy(self) -> Layers:
        """The policy for new queues, which also limits all queues together."""
        return self._queues.policy()
