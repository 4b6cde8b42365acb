"""Storage of queues, the registry of their names, and tombstones of deleted queues."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ojs.domain import jsontext
from ojs.domain.errors import known
from ojs.domain.queue.config import DEFAULT_QUEUE_POLICY, Layer, Layers, inherited
from ojs.domain.queue.queue import Deletion, DeletionStrategy, PoolMark, Queue, QueueState
from ojs.domain.tenants import get_local_name, get_tenant, qualified
from ojs.store.queues.registry import QueueRegistry, build_registry_condition
from ojs.store.queues.replicas import QueueRecords, replicas_for
from ojs.store.table import keys
from ojs.store.table.errors import LostRace, Unreadable, readable
from ojs.store.table.races import won_or
from ojs.store.table.record import Attribute, Record, member
from ojs.store.table.table import Delete, OwnMark, Put, Table, Update
from ojs.store.table.values import Item, Value

if TYPE_CHECKING:
    from ojs.store.queues.tenants import TenantStore

_NAMES = 1_000


class QueueStore:
    """Reads and writes queues."""

    def __init__(
        self,
        table: Table,
        registry: QueueRegistry,
        tenants: Callable[[], TenantStore] | None = None,
    ) -> None:
        """Create the store. `tenants` is called when a queue of a tenant is read."""
        self._table = table
        self._registry = registry
        self._tenants = tenants
        self._records = QueueRecords(table)

    def get(self, name: str) -> Queue | None:
        """Read one queue, strongly consistent."""
        item = self._table.get(keys.queue(name), keys.RECORD)
        return from_item(name, item) if item else None

    def current(self, name: str) -> Queue | None:
        """Return one queue as `get` does, from its record or any replica. Every enqueue uses it."""
        if get_tenant(name) is not None:
            return self.current_many([name])[0].get(name)
        item = self._records.any_copy(name)
        return from_item(name, item) if item else None

    def replicate(self, queue: Queue) -> None:
        """Create the missing replicas of a queue's record. No call if none is missing."""
        replicas = replicas_for(queue.lanes)
        if queue.replicas < replicas:
            self._records.replicate(queue.name, replicas)

    def ensure(self, name: str, *, now_ms: int) -> Queue:
        """Read a queue, or create it with the policy for new queues."""
        return self.create_or_find(name, now_ms=now_ms)[0]

    def create_or_find(
        self, name: str, *, now_ms: int, explicit: bool = False
    ) -> tuple[Queue, bool]:
        """Create a queue without its own configuration, or read the existing one.

        Args:
            name: Name of the queue.
            now_ms: Current time in milliseconds since the epoch.
            explicit: Whether a separate request creates it, not its first job.

        Returns:
            The queue, and whether it was created.
        """
        # Race: another request creates the queue. The loser uses the stored queue.
        queue, created = won_or(
            lambda: (self.create(name, {}, now_ms=now_ms, explicit=explicit), True),
            lambda lost: (from_item(name, lost.item or {}), False),
        )
        return self.with_tenant(queue), created

    def create(self, name: str, own: Layer, *, now_ms: int, explicit: bool = False) -> Queue:
        """Create a queue with its own configuration.

        Args:
            name: Name of the queue.
            own: Configuration of the queue.
            now_ms: Current time in milliseconds since the epoch.
            explicit: Whether a separate request creates it, not its first job. Stored for the
                event.

        Raises:
            LostRace: The queue exists.
            TenantLimitExceeded: The queue's tenant has the maximum number of queues.
        """
        if self._tenants is not None and get_tenant(name) is not None:
            self._tenants().check_room(name)
        # The registry is written first. After a crash in between, sweeps read an empty queue. In
        # the other order, they would never read a queue with jobs.
        self._registry.register(name)
        queue = self.new(name, own, now_ms=now_ms)
        # Race: another request creates the queue. The loser uses the stored one.
        item = _item(queue) | ({"explicit": 1} if explicit else {})
        self._table.put(Put(item, condition="attribute_not_exists(pk)"))
        return queue

    def new(self, name: str, own: Layer, *, now_ms: int) -> Queue:
        """Return a new queue with the policy for new queues, without storing it.

        Args:
            name: Name of the queue.
            own: Configuration of the queue.
            now_ms: Current time in milliseconds since the epoch.
        """
        policy = self.policy().own
        if (tenant := get_tenant(name)) is not None:
            policy = {**policy, **self.policy(tenant).own}
        layers = Layers(own, inherited(policy, name))
        return Queue(name, created_ms=now_ms, layers=layers)

    def policy(self, tenant: str | None = None) -> Layers:
        """Read the policy for new queues (`_default`), strongly consistent. It can be empty.

        `tenant` reads the policy of a tenant. Its fields have precedence for queues of the tenant.
        """
        item = self._table.get(keys.queue(qualified(tenant, DEFAULT_QUEUE_POLICY)), keys.RECORD)
        return _layers(item or {})

    def configure(self, queue: Queue, own: Layer, *, now_ms: int) -> Queue:
        """Replace a queue's own configuration.

        Args:
            queue: Queue as read.
            own: New configuration.
            now_ms: Current time in milliseconds since the epoch.

        Raises:
            LostRace: The configuration has changed.
        """
        # Race: another operator. The loser reads again and merges into the winner's configuration.
        change = reconfiguring(
            queue,
            replace(queue, layers=Layers(own, queue.layers.inherited)),
            {"config": _text(own), "configured": now_ms},
            # From now on, the configured size limit and concurrency limit determine whether jobs
            # are counted.
            ["charging", "slotting"],
            now_ms=now_ms,
        )
        self._registry.note(queue.name, changes=True)
        stored = from_item(queue.name, self._records.write(queue.name, change))
        # If there are replicas, another operator might have changed the configuration in the
        # meantime.
        layers = Layers(own, stored.layers.inherited)
        return replace(stored, layers=layers, changes=queue.changes + 1)

    def _change(
        self,
        name: str,
        condition: str,
        values: Mapping[str, Value] | None = None,
        *,
        setting: Mapping[str, Value] | None = None,
        remove: Sequence[str] = (),
        own: OwnMark | None = None,
    ) -> Item:
        """Change a queue's item and return it. Raises LostRace."""
        if get_local_name(name) != DEFAULT_QUEUE_POLICY:
            self._registry.note(name, changes=True)
        change = Update(
            keys.queue(name),
            keys.RECORD,
            set=setting or {},
            remove=remove,
            condition=condition,
            values=values or {},
        )
        return self._records.write(name, change, own=own)

    def end_backfill(self, queue: Queue) -> None:
        """Remove the backfill mark of a queue: all its jobs have fairness tags."""
        # Race: fairness was disabled, or disabled and enabled again. A new mark is then kept. If
        # the mark no longer exists, nothing must be changed.
        since: dict[str, Value] = {":since": queue.backfill_since_ms or 0}
        with suppress(LostRace):
            self._change(queue.name, "#tagging = :since", since, remove=["tagging"])

    def count(self, queue: Queue, *, depth: bool, permits: bool) -> None:
        """Count jobs as if the queue had a size limit or a concurrency limit, until `configure`.

        Args:
            queue: Queue as read.
            depth: Whether the depth counter counts the queue's jobs.
            permits: Whether the semaphore counts active jobs.

        Raises:
            LostRace: The queue's configuration has changed.
        """
        # Race: another operator sets or removes a limit. The loser reads again.
        unchanged, values = _as_read(queue)
        wanted = {"charging": depth, "slotting": permits}
        setting = {name: 1 for name, missing in wanted.items() if missing}
        self._change(queue.name, f"attribute_exists(pk) AND {unchanged}", values, setting=setting)

    def set_policy(
        self, seen: Layer, own: Layer, *, now_ms: int, tenant: str | None = None
    ) -> Layers:
        """Replace the policy for new queues.

        Args:
            seen: Policy as read.
            own: New policy.
            now_ms: Current time in milliseconds since the epoch.
            tenant: The tenant whose policy changes. Default: that of all tenants.

        Raises:
            LostRace: The policy has changed.
        """
        # Race: as in `configure`.
        unchanged = "#config = :seen"
        if not seen:
            unchanged = f"(attribute_not_exists(#config) OR {unchanged})"
        setting: dict[str, Value] = {"config": _text(own), "configured": now_ms}
        values: dict[str, Value] = {":seen": _text(seen)}
        name = qualified(tenant, DEFAULT_QUEUE_POLICY)
        return _layers(self._change(name, unchanged, values, setting=setting))

    def set_state(self, name: str, state: QueueState, *, now_ms: int) -> Queue:
        """Pause or resume a queue.

        Args:
            name: Name of the queue.
            state: New state.
            now_ms: Current time in milliseconds since the epoch.

        Raises:
            LostRace: The queue is deleted, or is being deleted.
        """
        # Race: another operator. The last write applies, unless the queue is deleted or being
        # deleted.
        item = self._change(
            name,
            "attribute_exists(pk) AND #state <> :draining",
            {":draining": QueueState.DRAINING.value},
            setting={"state": state.value, "changed": now_ms},
        )
        return from_item(name, item)

    def cancel_deletion(self, queue: Queue, deletion: Deletion) -> None:
        """Cancel a deletion: restore the queue's item to its previous state. Safe to repeat."""
        # Race: the sweep and a request cancel the same deletion. The loser changes nothing. If
        # another deletion has started since, it is not cancelled.
        state: dict[str, Value] = {"state": deletion.before.value}
        with suppress(LostRace):
            self._change(queue.name, *_being_deleted(deletion), setting=state, remove=["ending"])

    def begin_deletion(self, queue: Queue, deletion: Deletion, *, now_ms: int) -> Queue:
        """Start a deletion: the queue accepts no more jobs.

        Changes only what `cancel_deletion` restores.

        Args:
            queue: Queue as read.
            deletion: The deletion and what happens to the jobs.
            now_ms: Current time in milliseconds since the epoch.

        Raises:
            LostRace: The queue is deleted or is being deleted, is in a pool, or was paused or
                resumed.
        """
        paused = queue.state is QueueState.PAUSED
        stored = _deletion_text(replace(deletion, began_ms=now_ms, paused=paused))
        # Race: two deletions. One determines the outcome of the jobs, and the other is rejected. If
        # the same deletion with the same time is stored, our own write succeeded and its response
        # was lost. Race: a pool adds the queue. Either the deletion is rejected, or the pool reads
        # that the queue is being deleted. Race: the queue is paused or resumed. The deletion reads
        # it again, so that a cancellation of the deletion restores the new state.
        item = self._change(
            queue.name,
            "#state = :before AND attribute_not_exists(#pools)",
            {":before": queue.state.value},
            setting={"state": QueueState.DRAINING.value, "ending": stored},
            own=("ending", stored),
        )
        return from_item(queue.name, item)

    def finish_deletion(self, queue: Queue, deletion: Deletion, *, now_ms: int) -> None:
        """Delete an empty queue, and store its tombstone. Safe to repeat.

        Args:
            queue: Queue as read.
            deletion: Deletion to complete, if the queue has none.
            now_ms: Time at which the queue was empty.
        """
        stored = queue.deletion or deletion
        draining = replace(queue, state=QueueState.DRAINING, deletion=stored)
        tombstone = _item(draining) | {"pk": keys.GONE, "sk": queue.name}
        # The tombstone is written first, and the queue is removed last. In between, the queue is
        # still being deleted. After a crash, the sweep finds the remaining items by the tombstone.
        self._table.put(Put(tombstone))
        # The dead letters of the queue are kept. They are counted and pruned until none is left.
        left: dict[str, Value] = {"pk": keys.LEFT, "sk": queue.name, "at": stored.began_ms}
        self._table.put(Put(left | _of_dead_letters(queue.layers)))
        self._registry.remove(queue.name, before_ms=now_ms)
        # Race: the queue can't be created again before it is deleted. A retry finds it deleted, or
        # created again. Race: the sweep has cancelled this deletion, and another one might have
        # started. The queue is then kept, and the sweep adds its name to the registry again.
        condition, values = _being_deleted(stored)
        gone = Delete(keys.queue(queue.name), keys.RECORD, condition, values)
        if won_or(lambda: self._records.write(queue.name, gone), lambda lost: lost.item):
            # The write lost a race, and a queue with this name exists. It must be in the registry.
            self._registry.register(queue.name)

    def restore(self, gone: Queue) -> None:
        """Restore a deleted queue to its previous state, unless it was created again."""
        before = gone.deletion.before if gone.deletion is not None else QueueState.ACTIVE
        self._registry.register(gone.name)
        # Race: an enqueue creates the queue again. The new queue is not changed.
        with suppress(LostRace):
            alive = replace(gone, state=before, deletion=None)
            # The restored queue has its previous creation time. A concurrent sweep must not create
            # replicas of the previous record.
            rev = 0 if gone.deletion is None else gone.deletion.began_ms
            self._table.put(Put(_item(alive) | {"rev": rev}, condition="attribute_not_exists(pk)"))

    def tombstones(self, *, limit: int, unreadable: Unreadable | None = None) -> list[Queue]:
        """Return the recently deleted queues, from their tombstones.

        `unreadable` is called for each queue that can't be read, which is then skipped. If it is
        None, an error is raised.
        """
        found = self._table.query("pk = :gone", {":gone": keys.GONE}, limit=limit, consistent=True)
        there = readable(lambda item: from_item(str(item["sk"]), item), found.items, unreadable)
        return list(there)

    def register(self, name: str) -> None:
        """Add a queue to the registry. Safe to repeat."""
        self._registry.register(name)

    def remove_tombstone(self, gone: Queue) -> None:
        """Remove the tombstone of a deleted queue."""
        # Race: the queue was created and deleted again. The tombstone of the later deletion is
        # kept.
        with suppress(LostRace):
            stored = {} if gone.deletion is None else {":ending": _deletion_text(gone.deletion)}
            condition = "#ending = :ending" if stored else None
            self._table.delete(keys.GONE, gone.name, condition=condition, values=stored)

    def deleted(
        self, *, limit: int, after: str | None = None
    ) -> tuple[list[tuple[str, int, Layers]], str | None]:
        """Return deleted queues that might have dead letters, and the key of the next page.

        Each has its name, the time of its deletion (ms), and its dead-letter configuration. It
        might have been created again.
        """
        items, after = self._listed(keys.LEFT, limit, after, consistent=False)
        return [(str(item["sk"]), int(item["at"]), _layers(item)) for item in items], after

    def forget_deleted(self, name: str) -> None:
        """Remove a deleted queue without dead letters from the list of deleted queues."""
        self._table.delete(keys.LEFT, name)

    def names(
        self,
        *,
        limit: int,
        after: str | None = None,
        consistent: bool = False,
        tenant: str | None = None,
    ) -> tuple[list[str], str | None]:
        """Return a page of the registry in order of name, and the key of the next page.

        Args:
            limit: Maximum number of names.
            after: Key of the last page. Default: start at the beginning.
            consistent: Whether the read is strongly consistent.
            tenant: Only queues of this tenant. Default: all queues.
        """
        found: list[str] = []
        while True:
            items, after = self._listed(
                keys.QUEUES, limit - len(found), after, consistent=consistent, tenant=tenant
            )
            names = (str(item["sk"]) for item in items)
            found += (name for name in names if tenant in (None, get_tenant(name)))
            if after is None or tenant is None or len(found) == limit:
                return found, after

    def all_names(self, tenant: str | None = None) -> list[str]:
        """Return the registry, or a tenant's part, by name. Makes one query for a thousand."""
        names, after = self.names(limit=_NAMES, tenant=tenant)
        while after is not None:
            page, after = self.names(limit=_NAMES, after=after, tenant=tenant)
            names += page
        return names

    def _listed(
        self,
        registry: str,
        limit: int,
        after: str | None,
        *,
        consistent: bool,
        tenant: str | None = None,
    ) -> tuple[list[Item], str | None]:
        """Return a page of a list of names, and the last name if there are more."""
        condition, values = build_registry_condition(registry, tenant, after)
        found = self._table.query(condition, values, limit=limit, consistent=consistent)
        more = found.last and found.items
        return found.items, (str(found.items[-1]["sk"]) if more else None)

    def get_many(
        self,
        names: Iterable[str],
        others: Sequence[tuple[str, str]] = (),
        *,
        consistent: bool = True,
        unreadable: Unreadable | None = None,
    ) -> tuple[dict[str, Queue], dict[tuple[str, str], Item]]:
        """Return several queues, and other items that are read by the same call.

        Other items are, for example, the record of the worker. Makes one call for each 100 items.
        Queues that only a newer version can read are skipped.

        Args:
            names: Names of the queues.
            others: Keys of the other items.
            consistent: Whether to read consistently.
            unreadable: Called for each queue that can't be read, which is then skipped.

        Raises:
            UnreadableItem: A queue can't be read, and `unreadable` is None.
        """
        wanted = {name: (keys.queue(name), keys.RECORD) for name in names}
        found = self._table.batch_get([*wanted.values(), *others], consistent=consistent)
        there = {name: found[key] for name, key in wanted.items() if key in found}
        return _readable(there, unreadable), {key: found[key] for key in others if key in found}

    def current_many(
        self,
        names: Iterable[str],
        others: Sequence[tuple[str, str]] = (),
        *,
        unreadable: Unreadable | None = None,
    ) -> tuple[dict[str, Queue], dict[tuple[str, str], Item]]:
        """Return several queues as `get_many` does, from records or replicas.

        Every enqueue and fetch uses it.

        Args:
            names: Names of the queues.
            others: Keys of other items to read in the same call.
            unreadable: Called for each queue that can't be read. If None, an error is raised.
        """
        names = list(names)
        if self._tenants is None or not any(map(get_tenant, names)):
            there, items = self._records.any_copies(names, others)
            return _readable(there, unreadable), items
        # Imported on first use: most deployments have no tenants.
        tenants = self._tenants()
        asked_ms, unread = tenants.clock.now_ms(), tenants.list_unread(names)
        there, items = self._records.any_copies(names, [*others, *unread])
        tenants.note(unread, items, asked_ms=asked_ms)
        found = _readable(there, unreadable)
        return {name: self.with_tenant(queue) for name, queue in found.items()}, items

    def with_tenant(self, queue: Queue) -> Queue:
        """Return a queue with the record of its tenant, which `current` or `current_many` read."""
        if self._tenants is None or get_tenant(queue.name) is None:
            return queue
        return replace(queue, tenant=self._tenants().get_cached(queue.name))


