"""Fixtures for pytest: `ojs_server`, and `ojs_server_with_keys`, which requires access keys.

The server starts once per session, when the first test uses it. It is empty when a test starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ojs_aws.testing.server import OjsServer, ServerNotFound, ServerProcess, find_server


@pytest.fixture(scope="session")
def ojs_server_path(pytestconfig: pytest.Config) -> Path:
    """Folder of the server: `OJS_SERVER_PATH`, or the repository of the tests.

    To use another folder, define a fixture with this name.
    """
    try:
        return find_server(pytestconfig.rootpath)
    except ServerNotFound as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def ojs_server_processes(
    ojs_server_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[bool], ServerProcess]]:
    """Return a function that starts each kind of server once."""
    running: dict[bool, ServerProcess] = {}

    def process(keys: bool) -> ServerProcess:
        if keys not in running:
            folder = tmp_path_factory.mktemp("ojs")
            running[keys] = ServerProcess(Path(ojs_server_path), folder, keys=keys)
        return running[keys]

    yield process
    for each in running.values():
        each.stop()


@pytest.fixture
def ojs_server(ojs_server_processes: Callable[[bool], ServerProcess]) -> Iterator[OjsServer]:
    """An empty server without authentication."""
    yield from _emptied(ojs_server_processes(False))


@pytest.fixture
def ojs_server_with_keys(
    ojs_server_processes: Callable[[bool], ServerProcess],
) -> Iterator[OjsServer]:
    """An empty server that requires access keys. `key` is its bootstrap key with all scopes."""
    yield from _emptied(ojs_server_processes(True))


def _emptied(process: ServerProcess) -> Iterator[OjsServer]:
    server = OjsServer(process)
    server.reset()
    with server.bound():
        yield server
    server.close()
