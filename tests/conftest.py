"""Fixtures for every test: an engine of this machine, fresh tables on it, a clock by hand."""

from __future__ import annotations

import gc
import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from hypothesis import settings as hypothesis_settings
from xdist.scheduler import LoadFileScheduling

from ojs.clock import ManualClock
from ojs.store.table import clients, schema
from tests import request_rules

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine

# No test may reach an AWS account, or trip over the machine's configuration of one.
for _name in [name for name in os.environ if name.startswith(("AWS_", "OJS_"))]:
    del os.environ[_name]
os.environ.update(
    AWS_ACCESS_KEY_ID="testing",
    AWS_SECRET_ACCESS_KEY="testing",
    AWS_DEFAULT_REGION="us-east-1",
    AWS_CONFIG_FILE=os.devnull,
    AWS_SHARED_CREDENTIALS_FILE=os.devnull,
    AWS_EC2_METADATA_DISABLED="true",
    NO_PROXY="127.0.0.1,localhost,::1",
    POWERTOOLS_SERVICE_NAME="ojs",
)

request_rules.install()

# Timing depends on the machine, and a slow one is no failure; a failing example must come again.
hypothesis_settings.register_profile("all", deadline=None, derandomize=True, database=None)
_ALL = hypothesis_settings.get_profile("all")
hypothesis_settings.register_profile("many", _ALL, max_examples=40)
hypothesis_settings.register_profile("few", _ALL, max_examples=20)


def pytest_configure(config: pytest.Config) -> None:
    """`make test` tries a few examples of each property, `make test-exhaustive` many, and
    `make test-all`, which has no `-m`, tries all.
    """
    expression = config.getoption("markexpr")
    fewer = "few" if "not exhaustive" in expression else "many"
    hypothesis_settings.load_profile(fewer if "exhaustive" in expression else "all")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What CI has no time for, `make test` has none for either."""
    for item in items:
        if item.get_closest_marker("whole"):
            item.add_marker("exhaustive")


def pytest_collection(session: pytest.Session) -> None:
    """Collecting makes some hundred thousand objects that stay: looking for garbage among them
    takes a quarter of its time, and later some of the time of each test.
    """
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """From here on what is there is looked at no more, and the rest seldom."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()


class _ByFile(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each file of tests to one process, and all files of some folders to the same.

    The CDK takes ten seconds to load and to make its first template; the next take one or two. To
    parse all modules takes two seconds.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        together = ("tests/infra", "tests/architecture")
        return next((folder for folder in together if file.startswith(f"{folder}/")), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """How xdist deals the tests out."""
    return _ByFile(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(autouse=True)
def _requests_are_valid() -> Iterator[None]:
    """No test makes a request that DynamoDB rejects, even if the code under test catches that."""
    request_rules.rejected.clear()
    yield
    assert not request_rules.rejected


@pytest.fixture(scope="session")
def engine() -> Iterator[Engine]:
    """One engine for the session that keeps nothing: dynoxide, or MiniStack without it."""
    from local import engines

    # In memory: writing each of some hundred thousand items to a disk takes minutes.
    started = engines.start(streams=False)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def dynoxide(engine: Engine) -> Engine:
    """The engine, for tests whose numbers or races are only exact on dynoxide."""
    if engine.name != "dynoxide":
        if os.environ.get("CI"):
            pytest.fail(f"CI must have dynoxide: {engine.reason}")
        pytest.skip(f"needs dynoxide: {engine.reason}")
    return engine


@pytest.fixture(scope="session")
def engine_url(engine: Engine) -> str:
    """The engine's DynamoDB endpoint."""
    return engine.url


@pytest.fixture(scope="session")
def dynamodb(engine_url: str) -> Iterator[DynamoDBClient]:
    """A client of the engine."""
    from tests.direct import connected

    with connected(engine_url) as client:
        yield client


@pytest.fixture(scope="session")
def moto() -> Iterator[DynamoDBClient]:
    """A client of moto, which is started once: that takes as long as some hundred calls."""
    from moto import mock_aws

    with mock_aws():
        clients._session.cache_clear()  # it may be older than moto, which would not hear of it
        yield boto3.client("dynamodb", region_name="us-east-1")


@pytest.fixture
def fresh_table(dynamodb: DynamoDBClient) -> Iterator[str]:
    """The name of an empty table with the project's schema."""
    name = f"ojs-{uuid.uuid4().hex[:12]}"
    dynamodb.create_table(**schema.create_table_arguments(name))
    yield name
    dynamodb.delete_table(TableName=name)


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves only when told."""
    return ManualClock()
