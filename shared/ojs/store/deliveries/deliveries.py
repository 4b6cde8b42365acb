"""Storage of deliveries, and the directory that maps queues to deliveries.

A delivery is one item: its configuration, and the state of its target as recorded by dispatch and
outcomes. The directory is one item for all deliveries. It is written in one transaction with a
delivery, so no queue has two deliveries.

A function that makes a job available reads the directory to find the delivery to wake. Each
container caches the directory for REMEMBERED_MS, so it has almost no cost in a deployment without
deliveries. Items of queues and jobs have no data about deliveries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, field, replace
from typing import Any

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.delivery.delivery import (
    Delivery,
    Disabled,
    DisabledReason,
    Form,
)
from ojs.domain.errors import OjsError, known
from ojs.records import record
from ojs.store.queues.pools import PoolStore
from ojs.store.table import keys
from ojs.store.table.errors import LostRace, UnreadableItem
from ojs.store.table.record import Attribute, Record, member, rewriting
from ojs.store.table.table import Delete, Put, Table, Update
from ojs.store.table.values import Item, Value, number

# Time for which a container caches the directory (ms).
REMEMBERED_MS = 15_000
# Maximum size of the directory in bytes. The directory is read as a whole.
MAX_DIRECTORY_BYTES = 100_000
# Time to live of the time of the last wake-up (s).
_WAKE_KEPT_S = 86_400
_KEY = (keys.DELIVERIES, keys.RECORD)
# The configuration of a delivery, stored as one JSON text.
CONFIGURED = (
    "function", "endpoint", "handler", "queues", "pool", "job_types", "concurrency", "batch_size",
    "timeout_ms", "form", "signing_secrets", "paused", "line",
)  # fmt: skip


@record(frozen=True)
class DirectoryEntry:
    """The directory's data about one delivery."""

    queues: tuple[str, ...] = ()
    pool: str | None = None


@record(frozen=True)
class Directory:
    """All deliveries by name.

    `revision` increases with each change. It is at least the version of each deleted delivery.
    `schemas` is true when a schema of job arguments was ever registered: each container that
    enqueues reads the directory, so a deployment without schemas reads nothing for them.
    """

    entries: Mapping[str, DirectoryEntry] = field(default_factory=dict)
    revision: int = 0
    schemas: bool = False

    def text(self) -> str:
        """Return the directory as stored JSON."""
        return jsontext.dumps(
            {name: each.pool or list(each.queues) for name, each in sorted(self.entries.items())}
        )


