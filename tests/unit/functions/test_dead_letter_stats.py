"""Statistics and metrics of dead letters over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ojs.domain.times import format_ms
from ojs.store.table import keys

if TYPE_CHECKING:
    from ojs.store.table.values import Item
    from tests.unit.functions.client import Api

BASES = pytest.mark.parametrize("base", ["/ojs/v1/dead-letter", "/ojs/v1/admin/dead-letter"])


def counters(api: Api, queue: str, sk: str, **values: int) -> None:
    """As the projection would have counted."""
    item: Item = {"pk": keys.stats(queue), "sk": sk, **values}
    api.runtime.table.write_many([item])


def sweep(api: Api) -> None:
    api.runtime.metrics_sweep.run_once(api.clock.now_ms(), 1_000)


@pytest.mark.requirement("DL-24", "DL-25")
@BASES
def test_the_shape_of_the_statistics(api: Api, base: str) -> None:
    api.clock.advance(61_000)
    api.dead("billing")
    first_ms = api.clock.now_ms()
    api.clock.advance(5_000)
    api.dead("email")
    last_ms = api.clock.now_ms()
    now_ms = last_ms
    counters(api, "billing", keys.NOW, discarded=1, dead=1, changed=now_ms)
    counters(api, "billing", keys.DEAD, rev=1, **{"t|invoice.generate": 1, "e|Unknown": 1})
    counters(api, "email", keys.NOW, discarded=3, dead=2, changed=now_ms)
    counters(api, "email", keys.DEAD, rev=1, **{"t|email.send": 2, "e|Boom": 2, "e|Old": 0})
    sweep(api)
    policy = {"dead_letter": {"retention": {"max_age": "P90D"}}}
    assert api("PUT", "/ojs/v1/queues/_default/config", policy).status == 200
    table = api.runtime.table
    table.measure = True
    table.meter.reset()
    shown = api.get(f"{base}/stats")
    assert table.meter.calls == ["BatchGetItem", "Query", "Query"]
    assert shown.status == 200
    assert shown.json == {
        "total": 3,
        "by_queue": {"email": 2, "billing": 1},
        "by_error_type": {"Boom": 2, "Unknown": 1},
        "by_type": {"email.send": 2, "invoice.generate": 1},
        "oldest_at": format_ms(first_ms),
        "newest_at": format_ms(last_ms),
        "retention": {
            "max_age": "P90D",
            "max_count": 10_000,
            "next_prune_at": format_ms(now_ms - now_ms % 300_000 + 300_000),
        },
        "computed_at": format_ms(now_ms),
    }


@BASES
def test_nothing_is_dead(api: Api, base: str) -> None:
    shown = api.get(f"{base}/stats").json
    assert {name: shown[name] for name in ("total", "by_queue", "by_error_type", "by_type")} == {
        "total": 0, "by_queue": {}, "by_error_type": {}, "by_type": {},
    }  # fmt: skip
    assert shown["retention"]["max_age"] == "P180D"
    assert shown.keys().isdisjoint({"oldest_at", "newest_at", "computed_at"})
    refused = api.get(f"{base}/stats", queue="email")
    assert (refused.status, refused.error["details"]["field"]) == (400, "queue")


def test_totals_are_shown_where_they_are_known_without_counting(api: Api) -> None:
    for _ in range(3):
        api.dead("email")
    counters(api, "email", keys.NOW, dead=40, discarded=40, changed=api.clock.now_ms())
    sweep(api)
    for asked in ({}, {"queue": "email"}):
        first = api.get("/ojs/v1/dead-letter", limit="2", **asked).json
        assert first["total"] == first["pagination"]["total"] == 40
        cursor = first["pagination"]["next_cursor"]
        assert api.get("/ojs/v1/dead-letter", limit="2", cursor=cursor, **asked).json["total"] == 40
    filtered = api.get("/ojs/v1/dead-letter", limit="2", error_type="Boom").json
    assert filtered["pagination"]["has_more"] is True
    assert (filtered["total"], filtered["pagination"]["total_unknown"]) == (3, True)


@pytest.mark.requirement("DL-23", "DL-24")
def test_the_detail_has_every_error(api: Api) -> None:
    job_id = api.push(options={"retry": {"max_attempts": 3, "initial_interval": "PT1S"}})
    for number in range(3):
        api.clock.advance(3_600_000)
        api.fetch(worker_id="w")
        error = {"type": f"E{number}", "message": f"no {number}", "backtrace": [f"at {number}"]}
        api.post(f"/ojs/v1/jobs/{job_id}/nack", {"error": error})
    shown = api.get(f"/ojs/v1/dead-letter/{job_id}").json
    assert [(e["attempt"], e["type"], e["message"], e["backtrace"]) for e in shown["errors"]] == [
        (number + 1, f"E{number}", f"no {number}", [f"at {number}"]) for number in range(3)
    ]
    assert all("occurred_at" in error for error in shown["errors"])
    assert (shown["state"], shown["attempt"], shown["max_attempts"]) == ("discarded", 3, 3)
    assert shown["metadata"] == {
        "created_at": shown["created_at"], "discarded_at": shown["discarded_at"],
    }  # fmt: skip
    found = api.get("/ojs/v1/dead-letter", error_type="E2").json["jobs"]
    assert [job["id"] for job in found] == [job_id]
    assert api.get("/ojs/v1/dead-letter", error_type="E1").json["jobs"] == []


@pytest.mark.requirement("DL-27")
def test_metrics_of_dead_letters(api: Api) -> None:
    api.push("email")
    day = api.clock.now_ms()
    counters(api, "email", keys.NOW, dead=4, discarded=4)
    values = {"dead_added|email.send": 6, "dead_retried": 1, "dead_pruned": 2}
    counters(api, "email", keys.day(format_ms(day)[:10]), **values)
    text = api.get("/metrics").text
    queue = next(line for line in text.splitlines() if line.startswith("ojs_dead_letter_total"))
    name = queue.partition('queue="')[2].partition('"')[0]
    for line in (
        f'ojs_dead_letter_added_total{{queue="{name}",type="email.send"}} 6',
        f'ojs_dead_letter_retried_total{{queue="{name}"}} 1',
        f'ojs_dead_letter_pruned_total{{queue="{name}"}} 2',
        f'ojs_dead_letter_total{{queue="{name}"}} 4',
    ):
        assert line in text.splitlines()
    body = api.get("/ojs/v1/metrics").json["metrics"]
    added = next(each for each in body if each["name"] == "ojs.dead_letter.added_total")
    assert added["type"] == "counter"
    assert added["samples"] == [{"labels": {"queue": name, "type": "email.send"}, "value": 6}]
