"""Jobs: totals, counts of filters, search, the form that enqueues, the parts of a run; and forms
with durations, rates and schedules as people write them.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.dashboard.conftest import DESKTOP, PHONE, Opener
from tests.dashboard.world import Caller, done, fail, fetch, push
from tests.local.conftest import RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

LOOKS: list[dict[str, Any]] = [
    {"scheme": "light", "size": DESKTOP},
    {"scheme": "dark", "size": DESKTOP},
    {"scheme": "light", "size": PHONE},
]


@pytest.fixture(scope="module")
def found(call: Caller, world: dict[str, str]) -> str:
    """A queue of jobs of two types in several states."""
    call("POST", "/queues", {"name": "found"})
    for number in range(5):
        push(call, "found", "find.one", number, {"customer": f"C-{number}"})
    push(call, "found", "find.two", 7)
    for job in fetch(call, "found", 2, "finder"):
        done(call, job, {"sum": 3})
    push(call, "found", "find.two", 8, delay_until="+PT1H")
    return "found"


@pytest.mark.parametrize("look", LOOKS)
def test_totals_and_counts_filter_the_list(
    screen: Opener, found: str, look: dict[str, Any]
) -> None:
    shown = screen(**look).open(f"jobs?queue={found}")
    totals = shown.page.get_by_role("group", name="Jobs by state")
    for name, count in {"Available": 4, "Completed": 2, "Scheduled": 1, "Discarded": 0}.items():
        totals.locator("a", has_text=name).filter(has_text=str(count)).wait_for()
    types = shown.page.get_by_role("group", name="Type", exact=True)
    types.get_by_text("loaded jobs").wait_for()
    assert not shown.barriers(), look
    types.get_by_role("button", name="find.two").click()
    shown.page.wait_for_url("**type=find.two**")
    shown.page.locator("tbody tr").nth(2).wait_for(state="detached")
    totals.locator("a", has_text="Completed").click()
    shown.page.wait_for_url("**state=completed**")
    totals.locator("a[aria-current]", has_text="Completed").wait_for()
    shown.go("jobs")
    queues = shown.page.get_by_role("group", name="Queue", exact=True)
    queues.get_by_role("button", name="mail").click()
    shown.page.wait_for_url("**queue=mail**")
    width = shown.page.evaluate("() => document.scrollingElement.scrollWidth - innerWidth")
    assert width <= 0


def test_loaded_jobs_are_searched_and_keys_follow_the_order_that_is_shown(
    screen: Opener, found: str
) -> None:
    shown = screen().open(f"jobs?queue={found}")
    shown.page.get_by_label("Search loaded jobs").fill("c-3")
    shown.page.get_by_text("1 of 7 loaded jobs").wait_for()
    assert shown.page.locator("tbody tr", has=shown.page.locator("input")).count() == 1
    shown.page.get_by_label("Search loaded jobs").fill("")
    shown.page.get_by_role("button", name="State", exact=True).click()
    shown.page.locator("th[aria-sort=ascending]", has_text="State").wait_for()
    shown.page.locator("h1").click()
    for pressed in ("j", "x"):
        shown.page.keyboard.press(pressed)
    row = shown.page.locator("tbody tr[aria-selected=true]")
    row.wait_for()
    assert row.locator("..").locator("tr").first.get_attribute("aria-selected") == "true"
    latency = shown.page.get_by_role("table", name="Latency by queue and type")
    latency.locator("tr", has_text="find.one").filter(has_text="2").wait_for()


def test_a_job_is_enqueued_from_the_page(screen: Opener, call: Caller, found: str) -> None:
    shown = screen().open(f"jobs?queue={found}")
    shown.press("Enqueue job")
    shown.page.locator("dialog").wait_for()
    assert not shown.barriers()
    shown.answer("Enqueue", type="find.new", args="{", tags="a\nb")
    shown.page.locator("dialog .refused", has_text="JSON").wait_for()
    shown.answer("Enqueue", args='[{"n": 1}]', meta='{"by": "page"}', delay_until="2h 30m")
    shown.told("Job enqueued")
    shown.page.locator("h1", has_text="find.new").wait_for()
    job = call("GET", f"/admin/jobs/{shown.page.url.rpartition('/')[2]}")
    assert (job["args"], job["meta"], job["tags"]) == ([{"n": 1}], {"by": "page"}, ["a", "b"])
    assert (job["queue"], job["state"]) == (found, "scheduled")


def test_the_parts_of_a_run(screen: Opener, call: Caller, world: dict[str, str]) -> None:
    ident = push(
        call, "runs", "run.twice", retry={"max_attempts": 2, "initial_interval": "PT0.05S"}
    )
    for job in fetch(call, "runs", 1, "w"):
        fail(call, job, "Broken", "it broke")
    shown = screen(size=PHONE).open(f"jobs/{ident}")
    run = shown.page.locator(".run li")
    run.filter(has_text="Attempt 1 failed").wait_for()

    def finished() -> bool:
        jobs = fetch(call, "runs", 1, "w")
        for job in jobs:
            done(call, job, None)
        return bool(jobs)

    shown.until(finished)
    shown.open(f"jobs/{ident}")
    run.filter(has_text="Attempt 2").wait_for()
    states = run.evaluate_all("all => all.map(each => each.dataset.state)")
    # The start of an earlier attempt is not in the record.
    assert states == ["active", "retryable", "active"]
    run.filter(has_text="Wait and attempt 1 failed").wait_for()
    assert not shown.barriers()


def test_durations_and_rates_are_written_as_people_do(
    screen: Opener, call: Caller, world: dict[str, str]
) -> None:
    call("POST", "/queues", {"name": "spans", "rate_limit": {"limit": 9, "period": "PT1M30S"}})
    shown = screen().open("queues/spans")
    field = shown.page.locator(".config").locator
    assert field('[name="rate_limit"]').input_value() == "9 per 1m 30s"
    assert field('[name="retention.completed"]').input_value() == "7d"
    for name, text in {
        "rate_limit": "100 per 2h", "retention.completed": "1d 12h", "visibility_timeout": "5m",
        "default_retry.initial_interval": "soon",
    }.items():  # fmt: skip
        field(f'[name="{name}"]').fill(text)
    shown.press("Save")
    shown.page.locator(".refused", has_text="90s, 5m, or 2h 30m").wait_for()
    assert field('[name="retention.completed"]').input_value() == "1d 12h"
    field('[name="default_retry.initial_interval"]').fill("90s")
    shown.press("Save")
    shown.told("Saved:")
    config = call("GET", "/queues/spans/config")["config"]
    assert config["rate_limit"] == {"limit": 100, "period": "PT2H"}
    assert config["retention"]["completed"] in {"P1DT12H", "PT36H"}
    assert config["visibility_timeout"] == 300
    assert config["default_retry"]["initial_interval"] == "PT1M30S"
    # Defaults of the other parts stay defaults.
    assert config["retention"]["discarded"] == "P30D"


def test_a_schedule_is_described_and_its_next_runs_are_in_the_readers_zone(
    screen: Opener, world: dict[str, str]
) -> None:
    shown = screen().open("cron")
    shown.press("Create cron job")
    preview = shown.page.locator("dialog .preview")
    preview.get_by_text("Monday to Friday at 09:00").wait_for()
    shown.page.locator('dialog [name="timezone"]').fill("America/New_York")
    shown.page.locator('dialog [name="expression"]').fill("30 8,18 1,15 JAN-MAR *")
    preview.get_by_text("Day 1 and 15 of January to March at 08:30 and 18:30").wait_for()
    preview.locator("li", has_text="14:30:00 CET").first.wait_for()
    assert preview.locator("li").count() == 5
    assert not shown.barriers()
    for expression, text in {
        "*/10 9-17 * * MON-FRI": "Monday to Friday, every 10 min from 09:00 to 17:59",
        "0 9-17 * * *": "Daily, hourly from 09:00 to 17:00",
        "15 6 * 12 SUN": "Sunday in December at 06:15",
        "0 0 L * *": "Last day of the month at 00:00",
    }.items():
        shown.page.locator('dialog [name="expression"]').fill(expression)
        preview.get_by_text(text, exact=True).wait_for()
    shown.page.locator('dialog [name="expression"]').fill("61 * * * *")
    preview.get_by_text("No preview").wait_for()


def test_limited_and_read_only_keys_see_what_they_may(
    screen: Opener, call: Caller, server: RunningServer, found: str
) -> None:
    made = {
        "reads": {"scopes": ["admin:read", "jobs:read"]},
        "found": {"scopes": ["admin:read", "jobs:read"], "queues": [found]},
    }
    for name, of in made.items():
        secret = call("POST", "/admin/keys", {"name": name, **of})["secret"]
        shown = screen(signed_in=secret).open(f"jobs?queue={found}")
        shown.page.get_by_role("group", name="Jobs by state").locator("a").first.wait_for()
        button = shown.page.get_by_role("button", name="Enqueue job")
        assert button.is_disabled()
        assert "Missing scope jobs:write" in str(button.get_attribute("title"))
        shown.quiet()
        assert not shown.page.locator("[role=alert]").count(), name
        assert not shown.barriers(), name
        shown.open("jobs").quiet()
        limited = shown.page.get_by_text("Select a queue")
        assert limited.count() == (1 if "queues" in of else 0)
        assert not shown.page.locator("[role=alert]").count(), name


def test_charts_have_dates_errors_and_numbers(
    screen: Opener, call: Caller, world: dict[str, str]
) -> None:
    for error, count in {"First": 3, "Second": 1}.items():
        for _ in range(count):
            push(call, "errors", "err.or", retry={"max_attempts": 1})
        for job in fetch(call, "errors", count, "w"):
            fail(call, job, error, "it broke")
    shown = screen().open("dead-letters?queue=errors")
    errors = shown.page.get_by_role("group", name="Dead letters by error")
    errors.locator(".legend span", has_text="First 3").wait_for()
    errors.locator(".legend span", has_text="Second 1").wait_for()
    assert not shown.barriers()
    # What the axis of a week says is drawn: its labels are kept.
    shown.page.evaluate(
        """() => { window.drawn = []; const fill = CanvasRenderingContext2D.prototype.fillText;
        CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
            window.drawn.push(text); return fill.call(this, text, ...at); }; }"""
    )
    shown.go("overview")
    shown.page.get_by_role("button", name="7d").click()
    shown.page.wait_for_function(
        "() => window.drawn.filter(each => /^[0-9]{1,2} [A-Z][a-z]+$/.test(each)).length >= 5"
    )


def test_a_graph_of_a_workflow_has_states_and_durations(
    screen: Opener, call: Caller, world: dict[str, str]
) -> None:
    steps: list[Any] = [
        {"type": kind, "args": [], "options": {"queue": "drawn"}} for kind in ("d.a", "d.b")
    ]
    flow = call("POST", "/workflows", {"type": "chain", "name": "drawn", "steps": steps})["id"]
    for job in fetch(call, "drawn", 1, "w"):
        done(call, job, None)
    shown = screen().open(f"workflows/{flow}")
    shown.page.locator(".graph text", has_text="Completed · ").wait_for()
    shown.page.locator("p.legend", has_text="Completed 1").wait_for()
    assert not shown.barriers()
