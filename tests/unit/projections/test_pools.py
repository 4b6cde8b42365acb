"""Worker pools as their items tell; events, counters and metrics that follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.projections import metrics, records
from ojs.projections.counters import Tally
from ojs.projections.records import Change, Malformed
from ojs.projections.transitions import happened
from ojs.store.table import keys
from tests.store.streams import FakeMetrics, made_record
from tests.unit.domain.arbitrary import NOW_MS
from tests.unit.projections.tallies import sums, tally

SERVICE = "mail-service"
POOL = {
    "pk": keys.pool("general"), "sk": keys.RECORD, "queues": '["a","b"]', "strategy": "weighted",
    "weights": '{"a":2,"b":1}', "created": NOW_MS, "configured": NOW_MS, "changes": 0,
}  # fmt: skip
WATCH = {
    "pk": keys.pool("general"), "sk": keys.ALERTS, "created": NOW_MS, "rev": 1,
    "at": NOW_MS + 90_500, "starved": f'{{"a":[{NOW_MS},7]}}', "ttl": 1,
}  # fmt: skip
OVER = {"since": NOW_MS, "active": 20, "waiting": 5}


def change(old: Any, new: Any) -> Change:
    (found,) = records.parse(made_record(1, old, new))
    return found


def told(old: Any, new: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(event.type, dict(event.data)) for event in change(old, new).events(SERVICE)]


@pytest.mark.requirement("FS-25")
@pytest.mark.parametrize(
    ("changed", "strategy"),
    [
        ({"strategy": "strict", "weights": "{}"}, "strict"),
        ({"weights": '{"a":9,"b":1}'}, "weighted"),
    ],
)
def test_a_change_of_strategy_or_weights_is_told(changed: dict[str, Any], strategy: str) -> None:
    """With the strategy before and after."""
    after = {**POOL, **changed, "configured": NOW_MS + 5, "changes": 1}
    data = {"pool": "general", "previous_strategy": "weighted", "new_strategy": strategy}
    assert told(POOL, after) == [("scheduling.rebalanced", data)]
    (event,) = change(POOL, after).events(SERVICE)
    assert (event.subject, event.time_ms) == ("general", NOW_MS + 5)
    assert event.source == f"ojs://{SERVICE}/api"


@pytest.mark.requirement("FS-25")
@pytest.mark.parametrize(
    "changed",
    [{"concurrency": 5}, {"isolated": 1}, {"queues": '["a","b","c"]'}, {"seating": 1}, {}],
)
def test_no_other_change_is(changed: dict[str, Any]) -> None:
    """Nor is a pool that is made or removed."""
    assert told(POOL, {**POOL, **changed, "changes": 1}) == []
    assert records.parse(made_record(1, None, POOL)) == []
    assert records.parse(made_record(1, POOL, None)) == []


@pytest.mark.requirement("FS-25")
def test_a_queue_that_begins_to_starve_is_told_once() -> None:
    """For how long it was given nothing, and what waits."""
    data = {"queue": "a", "duration": "PT90.5S", "available_count": 7, "pool": "general"}
    assert told(None, WATCH) == [("scheduling.queue_starved", data)]
    # Another begins, this one goes on.
    more = {**WATCH, "rev": 2, "starved": f'{{"a":[{NOW_MS},7],"b":[{NOW_MS},1]}}'}
    assert [data["queue"] for _, data in told(WATCH, more)] == ["b"]
    # It is over: nothing is told, and it may begin again.
    over = {**WATCH, "rev": 3, "starved": "{}", **OVER}
    assert [kind for kind, _ in told(more, over)] == ["scheduling.pool_overloaded"]
    assert [kind for kind, _ in told(over, {**WATCH, **OVER})] == ["scheduling.queue_starved"]
    assert records.parse(made_record(1, WATCH, None)) == []


@pytest.mark.requirement("FS-25")
def test_a_pool_that_begins_to_be_overloaded_is_told_once() -> None:
    """With how many run and how many wait."""
    over = {**WATCH, "starved": "{}", **OVER}
    data = {"pool": "general", "active_jobs": 20, "waiting_jobs": 5}
    assert told(None, over) == [("scheduling.pool_overloaded", data)]
    assert told(over, {**over, "rev": 2, "at": NOW_MS + 86_400_000}) == []


def test_what_was_wrong_with_a_pool_that_is_gone_is_not_this_one_s() -> None:
    after = {**WATCH, **OVER, "created": NOW_MS + 1}
    kinds = [kind for kind, _ in told({**WATCH, **OVER}, after)]
    assert kinds == ["scheduling.queue_starved", "scheduling.pool_overloaded"]


@pytest.mark.parametrize(
    ("item", "broken"),
    [
        (POOL, {"queues": 5}), (POOL, {"queues": "["}), (POOL, {"created": "x"}),
        (WATCH, {"starved": '{"a":5}'}), (WATCH, {"at": "x"}), (WATCH, {"since": 5}),
        (WATCH, {"rev": "1"}), (WATCH, {"starved": "secret"}),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_put_aside(item: dict[str, Any], broken: dict[str, Any]) -> None:
    bad = {name: value for name, value in {**item, **broken}.items() if value is not None}
    with pytest.raises(Malformed) as malformed:
        records.parse(made_record(1, item, bad))
    assert "secret" not in str(malformed.value)


# --- what is counted ----------------------------------------------------------------------------

JOB = Job(
    "019539a4-b68c-7def-8000-1a2b3c4d5e6f", "email.send", "mail", State.AVAILABLE, NOW_MS,
    enqueued_ms=NOW_MS,
)  # fmt: skip
ACTIVE = ("@general", keys.NOW)
DAY = ("mail", keys.day("2026-05-28"))


def started(pool: str | None, job: Job = JOB) -> Job:
    at_ms = NOW_MS + 1_500
    return replace(job, state=State.ACTIVE, attempt=1, started_ms=at_ms, pool=pool)


def test_a_job_of_a_pool_is_counted_for_the_pool_and_in_its_queue_s_day() -> None:
    found = sums(tally((JOB, started("general"))))
    assert found[ACTIVE] == {"active": 1}
    assert found[DAY]["s_general"] == 1


def test_a_job_that_changes_pools_changes_counts() -> None:
    assert sums(tally((started("general"), started("other")))) == {
        ("@general", keys.NOW): {"active": -1},
        ("@other", keys.NOW): {"active": 1},
    }


@pytest.mark.parametrize("state", [State.COMPLETED, State.RETRYABLE, State.DISCARDED])
def test_a_job_that_runs_no_more_leaves_the_pool(state: State) -> None:
    assert sums(tally((started("general"), replace(started("general"), state=state))))[ACTIVE] == {
        "active": -1
    }


def test_a_beat_and_a_pool_that_was_changes_nothing() -> None:
    assert ACTIVE not in sums(tally((started("general"), started("general"))))
    # It keeps the name of the pool it was handed out to last.
    done = replace(started("general"), state=State.COMPLETED)
    assert ACTIVE not in sums(tally((done, None)))


def test_a_job_without_a_pool_writes_no_item_more() -> None:
    places = set(sums(tally((JOB, started(None)))))
    assert places == {("mail", keys.NOW), DAY, ("mail", keys.minute("2026-05-28T20:26"))}
    assert set(sums(tally((JOB, started("general"))))) - places == {ACTIVE}


def test_the_queue_s_counters_come_first() -> None:
    """What is counted of one queue stays together, and in order, wherever it was handed out."""
    found = tally((JOB, started("general")))
    assert next(iter(found.counts)) == ("mail", keys.NOW)
    assert found.queues() == ["mail", "@general"]


@pytest.mark.requirement("FS-26")
def test_what_was_handed_out_to_pools_is_measured() -> None:
    """How many by queue and pool, and how long they had waited."""
    changes = [(JOB, started(pool)) for pool in ("general", "general", "other", None)]
    what = [one for before, after in changes for one in happened(before, after, written_ms=NOW_MS)]
    to = FakeMetrics()
    metrics.write(to, metrics.of_pools(what))
    assert {dimensions: dict(values) for dimensions, values in to.sums.items()} == {
        (("queue", "mail"), ("pool", "general")): {"ojs.scheduling.dispatch_total": 2},
        (("queue", "mail"), ("pool", "other")): {"ojs.scheduling.dispatch_total": 1},
        (("queue", "mail"),): {"ojs.scheduling.queue_wait_duration": 4.5},
    }


@pytest.mark.requirement("FS-26")
def test_starvation_is_measured_by_queue() -> None:
    """Each time that a queue was found so."""
    found = Tally()
    found.of_day("mail", NOW_MS, "starved")
    to = FakeMetrics()
    metrics.write(to, metrics.of_days([found]))
    assert to.sums[("queue", "mail"),] == {"ojs.scheduling.starvation_events": 1}
