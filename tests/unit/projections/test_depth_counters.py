from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.projections import metrics
from ojs.projections.counters import Tally
from ojs.projections.queues import DepthChange, PushRefusal
from ojs.projections.records import Malformed, parse
from ojs.store.table import keys
from ojs.store.table.schema import TABLE
from tests.store.streams import FakeMetrics, lambda_form, made_record
from tests.unit.domain.arbitrary import NOW_MS

BOUNDS = {"bound": 10, "warn": 8}


def item(n: int, at: int = NOW_MS, **more: Any) -> dict[str, Any]:
    return {"pk": keys.counter("mail"), "sk": keys.DEPTH, "n": n, "b": n * 7, "at": at, **more}


def told(*images: dict[str, Any] | None) -> list[tuple[str, dict[str, Any]]]:
    """The events that follow when a depth counter changes from one to the next."""
    found = []
    for number, (old, new) in enumerate(pairwise(images)):
        record = made_record(number, old, new)
        (change,) = parse(record)
        assert parse(lambda_form(record)) == [change]
        for event in change.events("s"):
            assert (event.source, event.subject) == ("ojs://s/queues/mail", "mail")
            found.append((event.type, dict(event.data)))
    return found


@pytest.mark.requirement("BP-r")
def test_each_crossing_is_told_once() -> None:
    levels = [7, 8, 9, 10, 9, 10, 8, 7, 6, 8]
    found = told(None, *(item(n, **BOUNDS) for n in levels))
    data = {"queue": "mail", "bound": 10}
    assert found == [
        ("backpressure.warning", {**data, "depth": 8}),
        ("queue.full", {**data, "depth": 10}),
        ("queue.full", {**data, "depth": 10}),
        ("backpressure.cleared", {**data, "depth": 7}),
        ("backpressure.warning", {**data, "depth": 8}),
    ]


def test_a_batch_may_cross_both_at_once() -> None:
    kinds = [kind for kind, _ in told(None, item(10, **BOUNDS), item(0, **BOUNDS))]
    assert kinds == ["backpressure.warning", "queue.full", "backpressure.cleared"]


def test_a_bound_that_changes_crosses_too() -> None:
    assert told(item(6, **BOUNDS), item(7, bound=7, warn=6)) == [
        ("backpressure.warning", {"queue": "mail", "depth": 7, "bound": 7}),
        ("queue.full", {"queue": "mail", "depth": 7, "bound": 7}),
    ]
    # The bound is no more: what was warned of is over.
    assert told(item(9, **BOUNDS), item(10)) == [
        ("backpressure.cleared", {"queue": "mail", "depth": 10, "bound": 10})
    ]
    assert told(item(1), item(500)) == []


@pytest.mark.requirement("BP-u")
def test_a_bound_in_bytes_is_told_of_as_such() -> None:
    """Its events are those of a bound by number."""
    bytes_only = {"bound_b": 70, "warn_b": 56}
    data = {"queue": "mail", "unit": "bytes", "bound": 70}
    assert told(None, *(item(n, **bytes_only) for n in (7, 8, 10, 7))) == [
        ("backpressure.warning", {**data, "depth": 56}),
        ("queue.full", {**data, "depth": 70}),
        ("backpressure.cleared", {**data, "depth": 49}),
    ]
    # One warning, whichever bound is nearer; the all-clear comes when neither is near.
    both = {"bound": 20, "warn": 9, **bytes_only}
    kinds = [kind for kind, _ in told(None, *(item(n, **both) for n in (8, 9, 8, 7)))]
    assert kinds == ["backpressure.warning", "backpressure.cleared"]


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 12)), min_size=1, max_size=30))
def test_warnings_and_all_clears_take_turns(steps: list[tuple[int, int]]) -> None:
    images = [item(n, bound=bound, warn=max(1, bound - 2)) for n, bound in steps]
    kinds = [kind for kind, _ in told(None, *images) if kind.startswith("backpressure")]
    assert kinds[::2] == ["backpressure.warning"] * len(kinds[::2])
    assert kinds[1::2] == ["backpressure.cleared"] * len(kinds[1::2])
    above = images[-1]["n"] >= images[-1]["warn"]
    assert len(kinds) % 2 == above


def test_a_sweep_that_repairs_a_counter_is_told_at_its_own_time() -> None:
    change = DepthChange.of("mail", item(9, **BOUNDS), item(0, **BOUNDS))
    (event,) = change.events(NOW_MS + 90_000)
    assert (event.type, event.at_ms) == ("backpressure.cleared", NOW_MS + 90_000)


def refused(n: int, **more: Any) -> dict[str, Any]:
    known = {"type": "email.send", "depth": 10, "bound": 10, "at": NOW_MS, "policy": "block"}
    return {"pk": keys.counter("mail"), "sk": keys.REFUSED, "n": n, **known, **more}


def test_a_refusal_counts_its_jobs() -> None:
    first, second = (
        parse(made_record(1, *images))[0]
        for images in ((None, refused(1)), (refused(1), refused(4, depth=9)))
    )
    assert first.other == PushRefusal("mail", 1, 10, 10, "email.send", "block", NOW_MS)
    assert isinstance(second.other, PushRefusal)
    assert (second.other.count, second.other.depth) == (3, 9)
    assert [(one.name, one.count) for one in second.other.counts(0)] == [
        ("rejected", 3),
        ("o_block", 3),
    ]
    (event,) = second.events("s")
    assert (event.type, event.time_ms) == ("backpressure.rejected", NOW_MS)
    assert event.data == {"queue": "mail", "depth": 9, "bound": 10, "job_type": "email.send"}


def test_a_counter_that_goes_tells_nothing() -> None:
    assert parse(made_record(1, item(9, **BOUNDS), None)) == []
    assert parse(made_record(1, refused(3), None)) == []


@pytest.mark.parametrize("sk", [keys.SEMAPHORE, keys.RATE])
def test_other_counters_are_passed_over(sk: str) -> None:
    assert not TABLE.projects(keys.counter("mail"), sk)
    assert parse(made_record(1, None, item(1) | {"sk": sk})) == []


@pytest.mark.parametrize(
    "spoilt", [refused(1, depth="secret"), {**refused(1), "type": 5}, item(1, bound="secret")]
)
def test_a_malformed_counter(spoilt: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        parse(made_record(1, None, spoilt))


@pytest.mark.requirement("QC-50", "BP-s")
def test_metrics_of_bounds() -> None:
    first, second = Tally(), Tally()
    for tally in (first, second):
        tally.of_day("mail", NOW_MS, "rejected", 2)
        tally.of_day("mail", NOW_MS, "o_reject", 2)
        tally.of_day("post", NOW_MS, "dropped")
        tally.of_day("post", NOW_MS, "o_drop_oldest")
        tally.of_day("post", NOW_MS, "created")
    second.of_day("gone", NOW_MS, "deleted")
    found = FakeMetrics()
    metrics.write(found, metrics.of_days([first, second]))
    assert found.sums == {
        (("queue", "mail"),): {"ojs.backpressure.rejected_total": 4},
        (("queue", "mail"), ("policy", "reject")): {"ojs.queue.overflow.count": 4},
        (("queue", "post"),): {"ojs.backpressure.dropped_total": 2},
        (("queue", "post"), ("policy", "drop_oldest")): {"ojs.queue.overflow.count": 2},
        (): {"ojs.queue.created.count": 2, "ojs.queue.deleted.count": 1},
    }
