"""A whole backend without HTTP: services on a real table, with a clock that moves by hand."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from ojs import runtime
from ojs.clock import ManualClock
from ojs.domain.job import envelope
from ojs.domain.job.job import Job
from ojs.services.for_each import ForEach, one_by_one
from ojs.settings import Settings
from ojs.store.jobs.blobs import MemoryBlobs
from ojs.store.table import schema

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine
    from ojs.domain.realtime import Connections
    from ojs.services.deliveries.parts import DeliveryDependencies
    from ojs.services.webhooks.parts import WebhookDependencies

WORKER = "worker_019414d4-aaaa-7000-c000-111111111111"


@dataclass
class World:
    """A runtime and the things a test turns by hand."""

    client: DynamoDBClient
    table: str
    clock: ManualClock = field(default_factory=ManualClock)
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)
    # What waits for others, in seconds, waits so.
    sleep: Callable[[float], None] = lambda _: None

    # Where calls are counted, or fail by their number, they come in order.
    for_each: ForEach = one_by_one

    # What deliveries need, where jobs are pushed.
    pushing: DeliveryDependencies | None = None

    # What sends messages to connections, where there is realtime.
    connections: Connections | None = None

    # What webhooks need.
    hooks: WebhookDependencies | None = None

    run: runtime.Runtime = field(init=False)

    def __post_init__(self) -> None:
        self.run = self.another()

    def another(self, client: Any = None) -> runtime.Runtime:
        """One more container on the same table, with nothing in its memory."""
        return runtime.build(
            Settings(table=self.table, realtime="off" if self.connections is None else "wake"),
            client=client or self.client,
            blobs=self.blobs,
            clock=self.clock,
            measure=True,
            sleep=self.sleep,
            for_each=self.for_each,
            push=self.pushing,
            hooks=None if self.hooks is None else lambda: cast("Any", self.hooks),
            realtime=None if self.connections is None else lambda: cast("Any", self.connections),
        )

    def push(self, *args: Any, kind: str = "test.job", **options: Any) -> Job:
        """Enqueue one job with these options."""
        request = envelope.parse({"type": kind, "args": list(args), "options": options})
        return self.run.enqueue.push(request).job

    def fetch(self, queue: str = "default", count: int = 1, worker: str = WORKER) -> list[Job]:
        return self.run.fetch.fetch([queue], count, worker)

    def state(self, job: Job) -> str:
        return self.run.jobs.get(job.id).state.value

    def sweep(self) -> Mapping[str, int]:
        return self.run.sweep.run_once(self.clock.now_ms(), 10_000)

    def items(self) -> list[dict[str, Any]]:
        """Everything in the table, but for the mark that an undone batch leaves for a day."""
        found: list[dict[str, Any]] = []
        for page in self.client.get_paginator("scan").paginate(TableName=self.table):
            found += page["Items"]
        return [i for i in found if not (i["pk"]["S"].startswith("B|") and "ttl" in i)]


def make_world(client: DynamoDBClient, *, stream: bool = False) -> World:
    """A world on a fresh table."""
    table = f"ojs-{uuid.uuid4().hex[:12]}"
    client.create_table(**schema.create_table_arguments(table, stream=stream))
    return World(client, table)


@pytest.fixture(scope="session")
def ministack() -> Iterator[Engine]:
    """MiniStack beside the session's engine."""
    from local import engines

    started = engines.start("ministack")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def ministack_dynamodb(ministack: Engine) -> DynamoDBClient:
    """A client of MiniStack."""
    from local.dynamodb import connect

    return connect(ministack.url)


OTHERS = ("moto", "ministack")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the two other engines to `make test-all`, but for every fourth test one of them."""
    for item in items:
        params = getattr(item, "callspec", None)
        engine = params.params.get("world") if params else None
        if engine in OTHERS:
            test = item.nodeid.replace(engine, "").encode()
            if [*OTHERS, *[None] * 6][zlib.crc32(test) % 8] != engine:
                item.add_marker("whole")


# `make test` has dynoxide alone: it is the quickest, and closest to DynamoDB.
@pytest.fixture(
    params=[
        pytest.param("moto", marks=pytest.mark.exhaustive),
        "engine",
        pytest.param("ministack", marks=pytest.mark.exhaustive),
    ]
)
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A world on each engine in turn: the behaviour is the same on all."""
    names = {"moto": "moto", "engine": "dynamodb", "ministack": "ministack_dynamodb"}
    client: DynamoDBClient = request.getfixturevalue(names[request.param])
    made = make_world(client)
    yield made
    client.delete_table(TableName=made.table)


@pytest.fixture
def exact(dynoxide: Engine, dynamodb: DynamoDBClient) -> Iterator[World]:
    """A world on dynoxide, whose capacity numbers and atomicity are DynamoDB's."""
    made = make_world(dynamodb)
    yield made
    dynamodb.delete_table(TableName=made.table)


@contextmanager
def streamed_world(client: DynamoDBClient) -> Iterator[World]:
    """A world whose table has a stream."""
    made = make_world(client, stream=True)
    try:
        yield made
    finally:
        client.delete_table(TableName=made.table)


@pytest.fixture(scope="session")
def streaming(dynoxide: Engine) -> Iterator[Engine]:
    """A dynoxide of its own for tables with streams: it is quick with them only on disk."""
    from local import engines

    started = engines.start(dynoxide.name)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def streaming_dynamodb(streaming: Engine) -> Iterator[DynamoDBClient]:
    """A client of that."""
    from tests.direct import connected

    with connected(streaming.url) as client:
        yield client


@pytest.fixture
def streamed(
    streaming_dynamodb: DynamoDBClient,
) -> Callable[[], AbstractContextManager[World]]:
    """Worlds on dynoxide whose table has a stream: a new one each time it is entered."""
    return partial(streamed_world, streaming_dynamodb)


@pytest.fixture
def streamed_ministack(
    ministack_dynamodb: DynamoDBClient,
) -> Callable[[], AbstractContextManager[World]]:
    """The same on MiniStack, whose stream a deployed function reads."""
    return partial(streamed_world, ministack_dynamodb)
