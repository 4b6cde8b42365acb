"""Queues in the table, and the registry that names them all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ojs.domain import jsontext
from ojs.domain.queue.config import DEFAULT_QUEUE_POLICY, Layer, Layers, inherited
from ojs.domain.queue.queue import Deletion, PoolMark, Queue, QueueState
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value


class QueueStore:
    """The store of queues and their registry."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, name: str) -> Queue | None:
        """One queue, consistently."""
        item = self._table.get(keys.queue(name), keys.HEAD)
        return from_item(name, item) if item else None

    def ensure(self, name: str, *, now_ms: int) -> Queue:
        """The queue, created with the policy for new queues if it was not there."""
        try:
            return self.create(name, {}, now_ms=now_ms)
        except LostRace as lost:
            return from_item(name, lost.item or {})

    def create(self, name: str, own: Layer, *, now_ms: int, explicit: bool = False) -> Queue:
        """A new queue with a configuration of its own. Raises LostRace when there is one.

        `explicit` notes that somebody asked for it, for the event (queue-config seed, 10.1).
        """
        # The registry first: if we die in between, a sweep looks at an empty queue; the other
        # way round it would never look at a queue with jobs.
        self.register(name)
        layers = Layers(own, inherited(self.policy().own, name))
        queue = Queue(name, created_ms=now_ms, layers=layers)
        # Race: another first push, creation, or a pause of a queue not seen before. The loser
        # finds what stands there.
        item = _item(queue) | ({"explicit": 1} if explicit else {})
        self._table.put(Put(item, condition="attribute_not_exists(pk)"))
        return queue

    def policy(self) -> Layers:
        """The policy for new queues (`_default`), consistently; empty when nobody set one."""
        item = self._table.get(keys.queue(DEFAULT_QUEUE_POLICY), keys.HEAD)
        return _layers(item or {})

    def configure(self, queue: Queue, own: Layer, *, now_ms: int) -> Queue:
        """Replace the own configuration of a queue that was read. Raises LostRace."""
        # Race: another operator. The loser reads again and merges into what the winner set.
        unchanged, values = as_read(queue)
        after = replace(queue, layers=Layers(own, queue.layers.inherited))
        setting: dict[str, Value] = {"config": _text(own), "configured": now_ms}
        # From here on the bound and the limit tell, if there are any.
        removing = ["charging", "slotting"]
        if after.fairness is None:
            removing.append("tagging")
        elif queue.fairness is None:
            # Its jobs have no tags, nor have those that are being pushed (`ojs.services.jobs.fairness_backfill`).
            setting["tagging"] = now_ms
        item = self._table.update(
            Update(
                keys.queue(queue.name),
                keys.HEAD,
                set=setting,
                compute={"changes": "if_not_exists(#changes, :none) + :one"},
                remove=removing,
                condition=f"attribute_exists(pk) AND {unchanged}",
                values=values | {":none": 0, ":one": 1},
            )
        )
        return from_item(queue.name, item)

    def begin_tagging(self, name: str, *, now_ms: int) -> Queue:
        """From now on the jobs of a queue are given tags: its tenants share it fairly by something
        else than its own configuration. Raises LostRace when there is no such queue.
        """
        # Race: the queue is deleted. The later of two marks counts: its passes begin anew.
        item = self._table.update(
            Update(
                keys.queue(name),
                keys.HEAD,
                set={"tagging": now_ms},
                condition="attribute_exists(pk)",
            )
        )
        return from_item(name, item)

    def end_tagging(self, queue: Queue) -> None:
        """All jobs of a queue that was read have tags."""
        # Race: it was switched off, or off and on again: then its passes begin anew. That the mark
        # is gone, by our own lost call or by another's, is what was asked for.
        with suppress(LostRace):
            self._table.update(
                Update(
                    keys.queue(queue.name),
                    keys.HEAD,
                    remove=["tagging"],
                    condition="#tagging = :since",
                    values={":since": queue.tagging_ms or 0},
                )
            )

    def tagging(self, names: Iterable[str]) -> list[Queue]:
        """Those of the queues whose jobs are being given tags. One call for a hundred."""
        wanted = {name: (keys.queue(name), keys.HEAD) for name in names}
        found = self._table.batch_get(wanted.values(), consistent=False)
        there = (from_item(name, found[key]) for name, key in wanted.items() if key in found)
        return [queue for queue in there if queue.tagging_ms is not None and queue.ending is None]

    def count(self, queue: Queue, *, charging: bool, slotting: bool) -> None:
        """From now on jobs are charged at the gate, as though there were a bound, and those that
        are handed out take places, as though there were a limit; `configure` takes that back.
        Raises LostRace when somebody changed the queue's configuration.
        """
        # Race: another operator, who may have just set a bound or removed it. The loser reads
        # again.
        unchanged, values = as_read(queue)
        wanted = {"charging": charging, "slotting": slotting}
        self._table.update(
            Update(
                keys.queue(queue.name),
                keys.HEAD,
                set={name: 1 for name, asked in wanted.items() if asked},
                condition=f"attribute_exists(pk) AND {unchanged}",
                values=values,
            )
        )

    def set_policy(self, seen: Layer, own: Layer, *, now_ms: int) -> Layers:
        """Replace the policy for new queues that was read. Raises LostRace."""
        # Race: as in `configure`.
        unchanged, values = _unchanged(seen)
        item = self._table.update(
            Update(
                keys.queue(DEFAULT_QUEUE_POLICY),
                keys.HEAD,
                set={"config": _text(own), "configured": now_ms},
                condition=unchanged,
                values=values,
            )
        )
        return _layers(item)

    def set_state(self, name: str, state: QueueState, *, now_ms: int) -> Queue:
        """Pause or resume. Raises LostRace when it is gone or ending."""
        # Race: another operator. The last word counts, and is never about a queue that is gone or
        # that somebody is deleting.
        item = self._table.update(
            Update(
                keys.queue(name),
                keys.HEAD,
                set={"state": state.value, "changed": now_ms},
                condition="attribute_exists(pk) AND #state <> :draining",
                values={":draining": QueueState.DRAINING.value},
            )
        )
        return from_item(name, item)

    def take_back(self, queue: Queue, ending: Deletion) -> None:
        """The queue does not end after all: its item is what it was before. Safe to repeat."""
        # Race: the sweep finds the same as whoever asked. The loser finds it done. And others may
        # begin another end then, which is not ours to take back.
        with suppress(LostRace):
            self._table.update(
                Update(
                    keys.queue(queue.name),
                    keys.HEAD,
                    set={"state": ending.before.value},
                    remove=["ending"],
                    condition="#state = :draining AND #ending = :ending",
                    values={
                        ":draining": QueueState.DRAINING.value,
                        ":ending": _ending_text(ending),
                    },
                )
            )

    def begin_end(self, queue: Queue, ending: Deletion, *, now_ms: int) -> Queue:
        """From now on nothing gets in. Changes what `take_back` undoes, and nothing else.

        Raises LostRace when the queue is gone, is ending already, is in a pool, or was paused or
        resumed since it was read.
        """
        paused = queue.state is QueueState.PAUSED
        told = _ending_text(replace(ending, began_ms=now_ms, paused=paused))
        # Race: two deletions. One decides what becomes of the jobs; the other is refused. The same
        # words of the same millisecond are our own, their answer was lost. Race: a pool takes the
        # queue. The deletion is refused, or the pool finds the queue ending. Race: somebody pauses
        # or resumes it. The deletion reads it again: taken back, it must not undo that.
        try:
            item = self._table.update(
                Update(
                    keys.queue(queue.name),
                    keys.HEAD,
                    set={"state": QueueState.DRAINING.value, "ending": told},
                    condition="#state = :before AND attribute_not_exists(#pools)",
                    values={":before": queue.state.value},
                )
            )
        except LostRace as lost:
            if not lost.item or lost.item.get("ending") != told:
                raise
            item = lost.item
        return from_item(queue.name, item)

    def finish_end(self, queue: Queue, ending: Deletion) -> None:
        """The queue goes; a note of it stays. Safe to repeat."""
        told = queue.ending or ending
        note = _item(queue) | {
            "pk": keys.GONE,
            "sk": queue.name,
            "state": QueueState.DRAINING.value,
            "ending": _ending_text(told),
        }
        # The note first, the queue last: in between it is still draining, and whatever we leave
        # undone the sweep finds by the note.
        self._table.put(Put(note))
        # Its dead letters stay, and are counted and pruned as long as there are any.
        left: dict[str, Value] = {"pk": keys.LEFT, "sk": queue.name, "at": told.began_ms}
        self._table.put(Put(left | _of_dead_letters(queue.layers)))
        self._table.delete(keys.QUEUES, queue.name)
        # Race: none can make it anew before it is gone; a repetition finds it gone, or new. Race:
        # the sweep took this end back, and perhaps another one began. Then the queue stays, and the
        # sweep puts its name into the registry again.
        with suppress(LostRace):
            self._table.delete(
                keys.queue(queue.name),
                keys.HEAD,
                condition="#state = :draining AND #ending = :ending",
                values={":draining": QueueState.DRAINING.value, ":ending": _ending_text(told)},
            )

    def revive(self, gone: Queue) -> None:
        """Make a queue that went again, as it was, unless somebody made it anew meanwhile."""
        before = gone.ending.before if gone.ending is not None else QueueState.ACTIVE
        self.register(gone.name)
        # Race: a push makes it anew. Then it starts like any new queue, and ours is not needed.
        with suppress(LostRace):
            alive = replace(gone, state=before, ending=None)
            self._table.put(Put(_item(alive), condition="attribute_not_exists(pk)"))

    def gone(self, *, limit: int) -> list[Queue]:
        """Notes of queues that went lately."""
        found = self._table.query("pk = :gone", {":gone": keys.GONE}, limit=limit, consistent=True)
        return [from_item(str(item["sk"]), item) for item in found.items]

    def register(self, name: str) -> None:
        """Have the registry name a queue. Safe to repeat."""
        self._table.put(Put({"pk": keys.QUEUES, "sk": name}))

    def forget(self, gone: Queue) -> None:
        """Drop the note of a queue that went."""
        # Race: it was made anew, and has just gone again. The note of that stays.
        with suppress(LostRace):
            told = {} if gone.ending is None else {":ending": _ending_text(gone.ending)}
            condition = "#ending = :ending" if told else None
            self._table.delete(keys.GONE, gone.name, condition=condition, values=told)

    def left(
        self, *, limit: int, after: str | None = None
    ) -> tuple[list[tuple[str, int]], str | None]:
        """Queues that are gone and may have left dead letters: name and when it was deleted, in ms;
        and where to go on. One of them may have been made anew.
        """
        items, after = self._listed(keys.LEFT, limit, after, consistent=False)
        return [(str(item["sk"]), int(item["at"])) for item in items], after

    def left_layers(
        self, *, limit: int, after: str | None = None
    ) -> tuple[list[tuple[str, Layers]], str | None]:
        """The same queues with what was configured for their dead letters, and where to go on."""
        items, after = self._listed(keys.LEFT, limit, after, consistent=False)
        return [(str(item["sk"]), _layers(item)) for item in items], after

    def forget_left(self, name: str) -> None:
        """A queue that is gone has no dead letters any more."""
        self._table.delete(keys.LEFT, name)

    def names(
        self, *, limit: int, after: str | None = None, consistent: bool = False
    ) -> tuple[list[str], str | None]:
        """A page of the registry in order of name, and where to go on."""
        items, after = self._listed(keys.QUEUES, limit, after, consistent=consistent)
        return [str(item["sk"]) for item in items], after

    def _listed(
        self, registry: str, limit: int, after: str | None, *, consistent: bool
    ) -> tuple[list[Item], str | None]:
        """A page of a list of names, and the last of them if there are more."""
        condition, values = "pk = :queues", {":queues": registry}
        if after is not None:
            condition += " AND sk > :after"
            values[":after"] = after
        found = self._table.query(condition, values, limit=limit, consistent=consistent)
        more = found.last and found.items
        return found.items, (str(found.items[-1]["sk"]) if more else None)

    def get_many(
        self, names: Iterable[str], others: Sequence[tuple[str, str]] = ()
    ) -> tuple[dict[str, Queue], dict[tuple[str, str], Item]]:
        """Several queues, consistently, and with the same call items of other kinds, such as the
        record of the worker asking.
        """
        wanted = [(keys.queue(name), keys.HEAD) for name in names]
        found = self._table.batch_get([*wanted, *others])
        queues = {}
        for pk, sk in wanted:
            if (pk, sk) in found:
                name = pk.removeprefix(keys.queue(""))
                queues[name] = from_item(name, found[pk, sk])
        return queues, {key: found[key] for key in others if key in found}


