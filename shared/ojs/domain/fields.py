"""Field types that several configurations share."""

from __future__ import annotations

from typing import Annotated

from ojs.domain import times
from ojs.domain.requests import After, Before, RequestField


class NumberRange(RequestField):
    """Limits an integer field to a range, both ends included."""

    def __init__(self, least: int, most: int) -> None:
        super().__init__(ge=least, le=most)


def _duration(value: object) -> str:
    if times.short_duration_ms(value) <= 0:
        raise ValueError("must be greater than zero")
    return times.iso_duration(value)


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must contain only printable characters")
    return value


# A positive duration: ISO 8601, or a short form such as `7d`, which is converted to ISO 8601.
Duration = Annotated[str, Before(_duration)]
Printable = Annotated[str, After(_printable)]
