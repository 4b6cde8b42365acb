"""The local server runs every sweep that a deployment runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from functions.sweep.handler import PARTS
from local.deliveries import LocalDeliveries
from local.server import SCHEDULED, LocalServer
from local.webhooks import LocalWebhooks
from ojs import runtime
from ojs.clock import ManualClock
from ojs.services.sweeps import SweepReport
from ojs.settings import Settings
from ojs.store.jobs.blobs import MemoryBlobs

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


@pytest.fixture
def built(dynamodb: DynamoDBClient, fresh_table: str) -> runtime.Runtime:
    clock = ManualClock()
    webhooks = LocalWebhooks(clock, loopback=False)
    return runtime.build(
        Settings(table=fresh_table, webhook_queue="memory"),
        client=dynamodb,
        blobs=MemoryBlobs(),
        clock=clock,
        push=LocalDeliveries(clock).parts,
        hooks=lambda: webhooks.parts,
    )


def test_it_runs_all_of_them(built: runtime.Runtime) -> None:
    assert SCHEDULED == {sweep.name for sweep in built.sweeps()} == set(PARTS)


def test_a_sweep_in_trouble_stops_no_other(
    built: runtime.Runtime, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one schedule run in turn."""
    ran: list[str] = []

    def broken(*_: object) -> Any:
        ran.append("reconcile")
        raise KeyError("a damaged record")

    monkeypatch.setattr(built.reconcile, "run_once", broken)

    def fine(*_: object) -> SweepReport:
        ran.append("throttle")
        return SweepReport()

    monkeypatch.setattr(built.throttle_sweep, "run_once", fine)
    server = object.__new__(LocalServer)
    server._runtime, server._clock = built, built.clock
    server._sweep({"reconcile": 1, "throttle": 1})
    assert ran == ["reconcile", "throttle"]
    told = capfd.readouterr().err
    assert "reconcile failed: the whole sweep" in told
    assert "KeyError: 'a damaged record'" in told
