"""One page of a listing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Page(Generic[T]):
    """Items in order, and an opaque cursor when more may follow."""

    items: list[T]
    next_cursor: str | None = None
