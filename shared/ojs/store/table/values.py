"""Converts items between Python values and DynamoDB's typed attribute values."""

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
    """Convert DynamoDB's typed attribute values to Python values.

    Raise ValueError if an attribute has two types.
    """
    return {
        name: int(value) if kind == "N" else value
        for name, typed in item.items()
        for ((kind, value),) in (typed.items(),)
    }


def number(item: Mapping[str, Any], name: str) -> int:
    """Return a numeric attribute of an item, or 0 if it is missing."""
    value = item.get(name, 0)
    return value if isinstance(value, int) else 0


def projected(item: Mapping[str, Any], name: str) -> int:
    """Return a counter that the projection derives from the DynamoDB stream, as at least 0.

    The projection can process changes out of order. The stored counter is then negative for a short
    time.
    """
    return max(0, int(item.get(name, 0)))


def size(item: Mapping[str, Value]) -> int:
    """Return the size of an item as DynamoDB counts it, in bytes.

    Each number might count 1 byte more.
    """
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
