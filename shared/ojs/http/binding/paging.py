"""Pages of listings: by limit and cursor, by offset, or by page and per_page.

A cursor costs the same on every page. An offset or a page number costs reading what is skipped, so
at most `MAX_OFFSET` items can be skipped.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ojs.domain.errors import InvalidRequest
from ojs.domain.page import Page
from ojs.http.contract.operations import DEFAULT_LIMIT, MAX_LIMIT, MAX_OFFSET

if TYPE_CHECKING:
    from ojs.http.contract import answers

T = TypeVar("T")
_MAX_DIGITS = 9
# A page of the store may be short, so one answer may take several reads; this bounds them.
_MAX_READS = 2 * MAX_OFFSET // MAX_LIMIT


@dataclass(frozen=True)
class PageWindow:
    """The part of a listing that a request asks for."""

    limit: int = DEFAULT_LIMIT
    offset: int = 0
    cursor: str | None = None

    @property
    def page(self) -> int:
        """Number of the page, counted from 1."""
        return self.offset // self.limit + 1


def integer(query: Mapping[str, str], name: str, *, default: int, least: int, most: int) -> int:
    """Read an integer query parameter. Raises InvalidRequest naming it."""
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


def window(query: Mapping[str, str]) -> PageWindow:
    """Read which part of a listing a query asks for. Raises InvalidRequest naming a parameter."""
    per_page = integer(query, "per_page", default=DEFAULT_LIMIT, least=1, most=MAX_LIMIT)
    limit = integer(query, "limit", default=per_page, least=1, most=MAX_LIMIT)
    any_page = 10**_MAX_DIGITS - 1
    page = integer(query, "page", default=1, least=1, most=any_page)
    offset = integer(query, "offset", default=0, least=0, most=any_page)
    name = "offset" if offset else "page"
    offset = offset or (page - 1) * limit
    cursor = opened(query["cursor"]) if query.get("cursor") else None
    if cursor is not None and offset:
        raise InvalidRequest(name, "cannot be combined with cursor", value=query.get(name))
    if offset > MAX_OFFSET:
        raise InvalidRequest(
            name,
            f"must not skip more than {MAX_OFFSET} items; go on with cursor instead",
            value=query.get(name),
        )
    return PageWindow(limit, offset, cursor)


def collect(asked: PageWindow, listing: Callable[[int, str | None], Page[T]]) -> Page[T]:
    """Read the page asked for from `listing`, which takes a limit and a cursor.

    Short pages of the listing are put together until the page is full, so that numbered pages
    follow one another without a gap. Raises InvalidRequest when skipping takes too many reads.
    """
    cursor = asked.cursor
    found: list[T] = []
    for _ in range(_MAX_READS):
        # Never read more than fits: the cursor must be that of the last item shown.
        passed = listing(min(asked.offset + asked.limit - len(found), MAX_LIMIT), cursor)
        found += passed.items
        cursor = passed.next_cursor
        if cursor is None or len(found) == asked.offset + asked.limit:
            break
    if len(found) < asked.offset and cursor is not None:
        raise InvalidRequest("offset", "skips too much; go on with cursor instead")
    return Page(found[asked.offset :], cursor)


# The store's cursors contain keys of items. Encoded, they are opaque and need no quoting in a URL.


def sealed(cursor: str) -> str:
    """Encode a store's cursor for clients."""
    return base64.urlsafe_b64encode(cursor.encode("utf-8")).decode("ascii").rstrip("=")


def opened(text: str, name: str = "cursor") -> str:
    """Decode the cursor in the parameter `name`, encoded by `sealed`. Raises InvalidRequest."""
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode("utf-8")
    except (UnicodeError, binascii.Error):
        raise InvalidRequest(name, "is not one this server gave", value=text) from None


def described(asked: PageWindow, page: Page[Any], total: int | None = None) -> answers.Pagination:
    """Build the `pagination` object; it has `total` only where that is known without counting."""
    shown: answers.Pagination = {
        "has_more": page.next_cursor is not None,
        "limit": asked.limit,
        "offset": asked.offset,
        "page": asked.page,
        "per_page": asked.limit,
    }
    if page.next_cursor is not None:
        shown["next_cursor"] = sealed(page.next_cursor)
    if (
        total is None
        and not asked.cursor
        and page.next_cursor is None
        and (page.items or not asked.offset)
    ):
        # The listing ends here, so its length is known.
        total = asked.offset + len(page.items)
    if total is not None:
        shown["total"] = total
    return shown
