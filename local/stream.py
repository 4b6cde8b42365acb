"""Reads the table's stream and calls the stream consumer, like an event source mapping.

As on AWS, every record is delivered at least once, in order, in filtered batches, and in the format
of a tumbling window. The position is not stored: the engine keeps unprocessed records
(`local.stream_records`), and the positions of the shard identify redelivered ones
(`ojs.store.derived.shards`).
"""

from __future__ import annotations

import base64
import sys
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from local.lambda_context import LambdaContext
from local.scheduler import Rounds
from ojs.clock import Clock, SystemClock
from ojs.store.table.schema import STREAM_BATCH, TABLE

Record = dict[str, Any]
Handler = Callable[[dict[str, Any], Any], Any]

# Pause between two rounds without a request. Larger batches cost less, and a request that shows
# derived data starts a round first.
INTERVAL_S = 0.5
# The same while clients might wait for events.
EVENTS_INTERVAL_S = 0.1
_PAGE = 1_000
# A failed record is retried after 0.1 s, then with doubled pauses: 13 s in total.
TRIES = 8
_FIRST_PAUSE_MS = 100
# Number of processed records after which they are deleted.
_TRIM_EVERY = 1_000
_TUMBLING_WINDOW_S = 900


class TableStream:
    """A table's stream from the oldest record on. Not thread-safe."""

    def __init__(self, client: Any, table: str) -> None:
        self._client = client
        self._table = table
        self._iterator: str | None = None
        self.arn = ""
        # Name of this stream's shard. A new table has a shard with the same ID, which starts over.
        self.shard = ""

    def rewind(self) -> None:
        """Start at the oldest record again, for example after the table was recreated."""
        self._iterator = None

    def read(self) -> list[Record]:
        """Return the next records in Lambda's format. Empty after the last one.

        Raises BotoCoreError, ClientError. The next call then starts at the oldest record.
        """
        try:
            iterator = self._iterator or self._oldest()
            page = self._client.get_records(ShardIterator=iterator, Limit=_PAGE)
        except (BotoCoreError, ClientError):
            # An expired iterator, or a recreated table. Reading all records again is harmless.
            self.rewind()
            raise
        self._iterator = page.get("NextShardIterator")
        return [lambda_record(record, self.arn) for record in page["Records"]]

    def _oldest(self) -> str:
        streams = self._client.list_streams(TableName=self._table)["Streams"]
        self.arn = max(streams, key=lambda stream: stream["StreamLabel"])["StreamArn"]
        described = self._client.describe_stream(StreamArn=self.arn)["StreamDescription"]
        (shard,) = described["Shards"]  # both engines have one shard
        self.shard = f"shardId-{zlib.crc32(self.arn.encode()):08x}-{shard['ShardId']}"
        answer = self._client.get_shard_iterator(
            StreamArn=self.arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )
        return str(answer["ShardIterator"])


def lambda_record(record: Mapping[str, Any], stream_arn: str) -> Record:
    """Convert a record of GetRecords to Lambda's format."""
    change = _lambda_value(record["dynamodb"])
    return {**record, "dynamodb": change, "eventSourceARN": stream_arn}


