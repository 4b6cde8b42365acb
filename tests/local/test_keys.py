"""The local server with keys, and the command line that makes them, as an operator uses both."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.target import Exit
from tests.local.conftest import ROOT, RunningServer
from tests.spread import spread

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that every machine may reach, with keys."""
    folder = tmp_path_factory.mktemp("keys")
    server = RunningServer(folder / "data", folder / "printed", "--keys", "--host", "0.0.0.0")
    yield server
    server.end()


def ask(server: RunningServer, key: str | None, method: str, path: str, body: Any = None) -> int:
    connection = http.client.HTTPConnection(f"127.0.0.1:{server.port}", timeout=120)
    headers = {"Content-Type": "application/json"}
    if key is not None:
        headers["Authorization"] = f"Bearer {key}"
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def ojs_aws(
    server: RunningServer, *arguments: str, key: str | None = None
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OJS_URL": f"http://127.0.0.1:{server.port}"}
    if key is not None:
        environment["OJS_KEY"] = key
    return subprocess.run(
        [str(ROOT / "ojs-aws"), *arguments],
        cwd=server.data.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def first_key(server: RunningServer) -> str:
    return (server.data / "first-key").read_text().strip()


JOB = {"type": "hello", "args": ["world"]}


def test_nobody_gets_in_without_a_key(closed: RunningServer) -> None:
    for key in (None, "ojs_0", f"{first_key(closed)}0"):
        assert ask(closed, key, "POST", "/ojs/v1/jobs", JOB) == 401
        assert ask(closed, key, "GET", "/ojs/v1/health") == 401
        assert ask(closed, key, "POST", "/ojs/v1/admin/reset") == 401
    assert ask(closed, first_key(closed), "POST", "/ojs/v1/jobs", JOB) == 201


def test_the_first_key_is_its_owner_s(closed: RunningServer) -> None:
    file = closed.data / "first-key"
    assert file.stat().st_mode & 0o777 == 0o600
    # Nor do other users of the machine read jobs.
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert str(file) in closed.printed
    assert first_key(closed) not in closed.printed


def test_keys_are_made_listed_and_revoked(closed: RunningServer) -> None:
    root = first_key(closed)
    made = ojs_aws(
        closed, "keys", "create", "mailer", "--scope", "jobs:write", "--queue", "mail",
        "--expires", "+PT1H", key=root,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    secret = made.stdout.strip()
    job = {**JOB, "options": {"queue": "mail"}}
    assert ask(closed, secret, "POST", "/ojs/v1/jobs", job) == 201
    assert ask(closed, secret, "POST", "/ojs/v1/jobs", JOB) == 403
    listed = ojs_aws(closed, "keys", "list", "--json", key=root)
    keys = {key["name"]: key for key in map(json.loads, listed.stdout.splitlines())}
    assert keys["mailer"]["state"] == "active"
    assert keys["mailer"]["queues"] == ["mail"]
    assert "last_used_at" in keys["mailer"]
    assert secret not in listed.stdout
    file = closed.data.parent / "root-key"
    file.write_text(f"{root}\n")
    gone = ojs_aws(
        closed, "keys", "revoke", keys["mailer"]["id"], "--made", "--key-file", str(file)
    )
    assert "revoked" in gone.stdout
    assert ask(closed, secret, "POST", "/ojs/v1/jobs", job) == 401
    assert "revoked" in ojs_aws(closed, "keys", "list", key=root).stdout


@pytest.mark.parametrize(
    ("arguments", "status", "complaint"),
    spread(
        [
            (["keys", "list"], Exit.NOT_ALLOWED, "unauthenticated"),
            (["keys", "list", "--url", "http://127.0.0.1:9"], Exit.UNREACHABLE, "No response from"),
            (
                ["keys", "list", "--url", "nonsense"],
                Exit.UNREACHABLE,
                "must be an http or https URL",
            ),
            (["keys", "list", "--key-file", "/nowhere"], Exit.FAILED, "--key-file: can't read"),
            (["keys", "revoke", "../jobs"], Exit.USAGE, "letters and digits"),
            (["keys", "create", "k", "--scope", "everything"], Exit.USAGE, "invalid choice"),
            (["keys", "create", "k"], Exit.USAGE, "--scope"),
            ([], Exit.USAGE, "command"),
        ],
        3,
    ),
)
def test_what_cannot_be_done_is_one_clear_line(
    arguments: list[str], status: Exit, complaint: str, closed: RunningServer
) -> None:
    done = ojs_aws(closed, *arguments)
    assert done.returncode == status
    assert done.stdout == ""
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.exhaustive
def test_a_key_of_another_server(closed: RunningServer, server: RunningServer) -> None:
    """Keys are made on an open server too, where they are not needed yet."""
    made = ojs_aws(server, "keys", "create", "later", "--scope", "work")
    assert made.returncode == 0, made.stderr
    refused = ojs_aws(closed, "keys", "create", "k", "--scope", "work", key=made.stdout.strip())
    assert refused.returncode == Exit.NOT_ALLOWED
    assert "unauthenticated" in refused.stderr


@pytest.mark.exhaustive
def test_a_reset_keeps_the_first_key(tmp_path: Path) -> None:
    server = RunningServer(tmp_path / "data", tmp_path / "printed", "--keys")
    root = first_key(server)
    made = ojs_aws(server, "keys", "create", "k", "--scope", "work", key=root).stdout.strip()
    assert ask(server, made, "POST", "/ojs/v1/admin/reset") == 401
    for limit in ("--tenant", "--queue"):
        scopes = ("--scope", "admin:write", "--scope", "admin:read")
        limited = ojs_aws(server, "keys", "create", f"k{limit[2:]}", limit, "a", *scopes, key=root)
        assert ask(server, limited.stdout.strip(), "GET", "/ojs/v1/queues") != 401
        assert ask(server, limited.stdout.strip(), "POST", "/ojs/v1/admin/reset") == 401
    assert ask(server, root, "POST", "/ojs/v1/admin/reset") == 200
    assert ask(server, made, "POST", "/ojs/v1/workers/fetch", {"queues": ["a"]}) == 401
    assert ask(server, root, "GET", "/ojs/v1/queues") == 200
    assert server.end() == 0
    # A restart asks for the same key.
    again = RunningServer(tmp_path / "data", tmp_path / "again", "--keys")
    assert first_key(again) == root
    assert ask(again, root, "GET", "/ojs/v1/queues") == 200
    assert again.end() == 0


def test_with_keys_producers_do_not_steer_workers(closed: RunningServer) -> None:
    key = first_key(closed)
    job = {**JOB, "options": {"queue": "steer", "metadata": {"test_directive": "terminate"}}}
    ask(closed, key, "POST", "/ojs/v1/jobs", job)
    connection = http.client.HTTPConnection(f"127.0.0.1:{closed.port}", timeout=120)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    for path, body in (
        ("fetch", {"queues": ["steer"], "worker_id": "w"}),
        ("heartbeat", {"worker_id": "w"}),
    ):
        connection.request("POST", f"/ojs/v1/workers/{path}", json.dumps(body), headers)
        answer = json.loads(connection.getresponse().read())
    connection.close()
    assert answer["directive"] == "running"