def _readable(there: Mapping[str, Item], unreadable: Unreadable | None) -> dict[str, Queue]:
    queues = readable(lambda one: from_item(*one), there.items(), unreadable)
    return {queue.name: queue for queue in queues}


def _deletion(stored: Any) -> Deletion:
    strategy, target, began_ms, *paused = stored
    strategy = known(DeletionStrategy, strategy, "a queue that is deleted by")
    return Deletion(strategy, target, began_ms, paused=bool(paused and paused[0]))


def _deletion_text(deletion: Deletion) -> str:
    stored: list[Any] = [deletion.strategy.value, deletion.target, deletion.began_ms]
    return jsontext.dumps([*stored, 1] if deletion.paused else stored)


def marks_text(marks: Mapping[str, PoolMark]) -> str:
    """Return the pool entries of a queue in stored form."""
    return jsontext.dumps({name: marks[name].compact() for name in sorted(marks)})


def _marks(text: str) -> dict[str, PoolMark]:
    return {name: PoolMark.of(mark) for name, mark in jsontext.stored(text).items()}


def _layers(item: Item) -> Layers:
    return _layers_of(str(item.get("config", "{}")), str(item.get("inherited", "{}")))


@lru_cache(256)  # the configuration in effect is computed once for each text
def _layers_of(own: str, inherited: str) -> Layers:
    return Layers(jsontext.stored(own), jsontext.stored(inherited))


