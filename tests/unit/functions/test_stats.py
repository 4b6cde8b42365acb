"""Queues with counts, totals, history and metrics through the handler.

What the projection and the sweep would have written is put into the table as it is agreed.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ojs.api import operations as contract
from ojs.domain import times
from ojs.domain.job import retry
from ojs.domain.job.job import DEFAULT_TIMEOUT_MS, DEFAULT_VISIBILITY_MS
from ojs.domain.job.retention import RETENTION
from ojs.domain.job.states import State
from ojs.http.endpoint import Operation
from ojs.store.derived import statistics as store
from ojs.store.table import keys
from tests.spread import examples

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

DERIVED = [operation for operation in contract.OPERATIONS if operation.derived]
COUNTS = {"scheduled", "available", "pending", "active", "completed", "retryable", "cancelled",
          "discarded"}  # fmt: skip


def counters(api: Api, queue: str, sk: str = keys.NOW, **values: int) -> None:
    """What the projection counts."""
    api.runtime.table.write_many([{"pk": keys.stats(queue), "sk": sk, **values}])


def now_text(api: Api, ago_ms: int = 0) -> str:
    return times.format_ms(api.clock.now_ms() - ago_ms)


def today(api: Api) -> str:
    return keys.day(now_text(api)[:10])


def minute(api: Api, ago: int = 0) -> str:
    return keys.minute(now_text(api, ago * 60_000)[:16])


def sweep(api: Api) -> None:
    api.runtime.metrics_sweep.run_once(api.clock.now_ms(), 1_000)


# --- one queue --------------------------------------------------------------------------------


def test_statistics_of_a_queue(api: Api) -> None:
    api.clock.advance(-api.clock.now_ms() % 60_000 + 20_000)
    for _ in range(3):
        api.push("email")
    api.push("email", options={"delay_until": "+PT1H"})
    api.fetch("email")
    counters(
        api,
        "email",
        available=7,
        active=9,
        completed=5,
        discarded=2,
        cancelled=1,
        pending=4,
        dead=1,
    )
    counters(
        api, "email", today(api), enqueued=11, completed=5, failed=2, failures=6,
        wait_ms=1_000, waits=3, run_ms=5_000, runs=4,
    )  # fmt: skip
    api.clock.advance(10_000)
    counters(api, "email", minute(api), completed=3, failed=1)
    counters(api, "email", minute(api, 1), completed=60, failed=6)
    shown = api.get("/ojs/v1/queues/email/stats").json
    live = {"available": 2, "active": 1, "scheduled": 1, "retryable": 0}
    counted = {**live, "completed": 5, "discarded": 2, "cancelled": 1, "pending": 4}
    assert {name: shown[name] for name in counted} == counted
    assert {name: shown["queue"][name] for name in counted} == counted
    assert {name: shown["stats"][name] for name in counted} == counted
    assert shown["name"] == shown["queue"]["name"] == shown["stats"]["queue"] == "email"
    assert shown["depth"] == shown["queue"]["depth"] == shown["stats"]["depth"] == 8
    assert (shown["status"], shown["state"], shown["paused"]) == ("active", "active", False)
    assert shown["queue"]["paused"] is False
    assert shown["computed_at"] == now_text(api)
    stats = shown["stats"]
    assert (stats["enqueued_today"], stats["completed_today"], stats["failed_today"]) == (11, 5, 2)
    assert (stats["avg_wait_ms"], stats["avg_duration_ms"]) == (333, 1_250)
    # Half of the minute before is within the last sixty seconds.
    assert stats["throughput"] == {"processed_per_minute": 33.0, "failed_per_minute": 4.0}
    assert stats["dead_letter"] == 1
    assert stats["oldest_available_age_seconds"] == 10.0
    assert stats["oldest_available_at"] == now_text(api, 10_000)


def test_a_queue_that_does_not_exist(api: Api) -> None:
    shown = api.get("/ojs/v1/queues/nothing/stats").json
    assert all(shown["queue"][name] == 0 for name in COUNTS)
    assert (shown["name"], shown["depth"], shown["paused"]) == ("nothing", 0, False)
    assert "avg_wait_ms" not in shown["stats"]
    assert "oldest_available_at" not in shown["stats"]
    assert api.get("/ojs/v1/queues/nothing/priority-stats").json["distribution"] == []
    for path in ("/ojs/v1/queues/nothing", "/ojs/v1/admin/queues/nothing"):
        reply = api.get(path)
        assert (reply.status, reply.error["details"]["resource"]) == (404, "queue")


def test_a_count_that_is_behind_is_never_negative(api: Api) -> None:
    counters(api, "q", completed=-1, pending=-3, dead=-1)
    shown = api.get("/ojs/v1/queues/q/stats").json
    assert (shown["completed"], shown["pending"], shown["stats"]["dead_letter"]) == (0, 0, 0)


@pytest.mark.requirement("QC-45")
def test_a_queue_s_detail(api: Api) -> None:
    api.push("email")
    created_at = now_text(api)
    api.clock.advance(1_000)
    shown = api.get("/ojs/v1/queues/email").json
    assert shown["created_at"] == shown["updated_at"] == created_at
    assert shown["queue"] == {
        "name": "email", "state": "active", "status": "active", "paused": False,
        "created_at": created_at,
    }  # fmt: skip
    assert (shown["depth"], shown["running"], shown["stats"]["available"]) == (1, 0, 1)
    api.fetch("email")
    api.post("/ojs/v1/queues/email/pause")
    shown = api.get("/ojs/v1/queues/email").json
    assert (shown["state"], shown["paused"], shown["running"]) == ("paused", True, 1)
    assert shown["updated_at"] == shown["paused_at"] == now_text(api)
    api.clock.advance(1_000)
    api.post("/ojs/v1/admin/queues/email/resume")
    assert api.get("/ojs/v1/queues/email").json["updated_at"] == now_text(api)


def test_the_configuration_is_what_is_in_force(api: Api) -> None:
    job_id = api.push("email")
    config = api.get("/ojs/v1/queues/email").json["config"]
    assert config == api.get("/ojs/v1/admin/queues/email").json["configuration"]
    assert config == api.get("/ojs/v1/queues").json["queues"][0]["config"]
    assert config["default_timeout"] * 1_000 == DEFAULT_TIMEOUT_MS
    (job,) = api.fetch("email")
    assert job["id"] == job_id
    assert config["visibility_timeout"] * 1_000 == DEFAULT_VISIBILITY_MS
    assert job["lease_expires_at"] == now_text(api, -DEFAULT_VISIBILITY_MS)
    given = config["default_retry"]
    assert given["max_attempts"] == job["max_attempts"] == retry.DEFAULT.max_attempts
    assert times.duration_ms(given["initial_interval"]) == retry.DEFAULT.initial_ms
    assert times.duration_ms(given["max_interval"]) == retry.DEFAULT.max_ms
    policy = {"type": "a", "args": [], "options": {"retry": given, "queue": "other"}}
    stored = api.post("/ojs/v1/jobs", policy).json["job"]["id"]
    record = api.runtime.table.get(keys.job(stored), keys.RECORD)
    assert record is not None
    assert "retry" not in record, "the policy shown is the default"
    for name, kept_s in (
        ("completed", RETENTION.completed_s),
        ("discarded", RETENTION.discarded_s),
        ("cancelled", RETENTION.cancelled_s),
    ):
        assert times.duration_ms(config["retention"][name]) == kept_s * 1_000


def test_jobs_by_priority(api: Api) -> None:
    for priority in (0, 5, 0, -3, 5, 5):
        api.push("email", options={"priority": priority})
    shown = api.get("/ojs/v1/queues/email/priority-stats").json
    assert shown["queue"] == "email"
    assert shown["distribution"] == [
        {"priority": 5, "count": 3}, {"priority": 0, "count": 2}, {"priority": -3, "count": 1},
    ]  # fmt: skip


@pytest.mark.requirement("ADM-1")
def test_the_admin_view_of_a_queue(api: Api) -> None:
    api.push("email")
    api.clock.advance(2_500)
    shown = api.get("/ojs/v1/admin/queues/email").json
    assert shown["counts"].keys() == COUNTS
    assert shown["counts"]["available"] == 1
    assert shown["throughput"] == {"processed_per_minute": 0.0, "failed_per_minute": 0.0}
    assert shown["oldest_available_age_seconds"] == 2.5
    assert shown["computed_at"] == now_text(api)


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_pause_and_resume_name_the_queue_at_the_top(api: Api, verb: str) -> None:
    shown = api.post(f"/ojs/v1/admin/queues/never-seen/{verb}").json
    assert (shown["name"], shown["paused"]) == ("never-seen", verb == "pause")
    assert shown[f"{verb}d_at"] == now_text(api)


# --- several queues ---------------------------------------------------------------------------


@pytest.mark.requirement("ADM-1")
def test_queues_are_listed_by_page(api: Api) -> None:
    names = [f"q{number:02d}" for number in range(7)]
    for name in reversed(names):
        api.push(name)
        counters(api, name, available=1, completed=3)
    whole = api.get("/ojs/v1/queues").json
    assert [queue["name"] for queue in whole["queues"]] == names
    assert whole["items"] == whole["queues"]
    assert whole["total"] == whole["pagination"]["total"] == 7
    first = whole["queues"][0]
    assert (first["available"], first["completed"], first["depth"]) == (1, 3, 1)
    assert (first["state"], first["status"]) == ("active", "active")
    admin = api.get("/ojs/v1/admin/queues").json
    assert [item["name"] for item in admin["items"]] == names
    assert admin["items"][0]["counts"]["available"] == 1
    assert admin["pagination"]["total"] == 7
    for base in ("/ojs/v1/queues", "/ojs/v1/admin/queues"):
        page = api.get(base, limit="3").json
        assert [item["name"] for item in page["items"]] == names[:3]
        assert page["pagination"]["has_more"]
        assert (page["total"], page["pagination"]["total_unknown"]) == (4, True)
        cursor = page["pagination"]["next_cursor"]
        page = api.get(base, limit="3", cursor=cursor).json
        assert [item["name"] for item in page["items"]] == names[3:6]
        for query in ({"offset": "3"}, {"page": "2"}, {"page": "2", "per_page": "3"}):
            page = api.get(base, **{"limit": "3", **query}).json
            assert [item["name"] for item in page["items"]] == names[3:6]
        last = api.get(base, limit="3", page="3").json
        assert ([item["name"] for item in last["items"]], last["total"]) == (names[6:], 7)
        assert api.get(base, offset="300").json["items"] == []
        reply = api.get(base, offset="301")
        assert (reply.status, reply.error["details"]["field"]) == (400, "offset")
    api.runtime.metrics_sweep.run_once(api.clock.now_ms(), 1_000)
    for base in ("/ojs/v1/queues", "/ojs/v1/admin/queues"):
        for query in ({"page": "1"}, {"page": "2"}, {"cursor": cursor}):
            pagination = api.get(base, per_page="3", **query).json["pagination"]
            assert (pagination["total"], "total_unknown" in pagination) == (7, False)


def test_lists_of_queues_have_throughput_and_latency(api: Api) -> None:
    """As those of a single queue say; the oldest job is that of the last sweep."""
    for queue in ("busy", "idle"):
        api.post("/ojs/v1/jobs", {"type": "a", "args": [], "options": {"queue": queue}})
    api.clock.advance(10_000)
    counters(api, "busy", available=1)
    counters(api, "busy", minute(api), completed=30, failed=4)
    counters(api, "busy", minute(api, 1), completed=8)
    counters(api, "busy", keys.GAUGE, oldest=api.clock.now_ms() - 10_000)
    # Emptied since the sweep.
    counters(api, "idle", keys.GAUGE, oldest=1)
    single = api.get("/ojs/v1/admin/queues/busy").json
    assert single["throughput"]["processed_per_minute"] > 30
    for path in ("queues", "admin/queues"):
        busy, idle = api.get(f"/ojs/v1/{path}").json["items"]
        assert busy["throughput"] == single["throughput"]
        assert busy["oldest_available_age_seconds"] == 10.0
        assert busy["oldest_available_at"] == now_text(api, 10_000)
        assert idle["throughput"] == {"processed_per_minute": 0.0, "failed_per_minute": 0.0}
        assert "oldest_available_at" not in idle


def test_a_page_of_queues_is_short_where_more_would_cost_too_much(api: Api) -> None:
    """Numbered pages have no gap, whatever was asked for, and cursors go on."""
    names = [f"q{number:03d}" for number in range(45)]
    for name in names:
        api.runtime.queues.resume(name)
    shown: dict[str, list[str]] = {"page": [], "cursor": []}
    for number in range(1, 4):
        page = api.get("/ojs/v1/admin/queues", page=str(number), per_page="50").json
        assert page["pagination"]["per_page"] == 19
        shown["page"] += [item["name"] for item in page["items"]]
    cursor = None
    for _ in range(3):
        page = api.get("/ojs/v1/queues", **({"cursor": cursor} if cursor else {})).json
        shown["cursor"] += [item["name"] for item in page["items"]]
        cursor = page["pagination"].get("next_cursor")
    assert shown == {"page": names, "cursor": names}
    assert cursor is None


def test_no_queues(api: Api) -> None:
    assert api.get("/ojs/v1/queues").json["queues"] == []
    assert api.get("/ojs/v1/admin/queues").json["pagination"]["total"] == 0


def test_a_queue_that_is_only_registered(api: Api) -> None:
    # A container died between registering a queue and making it.
    api.runtime.table.write_many([{"pk": keys.QUEUES, "sk": "half"}])
    (shown,) = api.get("/ojs/v1/queues").json["queues"]
    assert (shown["name"], shown["state"], "created_at" in shown) == ("half", "active", False)
    assert api.get("/ojs/v1/queues/half").status == 404
    sweep(api)
    assert api.get("/ojs/v1/admin/stats").json["queues"] == 1


# --- all together -----------------------------------------------------------------------------


@pytest.mark.requirement("ADM-5")
def test_totals(api: Api) -> None:
    before = api.get("/ojs/v1/admin/stats").json
    assert (before["queues"], before["workers"]) == (0, 0)
    assert "computed_at" not in before
    for name in ("one", "two"):
        api.push(name)
        counters(
            api, name, available=1, completed=4, discarded=2, dead=1, changed=api.clock.now_ms()
        )
        counters(api, name, minute(api), completed=2, failed=1, enqueued=3)
    for worker in ("w1", "w2"):
        api.post("/ojs/v1/workers/heartbeat", {"worker_id": worker})
    api.clock.advance(31_000)
    api.post("/ojs/v1/workers/heartbeat", {"worker_id": "w2"})
    sweep(api)
    shown = api.get("/ojs/v1/admin/stats").json
    assert (shown["queues"], shown["workers"], shown["dead_letter"]) == (2, 1, 2)
    assert shown["jobs"].keys() == COUNTS
    assert (shown["jobs"]["available"], shown["jobs"]["completed"]) == (2, 8)
    assert shown["jobs"]["discarded"] == 4
    assert shown["computed_at"] == now_text(api)
    assert shown["uptime_seconds"] >= 0
    assert 0 < shown["throughput"]["processed_per_minute"] <= 4
    assert 0 < shown["throughput"]["failed_per_minute"] <= 2


def test_totals_with_a_detail_of_each_queue(api: Api) -> None:
    """As the command line's `debug bottleneck` reads it."""
    for queue in ("busy", "idle", "more"):
        api.runtime.queues.resume(queue)
    counters(api, "busy", available=3, active=1, completed=9)
    counters(api, "busy", today(api), runs=8, run_ms=1_000, failures=2, waits=4, wait_ms=10)
    sweep(api)
    reply = api.get("/ojs/v1/admin/stats", detail="true", limit="2").json
    assert reply["queue_count"] == 3
    assert reply["queues"] == [
        {
            "name": "busy", "depth": 4, "active": 1, "avg_duration_ms": 125, "avg_wait_ms": 2,
            "error_rate": 0.25,
        },
        {"name": "idle", "depth": 0, "active": 0},
    ]  # fmt: skip
    plain = api.get("/ojs/v1/admin/stats").json
    assert plain.pop("queues") == 3
    assert {name: reply[name] for name in plain} | {"uptime_seconds": 0} == {
        **plain,
        "uptime_seconds": 0,
    }
    cursor = reply["pagination"]["next_cursor"]
    reply = api.get("/ojs/v1/admin/stats", detail="true", limit="2", cursor=cursor).json
    assert [each["name"] for each in reply["queues"]] == ["more"]
    assert not reply["pagination"]["has_more"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"detail": "yes"}, "detail"), ({"limit": "5"}, "limit"), ({"cursor": "cQ"}, "cursor"),
        ({"detail": "false", "limit": "5"}, "limit"), ({"detail": "true", "limit": "0"}, "limit"),
        ({"detail": "true", "limit": "101"}, "limit"), ({"detail": "true", "page": "2"}, "page"),
        ({"detail": "true", "cursor": "!"}, "cursor"),
    ],
)  # fmt: skip
def test_a_wrong_detail_is_named(api: Api, query: dict[str, str], field: str) -> None:
    reply = api.get("/ojs/v1/admin/stats", **query)
    assert (reply.status, reply.error["details"]["field"]) == (400, field)


