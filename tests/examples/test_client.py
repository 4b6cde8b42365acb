from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from client import TRACE, ApiError, Client, Unreachable, uuid7

BUSY = (503, {"error": {"code": "backend_unavailable", "message": "busy"}})
CONFLICT = (409, {"error": {"code": "conflict", "message": "no", "details": {"a": 1}}})
DROPPED = (0, None)


class Script(HTTPServer):
    """Gives prepared answers, one for each request; DROPPED closes the connection instead."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, Any]] = []
        self.seen: list[tuple[str, str, Any]] = []
        self.keys: list[str | None] = []
        self.traces: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Script

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append((self.command, self.path, json.loads(body) if body else None))
        self.server.keys.append(self.headers.get("Authorization"))
        self.server.traces.append(self.headers.get("traceparent"))
        status, answer = self.server.answers.pop(0)
        if not status:
            self.close_connection = True
            return
        text = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = _answer  # noqa: N815 - the names http.server wants

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as it is called there
        pass


@pytest.fixture
def script() -> Iterator[Script]:
    with Script() as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.01])
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    taken: list[float] = []
    monkeypatch.setattr(time, "sleep", taken.append)
    return taken


def ask(script: Script, *answers: tuple[int, Any], tries: int = 8) -> dict[str, Any]:
    script.answers = list(answers)
    asking = Client(script.url, tries=tries, timeout_s=5)
    try:
        return asking.call("POST", "/jobs", {"n": 1})
    finally:
        asking.close()


def test_asks_again_while_the_server_is_busy(script: Script, waits: list[float]) -> None:
    assert ask(script, BUSY, DROPPED, BUSY, (201, {"ok": True})) == {"ok": True}
    assert script.seen == [("POST", "/ojs/v1/jobs", {"n": 1})] * 4
    assert [round(wait, 9) <= most for wait, most in zip(waits, (0.1, 0.2, 0.4), strict=True)]


def test_gives_up_in_the_end(script: Script) -> None:
    with pytest.raises(ApiError, match="503 backend_unavailable: busy"):
        ask(script, BUSY, BUSY, tries=2)
    with pytest.raises(Unreachable):
        ask(script, DROPPED, DROPPED, tries=2)


def test_an_answer_that_is_no_json_object_is_no_answer(script: Script) -> None:
    assert ask(script, (200, "<html>"), (200, "[]"), (200, {"ok": 1})) == {"ok": 1}


def test_a_refusal_is_final_and_says_whether_it_may_be_our_own_doing(script: Script) -> None:
    with pytest.raises(ApiError) as first:
        ask(script, CONFLICT)
    with pytest.raises(ApiError) as later:
        ask(script, DROPPED, CONFLICT)
    assert (first.value.code, first.value.details, first.value.repeated) == (
        "conflict", {"a": 1}, False,
    )  # fmt: skip
    assert later.value.repeated


@pytest.mark.parametrize("suffix", ["", "/", "/ojs/v1", "/ojs/v1/"])
def test_takes_the_url_with_and_without_the_base_path(script: Script, suffix: str) -> None:
    script.answers = [(200, {})]
    asking = Client(script.url + suffix)
    asking.call("GET", "/health")
    asking.close()
    assert script.seen == [("GET", "/ojs/v1/health", None)]


@pytest.mark.parametrize("url", ["localhost:8080", "ftp://localhost", "http://"])
def test_refuses_what_is_no_url(url: str) -> None:
    with pytest.raises(ValueError, match="is not an http"):
        Client(url)


def test_ids_are_those_the_server_takes() -> None:
    ids = [uuid7() for _ in range(1_000)]
    pattern = "[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert all(re.fullmatch(pattern, each) for each in ids)
    assert len(set(ids)) == len(ids)


def ask_once(script: Script, **more: Any) -> None:
    asking = Client(script.url, **more)
    asking.call("GET", "/jobs/1")
    # The server serves one connection at a time.
    asking.close()


def test_a_key_is_sent(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OJS_KEY", raising=False)
    script.answers += [(200, {})] * 3
    ask_once(script)
    ask_once(script, key="mine")
    monkeypatch.setenv("OJS_KEY", "the environment's")
    ask_once(script)
    assert script.keys == [None, "Bearer mine", "Bearer the environment's"]


def test_the_trace_is_sent(script: Script) -> None:
    script.answers += [(200, {})] * 2
    token = TRACE.set("00-1-2-01")
    ask_once(script)
    TRACE.reset(token)
    ask_once(script)
    assert script.traces == ["00-1-2-01", None]


def test_what_api_gateway_says_itself(script: Script) -> None:
    with pytest.raises(ApiError, match="401 None: Unauthorized") as caught:
        ask(script, (401, {"message": "Unauthorized"}))
    assert caught.value.status == 401
