"""Types of fields that several configurations have, and the rule for a field that none has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, GroupedMetadata, Le
from pydantic import AfterValidator, BeforeValidator

from ojs.domain import times

NOT_KNOWN = "is not a known field"
# Characters of a field's name that an error shows.
MAX_SHOWN = 100


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


# How much of a name agrees with that of another field, at least, if it is a slip of the pen.
_LIKE = 0.6


def nearest(name: str, known: Iterable[str], *, least: float = _LIKE) -> str | None:
    """The known name that is most like this one, if one is; `least` is from 0 to 1 (the same)."""
    # Imported here: only a request that is wrong needs it.
    from difflib import get_close_matches

    found = get_close_matches(name[:MAX_SHOWN], sorted(known), n=1, cutoff=least)
    return found[0] if found else None


def not_known(name: str, known: Iterable[str]) -> str:
    """The rule that an unknown field breaks: it names the field that was probably meant."""
    names = sorted(known)
    meant = nearest(name, names)
    if meant is None:
        return f"{NOT_KNOWN}; there are {', '.join(names)}" if names else NOT_KNOWN
    return f"{NOT_KNOWN}; did you mean '{meant}'?"


# An ISO 8601 duration above zero.
Duration = Annotated[str, BeforeValidator(_duration)]
Printable = Annotated[str, AfterValidator(_printable)]
