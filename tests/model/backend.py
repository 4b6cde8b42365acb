"""The backend that the machine speaks to: two containers on one table, by HTTP, and its stream.

The table is one of this process, as the simulation has it, or one of an engine.
"""

from __future__ import annotations

import json
import logging
import random
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol
from unittest import mock

from functions.sweep import metrics
from functions.sweep.handler import handler as minute
from local.gateway import BASE_PATH, Gateway, load_handlers
from local.http_server import Request
from ojs import projections, runtime
from ojs.clock import ManualClock
from ojs.services.bulk import runner as bulk
from ojs.services.for_each import one_by_one
from ojs.services.jobs import dead_letter_copies as copies
from ojs.services.jobs import enqueue
from ojs.settings import Settings
from ojs.store.jobs.blobs import MemoryBlobs
from ojs.store.table import schema, values
from ojs.store.table.table import Table
from tests.simulation.memory import Change, Memory
from tests.store.streams import OWN, SHARD, FakeMetrics, Record, Stream, made_record, repeated

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

STAGED = 4  # a batch of more jobs than this is staged
AT_ONCE = 2  # dead letters that a bulk operation deals with before it answers
JSON = {"content-type": "application/json"}
LOGGER = logging.getLogger("ojs")
CODES = {
    400: {"invalid_request"},
    404: {"not_found"},
    409: {"conflict", "duplicate", "queue_draining"},
    429: {"QUEUE_FULL"},
}
There = dict[tuple[str, str], values.Item]


class Storage(Protocol):
    """A table, and its stream."""

    name: str
    client: Any

    def items(self) -> There: ...

    def records(self) -> list[Record]:
        """What came since the last time, without what the projection itself wrote."""
        ...

    def close(self) -> None: ...


class InProcess:
    """A table of this process: quick, and with a stream."""

    name = "simulated"

    def __init__(self) -> None:
        self.client: Any = self
        self._memory = Memory()
        self._memory.watchers.append(self._watch)
        self._changes: list[Change] = []
        self._told = 0
        self._unpacked: dict[tuple[str, str], tuple[Any, values.Item]] = {}

    def __getattr__(self, operation: str) -> Any:
        act = getattr(self._memory, operation)
        return lambda **arguments: act(arguments)

    def _watch(self, changes: list[Change]) -> None:
        self._changes += [change for change in changes if change[0][0][:2] not in OWN]

    def items(self) -> There:
        # What did not change since the last time is the same object.
        known = self._unpacked
        self._unpacked = {
            key: known[key]
            if key in known and known[key][0] is item
            else (item, values.unpack(item))
            for key, item in self._memory.items.items()
        }
        return {key: item for key, (_, item) in self._unpacked.items()}

    def records(self) -> list[Record]:
        changes, self._changes = self._changes, []
        made = []
        for _, old, new in changes:
            self._told += 1
            before, after = (None if one is None else values.unpack(one) for one in (old, new))
            made.append(made_record(self._told, before, after))
        return made

    def close(self) -> None:
        """Nothing is left of it anyway."""


class OnEngine:
    """A table of an engine, with a stream."""

    def __init__(self, client: DynamoDBClient) -> None:
        self.name = f"ojs-{uuid.uuid4().hex[:12]}"
        self.client: Any = client
        client.create_table(**schema.create_table_arguments(self.name, stream=True))
        self._stream = Stream(client, self.name)

    def items(self) -> There:
        found: There = {}
        for page in self.client.get_paginator("scan").paginate(TableName=self.name):
            for item in map(values.unpack, page["Items"]):
                found[str(item["pk"]), str(item["sk"])] = item
        return found

    def records(self) -> list[Record]:
        return self._stream.take()

    def close(self) -> None:
        self.client.delete_table(TableName=self.name)


