"""Units of operations, counted a second time: by hooks of the SDK, without the server's meter.

The tables of docs/performance.md and docs/numbers/counted.json come from the meter of
`ojs.store.table`. Here botocore's events count what is sent to the engine and what its responses
report, whether or not the server asks for it. A call that passes by the meter, or that the meter
takes for another kind, makes the two counts differ.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from docs import numbers
from local.dynamodb import connect
from tests.performance import counted
from tests.performance.measure import SPENT, TABLES, Bench, Row, number

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from local.engines import Engine

# What reads are called in DynamoDB's API. Everything else on the table's items is a write.
_READING = ("Get", "BatchGet", "TransactGet", "Query", "Scan")
_OF_TABLES = ("CreateTable", "DescribeTable", "UpdateTable", "DeleteTable", "UpdateTimeToLive")


class Hooks:
    """Counts requests, and the units that their responses report, of a client of botocore."""

    def __init__(self, client: DynamoDBClient) -> None:
        self._lock = threading.Lock()
        self.reset()
        events = client.meta.events
        events.register("before-parameter-build.dynamodb", self._ask)
        events.register("after-call.dynamodb", self._answered)

    def reset(self) -> None:
        """Forget what was counted."""
        self.calls: Counter[bool] = Counter()
        self.units: defaultdict[tuple[bool, str], float] = defaultdict(float)

    def _ask(self, params: dict[str, Any], model: Any, context: dict[str, Any], **_: Any) -> None:
        """Have the response report units, also where the caller does not ask for them."""
        if model.name not in _OF_TABLES:
            context["asked"] = "ReturnConsumedCapacity" in params
            params.setdefault("ReturnConsumedCapacity", "TOTAL")

    def _answered(
        self, parsed: dict[str, Any], model: Any, context: dict[str, Any], **_: Any
    ) -> None:
        if model.name in _OF_TABLES:
            return
        found = parsed.get("ConsumedCapacity", [])
        units = sum(one["CapacityUnits"] for one in (found if isinstance(found, list) else [found]))
        kind = "read" if model.name.startswith(_READING) else "write"
        with self._lock:
            self.calls[context["asked"]] += 1
            self.units[context["asked"], kind] += units

    def spent(self, divided_by: float = 1, *, everything: bool = False) -> dict[str, float]:
        """What was spent in calls that ask for their units, as all of the server's do here; or in
        all calls.
        """
        asked = (True, False) if everything else (True,)
        found = {"calls": float(sum(self.calls[each] for each in asked))}
        for kind in ("write", "read"):
            found[kind] = sum(self.units[each, kind] for each in asked)
        return {name: round(value / divided_by, 4) for name, value in found.items()}

    def row(self, what: str, jobs: float = 1) -> Row:
        """A row as the tables have it, of all calls."""
        return (what, *map(number, self.spent(jobs, everything=True).values()))


@pytest.fixture
def client(dynoxide: Engine) -> Iterator[DynamoDBClient]:
    """The SDK's whole client: tests usually take a shorter way, which has no such events."""
    made = connect(dynoxide.url)
    yield made
    made.close()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.exhaustive if name in {"life", "pools"} else ())
        for name in TABLES
    ],
)
def test_each_operation_of_the_page_is_counted_the_same_twice(
    name: str, client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks, spending = Hooks(client), Bench.spending
    rows: list[tuple[Row, Row]] = []

    @contextmanager
    def twice(bench: Bench, what: str, jobs: int = 1) -> Iterator[None]:
        with spending(bench, what, jobs):
            hooks.reset()
            yield
            second = hooks.row(what, jobs)
        rows.append((bench.rows[-1], second))

    monkeypatch.setattr(Bench, "spending", twice)
    TABLES[name][1](client)
    assert rows
    assert [first for first, _ in rows] == [second for _, second in rows]
    assert any(float(row[SPENT.index("write units") + 1]) for _, row in rows)


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(part, marks=pytest.mark.exhaustive if part in {"running", "lasting"} else ())
        for part in ("lives", "heartbeat", "note", "running", "lasting")
    ],
)
def test_units_that_prices_are_made_of_are_counted_the_same_twice(
    part: str, client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the recorder of `counted` reads for itself is left out."""
    hooks, compared = Hooks(client), Counter[bool]()

    class Twice(counted.Counting):
        def reset(self) -> None:
            super().reset()
            hooks.reset()

        def spent(self, divided_by: float = 1) -> counted.Spent:
            first, second = super().spent(divided_by), hooks.spent(divided_by)
            compared[all(first[name] == second[name] for name in second)] += 1
            return first

    monkeypatch.setattr(counted, "Counting", Twice)
    assert counted.PARTS[part](client) == numbers.counted()[part]
    assert compared[True] > 0
    assert not compared[False]


def test_the_hooks_see_a_call_that_the_meter_does_not(client: DynamoDBClient) -> None:
    bench, hooks = Bench(client), Hooks(client)
    with bench.spending("enqueue"):
        bench.push()
        key = {"pk": {"S": "none"}, "sk": {"S": "none"}}
        client.get_item(TableName=bench.table, Key=key, ConsistentRead=True)
    calls, write, read = (float(value) for value in bench.rows[-1][1:])
    assert hooks.spent() == {"calls": calls, "write": write, "read": read}
    assert hooks.row("") == ("", number(calls + 1), number(write), number(read + 1))
