"""Records as items: each record is read back, and items that are stored are written alike."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ojs.domain.bulk.operation import JobIds
from ojs.domain.delivery.delivery import DeliveryCounts
from ojs.domain.errors import UnknownForm
from ojs.domain.pool.pool import Pool
from ojs.domain.queue.queue import Deletion, DeletionStrategy, PoolMark
from ojs.store.bulk import operations as bulk
from ojs.store.crons import crons
from ojs.store.deliveries import deliveries
from ojs.store.deployment import actions, maintenance
from ojs.store.derived import shards
from ojs.store.jobs import items, unique_locks
from ojs.store.queues import pools, queues
from ojs.store.table import keys
from ojs.store.table.errors import UnreadableItem
from ojs.store.table.record import Record
from ojs.store.table.values import Item, pack, unpack
from ojs.store.workflows import workflows
from tests.spread import examples
from tests.unit.domain.arbitrary import jobs

# Items of each kind as they were stored before records were declared, by their titles on
# docs/table.md. Bytes are in base64.
STORED: dict[str, list[Any]] = json.loads(Path(__file__).with_name("items.json").read_text("utf-8"))

Any_ = st.SearchStrategy[Any]
names = st.text("abc", min_size=1, max_size=4)
zero, no = st.just(0), st.just(False)


class Kind(NamedTuple):
    """How items of a kind are read and written, and values of fields that do not follow from their
    types, as what a part of an item holds.
    """

    record: Record[Any]
    write: Callable[[Any], Item]
    values: Mapping[str, Any_] = {}
    # Attributes of the item that are not written with the record.
    beside: frozenset[str] = frozenset()
    # An attribute that holds a member of a closed set.
    member: str | None = None
    read: Callable[[Item], Any] | None = None
    # What makes an item unreadable that may have its keys alone.
    damage: Item | None = None
    # Items without it hold no whole record.
    whole: str = "sk"

    def of(self, item: Mapping[str, Any]) -> Any:
        return self.read(dict(item)) if self.read is not None else self.record.of(item)


KINDS = {
    "Job record": Kind(items.JOB, items.record_of, member="state"),
    "Queue": Kind(
        queues.QUEUE,
        queues._item,
        {
            "tracking": no,
            "limiting": no,
            "replicas": zero,
            # Read beside the queue, not stored with it.
            "tenant": st.none(),
            "pools": st.dictionaries(names, st.builds(PoolMark, st.booleans()), max_size=2),
            "deletion": st.none()
            | st.builds(Deletion, st.sampled_from(DeletionStrategy), names, st.integers(0)),
        },
        frozenset({"charging", "slotting", "replicas", "rev", "explicit"}),
        "state",
        lambda item: queues.from_item(str(item["pk"]).removeprefix(keys.queue("")), item),
        damage={"pools": "{"},
    ),
    "Worker pool": Kind(
        pools.POOL,
        pools._item,
        {"prevention_config": st.sampled_from(({}, {"enabled": True, "min_dispatch_ratio": 0.5}))},
    ),
    "Delivery": Kind(
        deliveries.DELIVERY,
        deliveries._item,
        {"armed_ms": zero, "counts": st.builds(DeliveryCounts, faults=st.integers(0, 9))},
        frozenset({"armed"}),
    ),
    "Cron job": Kind(
        crons.CRON, crons._item, {"definition_ref": st.none()}, whole=crons._DEFINITION
    ),
    "Run of a cron job": Kind(
        crons.RUN,
        lambda run: crons.RUN.item(run, pk=keys.cron_runs(run.name)),
        beside=frozenset({"sk", "ttl"}),
        member="reason",
    ),
    "Workflow": Kind(workflows.WORKFLOW, workflows._item, member="type"),
    "Unique lock": Kind(
        unique_locks.LOCK,
        lambda lock: dict(unique_locks.UniqueLocks.taking(lock, None).item),
    ),
    "Bulk operation": Kind(
        bulk.OPERATION,
        bulk._item,
        {"wanted": st.builds(JobIds, st.lists(st.uuids().map(str), max_size=2).map(tuple))},
        frozenset({"hold", "held_until", "ttl", "wpk", "wsk", "before_round"}),
        "action",
    ),
    "Counters of a shard": Kind(
        shards.SHARD,
        lambda counts: replace(counts, rev=counts.rev - 1).item(),
        {"levels": st.dictionaries(names, st.integers(1, 9), max_size=3)},
        frozenset({"ttl"}),
        read=lambda item: shards.ShardCounts.of(str(item["pk"])[2:], str(item["sk"]), item),
        damage={"recent": b"?"},
    ),
    "Maintenance mode": Kind(
        maintenance.MAINTENANCE,
        lambda each: maintenance.MAINTENANCE.item(each, pk="DEPLOYMENT", sk="maintenance"),
        beside=frozenset({"rev"}),
        whole="since",
    ),
    "Action": Kind(
        actions.ACTION,
        lambda action: actions.ACTION.item(action, sk=action.id),
        beside=frozenset({"pk", "ttl"}),
    ),
}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def made(kind: Any, known: Mapping[str, Any_] | None = None) -> Any_:
    """Any instance of a class of records."""
    # A type that is imported only for type checkers. The fields with it have `known` values.
    hints = get_type_hints(kind, localns={"Tenant": object})
    known = known or {}
    own = [each.name for each in fields(kind) if each.compare and each.name not in known]
    return st.builds(kind, **{name: some(hints[name]) for name in own}, **known)


def some(hint: Any) -> Any_:
    """Any value of a type."""
    of = [some(each) for each in get_args(hint) if each is not ...]
    plain: dict[Any, Any_] = {int: st.integers(0, 10**14), str: names, bool: st.booleans()}
    if hint is Any:
        return st.integers(0, 9) | names
    if hint in plain:
        return plain[hint]
    if get_origin(hint) in (Union, UnionType):
        return st.one_of(of)
    if get_origin(hint) is tuple:
        return st.lists(of[0], max_size=3).map(tuple)
    if is_dataclass(hint):
        return made(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    return st.none() if hint is type(None) else st.dictionaries(*of, max_size=3)


def stored(title: str) -> list[Item]:
    """The items of a kind in the file that hold a whole record."""
    for item in (found := STORED[title]):
        for typed in item.values():
            if isinstance(typed.get("B"), dict):
                typed["B"] = base64.b64decode(typed["B"]["b"])
    return [unpack(item) for item in found if KINDS[title].whole in item]


@pytest.mark.parametrize("title", KINDS)
def test_items_that_are_stored_are_written_alike(title: str) -> None:
    kind = KINDS[title]
    for item in stored(title):
        written = kind.write(kind.of(item))
        # A running job may be in no index: it is in a lease note.
        for name in {"wpk", "wsk"} - item.keys():
            written.pop(name, None)
        assert written.items() <= item.items()
        assert item.keys() - written.keys() <= kind.beside


@kinds
@settings(max_examples=examples(50))
@given(st.data())
def test_a_record_is_read_back_from_its_item(kind: Kind, data: st.DataObject) -> None:
    each = jobs() if kind.record is items.JOB else made(kind.record.kind, kind.values)
    one = data.draw(each)
    item = unpack(pack(kind.write(one)))
    assert kind.of(item) == one
    # An attribute of a newer version.
    assert kind.of(item | {"newer": "?"}) == one


@pytest.mark.parametrize("title", KINDS)
def test_what_only_a_newer_version_knows_is_told_from_damage(title: str) -> None:
    kind, (item, *_) = KINDS[title], stored(title)
    if kind.member is not None:
        with pytest.raises(UnknownForm):
            kind.of(item | {kind.member: "future"})
    with pytest.raises(UnreadableItem) as error:
        kind.of(item | kind.damage if kind.damage else {name: item[name] for name in ("pk", "sk")})
    assert error.value.what.startswith(kind.record.what)


def test_a_field_without_an_attribute_is_refused() -> None:
    rows = {name: row for name, row in pools.POOL.rows.items() if name != "weights"}
    with pytest.raises(TypeError, match="weights"):
        Record(Pool, "pool", rows, apart=pools.POOL.apart)
    with pytest.raises(TypeError, match="colour"):
        Record(Pool, "pool", {**pools.POOL.rows, "colour": "colour"}, apart=pools.POOL.apart)
