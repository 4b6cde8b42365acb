"""Which clients are answered in another way than they ask for, and that no other client is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.http.binding import client_quirks, negotiation

OJS, JSON = negotiation.MEDIA_TYPE, negotiation.JSON
PYTHON_SDK = "python-httpx/0.28.1"


@pytest.mark.parametrize(
    "user_agent",
    [
        PYTHON_SDK,
        "python-httpx",
        "Python-HTTPX/0.28.1",
        "  python-httpx/0.28.1",
        "\tpython-httpx/1",
        "python-httpx/",
        "python-httpx/0.28.1 (linux) shop/2.0",
        "python-httpx(linux)",
        # Sent twice, as API Gateway hands it on.
        "python-httpx/0.28.1,python-httpx/0.28.1",
        "python-httpx/" + "9" * 100_000,
    ],
)
@pytest.mark.parametrize(
    "accept",
    [
        OJS,
        OJS.upper(),
        f" {OJS} ",
        f"{OJS};q=0.001",
        f"{OJS};charset=utf-8",
        f"{OJS},{OJS}",
        f"{OJS};q=0,{OJS}",
        f",{OJS},",
    ],
)
def test_the_python_sdk_is_answered_with_what_it_can_read(user_agent: str, accept: str) -> None:
    assert client_quirks.media_type(accept, user_agent) == JSON


@pytest.mark.parametrize(
    "user_agent",
    [
        None,
        "",
        " ",
        "python-httpx2/1.0",
        "python-http",
        "xpython-httpx/1.0",
        "shop/1.0 python-httpx/0.28.1",
        "shop/1.0 (python-httpx/0.28.1)",
        "(python-httpx)",
        "/python-httpx",
        ",python-httpx",
        "\u00a0python-httpx",
        "python\u2010httpx/0.28.1",
        "PYTHON-HTTP\u212a",
        "python-requests/2.32",
        "Go-http-client/1.1",
        "\ud800",
        "\x00python-httpx",
        "x" * 100_000,
        " " * 100_000,
    ],
)
def test_another_client_gets_what_it_asks_for(user_agent: str | None) -> None:
    assert client_quirks.media_type(OJS, user_agent) == OJS
    assert client_quirks.media_type(JSON, user_agent) == JSON


@pytest.mark.parametrize(
    "accept",
    [
        None,
        "",
        ",",
        "*/*",
        "application/*",
        JSON,
        f"{JSON};q=0",
        f"{OJS};q=0",
        f"{OJS};q=nonsense",
        f"{OJS};q=-1",
        f"{OJS};q=nan",
        f"{OJS}, */*",
        f"{OJS}, {JSON}",
        f"{OJS};q=0.5, {JSON}",
        f"{OJS};q=0.5, {JSON};q=0",
        f"{OJS}x",
        f"x{OJS}",
        "text/html",
        "\ud800",
        f"{OJS}," * 10_000 + "x",
        "x," * 10_000,
    ],
)
def test_its_http_library_gets_what_it_asks_for_by_itself(accept: str | None) -> None:
    assert client_quirks.media_type(accept, PYTHON_SDK) == negotiation.media_type(accept)


@given(accept=st.none() | st.text(), user_agent=st.none() | st.text())
def test_any_headers_are_survived(accept: str | None, user_agent: str | None) -> None:
    assert client_quirks.media_type(accept, user_agent) == negotiation.media_type(accept)


def test_entries_are_written_as_headers_are_read() -> None:
    for quirk in client_quirks.QUIRKS:
        assert quirk.product == quirk.product.lower()
        assert quirk.answered != quirk.accepts
        assert negotiation.media_type(quirk.accepts) == quirk.accepts
        agent = f"{quirk.product}/1.0"
        assert client_quirks.media_type(quirk.accepts, agent) == quirk.answered
    assert len({quirk.client for quirk in client_quirks.QUIRKS}) == len(client_quirks.QUIRKS)
