"""The environment of a function. The only module that reads it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime

_PREFIX = "OJS_"


def configured(names: Iterable[str]) -> dict[str, str]:
    """Those of these settings that the environment has: `table` is OJS_TABLE. Empty is absent."""
    found = {name: os.environ.get(f"{_PREFIX}{name.upper()}", "") for name in names}
    return {name: value for name, value in found.items() if value}


def required(name: str) -> str:
    """A setting without which the function cannot work. Raises LookupError naming the variable."""
    value = configured([name])
    if not value:
        raise LookupError(f"{_PREFIX}{name.upper()} is not set")
    return value[name]


def beginning_ms(day: str) -> int:
    """The beginning (ms) in UTC of a day such as 2027-03-01. Raises ValueError."""
    return int(datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp()) * 1_000
