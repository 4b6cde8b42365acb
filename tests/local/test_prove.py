"""`ojs-aws prove` against a local server: its report, its faults, and what a killed run leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from cli.__main__ import main
from cli.prove import session
from cli.prove.made import CRON, QUEUES, WORKERS
from cli.prove.state import Pace
from cli.target import Exit
from ojs_aws import Client, NotFound
from tests.local.conftest import RunningServer

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

PACE = Pace(
    samples=5, parallel=5, pickups=2, polls_s=(0.2,), counted=10, counted_s=30, lease_s=0.3,
    listed_s=1, noticed_s=0.1,
    cron="*/2 * * * * *", ticks=1, ticks_s=30, step_s=1, quiet_s=0.5, look_s=0.05,
)  # fmt: skip
# Parts that need AWS.
SKIPPED = {
    "stream windows", "table settings", "outcomes of pushed jobs", "failure queues",
    "mappings",
    "alarms are OK", "alarms have actions", "alarms have data", "permissions of functions",
    "pushed", "units, requests, and durations", "counters over a window's end",
}  # fmt: skip


class Killed(BaseException):
    """The process is dead: nothing is sent any more."""


class Faulty(httpx.BaseTransport):
    """Passes requests on, until one that kills; and can change responses."""

    def __init__(self, kill: Callable[[httpx.Request], bool] = lambda _: False) -> None:
        self.inner, self.kill, self.dead = httpx.HTTPTransport(), kill, False
        self.change: Callable[[httpx.Request, httpx.Response], httpx.Response] = lambda _, r: r

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.dead:
            raise Killed
        response = self.inner.handle_request(request)
        response.read()
        if self.kill(request):
            self.dead = True  # the server did it, and nobody knows
            raise Killed
        return self.change(request, response)

    def close(self) -> None:
        self.inner.close()


class Proving:
    """The command with a server, and what it left there."""

    def __init__(self, server: RunningServer, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.server, self.folder, self.patch, self.pace = server, folder, patch, PACE
        key = (server.data / "first-key").read_text().strip()
        patch.setenv("OJS_KEY", key)
        self.client, self.client_key = Client(server.url, key=key), key

    def __call__(self, *options: str, transport: httpx.BaseTransport | None = None) -> int:
        run = session.run
        with self.patch.context() as patch:
            patch.setattr(session, "run", lambda given: run(given, self.pace, transport))
            address = [] if "--clean" in options else ["--url", self.server.url]
            return main(["prove", *address, "--yes", "--report", str(self.folder), *options])

    @property
    def report(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        return found

    def failed(self) -> set[str]:
        return {each["name"] for each in self.report["checks"] if each["verdict"] == "failed"}

    def left(self, run: str) -> list[str]:
        """What is left of a run, found in another way than by the command."""
        client, found = self.client, []
        for listing, field in (
            (client.list_queues, "name"), (client.list_crons, "name"),
            (client.list_workers, "worker_id"), (client.list_unique_jobs, "queue"),
            (client.list_dead_letters, "queue"), (client.list_workflows, "name"),
        ):  # fmt: skip
            found += [each[field] for each in client.each(listing) if run in str(each[field])]
        for queue in QUEUES:
            found += [each["id"] for each in client.list_jobs(queue=f"{run}-{queue}")["jobs"]]
        return found + [
            each["id"] for each in client.each(client.list_keys)
            if (each["name"], each["state"]) == (run, "active")
        ]  # fmt: skip


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("proving")
    server = RunningServer(folder / "data", folder / "printed", "--keys", "--sweep-interval", "1")
    yield server
    server.end()


@pytest.fixture
def prove(
    running: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Proving]:
    found = Proving(running, tmp_path, monkeypatch)
    yield found
    found.client.close()


def test_a_server_is_proven_and_nothing_is_left(prove: Proving) -> None:
    assert prove("--rate", "5") == Exit.DONE
    report = prove.report
    assert prove.failed() == set()
    assert {each["name"] for each in report["checks"] if each["verdict"] == "skipped"} == SKIPPED
    assert len(report["checks"]) == len(SKIPPED) + 26
    assert report["numbers"]["latency"].keys() == {"enqueue", "fetch", "heartbeat", "ack", "read"}
    assert report["numbers"]["pickup"].keys() == {"poll 0.2 s", "listening", "cron"}
    assert [each["rate"] for each in report["numbers"]["ramp"]] == [1, 2, 5]
    assert prove.left(report["run"]) == []
    made = json.loads((prove.folder / "made.json").read_text())
    assert {each["name"].removeprefix(report["run"])[1:] for each in made["made"]} <= {
        *QUEUES, *WORKERS, CRON, "",
    }  # fmt: skip
    # The secret of its key is nowhere.
    written = "".join(each.read_text() for each in prove.folder.iterdir())
    assert "ojs_" not in written


def test_counters_that_stay_behind_are_found(prove: Proving) -> None:
    faulty = Faulty()

    def without(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if not request.url.path.endswith("/stats"):
            return response
        body = response.json()
        body.get("stats", {}).update(completed=9)
        return httpx.Response(200, json=body)

    faulty.change = without
    prove.pace = replace(PACE, counted_s=0.5)
    assert prove("--only", "behavior", transport=faulty) == Exit.FAILED
    assert prove.failed() == {"counters"}


def test_long_runs_count_over_the_end_of_a_window(prove: Proving) -> None:
    def verdict() -> str:
        [found] = [each for each in prove.report["checks"] if "window's end" in each["name"]]
        return str(found["verdict"])

    prove.pace = replace(PACE, long_s=1)
    assert prove("--only", "behavior", "--long") == Exit.DONE
    assert verdict() == "passed"
    assert prove.left(prove.report["run"]) == []
    faulty = Faulty()

    def twice(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        """As if a batch at the end of a window were counted twice."""
        if not request.url.path.endswith("-long/stats"):
            return response
        body = response.json()
        body["stats"]["completed"] += 10
        return httpx.Response(200, json=body)

    faulty.change = twice
    prove.pace = replace(PACE, long_s=1, counted_s=0.5)
    assert prove("--only", "behavior", "--long", transport=faulty) == Exit.FAILED
    assert prove.failed() == {"counters over a window's end"}


# Where a run dies: after this request, whose response is lost.
KILLS = {
    "key": ("POST", "/admin/keys"), "queue": ("POST", "/queues"), "job": ("POST", "/jobs"),
    "fetched": ("POST", "/fetch"), "dead letter": ("POST", "/nack"), "cron": ("POST", "/cron"),
    "workflow": ("POST", "/workflows"), "steps": ("POST", "/steps"),
    "cleaning": ("DELETE", "-tick"),
}  # fmt: skip
# In CI, the one that leaves the most.
SOME = ("steps",)


@pytest.mark.parametrize(
    "at", [pytest.param(at, marks=() if at in SOME else pytest.mark.whole) for at in KILLS]
)
def test_a_killed_run_is_cleaned_afterwards(
    prove: Proving, at: str, capsys: pytest.CaptureFixture[str]
) -> None:
    method, path = KILLS[at]
    faulty = Faulty(lambda sent: sent.method == method and sent.url.path.endswith(path))
    with pytest.raises(Killed):
        prove("--only", "conformance", transport=faulty)
    run = json.loads((prove.folder / "made.json").read_text())["run"]
    assert prove.left(run)
    # The server is that of made.json.
    assert prove("--clean", run) == Exit.DONE
    assert f"Nothing of {run} is left" in capsys.readouterr().out
    assert prove.left(run) == []


def test_ctrl_c_cleans_up(prove: Proving, capsys: pytest.CaptureFixture[str]) -> None:
    faulty = Faulty()

    def interrupt(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if request.url.path.endswith("/workers/ack"):
            raise KeyboardInterrupt
        return response

    faulty.change = interrupt
    assert prove("--only", "conformance", transport=faulty) == Exit.USAGE
    assert "was interrupted" in capsys.readouterr().err
    assert prove.report["finished"] is False
    assert prove.left(prove.report["run"]) == []


def test_what_would_make_numbers_useless_stops_the_run(
    prove: Proving, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> str:
        assert prove() == Exit.USAGE
        (line,) = capsys.readouterr().err.splitlines()
        return line

    prove.client.set_maintenance(enabled=True)
    assert "maintenance" in refused()
    prove.client.set_maintenance(enabled=False)
    late = Faulty()
    late.change = lambda _, response: httpx.Response(
        response.status_code, content=response.content,
        headers={"date": "Sat, 28 Nov 2020 16:58:41 GMT"},
    )  # fmt: skip
    assert prove(transport=late) == Exit.USAGE
    assert "clocks" in capsys.readouterr().err
    limited = prove.client.create_key("reader", ["admin:read"])["secret"]
    monkeypatch.setenv("OJS_KEY", limited)
    assert "needs the scopes admin:write" in refused()
    monkeypatch.setenv("OJS_KEY", "nonsense")
    assert "401" in refused()
    assert not [*prove.folder.iterdir()]
    monkeypatch.setenv("OJS_KEY", str(prove.client_key))
    (prove.folder / "made.json").mkdir()  # it can't be written
    assert "made.json" in refused()
    assert {each["state"] for each in prove.client.each(prove.client.list_keys)
            if each["name"] == prove.report["run"]} == set()  # fmt: skip


def test_a_ceiling_skips_parts(prove: Proving) -> None:
    assert prove("--max-cost", "0.000001", "--only", "conformance,wiring") == Exit.DONE
    (conformance, wiring) = prove.report["checks"]
    assert (conformance["verdict"], wiring["verdict"]) == ("skipped", "skipped")
    with pytest.raises(NotFound):
        prove.client.get_queue(f"{prove.report['run']}-check")
