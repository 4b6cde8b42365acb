"""Turns of tenants: the arithmetic of tags against start-time fair queuing as it is defined."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ojs.clock import ManualClock
from ojs.domain.errors import InvalidRequest
from ojs.domain.fair_queue import tags as tenants
from ojs.domain.fair_queue.tags import (
    MAX_WEIGHT,
    STEP,
    TICKS_PER_MS,
    Fairness,
    Share,
    arrival,
    get_tenant,
    start,
    tagged,
    tags,
    ticks_at,
    ticks_of,
    with_tag,
)
from ojs.domain.ids import ORDER_DIGITS, IdSource
from ojs.domain.queue import config as queue_config
from ojs.domain.queue.config import Layers
from ojs.domain.queue.queue import PoolMark, Queue
from tests.spread import examples
from tests.unit.domain.arbitrary import json_values, texts

NOW_MS = 1_780_000_000_000


# --- a line by the book ---------------------------------------------------------------------------


@dataclass
class Book:
    """Start-time fair queuing as it is defined, in exact numbers: one unit of work to each job."""

    waiting: dict[str, deque[tuple[Fraction, int]]] = field(default_factory=dict)
    finish: dict[str, Fraction] = field(default_factory=dict)
    comers: Any = field(default_factory=count)

    def virtual(self, idle: Fraction) -> Fraction:
        return min((jobs[0][0] for jobs in self.waiting.values() if jobs), default=idle)

    def push(self, tenant: str, weight: int, idle: Fraction) -> None:
        begins = max(self.virtual(idle), self.finish.get(tenant, Fraction(0)))
        self.finish[tenant] = begins + Fraction(1, weight)
        self.waiting.setdefault(tenant, deque()).append((begins, next(self.comers)))

    def serve(self) -> str | None:
        heads = [(*jobs[0], tenant) for tenant, jobs in self.waiting.items() if jobs]
        if not heads:
            return None
        *_, tenant = min(heads)
        self.waiting[tenant].popleft()
        return tenant


@dataclass
class Line:
    """The same with orders as they are stored."""

    ids: IdSource
    clock: ManualClock
    line: list[tuple[str, str]] = field(default_factory=list)
    last: dict[str, int] = field(default_factory=dict)

    def push(self, tenant: str, weight: int, jobs: int = 1) -> list[str]:
        virtual = ticks_of(self.line[0][0]) if self.line else ticks_at(self.clock.now_ms())
        shares = [Share("x" * 12, weight)] * jobs
        first = start(virtual, self.last.get(tenant))
        self.last[tenant] = first + sum(share.step for share in shares)
        orders = [with_tag(tag, self.ids.order()) for tag in tags(shares, first)]
        for order in orders:
            heapq.heappush(self.line, (order, tenant))
        return orders

    def serve(self) -> str | None:
        return heapq.heappop(self.line)[1] if self.line else None


def a_line() -> Line:
    clock = ManualClock()
    return Line(IdSource(clock), clock)


names = st.sampled_from("abcde")
# So that no step has to be rounded.
WEIGHTS = {"a": 1, "b": 2, "c": 8, "d": 32, "e": 256}
turns = st.lists(st.none() | names, min_size=1, max_size=120)


@pytest.mark.requirement("FS-19", "FS-20")
@settings(max_examples=examples(200))
@given(turns)
def test_jobs_are_served_as_start_time_fair_queuing_says(events: list[str | None]) -> None:
    """None serves one, a name is a push of that tenant."""
    line, book = a_line(), Book()
    for event in events:
        # Slower than tags go on: the clock is where an empty line begins.
        line.clock.advance(1)
        if event is None:
            assert line.serve() == book.serve()
            continue
        idle = Fraction(ticks_at(line.clock.now_ms()), STEP)
        line.push(event, WEIGHTS[event])
        book.push(event, WEIGHTS[event], idle)
    left = sum(len(jobs) for jobs in book.waiting.values())
    assert [line.serve() for _ in range(left)] == [book.serve() for _ in range(left)]


@pytest.mark.requirement("FS-20")
@settings(max_examples=examples(100))
@given(
    st.dictionaries(names, st.integers(1, MAX_WEIGHT), min_size=2), st.integers(1, 400), st.data()
)
def test_while_tenants_wait_none_is_ahead_of_another_by_more_than_a_turn_of_each(
    weights: dict[str, int], served: int, data: st.DataObject
) -> None:
    """The bound of start-time fair queuing, with 1 % for steps that are rounded."""
    line = a_line()
    for tenant in data.draw(st.permutations(sorted(weights))):
        line.push(tenant, weights[tenant], jobs=served)
        line.clock.advance(1)
    got: Counter[str] = Counter(str(line.serve()) for _ in range(served))
    for one, weight in weights.items():
        for other, its in weights.items():
            ahead = Fraction(got[one], weight) - Fraction(got[other], its)
            assert (
                ahead <= (Fraction(1, weight) + Fraction(1, its)) + Fraction(got[one], weight) / 50
            )


@pytest.mark.requirement("FS-19")
@given(st.lists(names, min_size=1, max_size=60), st.integers(0, 60))
def test_a_tenant_that_comes_is_served_within_one_round(waiting: list[str], served: int) -> None:
    line = a_line()
    for tenant in waiting:
        line.push(tenant, 1)
    for _ in range(served):
        line.serve()
    others = {tenant for _, tenant in line.line}
    line.push("new", 1)
    before = 0
    while line.serve() != "new":
        before += 1
    assert before <= len(others)


@given(st.lists(st.tuples(names, st.integers(1, 9)), min_size=1, max_size=30))
def test_jobs_of_one_tenant_stay_in_order(pushes: list[tuple[str, int]]) -> None:
    line = a_line()
    orders: dict[str, list[str]] = {}
    for tenant, jobs in pushes:
        orders.setdefault(tenant, []).extend(line.push(tenant, WEIGHTS[tenant], jobs))
        line.clock.advance(1)
    for pushed in orders.values():
        assert pushed == sorted(set(pushed))


@pytest.mark.requirement("FS-19")
def test_who_was_idle_has_no_credit_and_who_flooded_no_debt() -> None:
    line = a_line()
    line.push("a", 1, 1_000)
    for _ in range(1_000):
        line.clock.advance(1)
        line.serve()
    # a has had a thousand turns, b none: from here on they take turns.
    line.push("a", 1, 10)
    line.push("b", 1, 10)
    assert [line.serve() for _ in range(20)] == ["a", "b"] * 10
    # While a's flood waits, b comes and goes: a has the rest to itself.
    line.push("a", 1, 100)
    line.push("b", 1, 2)
    assert "".join(str(line.serve()) for _ in range(102)) == "abab" + "a" * 98


# --- numbers and texts ----------------------------------------------------------------------------


@pytest.mark.parametrize("weight", [1, 2, 3, 5, 7, 63, 100, 333, 777, 999, MAX_WEIGHT])
def test_a_share_is_exact_to_a_hundredth(weight: int) -> None:
    assert abs(Fraction(Share("", weight).step * weight, STEP) - 1) < Fraction(1, 100)


def test_every_weight_s_share_is_exact_to_a_hundredth() -> None:
    worst = max(
        abs(Fraction(Share("", weight).step * weight, STEP) - 1)
        for weight in range(1, MAX_WEIGHT + 1)
    )
    assert worst < Fraction(1, 100)


def test_tags_do_not_run_ahead_of_the_clock_below_16_000_jobs_a_second() -> None:
    assert TICKS_PER_MS * 1_000 // Share("", 1).step == 16_000


@given(st.integers(0, 2**43), st.integers(0, TICKS_PER_MS - 1), st.integers(0, 0xFFFF))
def test_a_tagged_order_tells_tag_and_arrival(ms: int, fraction: int, sequence: int) -> None:
    plain = f"{ms:011x}{sequence:04x}"
    ticks = ticks_at(ms) + fraction
    order = with_tag(ticks, plain)
    assert (tagged(order), tagged(plain)) == (True, False)
    assert ticks_of(order) == ticks
    assert arrival(order) == arrival(plain) == plain
    assert len(plain) == ORDER_DIGITS
    # Tagged anew it has one tag.
    assert with_tag(ticks + 1, order) == with_tag(ticks + 1, plain)


@given(st.integers(0, 2**43), st.integers(0, 0xFFFF), st.integers(0, 2**43), st.integers(0, STEP))
def test_tags_and_times_are_of_one_scale(ms: int, sequence: int, other: int, part: int) -> None:
    """A tag stands before a job without one, or behind it, as the times say."""
    plain = f"{ms:011x}{sequence:04x}"
    ticks = ticks_at(other) + part
    if ticks != ticks_of(plain):
        assert (with_tag(ticks, plain) < plain) == (ticks < ticks_of(plain))


@given(texts, texts)
def test_two_tenants_have_two_hashes(one: str, other: str) -> None:
    fairness = Fairness()
    first, second = (fairness.share({"meta": {"tenant_id": name}}) for name in (one, other))
    assert (first.tenant == second.tenant) == (one == other)
    assert len(first.tenant) == 12


@given(st.text("abc_-", min_size=12, max_size=12), st.integers(1, MAX_WEIGHT))
def test_a_share_is_read_back(tenant: str, weight: int) -> None:
    share = Share(tenant, weight)
    assert Share.of(share.compact()) == share


@given(st.integers(1, MAX_WEIGHT), st.dictionaries(texts, st.integers(1, MAX_WEIGHT)))
def test_a_fairness_is_read_back(default: int, weights: dict[str, int]) -> None:
    fairness = Fairness(default, weights)
    assert Fairness.of(fairness.compact()) == fairness


@pytest.mark.parametrize(
    ("content", "tenant"),
    [
        ({"args": []}, ""),
        ({"meta": {}}, ""),
        ({"meta": {"tenant_id": None}}, ""),
        ({"meta": {"tenant_id": ""}}, ""),
        ({"meta": {"tenant_id": "acme"}}, "acme"),
        ({"meta": {"tenant_id": 7}}, "7"),
        ({"meta": {"tenant_id": False}}, "false"),
        ({"meta": {"tenant_id": {"a": [1, "x"]}}}, '{"a":[1,"x"]}'),
        (None, ""),
    ],
)
def test_whose_a_job_is(content: Any, tenant: str) -> None:
    assert get_tenant(content) == tenant
    assert Fairness().share(content) == Fairness().share({"meta": {"tenant_id": tenant}})


@given(json_values)
def test_whatever_a_tenant_is_called_it_has_a_share(name: Any) -> None:
    share = Fairness(3).share({"meta": {"tenant_id": name}})
    assert share == Share.of(share.compact())
    assert share.weight == 3


def test_a_weight_is_looked_up_by_the_tenant_s_name() -> None:
    fairness = Fairness(2, {"a": 5, "7": 9})
    for name, weight in (("a", 5), ("tenant:a", 2), (7, 9), ("7", 9), (None, 2)):
        assert fairness.share({"meta": {"tenant_id": name}}).weight == weight


# --- configuration --------------------------------------------------------------------------------


def configured(*changes: Any, inherited: Any = None) -> Queue:
    """A queue after changes of its configuration."""

    def layer(*told: Any) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for change in told:
            parsed = queue_config.parse({"tenant_fairness": change})
            merged = queue_config.merge(merged, parsed)
        return merged

    below = layer(inherited) if inherited is not None else {}
    return Queue("mail", layers=Layers(layer(*changes), below))


ON = {"enabled": True}


@pytest.mark.requirement("QC-4", "FS-20")
@pytest.mark.parametrize(
    ("changes", "fairness"),
    [
        ([], None),
        ([{}], None),
        ([{"weights": {"tenant:a": 5}}], None),
        ([{"enabled": False}], None),
        ([ON], Fairness()),
        ([ON, None], None),
        ([ON, {"enabled": None}], None),
        ([ON, {"default_weight": 3}], Fairness(3)),
        ([{**ON, "default_weight": 3}, {"default_weight": None}], Fairness()),
        ([ON, {"weights": {"tenant:a": 5}}, {"weights": {"tenant:b": 2}}],
         Fairness(1, {"a": 5, "b": 2})),
        ([{**ON, "weights": {"tenant:a": 5, "tenant:b": 2}}, {"weights": {"tenant:a": None}}],
         Fairness(1, {"b": 2})),
        ([{**ON, "strategy": "fair-share"}], Fairness()),
    ],
)  # fmt: skip
def test_what_is_set_is_in_force(changes: list[Any], fairness: Fairness | None) -> None:
    assert configured(*changes).fairness == fairness


def test_what_the_queue_says_comes_before_its_pool_and_that_before_the_policy() -> None:
    pool = Fairness(7)

    def in_pool(queue: Queue) -> Fairness | None:
        marks = {"general": PoolMark(), "shared": PoolMark(fairness=pool)}
        return Queue(queue.name, layers=queue.layers, pools=marks).fairness

    policy = {"enabled": True, "default_weight": 2}
    assert configured(inherited=policy).fairness == Fairness(2)
    assert in_pool(configured(inherited=policy)) == pool
    assert in_pool(configured()) == pool
    assert in_pool(configured({"enabled": False}, inherited=policy)) is None
    # A queue that names some of it has the rest of the policy.
    assert in_pool(configured({"default_weight": 3}, inherited=policy)) == Fairness(3)


def test_it_is_shown_whole_where_it_is_set_and_else_not_at_all() -> None:
    assert "tenant_fairness" not in queue_config.shown(configured().layers)
    queue = configured({"weights": {"tenant:a": 5}}, inherited=ON)
    assert queue_config.shown(queue.layers)["tenant_fairness"] == {
        "enabled": True,
        "strategy": "fair-share",
        "weights": {"tenant:a": 5},
        "default_weight": 1,
    }
    assert queue_config.sources(queue.layers)["tenant_fairness"] == "queue"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ("fair", "tenant_fairness"),
        ({"enabled": 1}, "tenant_fairness.enabled"),
        ({"enabled": "true"}, "tenant_fairness.enabled"),
        ({"strategy": "weighted"}, "tenant_fairness.strategy"),
        ({"default_weight": 0}, "tenant_fairness.default_weight"),
        ({"default_weight": 1_001}, "tenant_fairness.default_weight"),
        ({"default_weight": True}, "tenant_fairness.default_weight"),
        ({"weights": []}, "tenant_fairness.weights"),
        *(
            ({"weights": {"tenant:a": weight}}, "tenant_fairness.weights.tenant:a")
            for weight in (0, -1, 1.5, 1.0, True, "5", 1_001, [1], {"a": 1})
        ),
        ({"weights": {"a": 1}}, "tenant_fairness.weights.a"),
        ({"weights": {"tenant:": 1}}, "tenant_fairness.weights.tenant:"),
        ({"weights": {"Tenant:a": 1}}, "tenant_fairness.weights.Tenant:a"),
        ({"weights": {"tenant:a\nb": 1}}, "tenant_fairness.weights.tenant:a\nb"),
        (
            {"weights": {f"tenant:{'a' * 129}": 1}},
            f"tenant_fairness.weights.tenant:{'a' * 129}",
        ),
        ({"weights": {f"tenant:{n}": 1 for n in range(101)}}, "tenant_fairness.weights"),
    ],
)
def test_what_is_wrong_is_named(given: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        queue_config.parse({"tenant_fairness": given})
    assert error.value.field == field
    assert type(error.value) is InvalidRequest


def test_weights_named_one_after_the_other_are_counted_together() -> None:
    first = {"weights": {f"tenant:{n}": 1 for n in range(tenants.MAX_WEIGHTS)}}
    assert len(configured(first).layers.own["tenant_fairness"]["weights"]) == 100
    assert configured(first, {"weights": {"tenant:0": None, "tenant:new": 1}}).layers.own
    with pytest.raises(InvalidRequest) as error:
        configured(first, {"weights": {"tenant:new": 1}})
    assert error.value.field == "tenant_fairness.weights"