@pytest.mark.requirement("ADM-10")
def test_history(api: Api) -> None:
    api.clock.advance(-api.clock.now_ms() % 3_600_000 + 30 * 60_000)  # half past
    api.push("one")
    api.push("two")
    for name, ago in itertools.product(("one", "two"), (0, 1, 7)):
        counters(
            api, name, minute(api, ago), enqueued=3, completed=2, failed=1, wait_ms=500, waits=2
        )
        counters(api, name, changed=api.clock.now_ms())
    sweep(api)
    by_minute = api.get("/ojs/v1/admin/stats/history", period="1m").json
    assert (by_minute["period"], len(by_minute["data"])) == ("1m", 61)
    assert by_minute["data_points"] == by_minute["data"]
    latest = by_minute["data"][-1]
    assert latest == {
        "timestamp": now_text(api)[:16] + ":00.000Z", "processed": 4, "completed": 4, "failed": 2,
        "enqueued": 6, "avg_wait_ms": 250,
    }  # fmt: skip
    assert [point["processed"] for point in by_minute["data"][-8:]] == [4, 0, 0, 0, 0, 0, 4, 4]
    default = api.get("/ojs/v1/admin/stats/history").json
    assert (default["period"], len(default["data"])) == ("5m", 13)
    assert [point["processed"] for point in default["data"][-3:]] == [4, 4, 4]
    hours = api.get("/ojs/v1/admin/stats/history", period="1h").json["data"]
    assert (len(hours), hours[-1]["processed"], hours[-2]["processed"]) == (25, 12, 0)
    days = api.get("/ojs/v1/admin/stats/history", period="1d").json["data"]
    assert (len(days), days[-1]["enqueued"]) == (31, 18)
    one = api.get("/ojs/v1/admin/stats/history", period="1m", queue="one").json["data"]
    assert one[-1]["processed"] == 2
    hour = api.get("/ojs/v1/admin/stats/history", period="1h", queue="one").json["data"]
    assert hour[-1]["processed"] == 6
    span = api.get(
        "/ojs/v1/admin/stats/history",
        period="1m",
        since=now_text(api, 7 * 60_000),
        until=now_text(api, 5 * 60_000),
    ).json["data"]
    assert [point["processed"] for point in span] == [4, 0]


