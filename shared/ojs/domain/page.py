"""One page of a listing."""

from __future__ import annotations

from typing import Generic, TypeVar

from ojs.records import record

T = TypeVar("T")


@record(frozen=True)
class Page(Generic[T]):
    """Items in order, and an opaque cursor if more items might follow.

    `total` is the number of items of the listing, or None if it is not known.
    """

    items: list[T]
    next_cursor: str | None = None
    total: int | None = None