def _of_dead_letters(layers: Layers) -> dict[str, Value]:
    """Return the part of the configuration that is kept after a queue's deletion: dead-letter
    retention.
    """
    named = ("dead_letter", "dead_letter_ttl")
    kept = {
        attribute: {name: layer[name] for name in named if name in layer}
        for attribute, layer in (("config", layers.own), ("inherited", layers.inherited))
    }
    return {attribute: _text(layer) for attribute, layer in kept.items() if layer}


def reconfiguring(
    before: Queue,
    after: Queue,
    setting: Mapping[str, Value],
    remove: Sequence[str] = (),
    *,
    now_ms: int,
    may_drain: bool = True,
) -> Update:
    """Return the change of a queue's configuration.

    Its condition is that the configuration has not changed since it was read. If the queue becomes
    fair, the change starts the fairness backfill.

    Args:
        before: Queue as read.
        after: Queue to store.
        setting: Attributes to set.
        remove: Attributes to remove.
        now_ms: Current time in milliseconds since the epoch.
        may_drain: Whether the queue can be in deletion.
    """
    unchanged, values = _as_read(before)
    if not may_drain:
        unchanged += " AND #state <> :draining"
        values[":draining"] = QueueState.DRAINING.value
    backfill: dict[str, Value] = {}
    if after.fairness is None:
        remove = [*remove, "tagging"]
    elif before.fairness is None:
        # Stored jobs and jobs that are being enqueued have no fairness tags yet: see
        # `ojs.services.queues.fairness_backfill`.
        backfill["tagging"] = now_ms
    return Update(
        keys.queue(before.name),
        keys.RECORD,
        set={**setting, **backfill},
        compute={"changes": "if_not_exists(#changes, :none) + :one"},
        remove=remove,
        condition=f"attribute_exists(pk) AND {unchanged}",
        values={**values, ":none": 0, ":one": 1},
    )


