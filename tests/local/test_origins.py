"""Which requests pass, by what Host, Origin and Sec-Fetch-Site say; no server runs here."""

from __future__ import annotations

import argparse
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.gateway import refused
from local.http_server import Request, Response
from local.origins import OriginCheck, allowed_hosts, cors_origins
from ojs.http.binding import negotiation

PAGE = "http://localhost:5173"
EVIL = "https://evil.example"
HERE = ("host", "localhost:8080")


class Checked:
    """A check before an application that counts what reaches it."""

    def __init__(self, *, origins: tuple[str, ...] = (PAGE,), hosts: tuple[str, ...] = ()) -> None:
        self.reached = 0
        self.check = OriginCheck(self.answer, refused, origins=origins, hosts=hosts)

    def answer(self, _request: Request) -> Response:
        self.reached += 1
        return Response(200, [("content-type", "application/json")], b"{}")

    def __call__(
        self, *headers: tuple[str, str], method: str = "POST", target: str = "/ojs/v1/admin/reset"
    ) -> Response:
        return self.check(Request(method, target, list(headers), b"", "1.1", "127.0.0.1"))

    def passes(self, *headers: tuple[str, str], method: str = "POST", target: str = "/x") -> bool:
        """Whether the request reaches the application; if not, how it is refused is looked at."""
        before = self.reached
        response = self(*headers, method=method, target=target)
        if self.reached > before:
            assert response.status == 200
            return True
        assert response.status == 403
        assert not cors(response)
        error = json.loads(response.body)["error"]
        assert error["code"] == "permission_denied"
        assert error["retryable"] is False
        assert error["details"]["header"] in error["message"]
        assert error["details"]["option"] in error["message"]
        return False


def cors(response: Response) -> dict[str, str]:
    return {name: value for name, value in response.headers if name.startswith("access-control")}


@pytest.fixture
def checked() -> Checked:
    return Checked(hosts=("build.lan", "Ojs_Server."))


# --- Host ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "localhost", "localhost:8080", "LOCALHOST:8080", "localhost.", "localhost.:8080",
        "localhost:", "ojs.localhost", "a.b.localhost:1", "127.0.0.1", "127.0.0.1:8080",
        "0.0.0.0:8080", "192.0.2.7", "[::1]", "[::1]:8080", "[::FFFF:127.0.0.1]:80",
        "build.lan", "BUILD.lan:9000", "build.lan.", "ojs_server:8080",
    ],
)  # fmt: skip
def test_names_of_this_machine(checked: Checked, host: str) -> None:
    assert checked.passes(("host", host))


@pytest.mark.parametrize(
    "host",
    [
        "evil.example", "evil.example:8080", "localhost.evil.example", "evillocalhost",
        "localhost..", ".localhost", "x.build.lan", "build.lan.evil.example",
        "127.0.0.1.evil.example",
        "127.1", "0x7f.0.0.1", "2130706433", "127.0.0.256", "::1", "[::1", "::1]", "[127.0.0.1]",
        "[::1]x", "user@localhost", "user:localhost@evil.example", "localhost@evil.example",
        "localhost:8080:8080", "localhost:65536", "localhost:999999", "localhost:-1", "localhost:x",
        "localhost,evil.example", "localhost, localhost", "http://localhost", "localhost/", "", " ",
        "*", "[]", "local host", "löcalhost", "localho\u017ft", "xn--lcalhost-n4a", "a" * 60_000,
        "." * 60_000, "1." * 30_000, "[" + ":" * 60_000 + "]", "\x00", "null",
    ],
)  # fmt: skip
def test_other_names(checked: Checked, host: str) -> None:
    assert not checked.passes(("host", host))
    assert not checked.passes(("host", host), ("origin", PAGE))


def test_several_hosts(checked: Checked) -> None:
    assert not checked.passes(HERE, ("host", "evil.example"))
    assert not checked.passes(("host", "evil.example"), HERE)


def test_no_host_at_all(checked: Checked) -> None:
    """HTTP/1.0 needs none; there is no page that sends it."""
    assert checked.passes()
    assert checked.passes(("origin", PAGE))
    assert not checked.passes(("origin", "http://localhost:8080"))


