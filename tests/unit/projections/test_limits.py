"""Limits as their items tell, and the events and metrics that follow (RL-006, RL 11.1 and 11.2)."""

from __future__ import annotations

from typing import Any

import pytest

from ojs.domain.counters.definitions import EXCEEDED, LIMIT_WAIT
from ojs.projections import limits, metrics, records
from ojs.projections.limits import ThrottleChange
from ojs.projections.records import Change, Malformed
from ojs.store.table import keys
from tests.store.streams import FakeMetrics, made_record

SERVICE = "mail-service"
AT_MS = 1_780_000_000_000
THROTTLED = {
    "pk": keys.limiter("cell"), "sk": keys.THROTTLED, "held": 1, "key": "api", "strategy": "rate",
    "bound": 10, "current": 10, "job": "j1", "at": AT_MS, "since": AT_MS, "n_rate": 1,
}  # fmt: skip
ADJUSTED = {
    "pk": keys.limiter("cell"), "sk": keys.ADJUSTED, "key": "api", "until": AT_MS + 60_000,
    "reason": "429 " * 1_000, "job": "j1", "at": AT_MS,
}  # fmt: skip


def changes(old: Any, new: Any) -> list[Change]:
    return records.parse(made_record(1, old, new))


def change(old: Any, new: Any) -> ThrottleChange:
    (change,) = changes(old, new)
    assert isinstance(change.other, ThrottleChange)
    return change.other


def kinds(old: Any, new: Any) -> list[str]:
    (change,) = changes(old, new)
    return [event.type for event in change.events(SERVICE)]


def released(item: dict[str, Any], after_ms: int = 1_500) -> dict[str, Any]:
    return {**item, "held": 0, "at": item["since"] + after_ms}


def test_an_edge_is_told_where_it_is_one() -> None:
    assert kinds(None, THROTTLED) == ["rate_limit.exceeded"]
    assert kinds(THROTTLED, released(THROTTLED)) == ["rate_limit.released"]
    assert kinds(released(THROTTLED), THROTTLED) == ["rate_limit.exceeded"]
    # The sweep keeps how many wait.
    assert kinds(THROTTLED, {**THROTTLED, "waiting": 3}) == []
    assert kinds(None, released(THROTTLED)) == []
    assert changes(THROTTLED, None) == changes(ADJUSTED, None) == []


def test_a_queue_s_own_limit_names_the_queue() -> None:
    item = {**THROTTLED, "pk": keys.counter("mail"), "sk": keys.RATE_THROTTLED, "key": "queue:mail"}
    del item["job"]
    ((event,),) = (change.events(SERVICE) for change in changes(None, item))
    assert (event.source, event.subject) == (f"ojs://{SERVICE}/queues/mail", "queue:mail")
    assert event.data == {
        "key": "queue:mail", "strategy": "rate", "limit": 10, "current": 10, "queue": "mail",
    }  # fmt: skip
    assert changes(item, None) == []


def test_ids_are_the_same_each_time_and_differ() -> None:
    def ids(old: Any, new: Any) -> list[str]:
        (change,) = changes(old, new)
        return [event.id for event in change.events(SERVICE)]

    assert ids(None, THROTTLED) == ids(None, THROTTLED)
    assert ids(None, THROTTLED) != ids(THROTTLED, released(THROTTLED))


def test_a_reason_is_cut() -> None:
    (change,) = changes(None, ADJUSTED)
    (event,) = change.events(SERVICE)
    assert event.type == "rate_limit.dynamic_adjusted"
    assert event.data["until"] == "2026-05-28T20:27:40.000Z"
    assert len(event.data["reason"]) == limits.MAX_REASON


@pytest.mark.parametrize("item", [THROTTLED, ADJUSTED])
def test_a_malformed_item_goes_elsewhere(item: dict[str, Any]) -> None:
    for name in ("key", "at"):
        spoilt = {key: value for key, value in item.items() if key != name}
        with pytest.raises(Malformed):
            changes(None, spoilt)
        with pytest.raises(Malformed):
            changes(None, {**item, name: b"?"})


def test_metrics_of_limits() -> None:
    mail = {
        **THROTTLED,
        "pk": keys.counter("mail"),
        "sk": keys.SEMAPHORE_THROTTLED,
        "strategy": "concurrency",
    }
    found = FakeMetrics()
    changed = [
        change(None, THROTTLED),
        change(released(THROTTLED), THROTTLED),
        change(THROTTLED, released(THROTTLED)),
        change(THROTTLED, {**THROTTLED, "waiting": 2}),
        change(mail, released(mail, 2_000)),
    ]
    metrics.write(found, metrics.of_limits(changed))
    assert found.sums == {
        (("strategy", "rate"),): {EXCEEDED.name: 2, LIMIT_WAIT.name: 1.5},
        (("queue", "mail"), ("strategy", "concurrency")): {LIMIT_WAIT.name: 2.0},
    }
