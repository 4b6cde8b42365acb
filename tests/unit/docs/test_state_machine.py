"""docs/state-machine.md against the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ojs.domain.job.retention import DEAD_LETTERS, RETENTION
from ojs.domain.job.states import TERMINAL, TRANSITIONS, State, Trigger

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "state-machine.md").read_text("utf-8")
EDGES = {(start, trigger, end) for (start, trigger), ends in TRANSITIONS.items() for end in ends}


@pytest.mark.requirement("C-6")
def test_the_table_is_the_code_s() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (`.*`) \|$", PAGE, re.MULTILINE)
    shown = {
        (State(start), Trigger(trigger), State(end.strip("` ")))
        for start, trigger, ends in rows
        for end in ends.split(",")
    }
    assert shown == EDGES
    assert len(rows) == len(TRANSITIONS)


def test_the_diagram_is_the_code_s() -> None:
    drawn = re.findall(r"^    (\w+) --> (\w+) : (\w+)$", PAGE, re.MULTILINE)
    assert sorted(drawn) == sorted((start, end, trigger) for start, trigger, end in EDGES)
    ends = re.findall(r"^    (\w+) --> \[\*\]$", PAGE, re.MULTILINE)
    assert set(ends) == TERMINAL


def test_every_trigger_is_explained() -> None:
    explained = re.findall(r"^\| `(\w+)` \| (?!`\w+` \| `)", PAGE, re.MULTILINE)
    assert sorted(set(explained) & set(Trigger)) == sorted(Trigger)


def test_retention_is_the_code_s() -> None:
    kept = dict(re.findall(r"^\| (`[^|]+) \| (\d+) days \|$", PAGE, re.MULTILINE))
    assert {what: int(days) * 86_400 for what, days in kept.items()} == {
        "`completed`": RETENTION.completed_s,
        "`cancelled`": RETENTION.cancelled_s,
        "`discarded`": RETENTION.discarded_s,
        "`discarded`, in dead letter": DEAD_LETTERS.max_age_ms // 1_000,
    }