def test_history_of_a_queue_s_days(api: Api) -> None:
    counters(api, "one", today(api), completed=9)
    days = api.get("/ojs/v1/admin/stats/history", period="1d", queue="one").json["data"]
    assert (len(days), days[-1]["processed"]) == (31, 9)


def test_history_does_not_go_back_further_than_it_is_kept(api: Api) -> None:
    def shown(**query: str) -> int:
        query |= {"since": "1970-01-01T00:00:00Z"}
        return len(api.get("/ojs/v1/admin/stats/history", **query).json["data"])

    assert shown(period="1m") == 24 * 60 + 1
    assert shown(period="5m") == 24 * 12 + 1
    assert shown(period="1h") == 7 * 24 + 1
    assert shown(period="1d") == 400
    assert shown(period="1h", queue="q") == 25
    assert shown(period="1d", queue="q") == 90
    assert shown(period="1d", until="1970-01-02T00:00:00Z") == 0


# --- metrics ----------------------------------------------------------------------------------

_SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="[^"\\]*",?)+)\})? (\S+)')


def scraped(text: str) -> dict[str, float]:
    """Prometheus text, read strictly: each metric described once and told of in one piece."""
    found: dict[str, float] = {}
    current, kinds = "", {}
    assert text.endswith("\n")
    for line in text.splitlines():
        if line.startswith("# HELP "):
            current = line.split()[2]
            assert current not in kinds
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name == current
            kinds[name] = kind
        else:
            matched = _SAMPLE.fullmatch(line)
            assert matched, line
            name, labels, value = matched.groups()
            base = (
                re.sub("_(bucket|sum|count)$", "", name) if kinds[current] == "histogram" else name
            )
            assert base == current
            sample = f"{name}{{{labels or ''}}}"
            assert sample not in found
            found[sample] = float(value)
    return found


