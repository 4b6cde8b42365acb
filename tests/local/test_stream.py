"""The pump: every record is delivered, in the form and in the portions Lambda would have it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from local import stream
from local.lambda_context import LambdaContext
from local.scheduler import Rounds, Scheduler
from local.stream import TRIES, Pump, TableStream, lambda_record
from ojs.clock import ManualClock
from ojs.store.table import keys
from ojs.store.table.schema import STREAM_BATCH

ARN = "arn:aws:dynamodb:local:000000000000:table/ojs/stream/2"
Event = dict[str, Any]


def record(number: int, pk: str = "J|1", sk: str = "@", at_s: int = 1_780_000_000) -> Event:
    """A record as boto3 returns it."""
    return {
        "eventID": f"id-{number}",
        "eventName": "INSERT",
        "dynamodb": {
            "ApproximateCreationDateTime": datetime.fromtimestamp(at_s, UTC),
            "Keys": {"pk": {"S": pk}, "sk": {"S": sk}},
            "NewImage": {"pk": {"S": pk}, "sk": {"S": sk}, "state": {"S": "available"}},
            "SequenceNumber": str(number),
        },
    }


class Streams:
    """A DynamoDB Streams client with one stream, whose iterators are places in a list."""

    def __init__(self, records: list[Event]) -> None:
        self.records = records
        self.failures: list[str] = []

    def list_streams(self, **request: Any) -> Any:
        assert request == {"TableName": "ojs"}
        arns = ["arn:of-a-table-that-was-deleted", ARN]
        return {
            "Streams": [{"StreamArn": arn, "StreamLabel": str(at)} for at, arn in enumerate(arns)]
        }

    def describe_stream(self, **request: Any) -> Any:
        assert request == {"StreamArn": ARN}
        return {"StreamDescription": {"Shards": [{"ShardId": "shard"}]}}

    def get_shard_iterator(self, **request: Any) -> Any:
        oldest = {"StreamArn": ARN, "ShardId": "shard", "ShardIteratorType": "TRIM_HORIZON"}
        assert request == oldest
        return {"ShardIterator": "0"}

    def get_records(self, **request: Any) -> Any:
        if self.failures:
            code = self.failures.pop(0)
            raise ClientError({"Error": {"Code": code}}, "GetRecords")
        at = int(request["ShardIterator"])
        found = self.records[at : at + request["Limit"]]
        return {"Records": found, "NextShardIterator": str(at + len(found))}


class Function:
    """The stream function: remembers what it got, and fails for what it refuses."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.events: list[Event] = []
        self.refuses: set[str] = set()
        self.breaks_for: set[str] = set()

    @property
    def got(self) -> list[str]:
        return [number for batch in self.batches for number in batch]

    def __call__(self, event: Event, context: Any) -> Any:
        assert isinstance(context, LambdaContext)
        assert context.function_name == "stream"
        assert context.get_remaining_time_in_millis() > 50_000
        assert json.loads(json.dumps(event)) == event
        numbers = [each["dynamodb"]["SequenceNumber"] for each in event["Records"]]
        self.events.append(event)
        self.batches.append(numbers)
        if self.breaks_for & set(numbers):
            raise RuntimeError("defect")
        failed = [number for number in numbers if number in self.refuses]
        state = {"calls": event["state"].get("calls", 0) + 1}
        return {
            "state": state,
            "batchItemFailures": [{"itemIdentifier": number} for number in failed],
        }


class World:
    """A pump with everything around it."""

    def __init__(self, records: list[Event], clock: ManualClock) -> None:
        self.streams = Streams(records)
        self.function = Function()
        self.clock = clock
        self.trims: list[int] = []
        self.stream = TableStream(self.streams, "ojs")
        self.pump = Pump(self.stream, self.function, trim=self.trims.append, clock=clock)


@pytest.fixture
def make(clock: ManualClock) -> Callable[[list[Event]], World]:
    return lambda records: World(records, clock)


def test_a_record_has_lambdas_form() -> None:
    stored = record(7)
    stored["dynamodb"]["NewImage"] |= {
        "ids": {"B": b"\x00\xff"},
        "list": {"L": [{"B": b"a"}, {"M": {"deep": {"BS": [b"b"]}}}]},
        "n": {"N": "1.50"},
        "gone": {"NULL": True},
    }
    shown = lambda_record(stored, ARN)
    assert json.loads(json.dumps(shown)) == shown
    assert shown["eventSourceARN"] == ARN
    assert shown["dynamodb"]["ApproximateCreationDateTime"] == 1_780_000_000
    image = shown["dynamodb"]["NewImage"]
    assert image["ids"] == {"B": "AP8="}
    assert image["list"] == {"L": [{"B": "YQ=="}, {"M": {"deep": {"BS": ["Yg=="]}}}]}
    assert (image["n"], image["gone"]) == ({"N": "1.50"}, {"NULL": True})
    assert stored["dynamodb"]["NewImage"]["ids"] == {"B": b"\x00\xff"}


