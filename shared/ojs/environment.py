"""The environment of a function. The only module that reads it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime

_PREFIX = "OJS_"


def configured(names: Iterable[str]) -> dict[str, str]:
    """Return the settings that are set: `table` is OJS_TABLE. An empty variable is not set."""
    found = {name: os.environ.get(f"{_PREFIX}{name.upper()}", "") for name in names}
    return {name: value for name, value in found.items() if value}


def required(name: str) -> str:
    """Return a required setting. Raise LookupError that names the variable if it is missing."""
    value = configured([name])
    if not value:
        raise LookupError(f"{_PREFIX}{name.upper()} is not set")
    return value[name]


def beginning_ms(day: str) -> int:
    """Return the start of a day in UTC, such as 2027-03-01, in milliseconds. Raise ValueError."""
    return int(datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp()) * 1_000
