"""A table's stream, read as the local server reads it, and what was projected from it."""

from __future__ import annotations

import base64
import json
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ojs import projections
from ojs.domain.events.event import Event
from ojs.settings import Settings
from ojs.store.derived.sharded import ShardCounters
from ojs.store.derived.shards import ShardCounts
from ojs.store.jobs import items
from ojs.store.table import keys, values
from ojs.store.table.table import Table
from tests.direct import streams

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from ojs.clock import Clock
    from ojs.store.jobs.blobs import Blobs

Record = dict[str, Any]


class Stream:
    """The records of a table's stream, from its beginning."""

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        self._arn = client.describe_table(TableName=table)["Table"]["LatestStreamArn"]
        self._client = streams(client.meta.endpoint_url)
        # How far each shard is read: from its beginning again each time takes ever longer.
        self._read: dict[str, str] = {}

    def take(self) -> list[Record]:
        """What came since the last time, without what the projection itself wrote."""
        fresh = []
        shards = self._client.describe_stream(StreamArn=self._arn)["StreamDescription"]["Shards"]
        for name in (shard["ShardId"] for shard in shards):
            after: dict[str, str] = {"ShardIteratorType": "TRIM_HORIZON"}
            if name in self._read:
                after = {
                    "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
                    "SequenceNumber": self._read[name],
                }
            iterator = self._client.get_shard_iterator(StreamArn=self._arn, ShardId=name, **after)[
                "ShardIterator"
            ]
            while iterator:
                page = self._client.get_records(ShardIterator=iterator)
                if not page["Records"]:
                    break
                fresh += page["Records"]
                self._read[name] = page["Records"][-1]["dynamodb"]["SequenceNumber"]
                iterator = page.get("NextShardIterator")
        return [one for one in fresh if one["dynamodb"]["Keys"]["pk"]["S"][:2] not in OWN]


BEHIND = ("held", "held_b", "loose", "loose_b")

# What the projection writes: the event source mapping keeps it from the function. The last are
# notes: in the registry of queues, and of leases.
OWN = ("S|", "M|", "E|", "QU", "N|", "LE")


def lambda_form(record: Mapping[str, Any]) -> Record:
    """A record as Lambda hands it over: binary values in base64, times as numbers."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, Mapping):
            return {name: plain(one) for name, one in value.items()}
        return value

    found: Record = json.loads(json.dumps(plain(record)))
    return found


def made_record(number: int, old: Any, new: Any, *, second: int = 1_780_000_000) -> Record:
    """A record of one change between two items of plain values."""
    keys_ = {name: (new or old)[name] for name in ("pk", "sk")}
    stream: Record = {
        "ApproximateCreationDateTime": datetime.fromtimestamp(second, UTC),
        "Keys": values.pack(keys_),
        "SequenceNumber": f"{number:021d}",
        "SizeBytes": 100,
        "StreamViewType": "NEW_AND_OLD_IMAGES",
    }
    if old is not None:
        stream["OldImage"] = values.pack(old)
    if new is not None:
        stream["NewImage"] = values.pack(new)
    name = "INSERT" if old is None else "REMOVE" if new is None else "MODIFY"
    return {
        "eventID": f"{number:032x}",
        "eventName": name,
        "eventVersion": "1.1",
        "eventSource": "aws:dynamodb",
        "awsRegion": "us-east-1",
        "dynamodb": stream,
    }


SHARD = "shardId-00000001780000000000-0123abcd"


def repeated(records: Sequence[Record], chance: random.Random) -> list[list[Record]]:
    """Records of one shard as Lambda may deliver them: in order, in batches of any size, now and
    then from an earlier record on, and some twice in one batch.
    """
    batches = []
    at = 0
    while at < len(records):
        end = at + chance.randint(1, 40)
        batch = list(records[at:end])
        batches.append(batch + batch[-1:] if chance.random() < 0.2 else batch)
        at = chance.randint(0, end) if chance.random() < 0.3 else end
    return batches


@dataclass
class FakeBus:
    """Takes events, but for those that `refuses` says."""

    refuses: Callable[[Event], bool] = lambda _: False
    taken: list[Event] = field(default_factory=list)

    def publish(self, events: Sequence[Event]) -> set[str]:
        refused = {event.id for event in events if self.refuses(event)}
        self.taken += [event for event in events if event.id not in refused]
        return refused


@dataclass
class FakeFailureQueue:
    """Keeps entries, unless it is out of order."""

    works: bool = True
    entries: list[Mapping[str, Any]] = field(default_factory=list)

    def send(self, entry: Mapping[str, Any]) -> bool:
        if self.works:
            self.entries.append(entry)
        return self.works


@dataclass
class FakeMetrics:
    """Adds up what it is given."""

    sums: dict[tuple[tuple[str, str], ...], Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )

    def put(self, dimensions: Mapping[str, str], values: Mapping[str, Sequence[float]]) -> None:
        for name, numbers in values.items():
            self.sums[tuple(dimensions.items())][name] += sum(numbers)  # type: ignore[assignment]


@dataclass
class Container:
    """A projector, for records of one shard."""

    projector: projections.Projector

    def run(self, records: Sequence[Record], shard: str = SHARD) -> list[str]:
        return self.projector.run(records, shard)


@dataclass
class Projected:
    """A projector on a table, and what it has written there."""

    client: Any
    table: str
    clock: Clock
    bus: FakeBus = field(default_factory=FakeBus)
    failures: FakeFailureQueue = field(default_factory=FakeFailureQueue)
    metrics: FakeMetrics = field(default_factory=FakeMetrics)
    slept: list[float] = field(default_factory=list)
    copies: projections.CopyMaker | None = None
    workflows: Callable[[], projections.WorkflowStream] | None = None
    blobs: Blobs | None = None

    def __post_init__(self) -> None:
        self.store = Table(
            self.client, self.table, measure=True, sleep=self.slept.append, chance=lambda: 0.5
        )
        self.projector = self.another()

    def another(self, client: Any = None) -> Container:
        """One more container."""
        table = self.store
        if client is not None:
            table = Table(client, self.table, sleep=self.slept.append, chance=lambda: 0.5)
        projector = projections.build(
            Settings(table=self.table),
            table,
            self.clock,
            blobs=self.blobs,
            bus=self.bus,
            failures=self.failures,
            metrics=self.metrics,
            copies=self.copies,
            workflows=self.workflows,
            sleep=self.slept.append,
            chance=lambda: 0.5,
        )
        return Container(projector)

    def run(self, records: Sequence[Record], shard: str = SHARD) -> list[str]:
        return self.projector.run(records, shard)

    def stored(self) -> dict[tuple[str, str], dict[str, Any]]:
        """All items as they are."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for page in self.client.get_paginator("scan").paginate(TableName=self.table):
            for item in map(values.unpack, page["Items"]):
                found[str(item["pk"]), str(item["sk"])] = dict(item)
        return found

    def everything(self) -> dict[tuple[str, str], dict[str, Any]]:
        """All items, those of queues' statistics with what the shards have."""
        return whole(self.stored())

    def stats(self, queue: str, sk: str = keys.NOW) -> dict[str, int]:
        """Counters of a queue that are not 0."""
        place = keys.stats(queue), sk
        found = ShardCounters(self.store).batch_get([place]).get(place, {})
        return {n: v for n, v in counted(found).items() if v and n not in BEHIND}

    def behind(self, queue: str) -> dict[str, int]:
        """What is counted for the depth counter of a queue, that is not 0."""
        place = keys.stats(queue), keys.NOW
        found = ShardCounters(self.store).batch_get([place]).get(place, {})
        return {name: int(found[name]) for name in BEHIND if found.get(name)}

    def events(self) -> list[dict[str, Any]]:
        """All events that are kept, in the order of their pages."""
        found = self.everything()
        pages = [found[key] for key in sorted(found) if is_event_page(key)]
        return [event for page in pages for event in unpacked(page)]


