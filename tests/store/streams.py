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
from ojs.store.jobs import items
from ojs.store.table import keys, values
from ojs.store.table.table import Table
from tests.direct import streams

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from ojs.clock import Clock

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

# What the projection writes: the event source mapping keeps it from the function.
OWN = ("S|", "M|", "E|")


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


def scattered(records: Sequence[Record], chance: random.Random) -> list[list[Record]]:
    """The same records, some repeated, in any order, in batches of any size."""
    found = [*records, *(one for one in records if chance.random() < 0.3)]
    chance.shuffle(found)
    batches = []
    while found:
        size = chance.randint(1, 40)
        batches.append(found[:size])
        del found[:size]
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

    def __post_init__(self) -> None:
        self.store = Table(
            self.client, self.table, measure=True, sleep=self.slept.append, chance=lambda: 0.5
        )
        self.projector = self.another()

    def another(self, client: Any = None) -> projections.Projector:
        """One more container."""
        table = self.store
        if client is not None:
            table = Table(client, self.table, sleep=self.slept.append, chance=lambda: 0.5)
        return projections.build(
            Settings(table=self.table),
            table,
            self.clock,
            bus=self.bus,
            failures=self.failures,
            metrics=self.metrics,
            copies=self.copies,
            sleep=self.slept.append,
            chance=lambda: 0.5,
        )

    def run(self, records: Sequence[Record]) -> list[str]:
        return self.projector.run(records)

    def everything(self) -> dict[tuple[str, str], dict[str, Any]]:
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for page in self.client.get_paginator("scan").paginate(TableName=self.table):
            for item in map(values.unpack, page["Items"]):
                found[str(item["pk"]), str(item["sk"])] = dict(item)
        return found

    def stats(self, queue: str, sk: str = keys.NOW) -> dict[str, int]:
        """Counters of a queue that are not 0."""
        found = self.store.get(keys.stats(queue), sk) or {}
        skipped = ("pk", "sk", "changed", "ttl", *BEHIND)
        return {n: v for n, v in found.items() if n not in skipped and isinstance(v, int) and v}

    def behind(self, queue: str) -> dict[str, int]:
        """What is counted for the depth counter of a queue, that is not 0."""
        found = self.store.get(keys.stats(queue), keys.NOW) or {}
        return {name: int(found[name]) for name in BEHIND if found.get(name)}

    def events(self) -> list[dict[str, Any]]:
        """All events that are kept, in the order of their pages."""
        found = self.everything()
        pages = [found[key] for key in sorted(found) if key[0].startswith(keys.events(""))]
        return [event for page in pages for event in unpacked(page)]


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
