"""What the pruning of dead letters goes by: whose turn it is, and the queues that have any.

PRUNING  @   done: the mark of the day up to which everything was pruned (ms)
holder, until: who does so now, and when others may take over from them
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

# Somewhat longer than the function may run that prunes.
TURN_MS = 60_000
_PAGE = 1_000
_QUEUES = 50  # one call


@dataclass(frozen=True)
class DeadQueue:
    """A queue with dead letters: what is configured for it, and how many there are, as projected.

    Of one that is gone what was configured when it went.
    """

    name: str
    layers: Layers
    dead: int


@dataclass
class DeadQueues:
    """All of them. `own_counts` is whether any queue, with dead letters or without, says itself how
    many it keeps.
    """

    queues: list[DeadQueue] = field(default_factory=list)
    own_counts: bool = False


class Pruning:
    """The store of it."""

    def __init__(self, table: Table, queues: QueueStore, ids: IdSource) -> None:
        self._table = table
        self._queues = queues
        self._ids = ids

    # --- turns --------------------------------------------------------------------------------

    def take(self, mark_ms: int, *, now_ms: int) -> str | None:
        """The turn to prune for a mark of the day; None when that is done, or others are at it.

        One read; a write more if there is something to do.
        """
        item = self._table.get(keys.PRUNING, keys.HEAD) or {}
        if int(item.get("done", 0)) >= mark_ms or int(item.get("until", 0)) > now_ms:
            return None
        token = self._ids.token()
        # Race: another sweep. One gets the turn; the other leaves it to that one, and takes over
        # when that one dies.
        try:
            self._table.update(
                Update(
                    keys.PRUNING,
                    keys.HEAD,
                    set={"holder": token, "until": now_ms + TURN_MS},
                    condition="(attribute_not_exists(#done) OR #done < :mark) "
                    "AND (attribute_not_exists(#until) OR #until <= :now)",
                    values={":mark": mark_ms, ":now": now_ms},
                )
            )
        except LostRace as lost:
            if not lost.item or lost.item.get("holder") != token:
                return None
        return token

    def give_back(self, token: str, *, done_ms: int | None) -> None:
        """End a turn; up to `done_ms` everything was pruned, if that is given."""
        done: Mapping[str, Value] = {} if done_ms is None else {"done": done_ms}
        # Race: it took so long that another sweep has taken over. That one says what is done.
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
        """All queues with dead letters, also those that are gone.

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
            left, after = self._queues.left_layers(limit=_PAGE, after=after)
            # One that was made anew has its own configuration.
            gone = [(name, layers) for name, layers in left if name not in there]
            for at in range(0, len(gone), _QUEUES):
                self._read(dict(gone[at : at + _QUEUES]), found)
            if after is None:
                return found

    def _read(self, wanted: Mapping[str, Layers | None], found: DeadQueues) -> None:
        """Add those with dead letters; what is configured is read where it is not given."""
        configured = [(keys.queue(name), keys.HEAD) for name in wanted if wanted[name] is None]
        counted = {name: (keys.stats(name), keys.NOW) for name in wanted}
        items = self._table.batch_get([*configured, *counted.values()])
        for name, given in wanted.items():
            layers = given or from_item(name, items.get((keys.queue(name), keys.HEAD), {})).layers
            found.own_counts |= layers.own_max_count
            dead = int(items.get(counted[name], {}).get("dead", 0))
            if dead > 0:
                found.queues.append(DeadQueue(name, layers, dead))

    def policy(self) -> Layers:
        """What is configured for all queues, as it is now."""
        return self._queues.policy()