def _lambda_value(value: Any) -> Any:
    """Convert a value to JSON: bytes to base64, times to seconds since the epoch."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime):
        return int(value.timestamp())
    if isinstance(value, Mapping):
        return {name: _lambda_value(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_lambda_value(inner) for inner in value]
    return value


class Pump:
    """Delivers the stream to its consumer."""

    def __init__(
        self,
        stream: TableStream,
        handler: Handler,
        *,
        notify: Handler = lambda _event, _context: None,
        trim: Callable[[int], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Create the pump.

        `notify` is the function that sends events to subscribers. `trim` is called regularly with
        the number of the oldest record that is still needed. `clock` must be the engine's clock.
        """
        self._notify = notify
        self._stream = stream
        self._handler = handler
        self._trim = trim
        self._clock = clock or SystemClock()
        # Number of delivered records. If it is unchanged, nothing has changed.
        self.delivered = 0
        # Records that are read and not processed. The first one may have failed: number of
        # attempts, and time of the next attempt (ms since the epoch).
        self._pending: list[Record] = []
        self._tries = 0
        self._not_before_ms = 0
        self._state: Mapping[str, Any] = {}
        self._since_trim = 0
        self._unreadable = False
        self._rounds = Rounds(self._deliver_all)
        # Locked while records are delivered. Lock it to stop deliveries.
        self.pause = self._rounds.pause

    def drain(self) -> None:
        """Deliver everything that was written before this call.

        Later rounds deliver a failed record and the records after it.

        Raises BotoCoreError or ClientError if the engine can't be read.
        """
        self._rounds.run()

    def restart(self) -> None:
        """Start over with a recreated table. Requires `pause`."""
        self._stream.rewind()
        self._pending.clear()
        self._tries = self._not_before_ms = self._since_trim = 0

    def try_to_drain(self) -> None:
        """Drain. Reports an unreadable engine once, not each time."""
        try:
            self.drain()
            self._unreadable = False
        except (BotoCoreError, ClientError) as error:
            if not self._unreadable:
                print(f"Reading the stream failed: {error}. Retrying", file=sys.stderr)
            self._unreadable = True

    def _deliver_all(self) -> None:
        if not self._deliver_pending():
            return
        # A page that is not full ends with the last record, because both engines return full pages.
        # The next round reads records that are written in the meantime.
        while records := self._stream.read():
            self._send_events(records)
            self._pending += filter(_is_projected, records)
            self._since_trim += len(records)
            last = _number(records[-1])
            if len(records) < _PAGE:
                break
        self._deliver_pending()
        while self._trim is not None and self._since_trim >= _TRIM_EVERY:
            self._since_trim -= _TRIM_EVERY
            self._trim(min(int(one) for one in (last, *map(_number, self._pending[:1]))))

    def _send_events(self, records: Sequence[Record]) -> None:
        """Send events to subscribers, without a retry: they are hints."""
        sent = [record for record in records if TABLE.is_live(*_key(record))]
        for at in range(0, len(sent), STREAM_BATCH):
            try:
                self._notify({"Records": sent[at : at + STREAM_BATCH]}, LambdaContext("notify"))
            except Exception:  # noqa: BLE001 - Lambda catches all exceptions of a handler
                traceback.print_exc(file=sys.stderr)

    def _deliver_pending(self) -> bool:
        """Deliver the read records. Returns False if a record fails, and the others must wait."""
        while self._pending:
            if self._clock.now_ms() < self._not_before_ms:
                return False
            done, failed = self._deliver(self._pending[:STREAM_BATCH])
            self._tries = self._tries + 1 if done == 0 else 1
            del self._pending[:done]
            if not failed:
                self._tries = self._not_before_ms = 0
            elif self._tries < TRIES:
                pause_ms = _FIRST_PAUSE_MS * 2 ** (self._tries - 1)
                self._not_before_ms = self._clock.now_ms() + pause_ms
            else:
                self._give_up(self._pending.pop(0))
        return True

    def _give_up(self, record: Record) -> None:
        """Skip a record. On AWS the function moves it to the failure queue after some hours."""
        self._tries = self._not_before_ms = 0
        print(
            f"Stream record skipped: {_number(record)} ({record['eventName']} of "
            f"{record['dynamodb']['Keys']}) failed all attempts",
            file=sys.stderr,
        )

    def _deliver(self, batch: Sequence[Record]) -> tuple[int, bool]:
        """Call the function. Returns the number of processed records, and whether the next
        failed.
        """
        self.delivered += len(batch)
        event = {
            "Records": list(batch),
            "window": self._window(),
            "state": self._state,
            "shardId": self._stream.shard,
            "eventSourceARN": self._stream.arn,
            "isFinalInvokeForWindow": False,
            "isWindowTerminatedEarly": False,
        }
        try:
            answer = self._handler(event, LambdaContext("stream", timeout_s=60.0))
            self._state = answer["state"]
        except Exception:  # noqa: BLE001 - Lambda catches all exceptions of a handler
            if len(batch) == 1:
                traceback.print_exc(file=sys.stderr)
                return 0, True
            # Send single records, to find the one that fails.
            return self._deliver(batch[:1])
        numbers = {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}
        failed = (at for at, record in enumerate(batch) if _number(record) in numbers)
        done = next(failed, len(batch))
        return done, done < len(batch)

    def _window(self) -> dict[str, str]:
        """Return the current tumbling window."""
        start_s = self._clock.now_ms() // 1_000 // _TUMBLING_WINDOW_S * _TUMBLING_WINDOW_S
        ends = {"start": start_s, "end": start_s + _TUMBLING_WINDOW_S}
        return {
            name: datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            for name, at_s in ends.items()
        }


def _is_projected(record: Record) -> bool:
    return TABLE.projects(*_key(record))


def _key(record: Record) -> tuple[str, str]:
    key = record["dynamodb"]["Keys"]
    return key[TABLE.hash_key]["S"], key[TABLE.range_key]["S"]


def _number(record: Record) -> str:
    return str(record["dynamodb"]["SequenceNumber"])
