"""Take the pictures of docs/dashboard.md, docs/dashboard-pages.md, and README.md: `make pictures`.

The pictures show one hour of work. A local server with a test clock gets the jobs of each minute,
so the hour takes about two minutes. Sizes: 1440 x 900 at 2x, light and dark.
"""

from __future__ import annotations

import base64
import math
import random
import struct
import sys
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tests.dashboard.conftest import FLAGS, INSTALLED, ROOT, Screen
from tests.dashboard.world import Caller, done, fetch, make, push
from tests.local.conftest import RunningServer

FOLDER = ROOT / "docs" / "pictures"
SIZE = {"width": 1440, "height": 900}
MINUTES = 60
_TRACE = (
    'File "/var/task/exports/invoices.py", line 142, in export',
    'File "/var/task/exports/erp.py", line 58, in post',
    'File "/var/task/exports/http.py", line 7, in connect',
)
# The colors of a page as a palette of 256, which makes its picture half as large: the most frequent
# colors, and for each other color the nearest of them.
_PALETTE = """async ([png, width, height]) => {
    const file = await (await fetch("data:image/png;base64," + png)).blob();
    const image = await createImageBitmap(file);
    const canvas = new OffscreenCanvas(width, height);
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const data = new Uint32Array(context.getImageData(0, 0, width, height).data.buffer);
    const counts = new Map();
    for (const color of data) counts.set(color, (counts.get(color) ?? 0) + 1);
    const palette = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 256).map(([color]) => color);
    const of = new Map(palette.map((color, i) => [color, i]));
    const parts = color => [color & 255, color >> 8 & 255, color >> 16 & 255];
    const known = palette.map(parts);
    for (const color of counts.keys()) {
        if (of.has(color)) continue;
        const [r, g, b] = parts(color);
        let best = 0, least = Infinity;
        known.forEach(([x, y, z], i) => {
            const far = (r - x) ** 2 + (g - y) ** 2 + (b - z) ** 2;
            if (far < least) { least = far; best = i; }
        });
        of.set(color, best);
    }
    const indexes = Uint8Array.from(data, color => of.get(color));
    let text = "";
    for (let at = 0; at < indexes.length; at += 32768)
        text += String.fromCharCode(...indexes.subarray(at, at + 32768));
    return [known.flat(), btoa(text)];
}"""


class Traffic(NamedTuple):
    """Jobs of a queue: how many per minute, how many a worker fetches, and which part fails."""

    queue: str
    kind: str
    per_minute: float
    capacity: int
    failing: float
    error: str
    message: str


_TRAFFIC = (
    Traffic("mail", "email.send", 18, 26, 0.01, "Timeout", "smtp.example.org: no response in 10 s"),
    Traffic("images", "image.resize", 9, 14, 0.02, "OutOfMemory", "image has 120 megapixels"),
    Traffic("billing", "invoice.generate", 5, 9, 0.1, "CardExpired", "the card expired in 10/26"),
    Traffic("exports", "tmp.export", 1, 4, 0, "", ""),
)
# In these minutes a campaign enqueues three times the mails.
_CAMPAIGN = range(34, 40)
# From this minute on, one report is enqueued per minute.
_REPORTS = range(47, 56)


