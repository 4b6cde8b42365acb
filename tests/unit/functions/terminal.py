"""Runs `ojs-aws` against the handlers."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx

from cli.__main__ import main

if TYPE_CHECKING:
    import pytest

    from tests.unit.functions.client import Api

GONE = "01968f2a-0000-7000-8000-000000000000"
# Moves the cursor, sets the title, turns the direction of writing, and ends the line.
HOSTILE = "a\x1b[2J\x1b]0;owned\x07\u202eb\r\nc\x7f\x9b"


@dataclass
class Printed:
    """What a command ended with, and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def objects(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Ojs = Callable[..., Printed]


def reached(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[httpx.Request], httpx.Response]
) -> None:
    """Requests of the command line come to this function."""
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", lambda _, sent: answer(sent))


def away(_request: httpx.Request) -> httpx.Response:
    return httpx.Response(503, json={"message": "busy"})


def bridge(
    monkeypatch: pytest.MonkeyPatch, api: Callable[..., Any]
) -> Callable[[httpx.Request], httpx.Response]:
    """Requests of the command line come to the handlers."""

    def answer(sent: httpx.Request) -> httpx.Response:
        answer = api(
            sent.method,
            sent.url.path,
            json.loads(sent.content) if sent.content else None,
            query=dict(sent.url.params),
            headers=dict(sent.headers),
        )
        return httpx.Response(answer.status, text=answer.text, headers=answer.headers)

    reached(monkeypatch, answer)
    monkeypatch.delenv("OJS_URL", raising=False)
    monkeypatch.delenv("OJS_KEY", raising=False)
    return answer


def runner(capsys: pytest.CaptureFixture[str]) -> Ojs:
    def run(*arguments: str) -> Printed:
        capsys.readouterr()
        try:
            status = main(arguments)
        except SystemExit as left:
            status = int(left.code or 0)
        said = capsys.readouterr()
        return Printed(status, said.out, said.err)

    return run


def answers(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Somebody sits at the terminal, and types this."""
    typed = io.StringIO(text)
    typed.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdin", typed)


def states(api: Api, *job_ids: str) -> set[str]:
    return {api.get(f"/ojs/v1/jobs/{job_id}").json["state"] for job_id in job_ids}