def from_item(name: str, item: Item) -> Queue:
    """The queue an item holds."""
    given: dict[str, Any] = dict(item)
    return Queue(
        name=name,
        state=QueueState(given.get("state", QueueState.ACTIVE)),
        created_ms=given.get("created", 0),
        changed_ms=given.get("changed"),
        configured_ms=given.get("configured"),
        layers=_layers(item),
        ending=_ending(item),
        charging="charging" in item,
        slotting="slotting" in item,
        changes=given.get("changes", 0),
        pools=_pools(item),
        tagging_ms=given.get("tagging"),
    )


def _pools(item: Item) -> dict[str, PoolMark]:
    if "pools" not in item:
        return {}
    stored: dict[str, Any] = jsontext.stored(str(item["pools"]))
    return {name: PoolMark.of(mark) for name, mark in stored.items()}


def _ending(item: Item) -> Deletion | None:
    if "ending" not in item:
        return None
    strategy, target, began_ms, *paused = jsontext.stored(str(item["ending"]))
    return Deletion(strategy, target, began_ms, paused=bool(paused))


def _ending_text(ending: Deletion) -> str:
    told: list[Any] = [ending.strategy, ending.target, ending.began_ms]
    return jsontext.dumps([*told, 1] if ending.paused else told)


def _layers(item: Item) -> Layers:
    def layer(name: str) -> Layer:
        found: Layer = jsontext.stored(str(item[name])) if name in item else {}
        return found

    return Layers(layer("config"), layer("inherited"))