def counted(item: Mapping[str, Any]) -> dict[str, int]:
    """The counters of an item of the statistics."""
    return {
        name: value for name, value in item.items()
        if isinstance(value, int) and name not in ("changed", "ttl") and name[:2] != "f_"
    }  # fmt: skip


def whole(found: Mapping[tuple[str, str], dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """All items, with the counters of shards added to those of their queues and left out as such.
    The counters of one that was folded are in its queue's already.
    """
    listed = found.get((keys.stats(keys.ALL_QUEUES), keys.SHARDS), {})
    shards = [str(text).split("|", 1)[1] for n, text in listed.items() if n.startswith("s_")]
    of_shards = {keys.shard_stats(shard): shard for shard in shards}
    merged = {key: dict(item) for key, item in found.items() if key[0] not in of_shards}
    for (pk, name), item in found.items():
        if pk not in of_shards:
            continue
        counts = ShardCounts.of(of_shards[pk], name, item)
        parts = dict(counts.recent)
        if not counts.folded and counts.levels:
            parts[keys.NOW] = counts.levels
        for sk, numbers in parts.items():
            place = keys.stats(name), sk
            own = merged.setdefault(place, {"pk": place[0], "sk": sk})
            for attribute, number in numbers.items():
                own[attribute] = own.get(attribute, 0) + number
    return merged


def is_event_page(key: tuple[str, str]) -> bool:
    """Whether an item is an event page. Pages of ends repeat what lists need of another one."""
    return key[0].startswith(keys.events("")) and not key[1].endswith(".ends")


def unpacked(page: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events of a page."""
    events: list[dict[str, Any]] = json.loads(zlib.decompress(page["zip"]))
    assert len(events) == page["n"]
    return events


def recount_behind(found: Iterable[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """By queue, the jobs that are not done and their bytes: tracked by a depth counter, or not."""
    by_key = {(str(item["pk"]), str(item["sk"])): item for item in found}
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (pk, sk), item in by_key.items():
        staged = "batch" in item and (keys.batch(str(item["batch"])), keys.RECORD) in by_key
        if not pk.startswith(keys.job("")) or sk != keys.RECORD or staged:
            continue
        if item["state"] in ("completed", "cancelled", "discarded"):
            continue
        size = item.get("payload_bytes") or len(item.get("body", "").encode())
        name = "held" if "held" in item else "loose"
        counts[item["queue"]].update({name: 1, f"{name}_b": item.get("held", size)})
    return counts


def recount(found: Iterable[Mapping[str, Any]]) -> dict[str, Counter[str]]:
    """The counts by queue, from the heads of all jobs that exist."""
    by_key = {(str(item["pk"]), str(item["sk"])): item for item in found}
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (pk, sk), item in by_key.items():
        staged = "batch" in item and (keys.batch(str(item["batch"])), keys.RECORD) in by_key
        if not pk.startswith(keys.job("")) or sk != keys.RECORD or staged:
            continue
        job = items.job_of(item)
        counts[job.queue][job.state.value] += 1
        if job.state == "available":
            counts[job.queue][f"p{job.priority}"] += 1
        if job.dead_letter:
            counts[job.queue]["dead"] += 1
        if job.waiting_copy:
            counts[job.queue]["copies"] += 1
    return counts
