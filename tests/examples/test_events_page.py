"""docs/events.md: its program for following the log is run against a server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "events.md").read_text("utf-8")
(PROGRAM,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.exhaustive
@pytest.mark.e2e
def test_the_program_follows_the_log(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base = f"{server_url}/ojs/v1"
    program: dict[str, Any] = {"__name__": "page"}
    exec(compile(PROGRAM, "docs/events.md", "exec"), program)

    def push(number: int) -> str:
        body = {"type": "a.b", "args": [number], "options": {"queue": "followed"}}
        request = Request(
            f"{base}/jobs", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urlopen(request) as answer:
            return str(json.load(answer)["job"]["id"])

    pushed: list[str] = [push(0)]
    waits = iter(range(1, 4))

    def wait(_seconds: float) -> None:
        # While the program waits something happens.
        pushed.append(push(next(waits)))

    monkeypatch.setattr(program["time"], "sleep", wait)
    events: Iterator[dict[str, Any]] = program["follow"](
        url=f"{base}/events", queues="followed", types="job.*"
    )
    seen = [next(events) for _ in range(3)]
    assert [event["subject"] for event in seen] == pushed[1:]
    assert {event["type"] for event in seen} == {"job.enqueued"}
