"""The event source mapping's part: reads the table's stream, and hands it to the stream function.

As in the cloud every record is delivered at least once, in batches, filtered as the mapping
filters, in the form Lambda gives it. Nothing is kept of how far it got: the engine has what is yet
to be projected (`local.stream_records`), and what is delivered again is known by its dedup records
(`ojs.store.derived.projection`).
"""

from __future__ import annotations

import base64
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from local.lambda_context import LambdaContext
from local.scheduler import Rounds
from ojs.clock import Clock, SystemClock
from ojs.store.table.schema import STREAM_BATCH, TABLE

Record = dict[str, Any]
Handler = Callable[[dict[str, Any], Any], Any]

# Between two rounds that no request asked for: fuller batches are cheaper, and a request that
# shows what follows from a change asks for a round first.
INTERVAL_S = 0.5
_PAGE = 1_000
# A record that fails is tried again after 0.1 s, then after twice as long each time: 13 s in all.
TRIES = 8
_FIRST_PAUSE_MS = 100
# Records that are projected are removed when there are so many of them.
_TRIM_EVERY = 1_000


class TableStream:
    """A table's stream, from the oldest record there is. Not for several threads at once."""

    def __init__(self, client: Any, table: str) -> None:
        self._client = client
        self._table = table
        self._iterator: str | None = None
        self._arn = ""

    def rewind(self) -> None:
        """Begin at the oldest record again: of another table, if that has been made anew."""
        self._iterator = None

    def read(self) -> list[Record]:
        """The next records as Lambda has them; none when all are read.

        Raises BotoCoreError, ClientError; after that it begins at the oldest record again.
        """
        try:
            iterator = self._iterator or self._oldest()
            page = self._client.get_records(ShardIterator=iterator, Limit=_PAGE)
        except (BotoCoreError, ClientError):
            # An iterator that is too old, a table that was made anew: all of it again is harmless.
            self.rewind()
            raise
        self._iterator = page.get("NextShardIterator")
        return [lambda_record(record, self._arn) for record in page["Records"]]

    def _oldest(self) -> str:
        streams = self._client.list_streams(TableName=self._table)["Streams"]
        self._arn = max(streams, key=lambda stream: stream["StreamLabel"])["StreamArn"]
        described = self._client.describe_stream(StreamArn=self._arn)["StreamDescription"]
        (shard,) = described["Shards"]  # both engines keep a stream in one
        answer = self._client.get_shard_iterator(
            StreamArn=self._arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )
        return str(answer["ShardIterator"])


def lambda_record(record: Mapping[str, Any], stream_arn: str) -> Record:
    """A record of GetRecords in the form in which Lambda hands it to a function."""
    change = _lambda_value(record["dynamodb"])
    return {**record, "dynamodb": change, "eventSourceARN": stream_arn}


def _lambda_value(value: Any) -> Any:
    """The same as JSON has it: bytes in base64, times in seconds since the epoch."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, Mapping):
        return {name: _lambda_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_lambda_value(inner) for inner in value]
    return value


@dataclass(frozen=True)
class _Waiting:
    """A record that failed so often, and when it may be tried again (ms since the epoch)."""

    record: Record
    tries: int
    not_before_ms: int


class Pump:
    """Delivers the stream to its function."""

    def __init__(
        self,
        stream: TableStream,
        handler: Handler,
        *,
        trim: Callable[[int], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`trim` is called now and then with the number of the first record that is still needed.

        `clock` must be the engine's.
        """
        self._stream = stream
        self._handler = handler
        self._trim = trim
        self._clock = clock or SystemClock()
        # Records handed over so far: shows whether anything has changed.
        self.delivered = 0
        self._waiting: dict[str, _Waiting] = {}
        self._since_trim = 0
        self._unreadable = False
        self._rounds = Rounds(self._deliver_all)
        # Held while records are delivered; holding it keeps that from happening.
        self.pause = self._rounds.pause

    def drain(self) -> None:
        """Return when everything written before this call has been delivered.

        A record that fails is left to later rounds. Raises BotoCoreError or ClientError when the
        engine cannot be read.
        """
        self._rounds.run()

    def restart(self) -> None:
        """Begin with a table made anew; call it with `pause` held."""
        self._stream.rewind()
        self._waiting.clear()
        self._since_trim = 0

    def try_to_drain(self) -> None:
        """Drain; an engine that cannot be read is reported once, not each time."""
        try:
            self.drain()
            self._unreadable = False
        except (BotoCoreError, ClientError) as error:
            if not self._unreadable:
                print(f"the stream cannot be read: {error}; trying again", file=sys.stderr)
            self._unreadable = True

    def _deliver_all(self) -> None:
        began_s = self._clock.now_ms() // 1_000
        self._deliver_again()
        while records := self._stream.read():
            wanted = [record for record in records if _is_projected(record)]
            for at in range(0, len(wanted), STREAM_BATCH):
                for record in self._failed(wanted[at : at + STREAM_BATCH]):
                    self._wait(record, tries=1)
            self._since_trim += len(records)
            if self._trim is not None and self._since_trim >= _TRIM_EVERY:
                self._since_trim = 0
                self._trim(min(int(number) for number in (_number(records[-1]), *self._waiting)))
            # Whatever was written before this round is delivered; under load there is always more.
            if records[-1]["dynamodb"]["ApproximateCreationDateTime"] > began_s:
                return

    def _deliver_again(self) -> None:
        now_ms = self._clock.now_ms()
        due = [waiting for waiting in self._waiting.values() if waiting.not_before_ms <= now_ms]
        if not due:
            return
        failed = {_number(record) for record in self._failed([waiting.record for waiting in due])}
        for waiting in due:
            number = _number(waiting.record)
            del self._waiting[number]
            if number not in failed:
                continue
            if waiting.tries + 1 < TRIES:
                self._wait(waiting.record, tries=waiting.tries + 1)
            else:
                # Where the mapping would send it to the failure queue.
                print(
                    f"stream record {number} ({waiting.record['eventName']} of "
                    f"{waiting.record['dynamodb']['Keys']}) cannot be projected: left out",
                    file=sys.stderr,
                )

    def _wait(self, record: Record, *, tries: int) -> None:
        not_before_ms = self._clock.now_ms() + _FIRST_PAUSE_MS * 2 ** (tries - 1)
        self._waiting[_number(record)] = _Waiting(record, tries, not_before_ms)

    def _failed(self, batch: Sequence[Record]) -> list[Record]:
        """Call the function; returns the records it did not get done."""
        self.delivered += len(batch)
        try:
            context = LambdaContext("stream", timeout_s=60.0)
            answer = self._handler({"Records": list(batch)}, context)
        except Exception:  # noqa: BLE001 - Lambda itself catches everything a handler raises
            if len(batch) == 1:
                traceback.print_exc(file=sys.stderr)
                return list(batch)
            # As the mapping does, to find the one it fails for.
            middle = len(batch) // 2
            return [*self._failed(batch[:middle]), *self._failed(batch[middle:])]
        numbers = {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}
        return [record for record in batch if _number(record) in numbers]


def _is_projected(record: Record) -> bool:
    key = record["dynamodb"]["Keys"]
    return TABLE.projects(key[TABLE.hash_key]["S"], key[TABLE.range_key]["S"])


def _number(record: Record) -> str:
    return str(record["dynamodb"]["SequenceNumber"])