def test_metrics_as_prometheus_scrapes_them(api: Api) -> None:
    api.push("email")
    counters(api, "email", available=4, active=2, dead=3, completed=1)
    counters(
        api, "email", today(api), run_ms=2_250, runs=4, wait_ms=70, waits=2,
        **{"enqueued|a.b": 7, "completed|a.b": 4, "failed|other": 1, "bd0": 1, "bd7": 2, "bd15": 1,
           "bw0": 2},
    )  # fmt: skip
    api.post("/ojs/v1/workers/heartbeat", {"worker_id": "w1"})
    sweep(api)
    api.clock.advance(1_500)
    reply = api.get("/metrics")
    assert reply.headers["Content-Type"] == "text/plain"
    found = scraped(reply.text)
    assert found['ojs_job_enqueued_total{queue="email",type="a.b"}'] == 7
    assert found['ojs_job_completed_total{queue="email",type="a.b"}'] == 4
    assert found['ojs_job_failed_total{queue="email",type="other"}'] == 1
    assert found['ojs_queue_depth{queue="email",state="available"}'] == 4
    assert found['ojs_queue_depth{queue="email",state="discarded"}'] == 0
    assert found['ojs_queue_oldest_age_seconds{queue="email"}'] == 1.5
    assert found['ojs_dead_letter_total{queue="email"}'] == 3
    assert found['ojs_workers_busy{queue="email"}'] == 2
    assert (found["ojs_workers_active{}"], found["ojs_queues{}"]) == (1, 1)
    assert found["ojs_metrics_queues{}"] == 1
    buckets = {
        bound: found[f'ojs_job_duration_seconds_bucket{{queue="email",le="{bound}"}}']
        for bound in ("0.005", "0.25", "0.5", "1", "300", "+Inf")
    }
    assert list(buckets.values()) == [1, 1, 1, 3, 3, 4]
    assert found['ojs_job_duration_seconds_sum{queue="email"}'] == 2.25
    assert found['ojs_job_duration_seconds_count{queue="email"}'] == 4
    assert found['ojs_job_queue_time_seconds_bucket{queue="email",le="3600"}'] == 2
    states = {f'ojs_queue_depth{{queue="email",state="{state}"}}' for state in State}
    assert states <= found.keys()
    by_format = api.get("/ojs/v1/metrics", format="prometheus")
    assert (by_format.text, by_format.headers["Content-Type"]) == (reply.text, "text/plain")
    # Nothing of bounds for a queue that has none.
    assert not [name for name in found if "pressure" in name or "max_size" in name]


