"""Every page in a browser: in light, dark and phone width, with hostile data among the rest.

Each must show what there is, complain about nothing, keep to the content security policy, and have
no barrier that axe knows (levels A and AA). Screenshots are left in build/screenshots.
"""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.dashboard.conftest import DESKTOP, PHONE, ROOT, Opener
from tests.dashboard.world import HOSTILE, PAGES, Caller

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

# Page → what it must show of the world.
OF_IDS = {
    "jobs/{dead}": "CardExpired",
    "jobs/{done}": "delivered",
    "jobs/{running}": "mailer-2",
    "jobs/{hostile}": "hostile.job",
    "workflows/{workflow}": "account.create",
}
LOOKS = {
    "light": {"scheme": "light", "size": DESKTOP},
    "dark": {"scheme": "dark", "size": DESKTOP},
    "phone": {"scheme": "light", "size": PHONE},
}
# What colours and width can change of what axe finds; the rest is looked at once.
NARROWED = {
    "dark": ["color-contrast"],
    "phone": ["target-size", "scrollable-region-focusable", "color-contrast"],
}


@pytest.mark.parametrize("look", ["light", pytest.param("dark", marks=pytest.mark.whole), "phone"])
def test_every_page(screen: Opener, world: dict[str, str], look: str) -> None:
    shown = screen(**LOOKS[look]).open("overview")
    barriers: dict[str, list[str]] = {}
    for path, text in {**PAGES, **{p.format(**world): t for p, t in OF_IDS.items()}}.items():
        shown.go(path)
        shown.page.locator("main", has_text=text).wait_for()
        if found := shown.barriers(None if look == "light" else NARROWED[look]):
            barriers[path] = found
        width = shown.page.evaluate("() => document.scrollingElement.scrollWidth - innerWidth")
        assert width <= 0, f"{path} is {width} px too wide"
        shown.shoot(
            f"{path.replace('/', '_').replace('?', '_')[:40]}-{look}", whole=look == "light"
        )
    assert not barriers, json.dumps(barriers, indent=2)


def test_behind_a_stage_all_addresses_begin_with_it(screen: Opener) -> None:
    """As through a private API: the page learns of the stage from its own address."""
    shown = screen()

    def without_stage(route: Any) -> None:
        answer = route.fetch(url=route.request.url.replace("/jobs/ojs/", "/ojs/"))
        body = answer.body()
        if route.request.resource_type == "document":
            body = body.replace(b'"/ojs/admin/', b'"/jobs/ojs/admin/')
        route.fulfill(response=answer, body=body)

    # A request for another address is a complaint.
    shown.url += "/jobs"
    shown.context.route(f"{shown.url}/ojs/**", without_stage)
    # A private API has no WebSocket API.
    served = {"authorizer": "keys", "realtime": False}
    shown.page.route("**/served.json", lambda route: route.fulfill(json=served))
    shown.open("queues/mail")
    shown.page.get_by_role("link", name="Workers", exact=True).click()
    shown.page.wait_for_url(f"{shown.url}/ojs/admin/workers")
    shown.settle()


def test_hostile_texts_are_shown_as_they_are(
    screen: Opener, call: Caller, world: dict[str, str]
) -> None:
    text = HOSTILE.partition("\u202e")[0]
    shown = screen().open(f"jobs/{world['hostile']}")
    for part in (".failure strong", ".tag", ".json"):
        shown.page.locator(part, has_text="<img src=x onerror=").first.wait_for()
    shown.page.locator(".failure", has_text=text).first.wait_for()
    assert not shown.page.locator("main img, main script").count()
    # What turns the direction of writing is shown as what it is, and not obeyed.
    shown.page.locator("pre", has_text="\\u202e").last.wait_for()
    flow = next(each for each in call("GET", "/workflows")["items"] if "<img" in each["name"])["id"]
    for path in (
        "dead-letters", "jobs?queue=hostile", "overview", "events?queues=hostile", "workers",
        "cron/hostile", "workflows", f"workflows/{flow}", "keys", "dead-letters?queue=hostile",
        "queues/hostile",
    ):  # fmt: skip
        shown.go(path)
        shown.page.locator("main", has_text="<img src=x").wait_for()
        assert not shown.page.locator("main img, main script").count(), path


def test_a_hostile_reason_and_address_are_shown_as_they_are(
    screen: Opener, call: Caller, world: dict[str, str]
) -> None:
    text = "<img/src=x/onerror=window.hacked=1>"
    target = {"endpoint": f"http://127.0.0.1:9/?{text}"}
    call("PUT", "/admin/deliveries/hostile", {
        "target": target, "queues": ["hostile-pushes"], "signing_secret": "s" * 32,
    })  # fmt: skip
    call("POST", "/admin/maintenance", {"enabled": True, "reason": text})
    try:
        shown = screen().open("overview")
        for path in ("overview", "settings", "deliveries"):
            shown.go("audit").go(path)
            shown.page.locator("main", has_text=text).wait_for()
            assert not shown.page.locator("main img").count(), path
    finally:
        call("POST", "/admin/maintenance", {"enabled": False})
        call("DELETE", "/admin/deliveries/hostile")


