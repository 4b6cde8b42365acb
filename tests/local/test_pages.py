"""Web pages and the local server, over HTTP: those that are named may, all others may not."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ojs.http.binding import negotiation
from tests.local.conftest import ROOT, RunningServer

pytestmark = pytest.mark.e2e

PAGE, OTHER_PAGE, EVIL = "http://localhost:5173", "https://ui.example", "https://evil.example"
NAMED = ("--cors-origins", f"{PAGE},{OTHER_PAGE}", "--allowed-hosts", "build.lan")
RESET = "/ojs/v1/admin/reset"


@dataclass
class Reply:
    status: int
    headers: dict[str, list[str]]
    body: Any

    @property
    def allowed(self) -> list[str]:
        """The origins whose pages may read the answer."""
        return self.headers.get("access-control-allow-origin", [])


def ask(
    server: RunningServer, method: str, path: str, *headers: tuple[str, str], body: Any = None
) -> Reply:
    """One request with these headers and no others, not even a Host that is not named."""
    raw = b"" if body is None else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        if not any(name == "Host" for name, _ in headers):
            connection.putheader("Host", server.address)
        for name, value in (*headers, ("Content-Length", str(len(raw)))):
            connection.putheader(name, value)
        connection.endheaders(raw)
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    received: dict[str, list[str]] = {}
    for name, value in answer.getheaders():
        received.setdefault(name.lower(), []).append(value)
    return Reply(answer.status, received, json.loads(text) if text else None)


@pytest.fixture(scope="module")
def naming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """An open server that knows which pages may use it."""
    folder = tmp_path_factory.mktemp("pages")
    running = RunningServer(folder / "data", folder / "printed", *NAMED)
    yield running
    running.end()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The same with keys."""
    folder = tmp_path_factory.mktemp("keyed")
    running = RunningServer(folder / "data", folder / "printed", "--keys", *NAMED)
    yield running
    running.end()


def origin(text: str) -> tuple[str, str]:
    return "Origin", text


