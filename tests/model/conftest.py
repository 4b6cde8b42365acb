"""Worlds for the machine: as the tests of the store have them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine


@pytest.fixture(scope="session")
def streaming_dynamodb(dynoxide: Engine) -> Iterator[DynamoDBClient]:
    """A client of a dynoxide of its own for tables with streams: it is quick with them only on
    disk.
    """
    from local import engines
    from tests.direct import connected

    started = engines.start(dynoxide.name)
    with connected(started.url) as client:
        yield client
    started.stop()