def test_the_first_paint_comes_within_a_second(screen: Opener) -> None:
    painted = []
    for _ in range(3):
        shown = screen().open("overview")
        painted.append(
            shown.page.evaluate(
                "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"
            )
        )
    # The least of them, as a busy machine adds to each what is not the page's.
    assert min(painted) < 1_000


def test_it_is_small() -> None:
    built = ROOT / "build" / "dashboard"
    files = [file for file in built.rglob("*") if file.suffix in {".html", ".js", ".css", ".svg"}]
    assert len(files) == 4
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) < 90_000


def test_a_legend_has_totals_and_at_the_mouse_values(screen: Opener, world: dict[str, str]) -> None:
    shown = screen().open("overview")
    shown.quiet()
    total = shown.page.locator(".legend", has_text="Total")
    total.wait_for()
    shown.page.locator(".chart .u-over").hover()
    total.wait_for(state="detached")
    shown.page.locator(".legend", has_text="Enqueued 0").wait_for()
    shown.page.mouse.move(0, 0)
    total.wait_for()


def test_a_date_filter_is_a_date_field_with_focus_or_a_value(
    screen: Opener, world: dict[str, str]
) -> None:
    shown = screen().open("jobs")
    field = shown.page.locator('.filters [name="since"]')
    assert field.get_attribute("type") == "text"
    assert field.get_attribute("placeholder") == "Any time"
    field.focus()
    shown.page.locator('.filters [name="since"][type="datetime-local"]').fill("2026-01-02T03:04")
    shown.press("Search")
    shown.page.wait_for_url("**/jobs?since=2026-01-02T02**")
    field = shown.page.locator('.filters [name="since"][type="datetime-local"]')
    assert field.input_value() == "2026-01-02T03:04"


def test_times_are_in_the_readers_zone(screen: Opener, world: dict[str, str]) -> None:
    shown = screen().open(f"jobs/{world['dead']}")
    title = str(shown.page.locator("time").first.get_attribute("title"))
    assert title.endswith(("CET", "CEST"))


def test_a_server_that_fails_is_told_of(screen: Opener, world: dict[str, str]) -> None:
    shown = screen().open("queues")
    error = {"error": {"code": "backend_unavailable", "message": "The table is busy."}}
    shown.page.route("**/ojs/v1/admin/stats", lambda route: route.fulfill(status=429, json=error))
    shown.go("overview")
    shown.page.locator("[role=alert]", has_text="The table is busy.").wait_for()
    shown.page.unroute("**/ojs/v1/admin/stats")
    shown.press("Retry")
    shown.page.locator("[role=alert]").wait_for(state="detached")
    shown.page.route("**/ojs/v1/admin/queues*", lambda route: route.abort())
    shown.go("queues")
    shown.page.locator("[role=alert]", has_text="Can't reach the server").wait_for()
    shown.complaints.clear()


def test_what_is_not_there_is_told_of(screen: Opener) -> None:
    shown = screen()
    for path, text in {
        "nothing": "This page doesn't exist",
        "jobs/0190a0a0-0000-7000-8000-000000000000": "Job not found",
        "queues/none": "Queue not found",
        "cron/none": "Cron job not found",
        "workflows/0190a0a0-0000-7000-8000-000000000000": "Workflow not found",
    }.items():
        shown.open(path)
        shown.page.locator("main", has_text=text).wait_for()


@pytest.mark.parametrize(
    ("path", "asks", "by_itself", "when_told"),
    [
        ("jobs?tag=weekly", "**/ojs/v1/admin/jobs?*", 4, 6),
        ("events?queues=mail", "**/ojs/v1/events?*", 1, 1),
    ],
)
def test_what_was_not_looked_through_is_told_of(
    screen: Opener, world: dict[str, str], path: str, asks: str, by_itself: int, when_told: int
) -> None:
    """A list that finds nothing asks few times by itself, and goes on when somebody wants it to."""
    shown = screen().open("settings")
    asked: list[str] = []
    nothing: dict[str, object] = {"items": [], "events": [], "cursor": "ahead"}

    def answer(route: Any) -> None:
        url = route.request.url
        if "after=" in url:
            route.fulfill(json={**nothing, "pagination": {}})
            return
        asked.append(url)
        if len(asked) < by_itself + when_told:
            route.fulfill(json={**nothing, "pagination": {"next_cursor": f"at-{len(asked)}"}})
        else:
            route.continue_(url=url.partition("?")[0])

    shown.page.route(asks, answer)
    shown.go(path)
    shown.page.locator("main", has_text="No matches so far").wait_for()
    shown.quiet()
    assert len(asked) == by_itself
    assert not shown.page.locator("tbody tr").count()
    shown.press("Search more")
    shown.page.locator("tbody tr").first.wait_for()
    assert f"cursor=at-{by_itself}" in asked[by_itself]
    shown.page.unroute(asks)
