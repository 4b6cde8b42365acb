"""Count the units that docs/numbers makes prices and ceilings of, on dynoxide.

    PYTHONPATH=shared:. .venv/bin/python -m tests.performance.counted

Writes docs/numbers/counted.json. Nothing in it is a time: calls and units are exact, the same each
time they are counted.
"""

from __future__ import annotations

import json
import random
import re
import sys
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from functools import partial
from io import StringIO
from typing import TYPE_CHECKING, Any

from docs.numbers import COUNTED
from functions.bridge.outbox import _Relay
from functions.stream.handler import handler as stream
from functions.sweep import metrics as gauges
from functions.sweep.handler import handler as sweep
from ojs import runtime
from ojs.domain.ids import IdSource
from ojs.domain.job import envelope
from ojs.domain.job.durable import DurableOutcome, OutcomeKind
from ojs.domain.job.job import Job
from ojs.domain.job.states import TERMINAL, State
from ojs.domain.queue.queue import Queue
from ojs.domain.stats import QueueGauges, StateCounts, Totals, WorkerCounts
from ojs.services.deliveries.wake import LOOKED_AT
from ojs.services.for_each import one_by_one
from ojs.services.operations.metrics_sweep import MetricsReport
from ojs.settings import MetricsLevel, Outbox, Settings
from ojs.store.queues.due_notes import BUCKET_MS
from ojs.store.queues.registry import QUIET_MS
from ojs.store.table import keys
from ojs.store.table.schema import STREAM_BATCH, TABLE
from ojs.store.table.values import pack, unpack
from tests.performance.measure import ERROR, RESULT, WORKER, Bench
from tests.performance.pushed import QUEUE as PUSHED
from tests.performance.pushed import Pushed
from tests.store.streams import Record, lambda_form, made_record

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

# Stream records in an invocation of the consumer, and the queues that they are of.
SIZES = sorted({1, 3, 10, 30, 100, STREAM_BATCH})
QUEUES = {"one queue": 1, "five queues": 5}
# A consumer has counted for a day before it is measured: what it writes to is not new.
_WARM_STEPS, _STEP_MS = 96, 900_000
_SWEPT_EVERY = 8
_MINUTE_MS, _MINUTES = 60_000, 120
# Runs of the sweep by which it has marked queues as plain.
_MARKED_MINUTES = 10
# Jobs a second that are pushed to a function, and how many of them are counted.
# Jobs per second and containers, and how many jobs are counted.
_PUSHED = {(0.4, 1): 10, (1, 1): 20, (10, 1): 100, (10, 4): 100, (10, 10): 100}
_DIGITS = 4
# Items that the relay of an outbox receives together.
_ITEMS = (1, 10, 100)
# Durations of jobs, and intervals of heartbeats: of the official SDKs, and of the library.
_DURATIONS_S = (60, 300, 900)
_BEATS_S = (5, 20)
# Lanes of a queue, and queues of a fetch, that are polled in vain, once a second.
_LANES = (1, 2, 4, 8, 9, 16, 64)
_MANY, _POLLED_S = 50, 60
# Jobs of a queue with lanes that are counted one by one.
_LIVES = 64
# Minutes of queues in use, of which the sweeps are counted.
_MINUTES_IN_USE = 10
# Running jobs whose leases the sweep checks, and how many a fetch claims.
_RUNNING, _CLAIMED = 1_000, 40

Spent = dict[str, float]
Key = tuple[str, str]
# Table, key, and the item that is put; nothing that is deleted; None that is updated.
Written = tuple[str, dict[str, Any], Mapping[str, Any] | None]


