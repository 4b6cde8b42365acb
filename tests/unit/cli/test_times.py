"""Times that an operator gives on the command line."""

from __future__ import annotations

import pytest

from cli.jobs import moment
from ojs.clock import ManualClock


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("90s", "2026-05-28T20:25:10.000Z"),
        ("15m", "2026-05-28T20:11:40.000Z"),
        ("2h", "2026-05-28T18:26:40.000Z"),
        ("7d", "2026-05-21T20:26:40.000Z"),
        # Before there was any job.
        ("999999d", "1970-01-01T00:00:00.000Z"),
        # The API reads what is no length, or says what is wrong with it.
        ("2026-05-28T20:00:00Z", "2026-05-28T20:00:00Z"),
        ("yesterday", "yesterday"),
    ],
)
def test_a_time_is_rfc_3339_or_how_long_ago(given: str, meant: str) -> None:
    assert moment(given, ManualClock(1_780_000_000_000)) == meant