def test_the_text_format_tells_of_bounds(api: Api) -> None:
    api.runtime.queues.configure("email", {"max_size": 10, "max_size_bytes": 1_000})
    api.runtime.queues.configure("small", {"max_size_bytes": 400})
    counters(api, "email", "@", available=3, active=1, completed=9, loose_b=300, held_b=600)
    counters(api, "small", "@", available=9, held_b=900)
    counters(api, "email", today(api), rejected=5, dropped=2, o_reject=5, o_drop_oldest=2)
    found = scraped(api.get("/metrics").text)
    assert found['ojs_queue_max_size{queue="email"}'] == 10
    assert found['ojs_queue_utilization_ratio{queue="email"}'] == 0.4
    assert found['ojs_backpressure_pressure_ratio{queue="email"}'] == 0.9
    assert found['ojs_backpressure_rejected_total{queue="email"}'] == 5
    assert found['ojs_backpressure_dropped_total{queue="email"}'] == 2
    assert found['ojs_queue_overflow_total{queue="email",policy="reject"}'] == 5
    assert found['ojs_queue_overflow_total{queue="email",policy="drop_oldest"}'] == 2
    # Filled beyond its bound, which came later.
    assert found['ojs_backpressure_pressure_ratio{queue="small"}'] == 1
    assert found['ojs_backpressure_rejected_total{queue="small"}'] == 0
    assert 'ojs_queue_max_size{queue="small"}' not in found