class Recorder:
    """A client that notes which partition keys pay, and what the stream says of each change.

    It knows each item as it was, and so what entries of the indexes a write moved.
    """

    def __init__(self, client: Any, now_ms: Callable[[], int]) -> None:
        self._client, self._now_ms = client, now_ms
        self._lock = threading.Lock()
        self._number = 0
        self._items: dict[tuple[str, str, str], Any] = {}
        # By the shape of a key, and the partition key itself.
        self.write: defaultdict[Key, float] = defaultdict(float)
        self.read: defaultdict[Key, float] = defaultdict(float)
        self.records: list[Record] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name in {"get_item", "batch_get_item", "query"}:
            return lambda **arguments: self._reading(method, arguments)
        if name in _WRITES:
            return lambda **arguments: self._writing(name, arguments, _WRITES[name](arguments))
        return method

    def _reading(self, method: Any, arguments: Mapping[str, Any]) -> Any:
        answer = method(**arguments)
        spent = _units(answer)
        if condition := arguments.get("KeyConditionExpression"):
            name, _, value = condition.split(" AND ")[0].split()
            key = arguments["ExpressionAttributeValues"][value]["S"]
            found = [_shape({"wpk": "work", "epk": "expiry"}.get(name, "table"), key)]
        else:
            wanted = arguments.get("RequestItems", {}).values()
            keys = [key for one in wanted for key in one["Keys"]] or [arguments["Key"]]
            found = [_shape("table", *_names(key)) for key in keys]
        with self._lock:
            for shape in found:
                self.read[shape] += sum(spent.values()) / len(found)
        return answer

    def _writing(self, name: str, arguments: Mapping[str, Any], written: list[Written]) -> Any:
        with self._lock:
            answer = getattr(self._client, name)(**arguments)
            changes = []
            for table, key, put in written:
                after = put if put is not None else answer.get("Attributes", {})
                if put is None and name == "transact_write_items" and TABLE.projects(*_names(key)):
                    # Its answer does not say what came of an update.
                    found = self._client.get_item(TableName=table, Key=key, ConsistentRead=True)
                    after = found.get("Item", {})
                before = self._items.get((table, *_names(key)))
                self._items[table, *_names(key)] = unpack(after) if after else None
                changes.append((key, before, unpack(after) if after else None))
            self._share(_units(answer), changes)
            self.records += [r for change in changes if (r := self._record(*change)) is not None]
        return answer

    def _share(self, spent: Mapping[str, float], changes: Iterable[tuple[Any, Any, Any]]) -> None:
        """Divide the units of a call among what it wrote: by size, and by entry of an index."""
        shares: defaultdict[str, Counter[Key]] = defaultdict(Counter)
        for key, before, after in changes:
            size = max(len(str(item)) for item in (before, after))
            shares["table"][_shape("table", *_names(key))] += 1 + size // 1024
            for index in TABLE.indexes:
                entries = [
                    (item or {}).get(index.hash_key)
                    and (item[index.hash_key], item[index.range_key])
                    for item in (before, after)
                ]
                if entries[0] != entries[1]:
                    shares[index.name].update(_shape(index.name, one[0]) for one in entries if one)
        for store, units in spent.items():
            for shape, share in shares[store].items():
                self.write[shape] += units * share / shares[store].total()

    def _record(self, key: Mapping[str, Any], before: Any, after: Any) -> Record | None:
        if before == after or not TABLE.projects(*_names(key)):
            return None
        made = made_record(0, before, after, second=self._now_ms() // 1_000)
        return self.again(lambda_form(made))

    def again(self, record: Record) -> Record:
        """A record of the same change, made now, with all times in it as much later."""
        self._number += 1
        now_s, made_s = self._now_ms() // 1_000, record["dynamodb"]["ApproximateCreationDateTime"]
        change = _later(record["dynamodb"], (now_s - int(made_s)) * 1_000) | {
            "SequenceNumber": f"{self._number:021d}",
            "ApproximateCreationDateTime": now_s,
        }
        return record | {"eventID": f"{self._number:032x}", "dynamodb": change}


def _later(value: Any, ms: int) -> Any:
    """What a stream record has, with times (of 13 digits) so much later."""
    if not isinstance(value, dict):
        return value
    if len(text := value.get("N", "")) == 13:
        return {"N": str(int(text) + ms)}
    return {name: _later(one, ms) for name, one in value.items()}


def _written(action: Mapping[str, Any], table: str) -> Written:
    if "Item" in action:
        return table, _key(action["Item"]), action["Item"]
    return table, action["Key"], None if "UpdateExpression" in action else {}


def _key(item: Mapping[str, Any]) -> dict[str, Any]:
    return {name: item[name] for name in (TABLE.hash_key, TABLE.range_key)}


def _names(key: Mapping[str, Any]) -> tuple[str, str]:
    return key["pk"]["S"], key["sk"]["S"]


def _one(call: Mapping[str, Any]) -> list[Written]:
    return [_written(call, call["TableName"])]


# By operation: what a call writes.
_WRITES: dict[str, Callable[[Mapping[str, Any]], list[Written]]] = {
    "put_item": _one,
    "update_item": _one,
    "delete_item": _one,
    "transact_write_items": lambda call: [
        _written(one, one["TableName"])
        for act in call["TransactItems"]
        for kind, one in act.items()
        if kind != "ConditionCheck"
    ],
    "batch_write_item": lambda call: [
        _written(one, table)
        for table, requests in call["RequestItems"].items()
        for request in requests
        for one in request.values()
    ],
}


def _units(answer: Mapping[str, Any]) -> dict[str, float]:
    """The units that a call says it took, of the table and of each index."""
    found: Counter[str] = Counter()
    consumed = answer["ConsumedCapacity"]
    for one in consumed if isinstance(consumed, list) else [consumed]:
        found["table"] += one.get("Table", {}).get("CapacityUnits", 0)
        for name, index in one.get("GlobalSecondaryIndexes", {}).items():
            found[name] += index["CapacityUnits"]
    return dict(found)


def _shape(store: str, pk: str, sk: str = "") -> Key:
    """What a key is the key of, without names and numbers: `table G| depth`; and the key itself."""
    prefix = re.match(r"[^|]*(\|(shardId-)?)?", pk)[0]  # type: ignore[index]  # it always matches
    # The shards of a semaphore are in one partition.
    kind = sk.rstrip("0123456789").removesuffix("_")
    return f"{store} {prefix}{f' {kind}' if prefix in {'G|', 'L|', 'P|'} else ''}", pk


class Counting(Bench):
    """A bench whose ids are the same each time, and of which each unit is noted."""

    def __init__(self, client: Any) -> None:
        self.recorder = Recorder(client, lambda: self.clock.now_ms())  # noqa: PLW0108
        super().__init__(self.recorder)  # type: ignore[arg-type]  # it is used as one
        runtime.use(self.run)

    def another(self, **options: Any) -> runtime.Runtime:
        repeatable: dict[str, Any] = {
            "ids": IdSource(self.clock, random.Random(1).randbytes),
            "for_each": one_by_one,
            "sleep": lambda _: None,
        }
        return super().another(**repeatable | options)

    def reset(self) -> None:
        """Forget what was spent, and the records."""
        self.run.table.meter.reset()
        self.recorder.write.clear()
        self.recorder.read.clear()
        self.recorder.records = []

    def spent(self, divided_by: float = 1) -> Spent:
        """What was spent since, and the stream records that came of it."""
        meter = self.run.table.meter
        found = {
            "calls": len(meter.calls),
            "write": meter.write_units,
            "read": meter.read_units,
            "records": len(self.recorder.records),
        }
        return {name: round(value / divided_by, _DIGITS) for name, value in found.items()}

    def hot(self, divided_by: float = 1) -> dict[str, list[float]]:
        """Write and read units by the shape of the key: of all job records, and of the one key
        that takes most where jobs share it.
        """
        found: defaultdict[str, list[float]] = defaultdict(lambda: [0, 0])
        for at, spent in enumerate((self.recorder.write, self.recorder.read)):
            for (shape, _), units in spent.items():
                so_far = found[shape][at]
                found[shape][at] = so_far + units if shape == "table J|" else max(so_far, units)
        return {
            shape: [round(units / divided_by, _DIGITS) for units in found[shape]]
            for shape in sorted(found)
        }

    def life(self, **options: Any) -> list[Job]:
        """One job: pushed, fetched and acknowledged."""
        self.push(options=options)
        jobs = self.fetch(queue=options.get("queue", "default"))
        self.ack(jobs)
        return jobs

    def ack(self, jobs: Iterable[Job], worker: str = WORKER) -> None:
        """Acknowledge these jobs, one at a time."""
        for job in jobs:
            self.run.finish.ack(job.id, worker_id=worker, result=RESULT)

    def recorded(self, count: int, queues: Sequence[str] = ("default",)) -> list[Record]:
        """The stream records of so many jobs, one after the other, of these queues in turn."""
        self.reset()
        for number in range(count):
            self.life(queue=queues[number % len(queues)])
        return self.recorder.records

    def ten_lives(self, queue: str = "default", **options: Any) -> None:
        """Ten jobs: pushed, fetched and acknowledged at once."""
        self.push_batch(10, queue, **options)
        done = {"worker_id": WORKER, "result": RESULT}
        outcomes, _ = self.run.batch_finish.end([(job.id, done) for job in self.fetch(10, queue)])
        assert len(outcomes) == 10

    def retried(self) -> None:
        """A job that fails, and is done a minute later."""
        self.push()
        (job,) = self.fetch()
        self.run.finish.nack(job.id, error=ERROR, worker_id=WORKER)
        self.clock.advance(_MINUTE_MS)
        self.know_maintenance()
        self.ack(self.fetch())

    def dies(self) -> None:
        """A job that becomes a dead letter."""
        self.push()
        (job,) = self.fetch()
        self.run.finish.nack(job.id, error=ERROR | {"retryable": False}, worker_id=WORKER)

    def pooled(self) -> None:
        """A job of a queue of `_POOL`."""
        self.push(options={"queue": "pooled"})
        self.ack(self.run.fetch.fetch(None, 1, "pooled", pool="pool"), "pooled")


def lives(bench: Counting) -> dict[str, Spent]:
    """A job one by one, and in tens."""
    found = {}
    bench.reset()
    bench.life()
    found["one by one"] = bench.spent() | {"pushes": 1, "fetches and acks": 2}
    # The container notes its slot of staged batches once in five minutes (`note`).
    bench.ten_lives()
    bench.reset()
    bench.ten_lives()
    found["in tens"] = bench.spent(10) | {"pushes": 0.1, "fetches and acks": 0.2}
    return found


def heartbeat(bench: Counting) -> Spent:
    """A heartbeat of a worker without jobs."""
    bench.reset()
    bench.run.workers.beat(WORKER)
    return bench.spent()


def lanes(bench: Counting, count: int) -> Spent:
    """The mean units of one job at a time in a queue with this many lanes."""
    random.seed(1)  # a fetch starts at a random lane
    bench.run.queues.create("wide", {"lanes": count})
    bench.life(queue="wide")
    bench.reset()
    for _ in range(_LIVES):
        bench.life(queue="wide")
        bench.clock.advance(1_000)
    return bench.spent(_LIVES)


def empty_fetches(connect: Callable[[], Counting]) -> dict[str, Spent]:
    """Fetches that find no job, once a second for a minute, by lanes of the queue and by queues.

    `most` is the number of calls of the most expensive one, the others are means.
    """

    def polled(bench: Counting, queues: Sequence[str], **how: Any) -> Spent:
        most = 0
        bench.reset()
        for _ in range(_POLLED_S):
            before = len(bench.run.table.meter.calls)
            assert not bench.run.fetch.fetch(queues, 1, WORKER, **how)
            most = max(most, len(bench.run.table.meter.calls) - before)
            bench.clock.advance(1_000)
        return bench.spent(_POLLED_S) | {"most": most}

    found = {}
    for count in _LANES:
        bench = connect()
        bench.run.queues.create("wide", {"lanes": count})
        found[str(count)] = polled(bench, ["wide"])
    queues = [f"queue-{number:02d}" for number in range(_MANY)]
    for name, how in (("", {}), (", strict", {"strategy": "strict"})):
        bench = connect()
        for queue in queues:
            bench.run.queues.create(queue, {})
        found[f"{_MANY} queues{name}"] = polled(bench, queues, **how)
    return found


def running(bench: Counting) -> Spent:
    """One check of a job that runs, by the sweep: of 1,000 jobs that are due for it at a time."""
    bench.clock.advance(3 * _MINUTE_MS)
    bench.run.sweep.run_once(bench.clock.now_ms(), 1_000)
    bench.reset()
    bench.run.sweep.run_once(bench.clock.now_ms(), 1_000)
    without = bench.spent()
    bench.push_batch(_RUNNING, "default", visibility_timeout_ms=2 * _MINUTE_MS)
    jobs = [bench.fetch(_CLAIMED) for _ in range(_RUNNING // _CLAIMED)]
    assert sum(map(len, jobs)) == _RUNNING
    bench.clock.advance(_MINUTE_MS)
    bench.reset()
    assert bench.run.sweep.run_once(bench.clock.now_ms(), 1_000)["stalled_or_timed_out"] == 0
    found = bench.spent()
    return {name: round((found[name] - without[name]) / _RUNNING, _DIGITS) for name in found}


def lasting(bench: Counting, beat_s: int) -> dict[str, Spent]:
    """What a job of so many seconds adds to a short one, if a worker with ten such jobs sends a
    heartbeat each `beat_s` s: heartbeats without the worker's own record, and the minute sweep.
    """
    found = {"1": {"calls": 0.0, "write": 0.0, "read": 0.0, "records": 0.0}}
    for seconds in _DURATIONS_S:
        with_jobs, without = (_worked(bench, seconds, beat_s, jobs) for jobs in (10, 0))
        found[str(seconds)] = {
            name: round((with_jobs[name] - without[name]) / 10, _DIGITS) for name in without
        }
    return found


def _worked(bench: Counting, seconds: int, beat_s: int, count: int) -> Spent:
    """Heartbeats and sweeps of this many seconds, with so many running jobs."""
    # What earlier jobs left is swept, and the worker's record is written. In these minutes of an
    # hour no slots of batches are read in turn.
    bench.clock.advance(80 * _MINUTE_MS - bench.clock.now_ms() % (60 * _MINUTE_MS))
    for _ in range(2):
        bench.run.sweep.run_once(bench.clock.now_ms(), 1_000)
    for _ in range(count):
        bench.push(options={"visibility_timeout_ms": _MINUTE_MS})
    jobs = bench.fetch(count) if count else []
    bench.reset()
    for second in range(1, seconds):
        bench.clock.advance(1_000)
        if second % beat_s == 0:
            bench.run.workers.beat(WORKER, active_jobs=[job.id for job in jobs])
        if second % 60 == 0:
            bench.run.sweep.run_once(bench.clock.now_ms(), 1_000)
    spent = bench.spent()
    bench.ack(jobs)
    return spent


class Consumer:
    """The stream's consumer, called as Lambda calls it; what it writes to its log."""

    def __init__(self) -> None:
        self._state: Any = {}
        self.log = ""

    def __call__(self, records: list[Record]) -> None:
        event = {
            "Records": records,
            "shardId": "shardId-00000000000000000001-1",
            "state": self._state,
        }
        written = StringIO()
        with redirect_stdout(written):
            answer: Mapping[str, Any] = stream(event, None)
        assert answer["batchItemFailures"] == []
        self._state = answer.get("state", {})
        self.log += written.getvalue()


def swept() -> str:
    """What one run of the sweep writes to its log."""
    written = StringIO()
    with redirect_stdout(written):
        sweep({}, None)
    return written.getvalue()


def consumer(bench: Counting, queues: int) -> dict[str, Spent]:
    """An invocation of the consumer with so many records, of jobs that are done one by one; and
    what each minute adds in which a shard has any.
    """
    names = [f"queue-{number}" for number in range(queues)]
    consume = Consumer()
    a_life = bench.recorded(queues, names)

    def again() -> None:
        consume([bench.recorder.again(record) for record in a_life])

    for step in range(_WARM_STEPS):
        bench.clock.advance(_STEP_MS)
        again()
        if step % _SWEPT_EVERY == 0:
            swept()
    found = {}
    for size in SIZES:
        bench.clock.advance(_MINUTE_MS)
        again()  # what the minute adds
        bench.clock.advance(1_000)
        records = bench.recorded(max(queues, size), names)
        bench.reset()
        consume.log = ""
        for at in range(0, len(records), size):
            consume(records[at : at + size])
        batches = len(records) / size
        found[str(size)] = bench.spent(batches) | {"log_bytes": _bytes(consume.log, batches)}
    bench.clock.advance(1_000)
    bench.reset()
    again()
    at_once = bench.spent()
    bench.reset()
    for _ in range(_MINUTES):
        bench.clock.advance(_MINUTE_MS)
        again()
    minutely = bench.spent(_MINUTES)
    found["a minute"] = {
        name: round(minutely[name] - at_once[name], _DIGITS) for name in ("calls", "write", "read")
    }
    return found


def sweeps(bench: Counting, queues: int, minutes: int) -> Spent:
    """A run of the sweep with this many idle queues, after it has marked them."""
    records = bench.recorded(queues, [f"queue-{number:03d}" for number in range(queues)])
    consume = Consumer()
    for at in range(0, len(records), STREAM_BATCH):
        consume(records[at : at + STREAM_BATCH])
    for ms in (_MINUTE_MS, QUIET_MS, *[_MINUTE_MS] * _MARKED_MINUTES):
        bench.clock.advance(ms)
        swept()
    bench.reset()
    log = ""
    for _ in range(minutes):
        bench.clock.advance(_MINUTE_MS)
        log += swept()
    return bench.spent(minutes) | {"log_bytes": _bytes(log, minutes)}


def sweeps_in_use(bench: Counting, queues: int) -> Spent:
    """A run of the sweep if each of this many queues has a job in each minute, and one queue in ten
    a retry. Without the units of the retries themselves: a fetch spends them if it comes first.
    """
    names = [f"queue-{number:03d}" for number in range(queues)]
    spent: Counter[str] = Counter()
    log = ""
    for minute in range(_MINUTES_IN_USE + 1):
        for number, name in enumerate(names):
            bench.life(queue=name)
            if number % 10 == minute % 10:
                bench.push(options={"queue": name})
                (job,) = bench.fetch(queue=name)
                bench.run.finish.nack(job.id, error=ERROR, worker_id=WORKER)
        bench.clock.advance(_MINUTE_MS // 2)
        for name in names:
            bench.ack(bench.fetch(queue=name))
        bench.clock.advance(_MINUTE_MS // 2)
        bench.reset()
        written = swept()
        if minute:
            log += written
            spent.update(bench.spent())
    found = {name: round(value / _MINUTES_IN_USE, _DIGITS) for name, value in spent.items()}
    return found | {"log_bytes": _bytes(log, _MINUTES_IN_USE)}


def in_use(bench: Counting, queues: int, minutes: int = 5, form: str = "queue-{:04d}") -> Spent:
    """A run of the sweep with so many queues in use: in each of ten minutes a tenth of them have a
    job, and in one queue of ten the job fails and is retried.
    """
    names = [form.format(number) for number in range(queues)]
    consume = Consumer()
    # Twice ten minutes, until what is written is there.
    warm = 22
    total: Counter[str] = Counter()
    for minute in range(warm + minutes):
        bench.reset()
        for number in range(minute % 10, queues, 10) if queues > 1 else [0]:
            if number // 10 % 10:
                bench.life(queue=names[number])
                continue
            bench.push(options={"queue": names[number]})
            (job,) = bench.fetch(queue=names[number])
            bench.run.finish.nack(job.id, error=ERROR, worker_id=WORKER)
        records = bench.recorder.records
        for at in range(0, len(records), STREAM_BATCH):
            consume(records[at : at + STREAM_BATCH])
        bench.clock.advance(_MINUTE_MS)
        bench.know_maintenance()
        bench.reset()
        swept()
        if minute >= warm:
            total.update(bench.spent())
    return {name: round(value / minutes, 1) for name, value in total.items() if name != "records"}


def note(bench: Counting) -> Spent:
    """What a container spends on a line in use, so that sweeps read it: once in `every_s`."""
    bench.run.queues.create("noted", {})
    bench.reset()
    for _ in range(2):
        bench.run.stores.due_notes.note([(keys.due("noted", 0), bench.clock.now_ms())])
    return bench.spent() | {"every_s": BUCKET_MS / 1_000}


def _bytes(log: str, runs: float) -> float:
    """Of one run, to ten bytes: the numbers in it are not always as long."""
    return round(len(log) / runs, -1)


def metrics(bench: Counting) -> dict[str, int]:
    """CloudWatch metrics by level: of a healthy deployment in which one queue has jobs of one type,
    and of a queue in addition.
    """
    bench.run.settings = replace(bench.run.settings, metrics="queues")
    consume = Consumer()
    consume(bench.recorded(1))
    found = _metrics(consume.log + swept())
    of_queue = {one for one in found if any(name == "queue" for name, _ in one[0])}
    levels = {level: _of_level(replace(bench.run.settings, metrics=level)) for level in _LEVELS}
    whole = found - of_queue
    return {
        "alarms": len(levels["alarms"]),
        "deployment": len(whole | levels["deployment"]),
        "queue": len(of_queue),
    }


_LEVELS: tuple[MetricsLevel, ...] = ("alarms", "deployment")


def _of_level(settings: Settings) -> set[tuple[tuple[tuple[str, str], ...], str]]:
    """The gauges of a deployment with jobs in each state, of which none waits for long."""
    levels = StateCounts(dict.fromkeys(set(State) - TERMINAL, 1), dead=1)
    queue = QueueGauges(Queue("default"), levels, oldest_ms=0)
    written = StringIO()
    with redirect_stdout(written):
        gauges.write(MetricsReport({}, 1, [queue], Totals(1, 1, levels, WorkerCounts(1))), settings)
    return _metrics(written.getvalue())


def _metrics(log: str) -> set[tuple[tuple[tuple[str, str], ...], str]]:
    """Dimensions and names of all metrics in a log."""
    found = set()
    for line in map(json.loads, log.splitlines()):
        for group in line.get("_aws", {}).get("CloudWatchMetrics", ()):
            for names in group["Dimensions"]:
                dimensions = tuple((name, line[name]) for name in names)
                found |= {(dimensions, metric["Name"]) for metric in group["Metrics"]}
    return found


_LIMIT = {"key": "one", "rate": {"limit": 1_000, "period": "PT1M"}}
# What a queue has → its configuration.
_CONFIGURED: dict[str, dict[str, Any]] = {
    "bounded": {"max_size": 1_000},
    "concurrency": {"concurrency": 24},
    "bounded, concurrency": {"max_size": 1_000, "concurrency": 24},
    "rate limit": {"rate_limit": {"limit": 1_000, "period": "PT1M"}},
    "fair": {"tenant_fairness": {"enabled": True}},
}


_POOL: dict[str, Any] = {
    "strategy": "weighted",
    "weights": {"pooled": 3, "another": 2, "third": 1},
}


def paths(bench: Counting) -> dict[str, dict[str, list[float]]]:
    """By path: the write and read units of a job by what kind of key takes them."""
    found = {}

    def note(path: str, work: Callable[[], Any], jobs: int = 1) -> None:
        work()  # as in steady operation: what is written is there
        bench.reset()
        work()
        found[path] = bench.hot(jobs)

    note("one by one", bench.life)
    note("in tens", bench.ten_lives, 10)
    note("retried once", bench.retried)
    for path, config in _CONFIGURED.items():
        queue = path.replace(", ", "-").replace(" ", "-")
        bench.run.queues.configure(queue, config)
        note(path, partial(bench.life, queue=queue))
        note(f"{path}, in tens", partial(bench.ten_lives, queue), 10)
    note("key limit", partial(bench.life, rate_limit=_LIMIT))
    note("key limit, in tens", partial(bench.ten_lives, rate_limit=_LIMIT), 10)
    for queue in _POOL["weights"]:
        bench.life(queue=queue)
    bench.run.pools.put("pool", {**_POOL, "queues": list(_POOL["weights"])})
    note("pool", bench.pooled)
    note("dead letter", bench.dies)
    records, consume = bench.recorded(STREAM_BATCH), Consumer()

    def consumed() -> None:
        for at in range(0, len(records), STREAM_BATCH):
            consume([bench.recorder.again(record) for record in records[at : at + STREAM_BATCH]])

    note("consumer", consumed, STREAM_BATCH)
    return found


def pushed(connect: Callable[[], Counting]) -> dict[str, Spent]:
    """By jobs a second: a job that is pushed to a function; and a job of a batch of stream records
    that the consumer looks at, up to how many of them.
    """
    found = {
        f"{rate:g}" if containers == 1 else f"{rate:g} by {containers}": Pushed(
            connect(), rate, containers
        ).count(jobs)
        for (rate, containers), jobs in _PUSHED.items()
    }
    bench = connect()
    pushing = Pushed(bench, 1)
    pushing.count(1)
    jobs = [bench.push(options={"queue": PUSHED}) for _ in range(LOOKED_AT)]
    wake = bench.run.wake
    assert wake is not None
    bench.reset()
    wake.repeat(jobs)
    return found | {"looked at": bench.spent(LOOKED_AT) | {"most": LOOKED_AT}}


def outbox(client: DynamoDBClient) -> dict[str, Spent]:
    """By items in a batch: what an item takes of the application and of the relay; and what the
    same job takes if it is enqueued by a request.
    """
    found: dict[str, Spent] = {}
    for count in _ITEMS:
        bench, table = Bench(client), f"box-{uuid.uuid4().hex[:12]}"
        client.create_table(
            TableName=table,
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        written, records = 0.0, []
        for number in range(count):
            item = pack({"id": bench.run.ids.uuid7(), "ojs_job": json.dumps(bench.request())})
            answer = client.transact_write_items(
                TransactItems=[{"Put": {"TableName": table, "Item": item}}],
                ReturnConsumedCapacity="TOTAL",
            )
            written += answer["ConsumedCapacity"][0]["CapacityUnits"]
            change = {
                "ApproximateCreationDateTime": bench.clock.now_ms() / 1_000,
                "Keys": {"id": item["id"]}, "NewImage": item, "SequenceNumber": str(number),
            }  # fmt: skip
            records.append({"eventName": "INSERT", "dynamodb": change})
        box = Outbox(table, "", "")
        bench.run = runtime.build(
            Settings(table=bench.table, outbox=box), client=client, clock=bench.clock, measure=True
        )
        relay = partial(_Relay(bench.run, box).run, records)
        found[str(count)] = {"application": written / count, **_metered(bench, relay, count)}
        client.delete_table(TableName=table)
    return found | {"request": _metered(bench, bench.push)}


def durable(bench: Counting) -> dict[str, Spent]:
    """What durable code takes: each act with its requests, and without the job itself."""
    found: dict[str, Spent] = {}
    bench.push()
    (job,) = bench.fetch()

    def note(name: str, requests: float, *acts: Callable[[], object], divided_by: int = 1) -> None:
        bench.reset()
        for act in acts:
            act()
        found[name] = {"requests": requests} | bench.spent(divided_by)

    def save(*names: str) -> Callable[[], object]:
        steps = [
            DurableOutcome(name, OutcomeKind.STEP, ok=True, value=RESULT, save="s" * 16)
            for name in names
        ]
        return lambda: bench.run.steps.save(job.id, steps, lease_token=_token(job))

    def suspend(kind: str, name: str) -> None:
        told = {"waits": [{"kind": kind, "name": name, "for": "PT10S"}]}
        bench.run.finish.nack(job.id, error=None, lease_token=_token(job), suspend=told)

    def wake() -> None:
        nonlocal job
        bench.know_maintenance()
        (job,) = bench.fetch()

    def start() -> None:
        parent = {"job_id": job.id, "name": "ship", "lease_token": _token(job)}
        raw = envelope.parse(bench.request(parent=parent, options={"queue": "children"}))
        bench.run.enqueue.push(bench.run.children.adopted([raw], batch=False)[0])

    def signal(name: str) -> Callable[[], object]:
        return lambda: bench.run.signals.send(job.id, name, RESULT)

    goes_on = (wake, lambda: bench.run.steps.page(job.id))
    later = (partial(bench.clock.advance, 10_000), *goes_on)
    note("step", 1, save("charge"))
    note("step, in tens", 0.1, save(*(f"item/{n}" for n in range(10))), divided_by=10)
    # Other jobs of the queue wait until then, too.
    line, now_ms = keys.due("default", 0), bench.clock.now_ms()
    bench.run.stores.due_notes.note([(line, now_ms + BUCKET_MS * at) for at in range(3)])
    note("sleep", 3, partial(suspend, "sleep", "nap"), *later)
    note("sleep by a fetch", 2, partial(suspend, "sleep", "nap/2"), *later)
    note("wait", 4, partial(suspend, "signal", "ok"), signal("ok"), *goes_on)
    note("wait by a fetch", 3, partial(suspend, "signal", "go"), signal("go"), *goes_on)
    note("early signal", 1, signal("early"))
    bench.life(queue="children")
    waits = partial(suspend, "job", "ship")
    note("child", 6, start, waits, lambda: bench.ack(bench.fetch(queue="children")), *goes_on)
    bench.reset()
    bench.life(queue="children")
    plain = bench.spent() | {"requests": 3}
    child = found["child"]
    # Without what the child costs as a job.
    found["child"] = {name: round(child[name] - plain[name], _DIGITS) for name in child}
    state = bench.request(1_000)["args"][0]
    note("checkpoint", 1, lambda: bench.run.checkpoints.save(job.id, state))
    return found


def _token(job: Job) -> str:
    return job.lease.token if job.lease else ""


def _metered(bench: Bench, work: Callable[[], object], divided_by: int = 1) -> Spent:
    meter = bench.run.table.meter
    meter.reset()
    work()
    found = {"calls": len(meter.calls), "write": meter.write_units, "read": meter.read_units}
    return {name: round(value / divided_by, _DIGITS) for name, value in found.items()}


# By part of the file: how it is counted. Each begins with an empty table.
PARTS: dict[str, Callable[[DynamoDBClient], Any]] = {
    "lives": lambda client: lives(Counting(client)),
    "heartbeat": lambda client: heartbeat(Counting(client)),
    "lasting": lambda client: {
        str(beat_s): lasting(Counting(client), beat_s) for beat_s in _BEATS_S
    },
    "lanes": lambda client: {str(count): lanes(Counting(client), count) for count in _LANES},
    "empty fetches": lambda client: empty_fetches(lambda: Counting(client)),
    "running": lambda client: running(Counting(client)),
    "metrics": lambda client: metrics(Counting(client)),
    "paths": lambda client: paths(Counting(client)),
    "consumer": lambda client: {
        name: consumer(Counting(client), count) for name, count in QUEUES.items()
    },
    "sweeps": lambda client: {
        str(count): sweeps(Counting(client), count, minutes)
        for count, minutes in ((1, 60), (200, 60))
    },
    "sweeps in use": lambda client: {
        str(count): sweeps_in_use(Counting(client), count) for count in (1, 50)
    },
    "in use": lambda client: {
        str(count): in_use(Counting(client), count) for count in (1, 50, 200)
    },
    "note": lambda client: note(Counting(client)),
    "pushed": lambda client: pushed(lambda: Counting(client)),
    "outbox": outbox,
    "durable": lambda client: durable(Counting(client)),
}


def main() -> int:
    """Count, and write the file."""
    from local import engines
    from tests.direct import connected

    engine = engines.start("dynoxide", streams=False)
    try:
        with connected(engine.url) as client:
            counted = {name: count(client) for name, count in PARTS.items()}
    finally:
        engine.stop()
    text = json.dumps(counted, indent=1)
    # What holds numbers alone is a line.
    text = re.sub(r"[\[{][^\[\]{}]*[\]}]", lambda found: " ".join(found[0].split()), text)
    COUNTED.write_text(f"{text}\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
