"""An API over an empty table for each test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from ojs import runtime
from ojs.clock import ManualClock
from ojs.runtime import Runtime
from ojs.settings import Settings
from ojs.store.table import schema
from tests.unit.functions.client import Api, MemoryBlobs
from tests.unit.functions.hooked import Hooks, hooked

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


@pytest.fixture
def make_runtime(dynamodb: DynamoDBClient, clock: ManualClock) -> Iterator[Callable[..., Runtime]]:
    """Builds runtimes, each on an empty table of its own. Keywords are further settings."""
    names: list[str] = []

    def make(**more: Any) -> Runtime:
        name = f"ojs-unit-{uuid.uuid4().hex[:12]}"
        names.append(name)
        dynamodb.create_table(**schema.create_table_arguments(name))
        settings = Settings(table=name, bucket="payloads", version="1.2.3", **more)
        return runtime.build(
            settings, client=dynamodb, blobs=MemoryBlobs(), clock=clock, sleep=lambda _: None
        )

    yield make
    for name in names:
        dynamodb.delete_table(TableName=name)


@pytest.fixture
def api(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Api:
    """The API over an empty table."""
    built = make_runtime()
    runtime.use(built)
    return Api(built, clock)


@pytest.fixture
def hooks(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Hooks:
    built, endpoint, queue = hooked(make_runtime, clock)
    return Api(built, clock), endpoint, queue
