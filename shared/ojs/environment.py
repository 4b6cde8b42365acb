"""The environment variables of a function. Only this module reads them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime

_PREFIX = "OJS_"


def configured(names: Iterable[str]) -> dict[str, str]:
    """Return the settings that have a value: setting `table` is the variable OJS_TABLE.

    An empty variable counts as missing.
    """
    found = {name: os.environ.get(f"{_PREFIX}{name.upper()}", "") for name in names}
    return {name: value for name, value in found.items() if value}


def required(name: str) -> str:
    """Return a required setting.

    Raises LookupError with the name of the variable if it is missing.
    """
    value = configured([name])
    if not value:
        raise LookupError(f"{_PREFIX}{name.upper()} is not set")
    return value[name]


def beginning_ms(day: str) -> int:
    """Return the start of a UTC day, such as 2027-03-01, in milliseconds since the epoch.

    Raises ValueError if the date is invalid.
    """
    return int(datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp()) * 1_000
