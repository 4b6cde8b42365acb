"""The pages of the HTTP API: their requests are sent in order, the answers compared."""

from __future__ import annotations

import http.client
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
REST = "…"
# Different each time, and of no shape that could be compared.
_VOLATILE = frozenset({"latency_ms", "uptime_seconds", "lease_token", "enqueued_today"})
_EXCHANGE = re.compile(r"^```sh\n(.*?)\n```\n\n```http\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@dataclass
class Exchange:
    """One request of the page, and the answer shown."""

    method: str
    path: str
    body: str | None
    sent: dict[str, str]
    status: int
    headers: dict[str, str]
    answer: Any


def exchanges(page: str) -> Iterator[Exchange]:
    for command, shown in _EXCHANGE.findall(page):
        words = iter(shlex.split(command.replace("\\\n", " ")))
        assert next(words) == "curl"
        method = path = body = None
        sent: dict[str, str] = {}
        for word in words:
            match word:
                case "-X":
                    method = next(words)
                case "-d":
                    body = next(words)
                case "-H":
                    name, value = next(words).split(": ", 1)
                    sent[name] = value
                case "-i" | "-g":
                    pass
                case _:
                    path = word.removeprefix("localhost:8080")
        head, _, text = shown.partition("\n\n")
        first, *rest = head.splitlines()
        headers = dict(line.split(": ", 1) for line in rest)
        assert path is not None
        method = method or ("GET" if body is None else "POST")
        status = int(first.split()[1])
        assert body is None or sent["Content-Type"] == "application/json"
        answer = json.loads(text) if text else None
        yield Exchange(method, path, body, sent, status, headers, answer)


class Names:
    """The page's ids and the server's, as they turn out to be the same thing."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}
        self.tokens: dict[str, str] = {}

    def ours(self, text: str) -> str:
        """A text of the page, with the ids and the lease tokens that this server gave."""
        for theirs, ours in self.tokens.items():
            text = text.replace(theirs, ours)
        return _ID.sub(lambda found: self.known.get(found[0], found[0]), text)

    def compare(self, shown: Any, got: Any, where: str = "") -> None:
        if isinstance(shown, dict) and isinstance(got, dict):
            if REST in shown:
                assert shown.keys() - {REST} <= got.keys(), where
            else:
                assert set(shown) == set(got), where
            if "lease_token" in shown:
                self.tokens[shown["lease_token"]] = got["lease_token"]
            for key in shown.keys() - {REST} - _VOLATILE:
                self.compare(shown[key], got[key], f"{where}.{key}")
        elif isinstance(shown, list) and isinstance(got, list):
            if shown == [REST]:
                return
            assert len(shown) == len(got), where
            for index, (one, other) in enumerate(zip(shown, got, strict=True)):
                self.compare(one, other, f"{where}[{index}]")
        elif isinstance(shown, str) and isinstance(got, str):
            for theirs, ours in zip(_ID.findall(shown), _ID.findall(got), strict=True):
                assert self.known.setdefault(theirs, ours) == ours, where
            assert self.ours(_TIME.sub("TIME", shown)) == _TIME.sub("TIME", got), where
        else:
            assert (type(shown), shown) == (type(got), got), where


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("page", "at_least"),
    [
        ("http-api", 7),
        ("queues", 15),
        ("size-limits", 10),
        ("rate-limits", 8),
        ("dead-letter", 8),
        ("fair-scheduling", 8),
        ("cron", 9),
        ("workflows", 14),
        ("durable-protocol", 22),
    ],
)
def test_the_answers_are_those_of_the_page(server_url: str, page: str, at_least: int) -> None:
    connection = http.client.HTTPConnection(urlsplit(server_url).netloc, timeout=120)

    def send(
        method: str, path: str, body: str | None = None, sent: dict[str, str] | None = None
    ) -> tuple[Any, Any]:
        connection.request(method, path, None if body is None else body.encode(), sent or {})
        response = connection.getresponse()
        text = response.read()
        return response, json.loads(text) if text else None

    send("POST", "/ojs/v1/admin/reset")
    names = Names()
    exchanged = list(exchanges((DOCS / f"{page}.md").read_text("utf-8")))
    assert len(exchanged) >= at_least
    for one in exchanged:
        where = f"{one.method} {one.path}"
        body = None if one.body is None else names.ours(one.body)
        response, answer = send(one.method, names.ours(one.path), body, one.sent)
        assert response.status == one.status, (where, answer)
        names.compare(one.answer, answer, where)
        for name, value in one.headers.items():
            names.compare(value, response.headers[name], f"{where} {name}")
    connection.close()
