"""The expressions of docs/cron.md do what the page says."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest

from ojs.domain.cron.schedule import Schedule, preview
from ojs.domain.errors import InvalidRequest
from tests.unit.domain.cron import oracle

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "cron.md").read_text("utf-8")
AFTER_MS = oracle.instant("2026-02-12T10:30") * 1000


def rows(*titles: str) -> list[tuple[str, ...]]:
    """The rows of all tables with these titles."""
    head = "| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|\n"
    tables = [part.split("\n\n")[0] for part in PAGE.split(head)[1:]]
    return [
        tuple(cell.strip() for cell in line.strip("|").split("|"))
        for table in tables
        for line in table.splitlines()
    ]


def texts(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def next_times(expression: str, zone: str, after_ms: int, count: int) -> list[datetime]:
    firings = preview(expression, zone, after_ms, count)
    return [datetime.fromisoformat(each.local) for each in firings]


@pytest.mark.parametrize(("expression", "_meaning", "times"), rows("Expression", "Fires", "Next"))
def test_what_fires_next(expression: str, _meaning: str, times: str) -> None:
    expected = [datetime.fromisoformat(f"{text}+00:00") for text in texts(times)]
    assert next_times(texts(expression)[0], "UTC", AFTER_MS, 2) == expected


@pytest.mark.parametrize(("alias", "expression"), rows("Expression", "The same as"))
def test_aliases(alias: str, expression: str) -> None:
    one, other = texts(alias)[0], texts(expression)[0]
    assert preview(one, "UTC", AFTER_MS, 9) == preview(other, "UTC", AFTER_MS, 9)


@pytest.mark.parametrize(("expression", "message"), rows("Expression", "Message"))
def test_messages(expression: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Schedule.parse(texts(expression)[0], "UTC")
    assert caught.value.reason == message


@pytest.mark.parametrize(
    ("expression", "after", "times", "left_out"), rows("Expression", "After", "Next", "Left out")
)
def test_where_clocks_change(expression: str, after: str, times: str, left_out: str) -> None:
    after_ms = int(datetime.fromisoformat(texts(after)[0]).timestamp()) * 1000
    firings = preview(texts(expression)[0], "America/New_York", after_ms, 2)
    assert [each.local for each in firings] == [
        datetime.fromisoformat(text).isoformat() for text in texts(times)
    ]
    skipped = [gap.local for each in firings for gap in each.tick.skipped]
    assert skipped == [datetime.fromisoformat(text).isoformat() for text in texts(left_out)]


def test_the_page_has_all_of_these_tables() -> None:
    tables = [
        ("Expression", "Fires", "Next"), ("Expression", "The same as"), ("Expression", "Message"),
        ("Expression", "After", "Next", "Left out"),
    ]  # fmt: skip
    assert [len(rows(*titles)) for titles in tables] == [17, 7, 7, 5]