@pytest.mark.parametrize(
    "headers",
    [
        [origin(EVIL)],
        [origin("null")],
        [origin(EVIL), origin(PAGE)],
        [origin(PAGE), origin(EVIL)],
        [origin(f"{PAGE},{EVIL}")],
        [origin("")],
        [("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "no-cors")],
        [("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "navigate")],
        [("Host", "evil.example")],
        [("Host", "evil.example"), origin("http://evil.example")],
        [("Host", "evil.example"), origin(PAGE)],
        [("Host", "localhost@evil.example")],
        [("Host", "")],
    ],
)
def test_another_page_empties_nothing_and_learns_nothing(
    naming: RunningServer, headers: list[tuple[str, str]]
) -> None:
    job = naming.enqueue()
    push = {"type": "evil", "args": [], "options": {"queue": "evil"}}
    replies = [
        ask(naming, "POST", RESET, *headers),
        ask(naming, "POST", "/ojs/v1/jobs", *headers, ("Content-Type", "text/plain"), body=push),
        ask(naming, "POST", "/ojs/v1/jobs", *headers, body=push),
        ask(naming, "DELETE", "/ojs/v1/queues/default?confirm=true", *headers),
        ask(naming, "HEAD", f"/ojs/v1/jobs/{job['id']}", *headers),
        ask(naming, "OPTIONS", "/ojs/v1/jobs", *headers),
        ask(naming, "OPTIONS", RESET, *headers),
        ask(naming, "BREW", "/ojs/v1/jobs", *headers),
        ask(naming, "POST", "/ojs/v1/jobs", *headers, body={"type": "x" * 7_000_000}),
    ]
    if ("Sec-Fetch-Mode", "navigate") not in headers:  # that is a link which is followed
        paths = (f"/ojs/v1/jobs/{job['id']}", "/ojs/v1/queues", "/nowhere")
        replies += [ask(naming, "GET", path, *headers) for path in paths]
    for reply in replies:
        assert reply.status == 403
        assert not [name for name in reply.headers if name.startswith("access-control")]
        assert reply.headers["content-type"] == ["application/json"]
        if reply.body is not None:
            assert reply.body["error"]["code"] == "permission_denied"
            assert job["id"] not in json.dumps(reply.body)
    assert naming.call("GET", f"/ojs/v1/jobs/{job['id']}")[0] == 200
    assert naming.fetch("evil") == []


@pytest.mark.parametrize("page", [PAGE, OTHER_PAGE])
def test_a_page_that_is_named_does_all_that_it_wants(naming: RunningServer, page: str) -> None:
    preflight = (
        origin(page),
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", "content-type,authorization"),
        ("Sec-Fetch-Site", "cross-site"),
    )
    push = {"type": "t", "args": []}
    for path in ("/ojs/v1/jobs", RESET):
        reply = ask(naming, "OPTIONS", path, *preflight)
        assert (reply.status, reply.allowed) == (204, [page])
        assert "POST" in reply.headers["access-control-allow-methods"][0].split(", ")
        allowed = reply.headers["access-control-allow-headers"][0].split(", ")
        assert {"Authorization", "Content-Type"} <= set(allowed)
        assert "Origin" in reply.headers["vary"]
    reply = ask(naming, "POST", "/ojs/v1/jobs", origin(page), body=push)
    assert (reply.status, reply.allowed) == (201, [page])
    exposed = reply.headers["access-control-expose-headers"][0].split(", ")
    assert exposed == list(negotiation.EXPOSED_HEADERS)
    job_path = reply.headers["location"][0]
    # What is refused, unknown, or made by the gateway can be read too.
    for method, path, body, status in (
        ("GET", job_path, None, 200),
        ("POST", "/ojs/v1/jobs", {}, 400),
        ("PATCH", "/ojs/v1/jobs", None, 405),
        ("GET", "/nowhere", None, 404),
        ("POST", "/ojs/v1/jobs", {"type": "x" * 7_000_000}, 413),
        ("POST", RESET, None, 200),
        ("GET", job_path, None, 404),
    ):
        reply = ask(naming, method, path, origin(page), body=body)
        assert (reply.status, reply.allowed) == (status, [page])


def test_pages_at_the_same_time(naming: RunningServer) -> None:
    def exchange(number: int) -> tuple[int, list[str]]:
        reply = ask(naming, "GET", "/ojs/v1/queues", origin((PAGE, EVIL, OTHER_PAGE)[number % 3]))
        return reply.status, reply.allowed

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(exchange, range(60)))
    assert answers == [(200, [PAGE]), (403, []), (200, [OTHER_PAGE])] * 20


@pytest.mark.exhaustive
def test_programs_are_answered_as_ever(naming: RunningServer, server: RunningServer) -> None:
    """Of what curl sends, nothing says which page it comes from."""
    for running in (naming, server):
        for host in ("localhost", f"127.0.0.1:{running.port}", "[::1]:1", "ojs.localhost:9"):
            reply = ask(
                running, "POST", "/ojs/v1/jobs", ("Host", host), body={"type": "t", "args": []}
            )
            assert (reply.status, reply.allowed) == (201, [])
    assert ask(naming, "GET", "/ojs/v1/queues", ("Host", "Build.LAN:8080")).status == 200
    assert ask(server, "GET", "/ojs/v1/queues", ("Host", "build.lan:8080")).status == 403
    link = (("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate"))
    assert ask(server, "GET", "/ojs/v1/queues", *link).status == 200


def test_a_server_that_was_told_of_no_pages(server: RunningServer) -> None:
    job = server.enqueue()
    reply = ask(server, "POST", RESET, origin(PAGE))
    assert (reply.status, reply.allowed) == (403, [])
    assert "--cors-origins" in reply.body["error"]["message"]
    assert server.call("GET", f"/ojs/v1/jobs/{job['id']}")[0] == 200
    assert "pages" not in server.printed


@pytest.mark.exhaustive
def test_with_keys_too(keyed: RunningServer) -> None:
    key = ("Authorization", f"Bearer {(keyed.data / 'first-key').read_text().strip()}")
    push = {"type": "t", "args": []}
    for headers in ([origin(EVIL)], [("Host", "evil.example")]):
        # Not even who holds the key may send it from there.
        for path in ("/ojs/v1/jobs", RESET, "/nowhere"):
            reply = ask(keyed, "POST", path, *headers, key, body=push)
            assert (reply.status, reply.allowed) == (403, [])
            assert ask(keyed, "OPTIONS", path, *headers).status == 403
    for path in ("/ojs/v1/jobs", RESET):
        reply = ask(keyed, "OPTIONS", path, origin(PAGE))
        assert (reply.status, reply.allowed) == (204, [PAGE])
        reply = ask(keyed, "POST", path, origin(PAGE), body=push)
        assert (reply.status, reply.allowed) == (401, [PAGE])
    for path, status in (("/ojs/v1/jobs", 201), (RESET, 200)):
        reply = ask(keyed, "POST", path, origin(PAGE), key, body=push)
        assert (reply.status, reply.allowed) == (status, [PAGE])


def test_the_server_says_which_pages_may(naming: RunningServer) -> None:
    assert f"pages   {PAGE}, {OTHER_PAGE} can use it" in naming.printed


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--cors-origins", "*"], "must be origins"),
        (["--cors-origins", f"{PAGE}/"], "must be origins"),
        (["--allowed-hosts", "*"], "must be host names"),
        (["--allowed-hosts", "build.lan:8080"], "must be host names"),
    ],
)
def test_options_that_are_wrong(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "local", "--port", "0", "--data", str(tmp_path), *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
