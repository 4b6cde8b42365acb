"""Items as plain values, and as DynamoDB types them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Value = str | int | bytes
Item = dict[str, Value]


def pack(item: Mapping[str, Value]) -> dict[str, Any]:
    """Convert plain values to DynamoDB's typed attribute values."""
    packed: dict[str, Any] = {}
    for name, value in item.items():
        if isinstance(value, str):
            packed[name] = {"S": value}
        elif isinstance(value, bytes):
            packed[name] = {"B": value}
        else:
            packed[name] = {"N": str(value)}
    return packed


def unpack(item: Mapping[str, Any]) -> Item:
    """Convert DynamoDB's typed attribute values to plain ones. Raise ValueError for two types."""
    return {
        name: int(value) if kind == "N" else value
        for name, typed in item.items()
        for ((kind, value),) in (typed.items(),)
    }


def number(item: Mapping[str, Any], name: str) -> int:
    """Return a number of an item, or 0 if it has none of this name."""
    value = item.get(name, 0)
    return value if isinstance(value, int) else 0


def projected(item: Mapping[str, Any], name: str) -> int:
    """Return a projected counter of an item.

    Changes can arrive out of order, so that a counter is negative for a short time: it is then
    returned as 0.
    """
    return max(0, int(item.get(name, 0)))


def size(item: Mapping[str, Value]) -> int:
    """Return the bytes that DynamoDB counts for an item, or one more for a number."""
    total = 0
    for name, value in item.items():
        total += len(name.encode("utf-8"))
        if isinstance(value, str):
            total += len(value.encode("utf-8"))
        elif isinstance(value, bytes):
            total += len(value)
        else:
            total += len(str(value)) // 2 + 2
    return total
