"""Queues in order of what is in them, of all there are: as the sweep has counted them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.job.states import State
from ojs.domain.queue.order import MAX_ORDERED, QueueOrder, QueueOrders, ordered
from ojs.domain.queue.queue import Queue
from ojs.domain.stats import QueueGauges, StateCounts
from ojs.domain.times import format_ms
from ojs.store.table import keys

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

PATH = "/ojs/v1/admin/queues"
MANY = 40


@pytest.fixture
def queues(api: Api) -> Api:
    """Forty queues, ten of which have jobs; the later the name, the more."""
    api.clock.advance(-api.clock.now_ms() % 60_000 + 20_000)
    now_ms = api.clock.now_ms()
    items: list[dict[str, Any]] = []
    for number in range(MANY):
        name = f"q-{number:02}"
        assert api.post("/ojs/v1/queues", {"name": name}).status == 201
        if number >= MANY - 10:
            count = {"available": number, "active": MANY - number, "changed": now_ms}
            items.append({"pk": keys.stats(name), "sk": keys.NOW, **count})
    last = keys.minute(format_ms(now_ms - 60_000)[:16])
    items.append({"pk": keys.stats("q-35"), "sk": last, "completed": 7, "failed": 2})
    api.runtime.table.write_many(items)
    sweep(api)
    return api


def sweep(api: Api) -> None:
    api.runtime.metrics_sweep.run_once(api.clock.now_ms(), 1_000)


def names(api: Api, **query: str) -> list[str]:
    return [each["name"] for each in api.get(PATH, **query).json["items"]]


def test_the_most_come_first_and_those_without_any_not_at_all(queues: Api) -> None:
    with_jobs = [f"q-{number:02}" for number in range(MANY - 10, MANY)]
    assert names(queues, sort="available", limit="16") == with_jobs[::-1]
    assert names(queues, sort="active", limit="16") == with_jobs
    # All are as deep: in order of name.
    assert names(queues, sort="depth", limit="16") == with_jobs
    assert names(queues, sort="processed") == names(queues, sort="failed") == ["q-35"]
    assert names(queues, sort="later") == names(queues, sort="oldest") == []
    assert names(queues, sort="name", limit="3") == ["q-00", "q-01", "q-02"]
    whole = queues.get(PATH, sort="available").json
    assert whole["total"] == whole["pagination"]["total"] == 10


def test_they_come_in_pages(queues: Api) -> None:
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = queues.get(PATH, sort="available", limit="4", **cursor).json
        found += [each["name"] for each in page["items"]]
        assert page["pagination"]["total"] == 10
        if not page["pagination"]["has_more"]:
            break
        cursor = {"cursor": page["pagination"]["next_cursor"]}
    assert found == names(queues, sort="available", limit="16")
    assert names(queues, sort="available", limit="4", page="3") == found[8:]


def test_a_queue_that_is_gone_is_left_out(queues: Api) -> None:
    queues.runtime.table.delete(keys.queue("q-39"), keys.RECORD)
    assert names(queues, sort="available", limit="2") == ["q-38"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"sort": "size"}, "sort"), ({"sort": "-depth"}, "sort"), ({"sort": ""}, "sort"),
        ({"sort": "depth", "cursor": "Kg"}, "cursor"),
        ({"sort": "depth", "cursor": "MSBVUFBFUg"}, "cursor"),
    ],
)  # fmt: skip
def test_what_is_no_order_is_refused(queues: Api, query: dict[str, str], field: str) -> None:
    answer = queues.get(PATH, **query)
    assert (answer.status, answer.json["error"]["details"]["field"]) == (400, field)


def test_before_the_first_sweep_nothing_is_in_order(api: Api) -> None:
    assert api.post("/ojs/v1/queues", {"name": "mail"}).status == 201
    assert names(api, sort="depth") == []


def test_they_are_written_when_they_change(queues: Api) -> None:
    table = queues.runtime.table
    place = keys.stats(keys.ALL_QUEUES), keys.ORDERS

    def at() -> int:
        found = table.get(*place)
        assert found is not None
        return int(found["at"])

    first = at()
    queues.clock.advance(1_000)
    sweep(queues)
    assert at() == first
    table.write_many(
        [{"pk": keys.stats("q-00"), "sk": keys.NOW, "available": 99, "changed": first}]
    )
    queues.clock.advance(1_000)
    sweep(queues)
    assert at() == first + 2_000
    assert names(queues, sort="available", limit="1") == ["q-00"]


def test_where_nothing_is_in_queues_nothing_is_written(api: Api) -> None:
    assert api.post("/ojs/v1/queues", {"name": "mail"}).status == 201
    sweep(api)
    assert api.runtime.table.get(keys.stats(keys.ALL_QUEUES), keys.ORDERS) is None


def gauges(name: str, available: int, oldest_ms: int | None = None) -> QueueGauges:
    return QueueGauges(Queue(name), StateCounts({State.AVAILABLE: available}), 0, oldest_ms)


def test_a_page_of_a_thousand_queues_reads_sixty_units_at_most(api: Api) -> None:
    store, now_ms = api.runtime.stores.statistics, api.clock.now_ms()
    made = [f"some.queue.of.a.shop-{number * 7919 % 1_000:04}" for number in range(1_000)]
    found = ordered([gauges(name, at * 37 % 1_009 + 1, now_ms) for at, name in enumerate(made)], {})
    assert store.save_orders(found, "", now_ms=now_ms)
    table = api.runtime.table
    table.measure = True
    table.meter.reset()
    assert api.get(PATH, sort="depth").status == 200
    assert len(table.meter.calls) <= 4
    assert 0 < table.meter.read_units <= 60


def test_the_longest_wait_comes_first() -> None:
    found = ordered([gauges("b", 1, 2_000), gauges("a", 1, 3_000), gauges("c", 1)], {})
    assert [name for _, name in found.by(QueueOrder.OLDEST)] == ["b", "a"]
    assert [name for _, name in found.by(QueueOrder.DEPTH)] == ["a", "b", "c"]


def test_only_so_many_are_put_in_order_the_deepest() -> None:
    found = ordered([gauges(f"q-{n:05}", n) for n in range(MAX_ORDERED + 11)], {})
    assert len(found.rows) == MAX_ORDERED
    assert "q-00010" not in found.rows
    assert "q-00011" in found.rows
    assert QueueOrders().by(QueueOrder.DEPTH) == []