def _as_read(queue: Queue) -> tuple[str, dict[str, Value]]:
    """Return the condition that a queue's configuration has not changed since it was read."""
    if queue.changes:
        return "#changes = :seen", {":seen": queue.changes}
    return "attribute_not_exists(#changes)", {}


def _being_deleted(deletion: Deletion) -> tuple[str, dict[str, Value]]:
    """Return the condition that this deletion is the current deletion of the queue."""
    values: dict[str, Value] = {
        ":draining": QueueState.DRAINING.value,
        ":ending": _deletion_text(deletion),
    }
    return "#state = :draining AND #ending = :ending", values


def _text(layer: Layer) -> str:
    return jsontext.dumps(dict(sorted(layer.items())))


def _unwritten(_: object) -> None:
    """Return None: `Record` doesn't write the attribute. Only changes of the item write it."""


QUEUE = Record(
    Queue,
    "queue",
    {
        "state": member("state", QueueState, "a queue in state"),
        "created": "created_ms",
        "config": Attribute("layers.own", _text),
        "inherited": Attribute("layers.inherited", _text),
        "tagging": "backfill_since_ms",
        "changed": "changed_ms",
        "configured": "configured_ms",
        "changes": "changes",
        "ending": Attribute("deletion", _deletion_text, lambda it: _deletion(jsontext.stored(it))),
        "charging": Attribute("tracking", _unwritten, bool, "N"),
        "slotting": Attribute("limiting", _unwritten, bool, "N"),
        "pools": Attribute("pools", marks_text, _marks),
        "replicas": Attribute("replicas", _unwritten, None, "N"),
    },
    apart={"name": None, "layers": _layers, "tenant": None},
    always=("state", "created"),
)


def from_item(name: str, item: Item) -> Queue:
    """Return a queue from its item. Raises UnknownForm or UnreadableItem."""
    return QUEUE.of(item, name=name)


def _item(queue: Queue) -> Item:
    return QUEUE.item(queue, pk=keys.queue(queue.name), sk=keys.RECORD)
