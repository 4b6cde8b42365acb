"""Ends of bulk operations and bulk enqueues as their items tell, and the events that follow."""

from __future__ import annotations

from typing import Any

import pytest

from ojs.projections import records
from ojs.projections.records import Malformed
from ojs.store.table import keys
from tests.store.streams import made_record
from tests.unit.domain.arbitrary import NOW_MS

SERVICE = "mail-service"
ID = "01968f2a-0000-7000-8000-000000000001"
RUNS = {
    "pk": keys.operation(ID), "sk": keys.RECORD, "action": "cancel_jobs", "state": "running",
    "wanted": '{"queue":"a"}', "started": NOW_MS, "updated": NOW_MS, "succeeded": 0, "failed": 0,
    "errors": "[]", "hold": "x", "held_until": NOW_MS + 1,
}  # fmt: skip
OVER = {**RUNS, "state": "completed", "finished": NOW_MS + 7, "succeeded": 5, "failed": 2, "ttl": 1}
PUSHED = {
    "pk": keys.bulk_push(ID), "sk": keys.RECORD, "total": 9, "succeeded": 7,
    "atomicity": "partial", "at": NOW_MS, "ttl": 1,
}  # fmt: skip


def told(old: Any, new: Any) -> list[tuple[str, dict[str, Any]]]:
    found = records.parse(made_record(1, old, new))
    events = [event for change in found for event in change.events(SERVICE)]
    for event in events:
        assert (event.subject, event.source) == (ID, f"ojs://{SERVICE}/api")
        assert event.time_ms == (new.get("finished") or new["at"])
    return [(event.type, dict(event.data)) for event in events]


@pytest.mark.parametrize(
    ("what", "done"), [("cancel", "cancelled"), ("retry", "retried"), ("delete", "deleted")]
)
def test_the_end_of_an_operation_is_told_once(what: str, done: str) -> None:
    """At the change to its end, and by none before or after it."""
    runs, over = ({**item, "action": f"{what}_jobs"} for item in (RUNS, OVER))
    event = (f"bulk.{what}.completed", {"total": 7, done: 5, "skipped": 2})
    for before in (runs, {**runs, "state": "stopping"}, None):
        assert told(before, over) == [event]
    for old, new in ((None, runs), (runs, {**runs, "succeeded": 3}), (over, over), (over, None)):
        assert told(old, new) == []


@pytest.mark.parametrize(
    "more",
    [
        {"state": "stopped"},
        {"dry": 1},
        {"action": "retry"},
        {"action": "purge"},
        {"action": "erase_jobs"},
        {"action": "of a later version"},
    ],
)
def test_what_is_not_told(more: dict[str, Any]) -> None:
    """What was stopped, a dry run, work on dead letters, an erasure, and what is not known."""
    assert told({**RUNS, **more, "state": "running"}, {**OVER, **more}) == []


def test_a_bulk_enqueue_is_told_once() -> None:
    data = {"total": 9, "succeeded": 7, "failed": 2, "atomicity": "partial"}
    assert told(None, PUSHED) == [("bulk.enqueue.completed", data)]
    assert told(PUSHED, None) == []


@pytest.mark.parametrize(
    ("item", "name"), [(OVER, "succeeded"), (OVER, "finished"), (PUSHED, "total")]
)
def test_a_damaged_item_is_malformed(item: dict[str, Any], name: str) -> None:
    for bad in ({**item, name: "x"}, {key: item[key] for key in item.keys() - {name}}):
        with pytest.raises(Malformed):
            records.parse(made_record(1, None, bad))