def test_everything_is_delivered_in_order_and_in_portions(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make([record(number) for number in range(1, 251)])
    monkeypatch.setattr(stream, "_PAGE", 120)
    world.pump.drain()
    assert world.function.got == [str(number) for number in range(1, 251)]
    assert max(len(batch) for batch in world.function.batches) == STREAM_BATCH
    world.streams.records.append(record(251))
    world.pump.drain()
    assert world.function.got[250:] == ["251"]
    world.pump.drain()
    assert len(world.function.got) == 251


def test_what_the_mapping_filters_out_is_not_delivered(make: Any) -> None:
    own = [(keys.stats("q"), keys.NOW), (keys.dedup_records(1), "0000"), (keys.events("d"), "x")]
    others = [("J|1", keys.PROGRESS), (keys.QUEUES, "q"), ("U|x", "@")]
    wanted = [("J|1", "@"), ("Q|q", "@"), ("B|t", "@"), ("K|03", "worker")]
    world = make([record(at, *key) for at, key in enumerate(own + others + wanted)])
    world.pump.drain()
    assert world.function.got == ["6", "7", "8", "9"]


def test_a_stream_of_what_is_not_projected_calls_nobody(make: Any) -> None:
    world = make([record(1, "S|q", "@")])
    world.pump.drain()
    assert world.function.batches == []


def test_the_event_is_that_of_a_tumbling_window(make: Any) -> None:
    """As AWS documents it: it names the shard, and has the state that the last answer gave."""
    world = make([record(number) for number in range(1, 102)])
    world.pump.drain()
    first, second = world.function.events
    assert {name: first[name] for name in first if name != "Records"} == {
        "window": {"start": "2026-05-28T20:15:00Z", "end": "2026-05-28T20:30:00Z"},
        "state": {},
        "shardId": world.stream.shard,
        "eventSourceARN": ARN,
        "isFinalInvokeForWindow": False,
        "isWindowTerminatedEarly": False,
    }
    assert second["state"] == {"calls": 1}
    # Names no queue may have; of another table it is another.
    assert world.stream.shard.startswith("shardId-")
    assert world.stream.shard.endswith("-shard")


def test_an_answer_without_state_is_a_failure(
    make: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make([record(1)])
    whole = Function.__call__
    monkeypatch.setattr(
        Function, "__call__", lambda *of: {"batchItemFailures": whole(*of)["batchItemFailures"]}
    )
    world.pump.drain()
    monkeypatch.undo()
    world.clock.advance(1_000)
    world.pump.drain()
    assert world.function.got == ["1", "1"]
    assert "KeyError: 'state'" in capsys.readouterr().err


def test_a_record_that_fails_comes_again_before_what_follows_it(make: Any) -> None:
    world = make([record(number) for number in (1, 2, 3)])
    world.function.refuses = {"2"}
    world.pump.drain()
    world.streams.records.append(record(4))
    world.pump.drain()
    assert world.function.got == ["1", "2", "3"]  # not yet time
    world.clock.advance(100)
    world.function.refuses = set()
    world.pump.drain()
    assert world.function.got[3:] == ["2", "3", "4"]
    world.clock.advance(100_000)
    world.pump.drain()
    assert len(world.function.got) == 6


def test_a_record_that_always_fails_is_given_up_and_named(
    make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make([record(1, "J|poison"), record(2)])
    world.function.refuses = {"1"}
    for _ in range(3 * TRIES):
        world.pump.drain()
        world.clock.advance(60_000)
    assert world.function.got.count("1") == TRIES
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "Stream record skipped: 1 (INSERT of" in printed
    assert "J|poison" in printed
    assert "available" not in printed  # nothing of what it holds


def test_the_record_a_function_breaks_for_is_found(
    make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    world = make([record(number) for number in range(64)])
    world.function.breaks_for = {"37"}
    world.pump.drain()
    done = {
        number
        for batch in world.function.batches
        if not world.function.breaks_for & set(batch)
        for number in batch
    }
    assert done == {str(number) for number in range(37)}
    assert "RuntimeError: defect" in capsys.readouterr().err
    world.function.breaks_for = set()
    world.clock.advance(1_000)
    world.pump.drain()
    assert world.function.batches[-1] == [str(number) for number in range(37, 64)]


def test_a_lost_place_is_found_from_the_beginning(make: Any) -> None:
    world = make([record(1), record(2)])
    world.pump.drain()
    world.streams.failures = ["ExpiredIteratorException"]
    with pytest.raises(ClientError):
        world.pump.drain()
    world.pump.drain()
    # Again, which the projection knows by its positions; and nothing is left out.
    assert world.function.got == ["1", "2", "1", "2"]


@pytest.mark.parametrize("existing", [1, 250])
def test_a_drain_delivers_what_existed_while_others_write_on(
    make: Any, monkeypatch: pytest.MonkeyPatch, existing: int
) -> None:
    """Each delivery writes two more records, all in one second of the stream's clock."""
    monkeypatch.setattr(stream, "_PAGE", 100)
    world = make([record(number) for number in range(existing)])
    given: list[int] = []

    def endless(event: Event, _context: Any) -> Any:
        assert len(given) < 10_000
        given.extend(int(each["dynamodb"]["SequenceNumber"]) for each in event["Records"])
        world.streams.records += [record(len(world.streams.records) + more) for more in range(2)]
        return {"state": {}, "batchItemFailures": []}

    pump = Pump(world.stream, endless, clock=world.clock)
    pump.drain()
    assert given == list(range(existing))
    written = len(world.streams.records)
    pump.drain()
    assert given == list(range(written))


def test_what_is_delivered_is_removed_now_and_then(make: Any) -> None:
    world = make([record(number) for number in range(1, 2_501)])
    world.function.refuses = {"700"}
    world.pump.drain()
    # Not past what has to be tried again; and nothing more is read.
    assert set(world.trims) == {700}
    world.function.refuses = set()
    world.clock.advance(1_000)
    world.streams.records += [record(number) for number in range(2_501, 3_501)]
    world.pump.drain()
    assert world.trims[2:] == [3_500]
    assert world.function.got.count("700") == 2


def test_after_a_reset_it_begins_anew(make: Any) -> None:
    world = make([record(1), record(2)])
    world.function.refuses = {"2"}
    world.pump.drain()
    with world.pump.pause:
        world.streams.records[:] = [record(1, "J|new")]
        world.pump.restart()
    world.clock.advance(60_000)
    world.pump.drain()
    assert world.function.got == ["1", "2", "1"]


def test_it_delivers_by_itself_and_survives_an_engine_that_fails(
    make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    delivered = threading.Event()

    def handler(_event: Event, _context: Any) -> Any:
        delivered.set()
        return {"state": {}, "batchItemFailures": []}

    world = make([record(1)])
    world.streams.failures = ["InternalServerError"] * 3
    schedule = Scheduler(Pump(world.stream, handler).try_to_drain, 0.001)
    schedule.start()
    assert delivered.wait(60)
    schedule.stop()
    # Said once, however often it happens in a row.
    assert capsys.readouterr().err.count("Reading the stream failed") == 1


class Queue:
    """A lock that tells how many have come to it."""

    def __init__(self) -> None:
        self.came = threading.Semaphore(0)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.came.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_all_who_ask_during_a_round_share_the_next_one() -> None:
    inside, go_on = threading.Event(), threading.Event()
    begun: list[int] = []

    def action() -> None:
        begun.append(len(begun))
        inside.set()
        assert go_on.wait(60)

    rounds = Rounds(action)
    queue = Queue()
    rounds.pause = queue  # type: ignore[assignment]
    threads = [threading.Thread(target=rounds.run) for _ in range(9)]
    threads[0].start()
    assert inside.wait(60)
    # The round under way may have begun too early for these.
    for thread in threads[1:]:
        thread.start()
    for _ in threads:
        assert queue.came.acquire(timeout=60)
    assert len(begun) == 1
    go_on.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert len(begun) == 2
    rounds.run()
    assert len(begun) == 3


def test_a_round_that_failed_counts_for_nobody_else() -> None:
    outcomes = [RuntimeError("defect"), None]
    inside, go_on = threading.Event(), threading.Event()
    calls: list[int] = []

    def action() -> None:
        calls.append(1)
        inside.set()
        assert go_on.wait(60)
        if error := outcomes.pop(0):
            raise error

    rounds = Rounds(action)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            rounds.run()
        except RuntimeError as error:
            raised.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    threads[0].start()
    assert inside.wait(60)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert len(raised) == 1
    assert len(calls) == 2


def test_the_interval_is_short_enough_for_half_a_second() -> None:
    assert stream.INTERVAL_S <= 0.5
