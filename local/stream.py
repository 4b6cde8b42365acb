"""The event source mapping's part: reads the table's stream, and hands it to the stream function.

As in the cloud every record is delivered at least once, in order, in batches, filtered as the
mapping filters, in the form Lambda gives it with a tumbling window. Nothing is kept of how far it
got: the engine has what is yet to be projected (`local.stream_records`), and what is delivered
again is known by the positions of its shard (`ojs.store.derived.shards`).
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

# Between two rounds that no request asked for: fuller batches are cheaper, and a request that
# shows what follows from a change asks for a round first.
INTERVAL_S = 0.5
_PAGE = 1_000
# A record that fails is tried again after 0.1 s, then after twice as long each time: 13 s in all.
TRIES = 8
_FIRST_PAUSE_MS = 100
# Records that are projected are removed when there are so many of them.
_TRIM_EVERY = 1_000
_TUMBLING_WINDOW_S = 900


class TableStream:
    """A table's stream, from the oldest record there is. Not for several threads at once."""

    def __init__(self, client: Any, table: str) -> None:
        self._client = client
        self._table = table
        self._iterator: str | None = None
        self.arn = ""
        # Names the shard of this stream: of another table it has the same id, and begins anew.
        self.shard = ""

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
        return [lambda_record(record, self.arn) for record in page["Records"]]

    def _oldest(self) -> str:
        streams = self._client.list_streams(TableName=self._table)["Streams"]
        self.arn = max(streams, key=lambda stream: stream["StreamLabel"])["StreamArn"]
        described = self._client.describe_stream(StreamArn=self.arn)["StreamDescription"]
        (shard,) = described["Shards"]  # both engines keep a stream in one
        self.shard = f"shardId-{zlib.crc32(self.arn.encode()):08x}-{shard['ShardId']}"
        answer = self._client.get_shard_iterator(
            StreamArn=self.arn, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
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
        # Records that are read and not projected yet. The first of them may have failed: how often,
        # and when it may be tried again (ms since the epoch).
        self._pending: list[Record] = []
        self._tries = 0
        self._not_before_ms = 0
        self._state: Mapping[str, Any] = {}
        self._since_trim = 0
        self._unreadable = False
        self._rounds = Rounds(self._deliver_all)
        # Held while records are delivered; holding it keeps that from happening.
        self.pause = self._rounds.pause

    def drain(self) -> None:
        """Return when everything written before this call has been delivered.

        A record that fails, and what follows it, is left to later rounds.

        Raises BotoCoreError or ClientError when the
        engine cannot be read.
        """
        self._rounds.run()

    def restart(self) -> None:
        """Begin with a table made anew; call it with `pause` held."""
        self._stream.rewind()
        self._pending.clear()
        self._tries = self._not_before_ms = self._since_trim = 0

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
        if not self._deliver_pending():
            return
        # A page that is not full ends with the last record that existed; both engines return full
        # pages. A record that is written meanwhile is left to the next round.
        while records := self._stream.read():
            self._pending += filter(_is_projected, records)
            self._since_trim += len(records)
            last = _number(records[-1])
            if len(records) < _PAGE:
                break
        self._deliver_pending()
        while self._trim is not None and self._since_trim >= _TRIM_EVERY:
            self._since_trim -= _TRIM_EVERY
            self._trim(min(int(one) for one in (last, *map(_number, self._pending[:1]))))

    def _deliver_pending(self) -> bool:
        """Deliver what was read; False when a record fails, and the rest has to wait."""
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
        """Leave a record out, where the function would put it aside after some hours."""
        self._tries = self._not_before_ms = 0
        print(
            f"stream record {_number(record)} ({record['eventName']} of "
            f"{record['dynamodb']['Keys']}) cannot be projected: left out",
            file=sys.stderr,
        )

    def _deliver(self, batch: Sequence[Record]) -> tuple[int, bool]:
        """Call the function; how many records it got done, and whether the next one failed."""
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
        except Exception:  # noqa: BLE001 - Lambda itself catches everything a handler raises
            if len(batch) == 1:
                traceback.print_exc(file=sys.stderr)
                return 0, True
            # To find the one it fails for.
            return self._deliver(batch[:1])
        numbers = {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}
        failed = (at for at, record in enumerate(batch) if _number(record) in numbers)
        done = next(failed, len(batch))
        return done, done < len(batch)

    def _window(self) -> dict[str, str]:
        """The tumbling window that it is now."""
        start_s = self._clock.now_ms() // 1_000 // _TUMBLING_WINDOW_S * _TUMBLING_WINDOW_S
        ends = {"start": start_s, "end": start_s + _TUMBLING_WINDOW_S}
        return {
            name: datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            for name, at_s in ends.items()
        }


def _is_projected(record: Record) -> bool:
    key = record["dynamodb"]["Keys"]
    return TABLE.projects(key[TABLE.hash_key]["S"], key[TABLE.range_key]["S"])


def _number(record: Record) -> str:
    return str(record["dynamodb"]["SequenceNumber"])
