"""Windows over listings."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain.errors import InvalidRequest
from ojs.domain.page import Page
from ojs.http.binding import paging
from ojs.http.parameters import MAX_LIMIT, MAX_OFFSET


class Listing:
    """Numbers behind a cursor; `short` pages hold fewer than were asked for."""

    def __init__(self, size: int, short: int | None = None) -> None:
        self.size = size
        self.short = short
        self.reads = 0

    def __call__(self, limit: int, cursor: str | None) -> Page[int]:
        assert 1 <= limit <= MAX_LIMIT
        self.reads += 1
        start = int(cursor or 0)
        end = min(self.size, start + min(limit, self.short or limit))
        return Page(list(range(start, end)), str(end) if end < self.size else None)


@given(st.integers(0, 1_500), st.integers(1, MAX_LIMIT), st.integers(0, MAX_OFFSET))
def test_an_offset_skips(size: int, limit: int, offset: int) -> None:
    listing = Listing(size)
    page = paging.collect(paging.PageWindow(limit, offset), listing)
    assert page.items == list(range(size))[offset : offset + limit]
    assert listing.reads <= 1 + MAX_OFFSET // MAX_LIMIT
    assert (page.next_cursor is not None) == (offset + limit < size)


@given(st.integers(0, 120), st.integers(1, 30), st.integers(3, 40))
def test_numbered_pages_join_however_short_the_listing_s_own_are(
    size: int, limit: int, short: int
) -> None:
    shown: list[int] = []
    for number in range(MAX_OFFSET):
        try:
            page = paging.collect(paging.PageWindow(limit, number * limit), Listing(size, short))
        except InvalidRequest:
            break
        shown += page.items
        if page.next_cursor is None:
            assert shown == list(range(size))
            break
        assert len(page.items) <= limit
        if len(page.items) < limit:
            break
    assert shown == list(range(len(shown)))


def described(window: paging.PageWindow, page: Page[int]) -> dict[str, Any]:
    return cast("dict[str, Any]", paging.Pagination.of(paging.listed(window, page)))


def test_a_page_is_filled_from_short_ones() -> None:
    page = paging.collect(paging.PageWindow(20, 20), Listing(100, short=7))
    assert page == Page(list(range(20, 40)), "40")


def test_skipping_ends_when_it_gets_dear() -> None:
    listing = Listing(10_000, short=1)
    with pytest.raises(InvalidRequest, match="cursor"):
        paging.collect(paging.PageWindow(10, 500), listing)
    assert listing.reads <= 10


@given(st.text())
def test_a_cursor_comes_back_as_it_went(text: str) -> None:
    sealed = paging.sealed(text)
    assert sealed.replace("-", "a").replace("_", "a").isalnum() or not sealed
    if text:
        assert paging.window({"cursor": sealed}).cursor == text


@given(st.text(min_size=1))
def test_any_cursor_is_taken_or_refused_by_name(text: str) -> None:
    try:
        taken = paging.window({"cursor": text}).cursor
    except InvalidRequest as error:
        taken = error.field
    assert taken


def test_the_three_styles_say_the_same() -> None:
    assert paging.window({"limit": "20", "offset": "40"}) == paging.PageWindow(20, 40)
    assert paging.window({"per_page": "20", "page": "3"}) == paging.PageWindow(20, 40)
    assert paging.window({}) == paging.PageWindow(50, 0)
    assert paging.window({"limit": "", "page": ""}) == paging.PageWindow(50, 0)
    assert paging.PageWindow(20, 40).page == 3


@pytest.mark.parametrize(
    "query",
    [{"page": "3", "offset": "10"}, {"page": "1", "offset": "50"}, {"page": "2", "offset": "0"}],
)
def test_a_page_and_an_offset_must_agree(query: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        paging.window(query)
    assert refused.value.field == "page"
    same = {"page": "3", "offset": "40", "limit": "20"}
    assert paging.window(same) == paging.PageWindow(20, 40)


def test_total_is_told_only_when_it_is_known() -> None:
    ends: Page[int] = Page([1, 2], None)
    goes_on: Page[int] = Page([1, 2], "c")
    assert described(paging.PageWindow(2, 4), ends)["total"] == 6
    assert "total" not in described(paging.PageWindow(2, 4), goes_on)
    assert "total" not in described(paging.PageWindow(2, 0, "c"), ends)
    assert "total" not in described(paging.PageWindow(2, 4), Page[int]([], None))
    assert described(paging.PageWindow(), Page[int]([], None))["total"] == 0
    shown = described(paging.PageWindow(2), goes_on)
    assert shown["has_more"] is True
    assert shown["next_cursor"] == paging.sealed("c")