def test_metrics_as_json(api: Api) -> None:
    api.push("email")
    counters(api, "email", available=4)
    counters(api, "email", today(api), **{"enqueued|a.b": 7, "bd1": 2, "run_ms": 12})
    for query in ({}, {"format": "json"}):
        shown = api.get("/ojs/v1/metrics", **query).json
        metrics = {metric["name"]: metric for metric in shown["metrics"]}
        assert metrics["ojs.job.enqueued"]["samples"] == [
            {"labels": {"queue": "email", "type": "a.b"}, "value": 7}
        ]
        assert metrics["ojs.job.enqueued"]["type"] == "counter"
        depth = {
            sample["labels"]["state"]: sample["value"]
            for sample in metrics["ojs.queue.depth"]["samples"]
        }
        assert depth.keys() == COUNTS
        assert depth["available"] == 4
        (durations,) = metrics["ojs.job.duration"]["samples"]
        assert (durations["count"], durations["sum"]) == (2, 0.012)
        assert durations["buckets"][:2] == [{"le": 0.005, "count": 0}, {"le": 0.01, "count": 2}]
        assert shown["computed_at"] == now_text(api)


def test_there_is_no_oldest_job_in_an_empty_queue(api: Api) -> None:
    api.push("email")
    counters(api, "email", available=0)
    counters(api, "email", keys.GAUGE, oldest=1)
    assert scraped(api.get("/metrics").text)['ojs_queue_oldest_age_seconds{queue="email"}'] == 0


