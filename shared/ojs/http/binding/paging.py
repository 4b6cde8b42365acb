"""Reads pages of listings: by limit and cursor, by offset, or by page and per_page.

With a cursor, each page costs the same. With an offset or a page number, the request reads the
skipped items too, so it can skip at most `MAX_OFFSET` items.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, Protocol, TypeVar

from ojs.domain.errors import BAD_CURSOR, InvalidRequest
from ojs.domain.page import Page
from ojs.domain.requests import Field
from ojs.http.answer import Answer, derived, given, shown, source
from ojs.http.answers import Count
from ojs.http.parameters import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    MAX_OFFSET,
    MAX_QUEUES_LIMIT,
    MAX_QUEUES_OFFSET,
)
from ojs.records import record

S = TypeVar("S")
T = TypeVar("T")
_MAX_DIGITS = 9
# Maximum reads per response. The store can return short pages, so a response can require several.
_MAX_READS = 2 * MAX_OFFSET // MAX_LIMIT


@record(frozen=True)
class PageWindow:
    """The part of a listing that a request selects."""

    limit: int = DEFAULT_LIMIT
    offset: int = 0
    cursor: str | None = None

    @property
    def page(self) -> int:
        """The number of the page, starting at 1."""
        return self.offset // self.limit + 1


def integer(query: Mapping[str, str], name: str, *, default: int, least: int, most: int) -> int:
    """Read an integer query parameter.

    Args:
        query: Parameters of the query.
        name: Name of the parameter.
        default: Value of a missing or empty parameter.
        least: Minimum value.
        most: Maximum value.

    Raises:
        InvalidRequest: The parameter is not an integer in this range.
    """
    text = query.get(name)
    if text is None or text == "":
        return default
    if (
        text.isascii()
        and text.isdigit()
        and len(text) <= _MAX_DIGITS
        and (least <= int(text) <= most)
    ):
        return int(text)
    raise InvalidRequest(name, f"must be an integer from {least} to {most}", value=text)


def limit(query: Mapping[str, str], *, default: int, most: int) -> int:
    """Read the maximum number of items of a page, from `limit` or `per_page`.

    Args:
        query: Parameters of the query.
        default: Value if the query has neither parameter.
        most: Maximum value.

    Raises:
        InvalidRequest: A parameter is out of range, or the two have different values.
    """
    per_page = integer(query, "per_page", default=default, least=1, most=most)
    found = integer(query, "limit", default=per_page, least=1, most=most)
    if query.get("per_page") and found != per_page:
        rule = "must have the same value as limit. Send only one of them"
        raise InvalidRequest("per_page", rule, value=query["per_page"])
    return found


def window(
    query: Mapping[str, str],
    *,
    default: int = DEFAULT_LIMIT,
    largest: int = MAX_LIMIT,
    shown: int = MAX_LIMIT,
    farthest: int = MAX_OFFSET,
) -> PageWindow:
    """Read the part of a listing that a query selects.

    Args:
        query: Parameters of the query.
        default: Items of a page if the query has no limit.
        largest: Maximum limit that a query can have.
        shown: Maximum items of a page. A higher limit in the query counts as this number, so that
            numbered pages have no gaps.
        farthest: Maximum number of items to skip.

    Raises:
        InvalidRequest: A parameter is malformed or out of range, or parameters can't be combined.
    """
    most = min(shown, limit(query, default=default, most=largest))
    any_page = 10**_MAX_DIGITS - 1
    page = integer(query, "page", default=1, least=1, most=any_page)
    offset = integer(query, "offset", default=0, least=0, most=any_page)
    name = "offset" if offset else "page"
    if query.get("offset") and query.get("page") and offset != (page - 1) * most:
        rule = "doesn't match offset. Send only one of them"
        raise InvalidRequest("page", rule, value=str(page))
    offset = offset or (page - 1) * most
    cursor = opened(query["cursor"]) if query.get("cursor") else None
    if cursor is not None and offset:
        raise InvalidRequest(name, "can't be combined with cursor", value=query.get(name))
    if offset > farthest:
        raise InvalidRequest(
            name,
            f"must not skip more than {farthest} items. Use cursor instead",
            value=query.get(name),
        )
    return PageWindow(most, offset, cursor)


def queues_window(query: Mapping[str, str], *, shown: int = MAX_QUEUES_LIMIT) -> PageWindow:
    """Read the part of the list of queues that a query selects, as `window` does."""
    return window(query, largest=MAX_QUEUES_LIMIT, shown=shown, farthest=MAX_QUEUES_OFFSET)


class _Listing(Protocol[T]):
    """Reads at most `limit` items of a listing, starting at a cursor."""

    def __call__(self, *, limit: int, cursor: str | None) -> Page[T]: ...


def collect(window: PageWindow, listing: _Listing[T]) -> Page[T]:
    """Read one page of `listing`.

    Short pages of the listing are combined until the page is full, so that numbered pages have no
    gaps. Raise InvalidRequest if skipping requires too many reads.
    """
    cursor = window.cursor
    found: list[T] = []
    total = None
    for _ in range(_MAX_READS):
        # Never read more than fits, because the cursor must belong to the last item of the page.
        most = min(window.offset + window.limit - len(found), MAX_LIMIT)
        passed = listing(limit=most, cursor=cursor)
        found += passed.items
        cursor, total = passed.next_cursor, passed.total
        if cursor is None or len(found) == window.offset + window.limit:
            break
    if len(found) < window.offset and cursor is not None:
        raise InvalidRequest("offset", "skips too many items. Use cursor instead")
    return Page(found[window.offset :], cursor, total)


# A cursor of the store contains keys of items. Encoded, it is opaque and URL-safe.


def sealed(cursor: str) -> str:
    """Encode a cursor of the store for clients."""
    return base64.urlsafe_b64encode(cursor.encode("utf-8")).decode("ascii").rstrip("=")


def opened(text: str, name: str = "cursor") -> str:
    """Decode a cursor that `sealed` encoded. Raise InvalidRequest for the parameter `name`."""
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode("utf-8")
    except (UnicodeError, binascii.Error):
        raise InvalidRequest(name, BAD_CURSOR, value=text) from None


@record(frozen=True)
class Listed(Generic[T]):
    """A page and its position in the listing. `unknown`: `total` only leads to the next page."""

    items: Sequence[T]
    window: PageWindow
    next_cursor: str | None
    total: int | None = None
    unknown: Literal[True] | None = None

    def of(self, items: Sequence[S]) -> Listed[S]:
        """Return the same page with other items, made from its own."""
        return Listed(items, self.window, self.next_cursor, self.total, self.unknown)


def listed(
    window: PageWindow, page: Page[T], total: int | None = None, *, always: bool = False
) -> Listed[T]:
    """Combine a page with its position in the listing.

    Args:
        window: The requested part of the listing.
        page: The page that was read.
        total: Number of items in the listing, if known.
        always: Whether the page has a total even if the number is unknown. The total is then high
            enough that clients request the next page.
    """
    ends_here = page.next_cursor is None and (page.items or not window.offset)
    if total is None and ends_here and not window.cursor:
        total = window.offset + len(page.items)
    if total is None and always:
        more = page.next_cursor is not None
        leads_on = window.offset + (window.limit + 1 if more else len(page.items))
        return Listed(page.items, window, page.next_cursor, leads_on, unknown=True)
    return Listed(page.items, window, page.next_cursor, total)


def asked(query: Mapping[str, str], listing: _Listing[T]) -> Listed[T]:
    """Read the page that a query selects. Raise InvalidRequest if a parameter is invalid."""
    window_ = window(query)
    page = collect(window_, listing)
    return listed(window_, page, page.total)


@derived
def _sealed(cursor: str | None) -> str | None:
    return None if cursor is None else sealed(cursor)


_page: Listed[Any] = source()


class Position(Answer[Listed[Any]]):
    """The cursor of the next page."""

    has_more: bool = given(_page.next_cursor)
    next_cursor: Annotated[str, Field(min_length=1)] = shown(
        _sealed(_page.next_cursor), absent=True
    )
    limit: int = _page.window.limit
    offset: int = _page.window.offset
    page: int = _page.window.page
    per_page: int = limit


class Pagination(Position):
    """The position of a page in its listing."""

    total: Count = shown(_page.total, absent=True, says="only where it is known")
    total_unknown: Literal[True] = shown(
        _page.unknown,
        absent=True,
        says="the total is not known: `total` leads to the next page if there is one",
    )


class Paged(Answer[Listed[T]]):
    """A response with a page. It has a total if the number of items is known."""

    total: Count = shown(_page.total, absent=True)
    pagination: Pagination = Pagination.of(_page)