@pytest.mark.parametrize(
    ("target", "passes"),
    [
        ("http://localhost:8080/x", True),
        ("http://127.0.0.1/x", True),
        ("http://evil.example/x", False),
        ("http://user@localhost/x", False),
        ("http://[/x", False),
        ("http://[::1/x", False),
        ("http://[v1.x]/x", False),
        ("*", True),
        ("//evil.example/x", True),  # a path, whatever it looks like
        ("x", True),
    ],
)
def test_a_target_in_the_form_for_proxies(checked: Checked, target: str, passes: bool) -> None:
    assert checked.passes(HERE, target=target) is passes
    assert not checked.passes(("host", "evil.example"), target=target)


def test_the_message_names_header_value_and_option(checked: Checked) -> None:
    error = json.loads(checked(("host", "evil.example")).body)["error"]
    assert "Host 'evil.example'" in error["message"]
    assert "--allowed-hosts" in error["message"]
    error = json.loads(checked(HERE, ("origin", EVIL)).body)["error"]
    assert f"Origin '{EVIL}'" in error["message"]
    assert "--cors-origins" in error["message"]
    assert len(json.loads(checked(("host", "a" * 60_000)).body)["error"]["message"]) < 400


# --- Origin -------------------------------------------------------------------------------------


def test_programs_send_no_origin(checked: Checked) -> None:
    response = checked(HERE)
    assert response.status == 200
    assert response.headers == [("content-type", "application/json")]


@pytest.mark.parametrize(
    ("host", "origin"),
    [
        ("localhost:8080", "http://localhost:8080"),
        ("LocalHost:8080", "http://localhost:8080"),
        ("localhost", "http://localhost"),
        ("localhost:80", "http://localhost"),
        ("localhost.:8080", "http://localhost.:8080"),
        ("[::1]:8080", "http://[::1]:8080"),
        ("build.lan:8080", "http://build.lan:8080"),
    ],
)
def test_the_server_s_own_pages(checked: Checked, host: str, origin: str) -> None:
    assert checked.passes(("host", host), ("origin", origin))
    assert not cors(checked(("host", host), ("origin", origin)))  # a browser needs none of them