class Hour:
    """One hour of jobs on a server whose clock it moves."""

    def __init__(self, call: Caller) -> None:
        self._call = call
        self._chance = random.Random(7)
        self._threads = ThreadPoolExecutor(4)
        self.moved_ms = 0
        self.dead = ""
        self.durable = ""
        self.workflow = ""

    def until(self, second: float) -> None:
        """Move the server's clock to this second of its minute, or of the next one."""
        seconds = (second - (time.time() + self.moved_ms / 1_000) % 60) % 60
        self.moved_ms += round(1_000 * seconds)
        self._call("POST", "/admin/clock", {"advance_ms": round(1_000 * seconds)})

    def run(self) -> None:
        """The jobs of each minute: enqueued, available for some seconds, active for some more."""
        for minute in range(MINUTES):
            self.until(1)
            self._minute(minute)
            self.until(15 + self._chance.uniform(0, 8))
            active = [
                (each, job, self._chance.random() < each.failing)
                for each in _TRAFFIC
                for job in fetch(self._call, each.queue, each.capacity, f"{each.queue}-1")
            ]
            self.until(30 + self._chance.uniform(0, 15))
            list(self._threads.map(lambda of: self._finish(*of), active))
            for job in fetch(self._call, "default", 5, "cleaner-1"):
                done(self._call, job, {"deleted": 12})
        self._end()

    def _minute(self, minute: int) -> None:
        for each in _TRAFFIC:
            wave = 1 + 0.35 * math.sin(minute / 8) + self._chance.uniform(-0.15, 0.15)
            campaign = 3 if each.queue == "mail" and minute in _CAMPAIGN else 1
            job = {"type": each.kind, "options": {"queue": each.queue}}
            count = round(each.per_minute * wave * campaign)
            jobs = [{**job, "args": [self._args(each.queue)]} for _ in range(count)]
            if jobs:
                self._call("POST", "/jobs/batch", {"jobs": jobs})
        if minute == 40:
            self.dead = push(
                self._call, "exports", "invoice.export",
                {"customer": "c-2041", "amount": 99.5, "currency": "EUR"},
                retry={"max_attempts": 2, "initial_interval": "PT2M", "jitter": False},
                tags=["monthly", "erp"], priority=5,
            )  # fmt: skip
        if minute in _REPORTS:
            self._report(minute - _REPORTS.start)

    def _args(self, queue: str) -> dict[str, object]:
        number = self._chance.randint(1_000, 9_999)
        args: dict[str, dict[str, object]] = {
            "mail": {"to": f"user-{number}@example.org", "template": "welcome"},
            "images": {"file": f"photo-{number}.png", "width": 640},
            "billing": {"customer": f"c-{number}", "amount": 99.5},
            "exports": {"table": f"t-{number}"},
        }
        return args[queue]

    def _finish(self, of: Traffic, job: dict[str, Any], failed: bool) -> None:
        if job["id"] == self.dead:
            self._fail(job, "ConnectionRefused", "no route to erp.example.org:443")
        elif failed:
            self._fail(job, of.error, of.message)
        else:
            done(self._call, job, {"delivered": True})

    def _fail(self, job: dict[str, Any], kind: str, message: str) -> None:
        error = {"code": "handler_error", "type": kind, "message": message, "backtrace": _TRACE}
        self._call("POST", f"/jobs/{job['id']}/nack", {"job_id": job["id"], "error": error})

    def _end(self) -> None:
        """Active jobs and workers at the end, and a queue with a job in each state."""
        self.until(1)
        self._minute(MINUTES)
        self.until(10)
        for each in _TRAFFIC:
            self._call("POST", "/workers/register", {
                "worker_id": f"{each.queue}-1", "queues": [each.queue], "concurrency": 8,
                "hostname": f"worker-{each.queue}",
            })  # fmt: skip
            fetched = fetch(self._call, each.queue, each.capacity, f"{each.queue}-1")
            for job in fetched[:-4]:
                self._finish(each, job, failed=False)
        completed, also, retried, dead, active, _ = fetch(self._call, "reports-eu", 6, "reports-1")
        for job in (completed, also):
            done(self._call, job, {"rows": 1_204})
        for job in (retried, dead):
            self._fail(job, "QueryTimeout", "query took longer than 30 s")
        self._call("POST", "/workers/progress", {
            "job_id": active["id"], "percentage": 60, "message": "page 3 of 5",
            "worker_id": "reports-1",
        })  # fmt: skip
        last = self._call("GET", "/admin/jobs?queue=reports-eu&state=available")["items"][-1]
        self._call("DELETE", f"/jobs/{last['id']}")
        for number in (9, 10):
            self._report(number, delay_until="+PT2H")
        self._durable()
        self.until(30)

    def _durable(self) -> None:
        """A job with stored steps, which waits for a signal."""
        self.durable = push(self._call, "orders", "order.place", {"order": 1042})
        [job] = fetch(self._call, "orders", 1, "orders-1")
        path, token = f"/jobs/{job['id']}", {"lease_token": job["lease_token"]}
        steps = (("charge", {"charge": "ch_1"}, 410), ("reserve", {"shelf": "B7"}, 95))
        self._call("POST", f"{path}/steps", {**token, "version": 1, "steps": [
            {"save": f"s{number}", "name": name, "result": result, "duration_ms": took}
            for number, (name, result, took) in enumerate(steps)
        ]})  # fmt: skip
        waits = [{"kind": "signal", "name": "approved", "for": "P3D"}]
        self._call("POST", f"{path}/nack", {**token, "suspend": {"mode": "any", "waits": waits}})

    def _report(self, number: int, **options: object) -> None:
        args = {"region": "eu", "month": f"2026-{number + 1:02}"}
        retry = {"max_attempts": 1 if number == 3 else 5, "initial_interval": "PT10M"}
        push(self._call, "reports-eu", "report.build", args, retry=retry, **options)


