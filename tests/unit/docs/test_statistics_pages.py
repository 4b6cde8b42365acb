"""docs/statistics.md, docs/events.md and docs/metrics.md against the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from functions.sweep import metrics as sweep_metrics
from ojs.api import metrics
from ojs.api import operations as contract
from ojs.api.events import DEFAULT_EVENTS, MAX_EVENTS
from ojs.domain.events.query import RETAIN_MS
from ojs.domain.events.types import EventType
from ojs.domain.stats import DAY_MS, HOUR_MS, MINUTE_MS, Period
from ojs.http import parameters
from ojs.http.parameters import MAX_QUEUES_LIMIT
from ojs.projections import counters
from ojs.projections import metrics as job_metrics
from ojs.services.operations import events as log
from ojs.services.operations import metrics_sweep as gauges
from ojs.services.operations import statistics as services
from ojs.settings import Settings
from ojs.store.derived import event_log
from ojs.store.derived import statistics as store

DOCS = Path(__file__).resolve().parents[3] / "docs"
STATISTICS, EVENTS, METRICS = (
    (DOCS / f"{name}.md").read_text("utf-8") for name in ("statistics", "events", "metrics")
)


def said(text: str, page: str) -> bool:
    """Whether a page says so, wherever its lines break."""
    return text in " ".join(page.split())


def test_no_type_of_event_is_written_out_elsewhere() -> None:
    written = {
        node.value
        for folder in ("shared", "functions", "local", "cli", "infra")
        for path in (DOCS.parent / folder).rglob("*.py")
        if path != DOCS.parent / "shared/ojs/domain/events/types.py"
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert written.isdisjoint(EventType)


def test_every_parameter_of_events_is_listed() -> None:
    (table,) = re.findall(r"^\| Parameter \| \|\n.*?\n\n", EVENTS, re.MULTILINE | re.DOTALL)
    first = [row.split("|")[1] for row in table.splitlines()[2:] if row]
    listed = {name for cell in first for name in re.findall(r"`(\w+)`", cell)}
    known = {parameter.name for parameter in contract.get("list_events").query}
    assert listed == known


def test_the_history_is_kept_as_long_as_said() -> None:
    row = re.compile(r"^\| `(\d\w)` \| (\d+) (\w+) \| (\d+) (\w+) \|", re.MULTILINE)
    units = {"hours": HOUR_MS, "days": DAY_MS}
    told = {
        Period(name): (int(n) * units[unit], int(of_one) * units[unit_of_one])
        for name, n, unit, of_one, unit_of_one in row.findall(STATISTICS)
    }
    day = store.KEPT_MS[MINUTE_MS]
    assert told == {
        Period.MINUTE: (day, day),
        Period.FIVE_MINUTES: (day, day),
        Period.HOUR: (store.KEPT_MS[HOUR_MS], day),
        Period.DAY: (store.KEPT_MS[DAY_MS], store.QUEUE_DAYS_MS),
    }


@pytest.mark.parametrize(
    ("text", "page", "holds"),
    [
        ("for seven days", EVENTS, RETAIN_MS == 7 * DAY_MS),
        ("at most 20 queries and 8 MB", EVENTS,
         (event_log.MAX_QUERIES, event_log.MAX_BYTES) == (20, 8_000_000)),
        ("less than ten seconds old", EVENTS, log.HOLD_BACK_MS == 10_000),
        ("that it has read, up to 50.", EVENTS, log.MAX_NAMED == 50),
        ("more than an hour after", EVENTS, log.LATE_MS == HOUR_MS),
        ("1 to 1,000. Default: 100.", EVENTS,
         (MAX_EVENTS, DEFAULT_EVENTS) == (1_000, 100)),
        ("A list has up to 50 entries", EVENTS, parameters.MAX_FILTER_NAMES == 50),
        ("available`, up to 100 of a queue", STATISTICS, store.MAX_SHALLOW == 100),
        ("up to 100 a page", STATISTICS, MAX_QUEUES_LIMIT == 100),
        ("up to three minutes late", STATISTICS, gauges.LATE_MS == 3 * MINUTE_MS),
        ("first 500 queues", METRICS, services.MAX_METRIC_QUEUES == 500),
        ("would exceed 4 MB", METRICS, metrics.MAX_TEXT_BYTES == 4_000_000),
        ("Up to 40 types", METRICS, counters.MAX_TYPES == 40),
        ("the first 100 keys", METRICS, services.MAX_METRIC_KEYS == 100),
        ("the first 100 in order of name", METRICS, services.MAX_METRIC_POOLS == 100),
        ("no more than 500 queues in all", METRICS, services.MAX_METRIC_POOL_QUEUES == 500),
        ("the latter of up to 100 pools", METRICS, sweep_metrics.MAX_POOLS == 100),
        ("`queue_metrics_max` (20)", METRICS, Settings("table").queue_metrics_max == 20),
        ("each queue's first ten types", METRICS, job_metrics.MAX_TYPES == 10),
        ("the queue `(others)`", METRICS, job_metrics.OTHERS == "(others)"),
    ],
)  # fmt: skip
def test_what_is_said_holds(text: str, page: str, holds: bool) -> None:
    assert said(text, page)
    assert holds
