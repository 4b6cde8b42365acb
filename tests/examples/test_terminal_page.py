"""docs/terminal.md: its commands are run in order against a local server, the output compared."""

from __future__ import annotations

import argparse
import http.client
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from cli import __main__ as command_line
from cli.target import Exit

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "terminal.md").read_text("utf-8")
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Times, lengths of time, and what a minute had, which stands at the end of a line.
_VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z|\b\d+s\b|(?<= )[\d.]+ *$", re.MULTILINE
)


def commands() -> Iterator[tuple[list[str], str]]:
    """The commands of the page, and what they print."""
    for block in _BLOCK.findall(PAGE):
        for part in block.split("$ ./ojs-aws ")[1:]:
            line, _, printed = part.partition("\n")
            yield shlex.split(line), printed


def send(url: str, path: str, body: Any) -> Any:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer


def prepare(url: str) -> None:
    """What the page begins with: mail that waits, one that failed for good, a report for later."""
    options: dict[str, Any] = {"queue": "mail", "retry": {"max_attempts": 1}}
    for name in ("ada", "bob", "eve"):
        send(url, "/ojs/v1/jobs", {"type": "mail.send", "args": [name], "options": options})
    (job,) = send(url, "/ojs/v1/workers/fetch", {"queues": ["mail"], "worker_id": "w-1"})["jobs"]
    error = {"type": "SmtpError", "message": "connection refused"}
    send(url, "/ojs/v1/workers/nack", {"job_id": job["id"], "worker_id": "w-1", "error": error})
    later = {"queue": "reports", "delay_until": "+PT8H"}
    body = {"type": "report.build", "args": [], "meta": {"customer": "c-1042"}, "options": later}
    send(url, "/ojs/v1/jobs", body)


def fail_a_workflow(url: str) -> None:
    """What the commands for workflows begin with: a chain whose second step failed."""
    etl = {
        "type": "chain",
        "name": "etl",
        "options": {"queue": "etl"},
        "steps": [
            {"type": f"data.{each}", "args": []} for each in ("extract", "transform", "load")
        ],
    }
    send(url, "/ojs/v1/workflows", etl)
    for end, body in (
        ("ack", {}),
        ("nack", {"error": {"type": "Bad", "message": "bad row", "retryable": False}}),
    ):
        (step,) = send(url, "/ojs/v1/workers/fetch", {"queues": ["etl"], "worker_id": "w-1"})[
            "jobs"
        ]
        send(url, f"/ojs/v1/workers/{end}", {"job_id": step["id"], "worker_id": "w-1", **body})


def wait_for_approval(url: str) -> None:
    """What the commands for durable code begin with: an order that is paid, and not approved."""
    body = {"type": "order.place", "args": [1042], "options": {"queue": "orders"}}
    send(url, "/ojs/v1/jobs", body)
    fetch = {"queues": ["orders"], "worker_id": "w-1"}
    (job,) = send(url, "/ojs/v1/workers/fetch", fetch)["jobs"]
    step = {
        "name": "charge", "save": "s1", "result": {"charge_id": "ch_1"}, "duration_ms": 410,
        "started_at": "2026-11-22T23:57:40.301Z",
    }  # fmt: skip
    path = f"/ojs/v1/jobs/{job['id']}"
    send(url, f"{path}/steps", {"lease_token": job["lease_token"], "steps": [step]})
    waits = [{"kind": "signal", "name": "approved", "for": "P7D"}]
    send(url, f"{path}/nack", {"worker_id": "w-1", "suspend": {"waits": waits}})


def shape(text: str, ids: dict[str, str]) -> str:
    """A text without what is different each time."""
    named = _ID.sub(lambda found: ids.setdefault(found[0], f"ID {len(ids)}"), text)
    lines = _VOLATILE.sub("…", named).splitlines()
    return "\n".join(" ".join(line.split()) for line in lines).strip()


@pytest.mark.exhaustive
@pytest.mark.e2e
def test_the_output_is_that_of_the_page(
    server_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OJS_URL", server_url)
    monkeypatch.delenv("OJS_KEY", raising=False)
    prepare(server_url)
    shown: dict[str, str] = {}
    ours: dict[str, str] = {}
    known: dict[str, str] = {}
    count = 0
    for arguments, printed in commands():
        if arguments[:2] == ["workflows", "list"]:
            fail_a_workflow(server_url)
        if "order.place" in arguments:
            wait_for_approval(server_url)
        wanted = shape(printed, shown)
        named = [known.get(shown.get(each, ""), each) for each in arguments]
        status = command_line.main(named)
        said = capsys.readouterr()
        assert status == Exit.DONE, said.err
        assert shape(said.out, ours) == wanted, arguments
        known = {name: each for each, name in ours.items()}
        count += 1
    assert count >= 10


def test_every_status_is_listed() -> None:
    listed = re.findall(r"^\| (\d+) \| .+ \|$", PAGE, re.MULTILINE)
    assert [int(status) for status in listed] == [*Exit]


def test_every_command_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    add = argparse._SubParsersAction.add_parser

    def noted(self: Any, name: str, **more: Any) -> Any:
        made.append(name)
        return add(self, name, **more)

    monkeypatch.setattr(argparse._SubParsersAction, "add_parser", noted)
    with pytest.raises(SystemExit):
        command_line.main(["--help"])
    reference = (DOCS / "reference" / "command-line.md").read_text("utf-8")
    listed = re.findall(r"^## ojs-aws ([a-z ]+)$", reference, re.MULTILINE)
    inside = {name for each in listed for name in each.split()}
    assert inside == set(made)