def _shoot(browser: Any, url: str, hour: Hour) -> dict[str, bytes]:
    """The screenshots by name, of one moment as far as possible: they are all taken first."""
    screens = {
        ending: Screen(
            browser.new_context(
                color_scheme=scheme, viewport=SIZE, device_scale_factor=2, reduced_motion="reduce",
                locale="en-US",
            ),
            url,
        )
        for scheme, ending in (("light", ""), ("dark", "-dark"))
    }  # fmt: skip
    for shown in screens.values():
        # The page has the clock of the server.
        shown.page.add_init_script(
            f"""{{ const Real = Date, ahead = {hour.moved_ms};
            globalThis.Date = class extends Real {{
            constructor(...of) {{ of.length ? super(...of) : super(Real.now() + ahead); }}
            static now() {{ return Real.now() + ahead; }} }}; }}"""
        )
    taken = {}
    for name, path in (
        ("overview", "overview"),
        ("jobs", "jobs?queue=reports-eu"),
        ("job", f"jobs/{hour.dead}"),
        ("queues", "queues"),
        ("queue", "queues/mail"),
        ("dead-letters", "dead-letters"),
        ("cron", "cron/daily-report"),
        ("workflow", f"workflows/{hour.workflow}"),
        ("pools", "pools"),
        ("limits", "limits"),
        ("webhooks", "webhooks"),
        ("keys", "keys"),
        ("active", "running"),
        ("scheduled", "waiting"),
        ("durable-job", f"jobs/{hour.durable}"),
        ("cron-jobs", "cron"),
        ("workflows", "workflows"),
        ("workers", "workers"),
        ("deliveries", "deliveries"),
        ("events", "events"),
        ("audit", "audit"),
        ("tenants", "tenants"),
        ("schemas", "schemas/email.send"),
        ("settings", "settings"),
    ):
        for ending, shown in screens.items():
            # The README has both themes of three pages.
            if ending and name not in {"overview", "jobs", "job"}:
                continue
            shown.open(path).quiet()
            if name == "jobs":
                for row in (2, 3, 4):
                    shown.page.locator("tbody [type=checkbox]").nth(row).check()
            if name == "job":
                shown.page.locator(".failure summary").last.click()
            if name == "durable-job":
                shown.page.mouse.wheel(0, 450)
            shown.page.mouse.move(0, 0)
            # A card at the end that does not fit is not shown, instead of its header.
            shown.page.evaluate(
                """() => { for (const card of document.querySelectorAll(".card"))
                if (card.getBoundingClientRect().bottom > innerHeight
                    && card.getBoundingClientRect().top > 0.7 * innerHeight)
                    card.style.visibility = "hidden"; }"""
            )
            taken[f"dashboard-{name}{ending}.png"] = shown.page.screenshot()
    return taken


def _save(page: Any, screenshot: bytes, path: Path) -> None:
    """Write a screenshot as a PNG with a palette."""
    width, height = 2 * SIZE["width"], 2 * SIZE["height"]
    palette, text = page.evaluate(_PALETTE, [base64.b64encode(screenshot).decode(), width, height])
    indexes = base64.b64decode(text)
    rows = b"".join(b"\0" + indexes[row * width : (row + 1) * width] for row in range(height))

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"PLTE", bytes(palette))
        + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")
    )  # fmt: skip


def main() -> None:
    """Start a server, fill it with one hour of work, and take the pictures."""
    sys.path.append(str(INSTALLED / "python"))
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        data, log = Path(folder) / "data", Path(folder) / "log"
        server = RunningServer(
            data, log, "--test-clock", "--allow-loopback-endpoints",
            "--deliver", "resize=pushed:handler", "--deliver-folder", str(ROOT / "tests" / "local"),
        )  # fmt: skip
        call = Caller(server.url)
        ids = make(call)
        for host, events in (("crm", ["job.completed"]), ("alerts", ["job.discarded"])):
            call("POST", "/webhooks/subscriptions", {
                "url": f"http://127.0.0.1:9/{host}", "events": events, "active": False,
            })  # fmt: skip
        for name in ("shop", "mailer"):
            call("POST", "/admin/keys", {"name": name, "scopes": ["jobs:write", "jobs:read"]})
        for tenant, state in (("acme", "active"), ("globex", "suspended")):
            rate = {"limit": 1_000, "period": "PT1M"}
            limits = {"max_concurrency": 20, "max_queue_depth": 50_000, "max_enqueue_rate": rate}
            call("PUT", f"/admin/tenants/{tenant}", {"state": state, "limits": limits})
        for version, required in enumerate((["to"], ["to", "template"]), 1):
            email = {"type": "object", "required": required}
            call("PUT", f"/admin/schemas/email.send/{version}", {
                "schema": {"type": "array", "items": email},
            })  # fmt: skip
        call("PUT", "/queues/mail/config", {"concurrency": 40, "max_size": 1_000})
        hour = Hour(call)
        hour.workflow = ids["workflow"]
        hour.run()
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        for name, screenshot in _shoot(browser, server.url, hour).items():
            _save(browser.new_page(), screenshot, FOLDER / name)
        browser.close()
        server.end()


if __name__ == "__main__":
    main()
