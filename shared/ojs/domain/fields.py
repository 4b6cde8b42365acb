"""Types of fields that several configurations have."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, GroupedMetadata, Le
from pydantic import AfterValidator, BeforeValidator

from ojs.domain import times


def _whole_number(value: object) -> object:
    # 1.5, 10.0 and true are refused.
    if type(value) is not int:
        raise ValueError("must be a whole number")
    return value


@dataclass(frozen=True)
class NumberRange(GroupedMetadata):
    """Annotates an int as a whole number in a range, both ends included."""

    least: int
    most: int

    def __iter__(self) -> Iterator[object]:
        yield Ge(self.least)
        yield Le(self.most)
        yield BeforeValidator(_whole_number)


def _duration(value: object) -> str:
    if times.duration_ms(value) <= 0:
        raise ValueError("must be above zero")
    return str(value)


def _printable(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must hold printable characters only")
    return value


# An ISO 8601 duration above zero.
Duration = Annotated[str, BeforeValidator(_duration)]
Printable = Annotated[str, AfterValidator(_printable)]