class Answer:
    """What a request was answered."""

    def __init__(self, status: int, body: Any) -> None:
        self.status, self.body = status, body

    @property
    def ok(self) -> bool:
        return self.status < 300

    def __getitem__(self, name: str) -> Any:
        return self.body[name]

    def __repr__(self) -> str:
        return f"{self.status} {self.body}"


class Backend:
    """Serves requests, each in one of two containers; runs the sweep and reads the stream."""

    def __init__(self, storage: Storage, *, streamed: bool) -> None:
        self.storage, self.streamed = storage, streamed
        self.clock = ManualClock()
        self.blobs = MemoryBlobs()
        self.chance = random.Random(0)
        # What a request that waits does, once it waits.
        self.meanwhile: list[Any] = []
        self.containers = [self._container() for _ in range(2)]
        self.run = self.containers[0]
        self._gateway = Gateway(load_handlers())
        # Batches and bulk operations are too large at once when they are small, too; what is
        # measured is written to nobody.
        self._patches: list[Any] = [
            mock.patch.object(enqueue, "MAX_TRANSACTION", STAGED),
            mock.patch.object(bulk, "REQUEST_JOBS", AT_ONCE),
            mock.patch.object(metrics, "_put"),
            mock.patch.object(metrics, "write_pools"),
        ]
        if streamed:
            # As if whoever let a job die died right after: its copy is left to the stream.
            follow = mock.patch.object(
                copies.DeadLetterCopies, "follow", self._follow(copies.DeadLetterCopies.follow)
            )
            self._patches.append(follow)
        for patch in self._patches:
            patch.start()
        # Nobody reads what hundreds of thousands of requests log.
        self._level = LOGGER.level
        LOGGER.setLevel(logging.CRITICAL)

    def _follow(self, follow: Any) -> Any:
        def perhaps(service: Any, record: Any) -> Any:
            return record if self.chance.random() < 0.5 else follow(service, record)

        return perhaps

    def _container(self) -> runtime.Runtime:
        made = runtime.build(
            Settings(table=self.storage.name),
            client=self.storage.client,
            blobs=self.blobs,
            clock=self.clock,
            sleep=lambda _: None,
            for_each=one_by_one,
        )
        made.enqueue._bounds._sleep = self._wait
        return made

    def _wait(self, seconds: float) -> None:
        self.clock.advance(max(1, round(seconds * 1_000)))
        for act in self.meanwhile:
            act()
        self.meanwhile.clear()

    def switch(self) -> None:
        """Go on with either container."""
        self.run = self.chance.choice(self.containers)
        runtime.use(self.run)

    def call(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """One request."""
        self.switch()
        told = b"" if body is None else json.dumps(body).encode()
        given = list({**(JSON if told else {}), **(headers or {})}.items())
        request = Request(method, BASE_PATH + path, given, told, "HTTP/1.1", "127.0.0.1")
        answer = self._gateway(request)
        found = Answer(answer.status, json.loads(answer.body) if answer.body else None)
        assert answer.status < 500, f"{method} {path}: {found}"
        if answer.status >= 400:
            error = found["error"]
            assert error["code"] in CODES.get(answer.status, ()), f"{method} {path}: {found}"
            assert error["message"]
            assert error["request_id"]
        return found

    def sweep(self) -> None:
        """What runs each minute."""
        self.switch()
        minute({"id": "an event"}, None)

    def read_stream(self) -> None:
        """The stream to its end, some of it twice, in any order and company."""
        while records := self.storage.records():
            self.switch()
            projector = projections.build(
                Settings(table=self.storage.name),
                Table(self.storage.client, self.storage.name, sleep=lambda _: None),
                self.clock,
                blobs=self.blobs,
                metrics=FakeMetrics(),
                copies=self.run.copies,
                sleep=lambda _: None,
            )
            for batch in repeated(records, self.chance):
                assert projector.run(batch, SHARD) == [], "a record could not be projected"

    def close(self) -> None:
        for patch in self._patches:
            patch.stop()
        LOGGER.setLevel(self._level)
        self.storage.close()
