"""Entries of run logs: events, counters and metrics that follow."""

from __future__ import annotations

from typing import Any

import pytest

from ojs.domain import times
from ojs.domain.cron.cron import SkipReason
from ojs.projections import metrics, records
from ojs.projections.crons import CronRunChange
from ojs.store.table import keys
from tests.store.streams import FakeMetrics, made_record
from tests.unit.domain.arbitrary import NOW_MS
from tests.unit.projections.tallies import tally

SERVICE = "mail-service"
FIRED = {
    "pk": keys.cron_runs("daily"), "sk": f"{NOW_MS:015d}|000000043|tok", "at": NOW_MS + 123,
    "tick": NOW_MS, "late": 123, "expression": "0 9 * * *", "zone": "America/New_York",
    "type": "report", "queue": "reports", "fired": 43, "job": "job-1", "ttl": 1,
}  # fmt: skip
BOTH = {
    "cron_name": "daily", "cron_expression": "0 9 * * *", "cron_expr": "0 9 * * *",
    "timezone": "America/New_York", "job_type": "report", "queue": "reports", "run_count": 43,
    "scheduled_time": times.format_ms(NOW_MS), "scheduled_at": times.format_ms(NOW_MS),
    "actual_time": times.format_ms(NOW_MS + 123),
}  # fmt: skip


def change(old: Any, new: Any) -> records.Change:
    (found,) = records.parse(made_record(1, old, new))
    return found


def without(item: dict[str, Any], *names: str, **more: Any) -> dict[str, Any]:
    return {name: value for name, value in item.items() if name not in names} | more


def told(item: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    (event,) = change(None, item).events(SERVICE)
    assert (event.subject, event.source) == ("daily", f"ojs://{SERVICE}/cron")
    assert event.time_ms == item["at"]
    return event.type, dict(event.data)


@pytest.mark.requirement("CRON-29")
def test_a_firing_is_told_by_all_names_of_the_specification() -> None:
    fired = {**BOTH, "job_id": "job-1", "manual": False}
    assert told(FIRED) == ("cron.triggered", fired)
    assert told({**FIRED, "waiting": 3})[1] == {**fired, "waiting_jobs": 3}


def test_a_firing_by_hand_says_so() -> None:
    kind, data = told(without(FIRED, "tick", "late"))
    assert (kind, data["manual"]) == ("cron.triggered", True)
    assert data["scheduled_time"] == data["actual_time"]


@pytest.mark.requirement("CRON-30")
@pytest.mark.parametrize("reason", SkipReason)
def test_a_skip_is_told_with_its_reason(reason: SkipReason) -> None:
    skipped = without(FIRED, "job", reason=reason.value, other="job-0")
    data = {**BOTH, "reason": reason.value, "active_job_id": "job-0", "existing_job_id": "job-0"}
    assert told(skipped) == ("cron.skipped", data)


def test_local_times_that_are_skipped_are_named() -> None:
    skipped = without(FIRED, "job", reason="dst_skip", local="2026-03-08T02:30:00", skipped=2)
    _, data = told(skipped)
    assert (data["local_time"], data["skipped_count"]) == ("2026-03-08T02:30:00", 2)


def test_an_entry_that_is_removed_tells_nothing() -> None:
    assert records.parse(made_record(1, FIRED, None)) == []
    assert records.parse(made_record(1, FIRED, {**FIRED, "ttl": 2})) == []


def measured(item: dict[str, Any]) -> dict[Any, Any]:
    found = change(None, item)
    assert isinstance(found.other, CronRunChange)
    outlet = FakeMetrics()
    counts = tally()
    for each in found.other.counts(0):
        counts.of_day(each.queue, each.at_ms, each.name, each.count)
    metrics.write(outlet, metrics.of_days([counts]))
    metrics.write(outlet, metrics.of_crons([found.other]))
    return {dimensions: dict(values) for dimensions, values in outlet.sums.items()}


def test_what_is_measured() -> None:
    queue = (("queue", "reports"),)
    assert measured(FIRED) == {
        queue: {"ojs.cron.triggered": 1, "ojs.cron.lateness": 0.123},
        (): {"ojs.cron.lateness": 0.123},
    }
    skipped = without(FIRED, "job", "late", reason="overlap_skip")
    assert measured(skipped) == {
        (("queue", "reports"), ("reason", "overlap_skip")): {"ojs.cron.skipped": 1},
        queue: {"ojs.cron.lateness": 0.0},
        (): {"ojs.cron.lateness": 0.0},
    }
    # By hand there is no tick to be late for, and without a queue nothing to be counted in.
    assert measured(without(FIRED, "tick", "late")) == {queue: {"ojs.cron.triggered": 1}}
    gone = without(FIRED, "job", reason="queue_not_found")
    assert "ojs.cron.skipped" not in str(measured(gone))
