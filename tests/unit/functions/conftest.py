"""An API over an empty moto table for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from ojs import runtime
from ojs.clock import ManualClock
from ojs.runtime import Runtime
from ojs.settings import Settings
from ojs.store import schema
from tests.unit.functions.client import Api, MemoryBlobs


@pytest.fixture(scope="session")
def _moto() -> Iterator[Any]:
    with mock_aws():
        yield boto3.client("dynamodb", region_name="us-east-1")


@pytest.fixture
def make_runtime(_moto: Any, clock: ManualClock) -> Iterator[Callable[..., Runtime]]:
    """Builds runtimes, each on an empty table of its own. Keywords are further settings."""
    names: list[str] = []

    def make(**more: Any) -> Runtime:
        name = f"ojs-unit-{len(names)}"
        names.append(name)
        _moto.create_table(**schema.create_table_arguments(name))
        settings = Settings(table=name, bucket="payloads", version="1.2.3", **more)
        return runtime.build(
            settings, client=_moto, blobs=MemoryBlobs(), clock=clock, sleep=lambda _: None
        )

    yield make
    for name in names:
        _moto.delete_table(TableName=name)


@pytest.fixture
def api(make_runtime: Callable[..., Runtime], clock: ManualClock) -> Api:
    """The API over an empty table."""
    built = make_runtime()
    runtime.use(built)
    return Api(built, clock)
