"""examples/approve_order: orders with a moved clock, whose jobs are pulled and pushed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra import ROOT
from ojs_aws import Job
from ojs_aws.testing.server import OjsServer
from tests.examples.conftest import _address

pytestmark = pytest.mark.e2e

EXAMPLE = ROOT / "examples" / "approve_order"
NAMES = ("orders", "shop")
MODULES = ("pulled", "pushed")


class Orders:
    """The example on a server: `settle` runs what can run now."""

    def __init__(self, server: OjsServer, module: Any, folder: Path, how: str) -> None:
        self.server = server
        self.module = module
        self.how = how
        self.shop = module.Shop(folder)
        self.placed: list[Any] = []

    def place(self, name: str, cents: int) -> Any:
        with self.server.bound():
            handle = self.module.place.enqueue(self.module.Order(name, "ada@example.com", cents))
        self.placed.append(handle)
        self.settle()
        return handle

    def advance(self, **parts: float) -> None:
        self.server.advance(timedelta(**parts))
        self.settle()

    def settle(self) -> None:
        if self.how == "pulled":
            self.server.drain(self.module.worker)
            return
        until = time.monotonic() + 60
        # A list can miss a job that changes its state meanwhile. An order waits for its children.
        while any(self._runs(self.state(handle)) for handle in self.placed):
            assert time.monotonic() < until, self.server.enqueued()
            time.sleep(0.05)

    @staticmethod
    def _runs(job: Job) -> bool:
        children = [each for each in job.raw.get("waiting", []) if each["kind"] == "job"]
        return job.state in ("available", "active") or bool(children)

    def state(self, handle: Any) -> Any:
        return self.server.client.get_job(handle.id)

    def ledger(self, name: str) -> list[str]:
        """What happened to an order, in order."""
        return [each["what"] for each in self.shop.ledger() if name in each["what"]]


@pytest.fixture(scope="module")
def pushing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[OjsServer, Path]]:
    """A server that pushes jobs to the example's handler, which it runs as Lambda does."""
    folder = tmp_path_factory.mktemp("pushing")
    command = [
        sys.executable, "-m", "local", "--port", "0", "--data", str(folder / "data"),
        "--test-clock", "--deliver", "orders=orders:handler", "--deliver-folder", str(EXAMPLE),
    ]  # fmt: skip
    environment = os.environ | {
        "SHOP": str(folder / "shop"),
        "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("shared", "package", ".")),
    }  # fmt: skip
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            server = OjsServer(SimpleNamespace(url=_address(process), key=None))  # type: ignore[arg-type]
            yield server, folder / "shop"
            server.close()
        finally:
            process.terminate()
            process.communicate(timeout=120)


@pytest.fixture(params=MODULES)
def orders(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Orders]:
    how = request.param
    get: Callable[[str], Any] = request.getfixturevalue
    server, folder = (get("ojs_server"), tmp_path) if how == "pulled" else get("pushing")
    monkeypatch.setenv("SHOP", str(folder))
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in NAMES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield Orders(server, importlib.import_module("orders"), folder, how)
    for name in NAMES:
        sys.modules.pop(name, None)


def test_a_small_order_is_shipped(orders: Orders) -> None:
    handle = orders.place("small", 500)
    job = orders.state(handle)
    assert (job.state, job.result) == (
        "completed", {"state": "shipped", "parcel": "parcel-small"}
    )  # fmt: skip
    assert orders.ledger("small") == [
        "charge small", "ship small", "mail ada@example.com: small is on its way",
    ]  # fmt: skip


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("days", [1, 4])
def test_an_order_is_approved_or_not(orders: Orders, days: int, approved: bool) -> None:
    name = f"big-{days}-{approved}"
    handle = orders.place(name, 500_000)
    job = orders.state(handle)
    assert (job.state, job.attempt, job.lease_token) == ("scheduled", 0, None)
    orders.advance(days=days, minutes=1)
    assert orders.state(handle).state == "scheduled"
    assert orders.server.signal(handle, "approval", {"approved": approved}) is True
    orders.settle()
    state = "shipped" if approved else "refunded"
    assert orders.state(handle).result["state"] == state
    reminded = [f"mail manager@example.com: {name} still waits for your approval"]
    assert orders.ledger(name) == [
        f"charge {name}", f"mail manager@example.com: approve {name}?",
        *(reminded if days > 3 else []),
        *([f"ship {name}", f"mail ada@example.com: {name} is on its way"] if approved else
          [f"refund charge-{name}", f"mail ada@example.com: {name} is refunded"]),
    ]  # fmt: skip


def test_an_order_that_nobody_approves_is_refunded(orders: Orders) -> None:
    handle = orders.place("forgotten", 500_000)
    for _ in range(8):
        orders.advance(days=1)
    assert orders.state(handle).result["state"] == "refunded"
    assert [each.partition(": ")[2] for each in orders.ledger("forgotten")][1:] == [
        "approve forgotten?", "forgotten still waits for your approval", "",
        "forgotten is refunded",
    ]  # fmt: skip


def test_what_cannot_be_shipped_is_refunded(orders: Orders) -> None:
    handle = orders.place("sold-out", 500)
    assert orders.state(handle).result["state"] == "refunded"
    assert orders.ledger("sold-out")[1] == "refund charge-sold-out"


def test_a_declined_card(orders: Orders) -> None:
    handle = orders.place("declined", 2_000_000)
    assert orders.state(handle).result["state"] == "declined"
    assert orders.ledger("declined") == []


def test_a_fault_of_the_bank_charges_once(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    if orders.how == "pushed":
        pytest.skip("the bank of another process can't be changed")
    charge, answers = orders.module.shop.charge, iter([ConnectionError("away"), None])

    def charged(*args: Any) -> str:
        answer = charge(*args)
        if error := next(answers):
            raise error
        return str(answer)

    monkeypatch.setattr(orders.module.shop, "charge", charged)
    handle = orders.place("twice", 500)
    assert orders.state(handle).state == "retryable"
    orders.advance(minutes=5)
    assert orders.state(handle).result["state"] == "shipped"
    assert orders.ledger("twice").count("charge twice") == 1
