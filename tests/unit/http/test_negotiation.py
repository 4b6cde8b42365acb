"""Accept, Content-Type, versions and request ids."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain.errors import InvalidRequest, Unsupported
from ojs.http.binding import negotiation

OJS, JSON = negotiation.MEDIA_TYPE, negotiation.JSON


@pytest.mark.parametrize(
    ("accept", "answered"),
    [
        (None, OJS),
        ("", OJS),
        ("*/*", OJS),
        ("application/*", OJS),
        (OJS, OJS),
        ("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", OJS),
        (JSON, JSON),
        ("APPLICATION/JSON", JSON),
        ("application/json;charset=utf-8", JSON),
        ("application/json, text/plain, */*", JSON),
        ("application/json;q=0.1", JSON),
        ("application/json;q=0", OJS),
        ("application/json;q=nonsense", OJS),
        (f"{JSON}, {OJS}", OJS),
        (f"{OJS};q=0.5, {JSON};q=0.9", JSON),
        (f"{OJS};q=0.9, {JSON};q=0.5", OJS),
        (f"{OJS};q=0, {JSON}", JSON),
        (f"{JSON};q=0.2, {JSON};q=0.8, {OJS};q=0.5", JSON),
        (",;,;q=,", OJS),
    ],
)
def test_media_type(accept: str | None, answered: str) -> None:
    assert negotiation.media_type(accept) == answered


@given(st.text())
def test_any_header_is_survived(text: str) -> None:
    assert negotiation.media_type(text) in (OJS, JSON)
    echoed = negotiation.request_id(text)
    assert echoed is None or (echoed.isascii() and echoed.isprintable() and len(echoed) <= 128)
    with contextlib.suppress(InvalidRequest):
        negotiation.check_content_type(text)
    with contextlib.suppress(Unsupported):
        negotiation.check_version(text)


@pytest.mark.parametrize("given_type", [None, "", OJS, JSON, "application/json;charset=latin-1"])
def test_content_types_that_are_read(given_type: str | None) -> None:
    negotiation.check_content_type(given_type)


@pytest.mark.parametrize("given_type", ["text/json", "application/jsonx", f"{JSON},{JSON}", "x"])
def test_content_types_that_are_not(given_type: str) -> None:
    with pytest.raises(InvalidRequest):
        negotiation.check_content_type(given_type)


def test_a_version_is_optional() -> None:
    negotiation.check_version(None)
    negotiation.check_version("1.0")
    with pytest.raises(Unsupported):
        negotiation.check_version("1.0.0.0")


@pytest.mark.parametrize("closed", [True, False])
def test_no_answer_says_which_pages_may_read_it(closed: bool) -> None:
    headers = negotiation.answer_headers("req", closed=closed)
    assert not [name for name in headers if name.lower().startswith("access-control")]
    # A browser that is told so once never speaks plain HTTP to this host again.
    assert ("Strict-Transport-Security" in headers) is closed
