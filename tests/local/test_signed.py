"""The local server with IAM roles, and the command line that says what they may do."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.local.conftest import ROOT, RunningServer

pytestmark = pytest.mark.e2e

JOB = {"type": "t", "args": [], "options": {"queue": "mail"}}


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("roles")
    server = RunningServer(folder / "data", folder / "printed", "--iam")
    yield server
    server.end()


def ojs_aws(server: RunningServer, role: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "ojs-aws"), *arguments, "--iam", "--url", server.url],
        env={
            "PATH": os.environ["PATH"],
            "AWS_ACCESS_KEY_ID": role,
            "AWS_SECRET_ACCESS_KEY": "any",
            "AWS_DEFAULT_REGION": "eu-central-1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def curl(server: RunningServer, role: str, path: str, body: Any) -> int:
    done = subprocess.run(
        [
            "curl", "-s", "-o", os.devnull, "-w", "%{http_code}", f"{server.url}{path}",
            "--aws-sigv4", "aws:amz:local:execute-api", "-u", f"{role}:any",
            "-H", "Content-Type: application/json", "-d", json.dumps(body),
        ],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return int(done.stdout)


@pytest.mark.exhaustive
def test_a_role_reaches_its_queue_alone(signed: RunningServer) -> None:
    assert curl(signed, "mailer", "/ojs/v1/jobs", JOB) == 403
    arn = "arn:aws:iam::000000000000:role/mailer"
    made = ojs_aws(
        signed, "operator", "roles", "create", "mailer", arn, "--scope", "jobs:write",
        "--scope", "work", "--queue", "mail",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert arn in made.stdout
    assert curl(signed, "mailer", "/ojs/v1/jobs", JOB) == 201
    assert curl(signed, "mailer", "/ojs/v1/workers/fetch", {"queues": ["mail"]}) == 200
    assert curl(signed, "mailer", "/ojs/v1/workers/fetch", {"queues": ["other"]}) == 403
    gone = ojs_aws(signed, "operator", "roles", "revoke", made.stdout.split()[0], "--made")
    assert "revoked" in gone.stdout
    assert curl(signed, "mailer", "/ojs/v1/jobs", JOB) == 403


def test_who_does_not_sign_is_nobody(signed: RunningServer) -> None:
    assert signed.call("GET", "/ojs/v1/health")[0] == 401
    assert signed.call("POST", "/ojs/v1/admin/reset")[0] == 401
    assert "--aws-sigv4" in signed.printed


def test_only_this_machine_reaches_it() -> None:
    """As signatures are not checked."""
    for arguments in (["--iam", "--host", "0.0.0.0"], ["--iam", "--keys"]):
        done = subprocess.run(
            [sys.executable, "-m", "local", *arguments], cwd=ROOT, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert shlex.quote(arguments[-1]).strip("'") in done.stderr
