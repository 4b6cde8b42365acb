"""docs/durable-jobs.md: its example and each of its ten patterns on a server, and its numbers."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from types import ModuleType
from typing import Any

import pytest

from ojs.domain.job import durable as stored
from ojs.domain.job import suspending
from ojs.services.jobs.signals import MAX_SIGNAL_BYTES
from ojs_aws import JobFailed
from ojs_aws.testing.server import OjsServer
from ojs_aws.worker import durable
from tests.library.pages import files, page

pytestmark = pytest.mark.e2e

PAGE = page("durable-jobs")
_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def shown() -> tuple[str, list[str]]:
    """The module that the blocks of the page make, and the titles of its patterns."""
    tests = files(PAGE)["test_shop.py"]
    blocks = [each for each in _BLOCK.findall(PAGE) if each != tests]
    patterns = PAGE.partition("## Ten patterns")[2].partition("\n## ")[0]
    return "\n\n".join(blocks), re.findall(r"^### (.*)$", patterns, re.MULTILINE)


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", made)
    exec(compile(shown()[0], "shop.py", "exec", dont_inherit=True), made.__dict__)
    return made


class Run:
    """One job of the page on the server."""

    def __init__(self, server: OjsServer, shop: Any, job: Any, *args: Any) -> None:
        self.server, self.shop, self.handle = server, shop, job.enqueue(*args)
        self.work()

    def work(self, **parts: float) -> None:
        if parts:
            self.server.advance(timedelta(seconds=1, **parts))
        self.server.drain(self.shop.worker)

    def signal(self, name: str, data: Any = None) -> None:
        assert self.server.signal(self.handle, name, data)
        self.work()

    @property
    def done(self) -> list[str]:
        done: list[str] = self.shop.done
        return done

    @property
    def state(self) -> str:
        return self.server.client.get_job(self.handle.id).state

    @property
    def result(self) -> Any:
        assert self.state == "completed"
        return self.handle.result(1)


def order(shop: Any, cents: int = 500) -> Any:
    return shop.Order("o", "a@b.org", cents)


def example(server: OjsServer, shop: Any) -> None:
    run = Run(server, shop, shop.place, order(shop))
    run.work(days=3)
    run.signal("approved")
    assert (run.result, run.done) == ("parcel-o", ["pay o"])
    run = Run(server, shop, shop.place, order(shop))
    run.work(days=3)
    run.work(days=7)
    assert (run.result, run.done[2:]) == ("refunded", ["refund charge-o"])


def compensation(server: OjsServer, shop: Any) -> None:
    assert Run(server, shop, shop.reserve, order(shop)).result == "parcel-o"
    declined = Run(server, shop, shop.reserve, order(shop, 2_000_000))
    assert declined.result == "not paid: the bank declined the card"

    def sold_out(_order_id: str) -> str:
        raise JobFailed("sold out", retryable=False)

    shop.ship.function = sold_out
    run = Run(server, shop, shop.reserve, order(shop))
    assert (run.result, run.done[-1]) == ("refunded", "refund charge-o")


def approval(server: OjsServer, shop: Any) -> None:
    run = Run(server, shop, shop.approve, order(shop))
    run.work(days=6)
    run.signal("approval", {"by": "ada"})
    assert run.result == "ada approved"
    run = Run(server, shop, shop.approve, order(shop))
    run.work(days=7)
    assert run.result == "expired"


def reminder(server: OjsServer, shop: Any) -> None:
    run = Run(server, shop, shop.remind, order(shop))
    run.work(days=2)
    run.signal("answer")
    assert (run.result, run.done) == (True, [])
    run = Run(server, shop, shop.remind, order(shop))
    run.work(days=3)
    assert (run.state, run.done) == ("scheduled", ["mail a@b.org: please answer"])
    run.work(days=4)
    assert (run.result, len(run.done)) == (False, 1)


def loop(server: OjsServer, shop: Any) -> None:
    run = Run(server, shop, shop.mail_all, ["a@b.org", "c@d.org"])
    assert run.result == 2
    names = [each["name"] for each in server.steps(run.handle)]
    assert names == ["mail/a@b.org", "mail/c@d.org"]


def parallel_steps(server: OjsServer, shop: Any) -> None:
    assert Run(server, shop, shop.confirm, order(shop)).result == "charge-o"
    assert sorted(shop.done) == ["mail a@b.org: thank you", "pay o"]


def fan_out(server: OjsServer, shop: Any) -> None:
    assert Run(server, shop, shop.ship_all, ["a", "b"]).result == ["parcel-a", "parcel-b"]
    names = [f"n{number}" for number in range(51)]
    run = Run(server, shop, shop.ship_all, names)
    for _ in range(3):
        run.work(minutes=1)
    assert run.result == [f"parcel-{name}" for name in names]


def polling(server: OjsServer, shop: Any) -> None:
    run = Run(server, shop, shop.settle, "c1")
    run.work(hours=1)
    assert run.state == "scheduled"
    shop.done.append("settled c1")
    run.work(hours=1)
    assert (run.result, len(server.steps(run.handle))) == ("settled", 3)


def calendar(server: OjsServer, shop: Any) -> None:
    run = Run(server, shop, shop.trial, "a@b.org", server.now() + timedelta(days=14))
    assert len(run.done) == 1
    run.work(days=11)
    assert run.done[1:] == ["mail a@b.org: 3 days left"]
    run.work(days=3)
    assert (run.result, run.done[2:]) == (None, ["mail a@b.org: your trial has ended"])


def many_small_items(server: OjsServer, shop: Any) -> None:
    class Fails(list[str]):
        def append(self, what: str) -> None:
            if len(self) == 2_500 and self.count("x") == 0:
                self.insert(0, "x")
                raise ConnectionError
            super().append(what)

    shop.done = Fails()
    run = Run(server, shop, shop.import_rows, 3_000)
    assert run.state == "retryable"
    run.work(minutes=1)
    assert (run.result, len(run.done)) == (1_000, 3_501)


def new_version(server: OjsServer, shop: Any) -> None:
    shop.invoice.version = 1
    before = Run(server, shop, shop.invoice, order(shop))
    shop.invoice.version = 2
    after = Run(server, shop, shop.invoice, order(shop))
    after.work(days=14)
    assert (before.result, after.result) == ("charge-o", "charge-o")
    assert shop.done[2:] == ["mail a@b.org: invoice for charge-o"]


PATTERNS = (
    compensation, approval, reminder, loop, parallel_steps, fan_out, polling, calendar,
    many_small_items, new_version,
)  # fmt: skip


@pytest.mark.parametrize("pattern", [example, *PATTERNS])
def test_a_pattern(ojs_server: OjsServer, shop: Any, pattern: Any) -> None:
    pattern(ojs_server, shop)


def test_each_pattern_is_tested() -> None:
    titles = [each.lower().replace(" ", "_").replace("-", "_") for each in shown()[1]]
    assert titles == [each.__name__ for each in PATTERNS]
    assert len(titles) == 10


@pytest.mark.usefixtures("shop")
def test_the_tests_of_the_page(ojs_server: OjsServer) -> None:
    space: dict[str, Any] = {}
    exec(compile(files(PAGE)["test_shop.py"], "test_shop.py", "exec", dont_inherit=True), space)
    space["test_what_the_code_decides"]()
    space["done"].clear()
    space["test_an_approval_comes_after_two_days"](ojs_server)


def test_the_limits_are_those_of_the_table() -> None:
    rows = dict(
        re.findall(r"^\| ([^|]+) \| ([^|]+) \|$", PAGE.partition("## Limits")[2], re.MULTILINE)
    )
    del rows["Limit"]
    assert list(rows.values()) == [
        f"{stored.MAX_STEPS:,}, and {stored.MAX_STEP_BYTES >> 20} MiB",
        f"{stored.MAX_RESULT_BYTES >> 10} KiB", f"{MAX_SIGNAL_BYTES >> 10} KiB",
        f"{stored.MAX_SIGNALS}", "1 MiB", f"{durable.MAX_WAITS}",
        f"{suspending.MAX_WAIT_MS // 86_400_000} days", "10,000",
    ]  # fmt: skip
    assert (durable.MAX_CALLS, durable.MAX_WAITS) == (suspending.MAX_WAITS,) * 2
    assert durable.length("", "P366D").days == 366
