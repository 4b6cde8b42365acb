"""`python -m ojs_aws worker module:worker`: a worker by its name, its health, and new code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ojs_aws import Worker
from ojs_aws.__main__ import main, serve_health
from ojs_aws.testing.server import OjsServer
from tests.architecture.modules import ROOT
from tests.library.stub import StubServer, made, until, working


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    name = f"runner_{os.getpid()}"
    (tmp_path / f"{name}.py").write_text(
        "from ojs_aws import Worker\nworker = Worker(queues=['q'])"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield name
    sys.modules.pop(name, None)


def test_options_change_the_settings(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(Worker, "run", lambda worker: ran.append(worker.settings))
    named = f"{module}:worker"
    assert main(["worker", named]) == 0
    options = ["--queue", "a", "--queue", "b", "--concurrency", "3", "--processes"]
    assert main(["worker", named, *options]) == 0
    assert (ran[0].queues, ran[0].concurrency, ran[0].processes) == (["q"], 10, False)
    assert (ran[1].queues, ran[1].concurrency, ran[1].processes) == (["a", "b"], 3, True)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("{}", "must be module:worker"),
        ("{}:", "must be module:worker"),
        ("{}:Worker", "must be a Worker, but is <class"),
        ("{}:other", "has no 'other'. Its workers are: worker"),
        ("{}:worker --concurrency=0", "concurrency must be 1 to 1000"),
    ],
)
def test_misuse_is_named(
    module: str, given: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["worker", *given.format(module).split()])
    assert problem in capsys.readouterr().err


def test_a_missing_url_is_one_sentence(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OJS_URL", raising=False)
    with pytest.raises(SystemExit):
        main(["worker", f"{module}:worker"])
    assert "error: a worker requires at least one handler or job" in capsys.readouterr().err
    sys.modules[module].worker.handler("t")(print)
    with pytest.raises(SystemExit):
        main(["worker", f"{module}:worker"])
    assert "error: Set OJS_URL to the URL of the server" in capsys.readouterr().err


def test_an_unknown_resource_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lacking.py").write_text(
        "from ojs_aws import Worker, injected\n"
        "worker = Worker('http://127.0.0.1:9', queues=['q'])\n"
        "@worker.job('t')\n"
        "def task(*, smtp: str = injected()) -> None: ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit):
        main(["worker", "lacking:worker"])
    *_, last = capsys.readouterr().err.splitlines()
    assert last == (
        "python -m ojs_aws: error: lacking.task needs the resource 'smtp', but the worker has none."
        " Add it with @worker.provide or @worker.lifespan"
    )


def test_health_is_that_the_server_was_reached() -> None:
    stub = StubServer()
    worker = made(stub, realtime=False)

    @worker.handler("t")
    def task(_job: object) -> None: ...

    server = serve_health(worker, 0)
    url = f"http://localhost:{server.server_address[1]}/"

    def refuse(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("away")

    def health() -> int:
        try:
            with urllib.request.urlopen(url) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    try:
        assert health() == 503  # it doesn't run
        with working(worker, stub):
            until(lambda: health() == 200)
            stub.always = lambda _path: refuse
            session: Any = worker._session

            def unhealthy() -> bool:
                session._reached = time.monotonic() - 61
                return not worker.healthy

            until(unhealthy)
            assert health() == 503
            stub.always = lambda _path: None
            until(lambda: worker.healthy)
        assert health() == 503
    finally:
        server.shutdown()
        server.server_close()


CODE = """
from ojs_aws import Worker

worker = Worker(queues=["q"], poll_s=0.2, grace_s=1, realtime=False)

@worker.job("version", queue="q")
def version() -> int:
    return {}
"""


@contextmanager
def started(folder: Path, url: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = os.environ | {"OJS_URL": url, "PYTHONPATH": str(ROOT / "package")}
    command = [sys.executable, "-m", "ojs_aws", "worker", "shop:worker", *options]
    process = subprocess.Popen(command, cwd=folder, env=environment)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.e2e
@pytest.mark.parametrize("options", [("--reload",), ("--processes",)])
def test_a_worker_runs_by_its_name(
    tmp_path: Path, ojs_server: OjsServer, options: tuple[str, ...]
) -> None:
    (tmp_path / "shop.py").write_text(textwrap.dedent(CODE).format(1))
    client = ojs_server.client
    with started(tmp_path, ojs_server.url, *options):
        job = client.enqueue("version", queue="q")
        assert client.wait_for(job.id, 30).result == 1
        if "--reload" in options:
            (tmp_path / "shop.py").write_text(textwrap.dedent(CODE).format(22))

            def answer() -> Any:
                return client.wait_for(client.enqueue("version", queue="q").id, 30).result

            until(lambda: answer() == 22)