class DeliveryStore:
    """Reads and writes deliveries and their directory."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, name: str, *, consistent: bool = True) -> Delivery | None:
        """Read one delivery, eventually consistent unless `consistent`. Raise UnreadableItem."""
        item = self._table.get(keys.delivery(name), keys.RECORD, consistent=consistent)
        return None if item is None else DELIVERY.of(item)

    def get_many(self, names: Iterable[str]) -> list[Delivery]:
        """Read several deliveries in the order given, without those that don't exist.

        The read is eventually consistent. Makes one call for a hundred.
        """
        wanted = [(keys.delivery(name), keys.RECORD) for name in names]
        found = self._table.batch_get(wanted, consistent=False)
        return [DELIVERY.of(found[key]) for key in wanted if key in found]

    def directory(self, *, consistent: bool = True) -> Directory:
        """Read the directory. Makes one call."""
        item = self._table.get(*_KEY, consistent=consistent)
        return Directory() if item is None else _directory(item)

    def save(self, before: Delivery | None, wanted: Delivery, directory: Directory) -> Delivery:
        """Store a delivery and its entry in the directory.

        Args:
            before: Delivery as read, or None if it is new.
            wanted: Delivery to store.
            directory: Directory as read.

        Raises:
            LostRace: The delivery or the directory has changed.
        """
        # A version must be higher than the versions of an earlier delivery with this name, even if
        # the clock is behind.
        first_ms = max(wanted.updated_ms, directory.revision + 1)
        created_ms = first_ms if before is None else before.created_ms
        changes, turn = (0, 0) if before is None else (before.changes + 1, before.turn + 1)
        stored = replace(wanted, created_ms=created_ms, changes=changes, turn=turn)
        entry = DirectoryEntry(stored.queues, stored.pool)
        entries = {**directory.entries, stored.name: entry}
        writes: list[Put | Update | Delete] = []
        if before is None:
            # Race: another request creates the delivery. The loser reads again and changes that
            # delivery.
            writes.append(Put(_item(stored), condition="attribute_not_exists(pk)"))
        else:
            # Race: another operator changes the delivery, or dispatch records the state of its
            # target. The loser reads again.
            writes.append(_rewriting(before, stored))
        if directory.entries.get(stored.name) != entry:
            writes.append(_directing(directory, entries))
        self._table.transact(writes)
        return stored

    def remove(self, delivery: Delivery, directory: Directory, *, exact: bool = False) -> None:
        """Delete a delivery and its entry in the directory.

        Raises LostRace if it was created again, or, if `exact`, for each change.
        """
        entries = {name: it for name, it in directory.entries.items() if name != delivery.name}
        # Race: another operator deletes the delivery and creates it again. The loser reads again.
        condition = "#created = :created"
        values: dict[str, Value] = {":created": delivery.created_ms}
        if exact:
            condition, values = f"{condition} AND #turn = :turn", {**values, ":turn": delivery.turn}
        self._table.transact(
            [
                Delete(*_key(delivery.name), condition=condition, values=values),
                _directing(directory, entries, delivery.version),
            ]
        )

    def note(self, before: Delivery, after: Delivery) -> Delivery:
        """Store the state and the counts of a delivery's target after dispatch or an outcome.

        Makes one write. Raises LostRace if the delivery has changed since `before` was read.
        """
        after = replace(after, turn=before.turn + 1)
        # Race: other outcomes, or an operator. The loser reads again, because each consecutive
        # fault counts.
        self._table.update(_rewriting(before, after))
        return after

    def last_wake(self, name: str) -> int:
        """Return the time (ms) of a delivery's last wake-up message from any container, or 0.

        The time can be in the future. The read is eventually consistent.
        """
        item = self._table.get(keys.delivery_wake(name), keys.RECORD, consistent=False)
        return 0 if item is None else number(item, "armed")

    def record_wake(self, name: str, at_ms: int) -> None:
        """Record that a wake-up message for a delivery arrives at a time (ms)."""
        # Race: another container sent a later wake-up message. Its time is kept, and the earlier
        # message is superfluous.
        with suppress(LostRace):
            self._table.update(
                Update(
                    keys.delivery_wake(name),
                    keys.RECORD,
                    set={"armed": at_ms, "ttl": at_ms // 1_000 + _WAKE_KEPT_S},
                    condition="attribute_not_exists(#armed) OR #armed < :at",
                    values={":at": at_ms},
                ),
                tell_loser=False,
            )

    def note_schemas(self) -> Sequence[Put]:
        """Return the write that records that schemas exist, or nothing if it is recorded."""
        directory = self.directory()
        noted = replace(directory, schemas=True)
        return [] if directory.schemas else [_directing(noted, directory.entries)]

    def armed(self, delivery: Delivery, until_ms: int) -> None:
        """Record the time (ms) up to which a sweep has sent wake-up messages with a delay."""
        # Race: the delivery is deleted, or another sweep recorded a later time. The loser changes
        # nothing. A second wake-up message for the same time has no effect.
        with suppress(LostRace):
            self._table.update(
                Update(
                    *_key(delivery.name),
                    set={"armed": until_ms},
                    condition="#created = :created",
                    values={":created": delivery.created_ms},
                ),
                tell_loser=False,
            )


@record(frozen=True)
class _Served:
    """The deliveries of each queue, and whether schemas exist."""

    queues: Mapping[str, tuple[str, ...]]
    schemas: bool


class DeliveryDirectory:
    """A per-container cache of the directory: which deliveries serve each queue."""

    def __init__(self, deliveries: DeliveryStore, pools: PoolStore, clock: Clock) -> None:
        self._store = deliveries
        self._pools = pools
        self._clock = clock
        self._seen: BoundedMap[str, tuple[int, _Served]] = BoundedMap(1)

    def serving(self, queue: str) -> tuple[str, ...]:
        """Return the names of the deliveries that serve a queue.

        Makes at most two calls in REMEMBERED_MS. If the table can't be read, the result is empty,
        so that an enqueue doesn't fail.
        """
        return self._read().queues.get(queue, ())

    def names(self) -> set[str]:
        """Return the names of all deliveries that serve a queue, in the form that `serving`
        returns.
        """
        return {name for names in self._read().queues.values() for name in names}

    def schemas_exist(self) -> bool:
        """Return whether schemas of job arguments exist. True if no read has succeeded."""
        return self._read().schemas

    def forget(self) -> None:
        """Discard the cached directory. The next use reads the table."""
        self._seen.forget("")

    def _read(self) -> _Served:
        now_ms = self._clock.now_ms()
        read_ms, seen = self._seen.get("", (None, _Served({}, schemas=True)))
        if read_ms is not None and 0 <= now_ms - read_ms < REMEMBERED_MS:
            return seen
        # After an error, the cached directory is kept. The stream consumer or the sweep wakes
        # deliveries that are missing in it.
        with suppress(OjsError):
            directory = self._store.directory(consistent=False)
            seen = replace(seen, schemas=directory.schemas)
            seen = replace(seen, queues=served(directory, self._pools))
        self._seen.put("", (now_ms, seen))
        return seen


def served(directory: Directory, pools: PoolStore) -> dict[str, tuple[str, ...]]:
    """Return the deliveries of each queue, by queue name.

    Makes one call if a delivery selects a pool. Raises OjsError if the call fails.
    """
    names = {entry.pool for entry in directory.entries.values() if entry.pool is not None}
    of_pool = {pool.name: pool.queues for pool in pools.get_many(names)} if names else {}
    found: dict[str, tuple[str, ...]] = {}
    for name, entry in directory.entries.items():
        for queue in entry.queues if entry.pool is None else of_pool.get(entry.pool, ()):
            found[queue] = (*found.get(queue, ()), name)
    return found


def _key(name: str) -> tuple[str, str]:
    return keys.delivery(name), keys.RECORD


def _rewriting(before: Delivery, after: Delivery) -> Update:
    """Return the write of a delivery, on the condition that it is unchanged since it was read."""
    seen: dict[str, Value] = {":created": before.created_ms, ":turn": before.turn}
    return rewriting(_item(before), _item(after), "#created = :created AND #turn = :turn", seen)


def _directing(
    directory: Directory, entries: Mapping[str, DirectoryEntry], deleted: int = 0
) -> Put:
    """Return the write of the directory.

    Race: another delivery is changed. The loser reads and checks again, because no queue can have
    two deliveries.
    """
    after = replace(directory, entries=entries, revision=max(directory.revision + 1, deleted))
    item: Item = {"pk": _KEY[0], "sk": _KEY[1], "of": after.text(), "rev": after.revision}
    if after.schemas:
        item["schemas"] = 1
    if not directory.revision:
        return Put(item, condition="attribute_not_exists(pk)")
    return Put(item, condition="#rev = :seen", values={":seen": directory.revision})


def _directory(item: Item) -> Directory:
    try:
        stored = jsontext.stored(str(item["of"]))
        entries = {
            name: DirectoryEntry(pool=it) if isinstance(it, str) else DirectoryEntry(tuple(it))
            for name, it in stored.items()
        }
        return Directory(entries, number(item, "rev"), "schemas" in item)
    except Exception as error:
        raise UnreadableItem("the directory of deliveries", error) from error


def _item(delivery: Delivery) -> Item:
    item: dict[str, Any] = DELIVERY.item(delivery)
    config = {name: item.pop(name) for name in CONFIGURED if name in item}
    pk, sk = _key(delivery.name)
    return {"pk": pk, "sk": sk, "config": jsontext.dumps(config), **item}


def _disabled(stored: Any) -> Disabled:
    reason = known(DisabledReason, stored["reason"], "", DisabledReason.FORBIDDEN)
    return Disabled(reason, int(stored["since_ms"]), stored["message"])


# The fields of the configuration are stored in the JSON text of the attribute `config`.
DELIVERY = Record(
    Delivery,
    "delivery",
    {
        "function": "function",
        "endpoint": "endpoint",
        "handler": "handler",
        "queues": Attribute("queues", None, tuple),
        "pool": "pool",
        "job_types": Attribute("job_types", None, tuple),
        "concurrency": "concurrency",
        "batch_size": "batch_size",
        "timeout_ms": "timeout_ms",
        "form": member("form", Form, "a delivery in the form"),
        "signing_secrets": Attribute("signing_secrets", None, tuple),
        "paused": "paused",
        "line": Attribute("line", None, tuple),
        "faults": "breaker.faults",
        "until": "breaker.until_ms",
        "open": "breaker.open_ms",
        "trial": "breaker.trial_ms",
        "backoff": "backoff_until_ms",
        "throttles": "throttles",
        "disabled": Attribute(
            "disabled",
            lambda it: jsontext.dumps(asdict(it)),
            lambda it: _disabled(jsontext.stored(it)),
        ),
        "n_faults": "counts.faults",
        "n_throttled": "counts.throttled",
        "armed": Attribute("armed_ms", lambda _: None, int, "N"),
        "created": "created_ms",
        "updated": "updated_ms",
        "changes": "changes",
        "turn": "turn",
    },
    apart={"name": lambda item: str(item["pk"]).removeprefix(keys.delivery(""))},
    always=(
        "concurrency",
        "batch_size",
        "timeout_ms",
        "form",
        "created",
        "updated",
        "changes",
        "turn",
    ),
    opened=lambda item: {**jsontext.stored(item["config"]), **item},
)