def _of_dead_letters(layers: Layers) -> dict[str, Value]:
    """What outlives a queue of its configuration: how long its dead letters are kept."""
    named = ("dead_letter", "dead_letter_ttl")
    kept = {
        attribute: {name: layer[name] for name in named if name in layer}
        for attribute, layer in (("config", layers.own), ("inherited", layers.inherited))
    }
    return {attribute: _text(layer) for attribute, layer in kept.items() if layer}


def as_read(queue: Queue) -> tuple[str, dict[str, Value]]:
    """The condition that nobody configured a queue since it was read, not even as it was."""
    if queue.changes:
        return "#changes = :seen", {":seen": queue.changes}
    return "attribute_not_exists(#changes)", {}


def _unchanged(seen: Layer) -> tuple[str, dict[str, Value]]:
    """The condition that a queue's own configuration is as it was read."""
    if seen:
        return "#config = :seen", {":seen": _text(seen)}
    return "(attribute_not_exists(#config) OR #config = :seen)", {":seen": _text({})}


def _text(layer: Layer) -> str:
    return jsontext.dumps(dict(sorted(layer.items())))


def _item(queue: Queue) -> dict[str, Value]:
    item: dict[str, Value] = {
        "pk": keys.queue(queue.name),
        "sk": keys.HEAD,
        "state": queue.state.value,
        "created": queue.created_ms,
    }
    if queue.layers.own:
        item["config"] = _text(queue.layers.own)
    if queue.layers.inherited:
        item["inherited"] = _text(queue.layers.inherited)
    if queue.tagging_ms is not None:
        item["tagging"] = queue.tagging_ms
    if queue.changed_ms is not None:
        item["changed"] = queue.changed_ms
    if queue.configured_ms is not None:
        item["configured"] = queue.configured_ms
    if queue.changes:
        item["changes"] = queue.changes
    return item
