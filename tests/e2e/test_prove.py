"""`ojs-aws prove` against a deployment in the emulated cloud: its report, and what it leaves."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest

from cli.__main__ import main
from cli.prove import session
from cli.prove.state import Pace
from infra import local_cloud
from infra.local_cloud import STAGE, LocalCloud, client_environment, deploy
from tests.e2e.cloud import Api

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.e2e, pytest.mark.whole]

PACE = Pace(
    samples=10, parallel=3, pickups=2, polls_s=(0.2, 1.0), counted=50, counted_s=180, lease_s=2,
    ticks=1, ticks_s=180, step_s=5, quiet_s=20,
)  # fmt: skip


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with (
        local_cloud.terminated_like_interrupted(),
        LocalCloud(local_cloud.free_port(), tmp_path_factory.mktemp("cloud")) as cloud,
        pytest.MonkeyPatch.context() as patch,
    ):
        settings = {
            "push": "true", "prove": "true", "alarm_email": "ops@example.com", "realtime": "all",
            "stream_window_s": "1",
        }  # fmt: skip
        deployment = deploy(cloud.port, settings, quiet=True)
        for name in [each for each in os.environ if each.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in client_environment(cloud.port).items():
            if name.startswith("AWS_"):
                patch.setenv(name, value)
        patch.setattr("boto3.DEFAULT_SESSION", None)
        # Names below `localhost` may not resolve.
        found = socket.getaddrinfo
        patch.setattr(
            socket, "getaddrinfo",
            lambda host, *more, **named: found(
                "127.0.0.1" if str(host).endswith(".localhost") else host, *more, **named
            ),
        )  # fmt: skip
        patch.setattr("cli.target._deployed", lambda *_: (deployment.direct_url, deployment.key))
        yield Api(deployment.direct_url, deployment.key)


def test_a_deployment_is_proven_and_nothing_is_left(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "Pace", lambda: PACE)
    folder = Path(os.environ.get("PROVE_REPORT", tmp_path / "report"))
    arguments = ["prove", "--stage", STAGE, "--yes", "--rate", "2", "--report", str(folder)]
    status = main(arguments)
    report = json.loads((folder / "report.json").read_text())
    # Durations and rates are those of a busy machine.
    failed = {
        each["name"]: each["seen"] for each in report["checks"]
        if each["verdict"] == "failed" and each["part"] not in {"latency", "ramp"}
    }  # fmt: skip
    assert failed == {}
    assert status == int(any(each["verdict"] == "failed" for each in report["checks"]))
    skipped = {each["name"] for each in report["checks"] if each["verdict"] == "skipped"}
    assert skipped == {
        "alarms have data", "units, requests, and durations", "stream windows", "table settings",
        "counters over a window's end",
    }  # fmt: skip
    run = report["run"]
    crons, queues = api("GET", "/ojs/v1/cron"), api("GET", "/ojs/v1/queues?limit=100")
    deliveries = api("GET", "/ojs/v1/admin/deliveries")
    assert not [each for each in (crons, queues, deliveries) if run in json.dumps(each.body)]
    keys = api("GET", "/ojs/v1/admin/keys").body["keys"]
    assert {each["state"] for each in keys if each["name"] == run} == {"revoked"}
    # It is run without a real account.
    assert boto3.client("sts").meta.endpoint_url == os.environ["AWS_ENDPOINT_URL"]
