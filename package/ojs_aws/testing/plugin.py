"""Fixtures for pytest: `ojs_server`, and `ojs_server_with_keys`, which lets nobody in without one.

The server is started once for a session, with the first test that asks for it, and is empty at the
beginning of each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ojs_aws.testing.server import OjsServer, ServerNotFound, ServerProcess, find_server


@pytest.fixture(scope="session")
def ojs_server_path(pytestconfig: pytest.Config) -> Path:
    """Where the server is: OJS_SERVER_PATH, or the repository that the tests are in. Write a
    fixture of this name to say it yourself.
    """
    try:
        return find_server(pytestconfig.rootpath)
    except ServerNotFound as error:
        pytest.fail(str(error), pytrace=False)


@pytest.fixture(scope="session")
def ojs_server_processes(
    ojs_server_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[bool], ServerProcess]]:
    """Starts each sort of server once."""
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
    """An empty server that asks for no keys."""
    yield from _emptied(ojs_server_processes(False))


@pytest.fixture
def ojs_server_with_keys(
    ojs_server_processes: Callable[[bool], ServerProcess],
) -> Iterator[OjsServer]:
    """An empty server that asks for keys; `key` is its first one, which may do everything."""
    yield from _emptied(ojs_server_processes(True))


def _emptied(process: ServerProcess) -> Iterator[OjsServer]:
    server = OjsServer(process)
    server.reset()
    yield server
    server.close()