def test_metrics_have_the_names_of_the_specification(api: Api) -> None:
    names = {metric["name"] for metric in api.get("/ojs/v1/metrics").json["metrics"]}
    assert names >= {
        "ojs.job.enqueued", "ojs.job.completed", "ojs.job.failed", "ojs.job.retried",
        "ojs.job.cancelled", "ojs.job.expired", "ojs.job.duration", "ojs.job.queue_time",
        "ojs.queue.depth", "ojs.queue.oldest_age", "ojs.workers.active", "ojs.workers.busy",
        "ojs.dead_letter.total",
    }  # fmt: skip


def test_a_scrape_has_an_end(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    from ojs.api import metrics
    from ojs.services.operations import statistics as stats

    names = [f"q{number:02d}" for number in range(40)]
    api.runtime.table.write_many([{"pk": keys.QUEUES, "sk": name} for name in names])
    sweep(api)
    whole = scraped(api.get("/metrics").text)
    assert (whole["ojs_queues{}"], whole["ojs_metrics_queues{}"]) == (40, 40)
    monkeypatch.setattr(metrics, "MAX_TEXT_BYTES", 30_000)
    monkeypatch.setattr(metrics, "MAX_JSON_BYTES", 30_000)
    text = api.get("/metrics").text
    assert len(text) < 30_000
    part = scraped(text)
    assert part["ojs_queues{}"] == 40
    assert 0 < part["ojs_metrics_queues{}"] < 40
    assert len(api.get("/ojs/v1/metrics").text) < 30_000
    monkeypatch.undo()
    monkeypatch.setattr(stats, "MAX_METRIC_QUEUES", 10)
    few = scraped(api.get("/metrics").text)
    assert (few["ojs_queues{}"], few["ojs_metrics_queues{}"]) == (40, 10)


# --- wrong requests ---------------------------------------------------------------------------

HALF = "\ud800"


def path_of(operation: Operation) -> str:
    return operation.path.replace("{name}", "q")


@pytest.mark.parametrize("operation", DERIVED, ids=lambda operation: operation.id)
def test_a_parameter_that_nobody_knows_is_named(api: Api, operation: Operation) -> None:
    if operation.id == "root_metrics":
        return  # scrapers add what they like
    for name in ("unheard_of", "State", f"a{HALF}", "x" * 5_000):
        reply = api("GET", path_of(operation), query={name: "1"})
        assert (reply.status, reply.error["code"]) == (400, "invalid_request")
        assert reply.error["details"]["field"][:20] == name[:20]
        assert len(reply.text) < 2_000
        reply.text.encode("utf-8")


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        ("/ojs/v1/admin/stats/history", {"since": "2026-13-01T00:00:00Z"}, "since"),
        ("/ojs/v1/admin/stats/history", {"since": "9999-12-31T23:59:59Z"}, "since"),
        (
            "/ojs/v1/admin/stats/history",
            {"since": "2026-01-02T00:00:00Z", "until": "2026-01-01T00:00:00Z"},
            "since",
        ),
        ("/ojs/v1/queues", {"cursor": "Tm8gU3VjaA"}, "cursor"),
        ("/ojs/v1/admin/queues", {"cursor": "Kg"}, "cursor"),
        ("/ojs/v1/queues/No%20Such/stats", {}, "name"),
        ("/ojs/v1/queues/*/stats", {}, "name"),
        (f"/ojs/v1/queues/{HALF}", {}, "name"),
        ("/ojs/v1/admin/queues/_default", {}, "name"),
        ("/ojs/v1/queues/a|b/priority-stats", {}, "name"),
    ],
)
def test_a_wrong_parameter_is_named(api: Api, path: str, query: dict[str, str], field: str) -> None:
    reply = api("GET", path, query=query)
    assert (reply.status, reply.error["code"]) == (400, "invalid_request"), reply.text
    assert reply.error["details"]["field"] == field
    reply.text.encode("utf-8")