@pytest.mark.parametrize(
    "origin",
    [
        EVIL, "null", "", " ", "*", "localhost:8080", "http://localhost", "http://localhost:80",
        "https://localhost:8080", "http://localhost:8081", "http://localhost:8080/",
        "http://localhost:8080.evil.example", "http://localhost.evil.example:8080",
        "http://user@localhost:8080", "http://127.0.0.1:8080", "HTTP://LOCALHOST:5173",
        "http://localhost:51730", "http://localhost:5173/", "http://evil.example/http://localhost:5173",
        f"{PAGE},{EVIL}", f"{PAGE}, {PAGE}", f"{PAGE} {EVIL}", f"{PAGE} ", "file://", "data:",
        "chrome-extension://abc", "http://", "\x00", "\xff", "x" * 60_000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["POST", "GET", "OPTIONS", "DELETE", "HEAD", "BREW"])
def test_other_pages(checked: Checked, origin: str, method: str) -> None:
    # Whatever else is said, as of a request that the page made from within the same site.
    for site in ("cross-site", "same-site", "same-origin", "none"):
        headers = (HERE, ("origin", origin), ("sec-fetch-site", site))
        assert not checked.passes(*headers, method=method)
        assert not checked.passes(*reversed(headers), ("sec-fetch-mode", "navigate"), method=method)
    assert checked.reached == 0


@pytest.mark.parametrize("second", [PAGE, EVIL, "null", ""])
def test_two_origins(checked: Checked, second: str) -> None:
    assert not checked.passes(HERE, ("origin", PAGE), ("origin", second))
    assert not checked.passes(HERE, ("origin", second), ("origin", PAGE))


def test_a_rebound_name_is_not_the_server_s_own(checked: Checked) -> None:
    """The page's name leads to this machine now, and the browser takes both for the same."""
    rebound = (("host", "evil.example:8080"), ("origin", "http://evil.example:8080"))
    assert not checked.passes(*rebound, ("sec-fetch-site", "same-origin"))
    assert not checked.passes(rebound[0], method="GET")


@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_a_page_that_is_named(checked: Checked, site: str, method: str) -> None:
    response = checked(HERE, ("origin", PAGE), ("sec-fetch-site", site), method=method)
    assert response.status == 200
    headers = dict(response.headers)
    assert headers["access-control-allow-origin"] == PAGE
    assert headers["vary"] == "Origin"
    exposed = headers["access-control-expose-headers"].split(", ")
    assert exposed == list(negotiation.EXPOSED_HEADERS)
    assert "access-control-allow-credentials" not in headers


def test_an_origin_that_is_named_with_its_default_port() -> None:
    checked = Checked(origins=("http://ui.example:80", "https://ui.example:443"))
    for origin in ("http://ui.example", "https://ui.example"):
        response = checked(HERE, ("origin", origin))
        assert cors(response)["access-control-allow-origin"] == origin
    assert not checked.passes(HERE, ("origin", "https://ui.example:80"))


def test_nothing_is_named_unless_it_is() -> None:
    checked = Checked(origins=())
    assert not checked.passes(HERE, ("origin", PAGE))
    assert checked.passes(HERE)


# --- Sec-Fetch-Site -----------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["cross-site", "same-site", "CROSS-SITE", "none, cross-site"])
@pytest.mark.parametrize("mode", ["no-cors", "cors", "websocket", ""])
def test_what_other_pages_load(checked: Checked, site: str, mode: str) -> None:
    """An image, a script, a frame: browsers send no Origin with those."""
    headers = (HERE, ("sec-fetch-site", site), ("sec-fetch-mode", mode))
    for method in ("GET", "HEAD", "POST"):
        assert not checked.passes(*headers, ("sec-fetch-dest", "image"), method=method)


def test_links_may_be_followed(checked: Checked) -> None:
    followed = (HERE, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"))
    assert checked.passes(*followed, method="GET")
    assert checked.passes(*followed, ("sec-fetch-dest", "document"), method="GET")
    assert not cors(checked(*followed, method="GET"))
    # But not in a frame, and a form that is sent is no link.
    assert not checked.passes(*followed, ("sec-fetch-dest", "iframe"), method="GET")
    for method in ("POST", "HEAD", "PUT", "DELETE", "OPTIONS", "get"):
        assert not checked.passes(*followed, method=method)
    twice = (*followed, ("sec-fetch-mode", "cors"))
    assert not checked.passes(*twice, method="GET")
    assert not checked.passes(*followed, ("sec-fetch-site", "none"), ("sec-fetch-dest", "image"))


@pytest.mark.parametrize("site", ["none", "same-origin", "", "nonsense"])
def test_what_no_other_page_caused(checked: Checked, site: str) -> None:
    assert checked.passes(HERE, ("sec-fetch-site", site))


# --- anything -----------------------------------------------------------------------------------

_NAMES = st.sampled_from(["host", "origin", "sec-fetch-site", "sec-fetch-mode", "x"])
_BYTES = st.binary(max_size=40).map(lambda each: each.decode("latin-1"))


@given(st.lists(st.tuples(_NAMES, _BYTES), max_size=6), _BYTES)
def test_any_bytes_are_survived(headers: list[tuple[str, str]], target: str) -> None:
    checked = Checked()
    response = checked(*headers, target=target)
    assert response.status in (200, 403)
    assert response.status == 403 or checked.reached == 1


def test_many_at_once(checked: Checked) -> None:
    def ask(number: int) -> tuple[int, str | None]:
        origin = PAGE if number % 2 else EVIL
        response = checked(HERE, ("origin", origin))
        return response.status, cors(response).get("access-control-allow-origin")

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(400)))
    assert answers[::2] == [(403, None)] * 200
    assert answers[1::2] == [(200, PAGE)] * 200


# --- the options --------------------------------------------------------------------------------


def test_origins_are_read_as_a_deployment_reads_them() -> None:
    assert cors_origins("") == cors_origins(" , ") == ()
    assert cors_origins(f" {PAGE},https://jobs.example.com ") == (PAGE, "https://jobs.example.com")
    for wrong in (
        "*", "https://*.example.com", "https://jobs.example.com/", "jobs.example.com", "null",
        "http://LOCALHOST", f"{PAGE};{EVIL}", f"{PAGE}\nx", "http://localhost:123456", "file://",
        "http://" + "a" * 300,
    ):  # fmt: skip
        with pytest.raises(argparse.ArgumentTypeError, match="must be origins"):
            cors_origins(f"{PAGE},{wrong}")


def test_hosts_are_names_alone() -> None:
    assert allowed_hosts("") == ()
    assert allowed_hosts("Build.lan, ojs_server") == ("build.lan", "ojs_server")
    for wrong in (
        "*",
        "*.lan",
        ".lan",
        "build.lan:80",
        "http://build.lan",
        "a b",
        "a..b",
        "a" * 300,
    ):
        with pytest.raises(argparse.ArgumentTypeError, match="must be host names"):
            allowed_hosts(wrong)