PARAMETERS = sorted({parameter.name for operation in DERIVED for parameter in operation.query})
VALUES = st.one_of(
    st.text(st.characters(), max_size=20),
    st.sampled_from(
        ["1", "-1", "0", "1m", "1d", "email", "job.*", "evt_", "true", "*", ",", HALF, "9" * 30,
         "2026-01-01T00:00:00Z", "Zg", "ZjAwMDAwMDAwMDAwMDAwMA", "prometheus"]
    ),
)  # fmt: skip


@settings(max_examples=examples(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    operation=st.sampled_from(DERIVED),
    query=st.dictionaries(st.sampled_from(PARAMETERS), VALUES, max_size=4),
)
def test_any_query_is_answered_or_refused(
    api: Api, operation: Operation, query: dict[str, str]
) -> None:
    reply = api("GET", path_of(operation), query=query)
    assert reply.status in (200, 400, 404), reply.text
    if reply.status == 400:
        assert reply.error["details"]["field"].partition("[")[0] in query
    else:
        # What is taken is described as right.
        for parameter in operation.query:
            value = query.get(parameter.name)
            if value and "pattern" in parameter.schema:
                assert re.fullmatch(parameter.schema["pattern"], value)
            if value and "enum" in parameter.schema:
                assert value in parameter.schema["enum"]
    reply.text.encode("utf-8")


def test_derived_operations_change_nothing(api: Api) -> None:
    assert {operation.method for operation in DERIVED} == {"GET"}
    assert {operation.id for operation in DERIVED} == {
        "list_queues", "get_queue", "queue_stats", "priority_stats", "admin_list_queues",
        "admin_get_queue", "admin_stats", "admin_stats_history", "list_events", "metrics",
        "root_metrics", "dead_letter_stats", "admin_dead_letter_stats", "list_pools", "get_pool",
        "scheduling_stats", "list_jobs", "admin_list_jobs", "list_unique_jobs",
        "list_deliveries", "get_delivery", "stream_events", "stream_queue_events",
        "list_webhook_deliveries", "list_tenants", "get_tenant", "tenant_stats", "list_tenant_jobs",
        "search_history",
    }  # fmt: skip


def test_shallow_means_one_page() -> None:
    assert store.MAX_SHALLOW == 100
