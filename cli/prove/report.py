"""The report: `report.txt`, `report.json`, and `report.html` with plots, each one file."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cli.output import printable
from cli.prove.state import Run

VERSION = 1
_REQUESTS, _PICKUP = "Requests (ms)", "From push to start (ms)"
_RAMP, _COST = "Ramp (ms)", "Cost"
_COLUMNS = ("count", "p50", "p90", "p99", "max")
_WIDTH, _LEFT, _BAR = 720, 190, 18
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color:#1b1b1b;background:#fff}table{border-collapse:collapse;width:100%;margin:.5rem 0}
td,th{padding:.25rem .6rem;border-bottom:1px solid #ddd;text-align:left;vertical-align:top}
.passed{color:#1a7f37}.failed{color:#b3261e;font-weight:600}.skipped{color:#6b6b6b}
text{font:12px system-ui,sans-serif;fill:#333}"""


def write(run: Run, folder: Path, facts: dict[str, Any]) -> None:
    """Write the three reports into a folder."""
    found = {
        "schema": VERSION, **facts, "numbers": run.numbers,
        "checks": [vars(each) for each in run.checks],
    }  # fmt: skip
    (folder / "report.json").write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    (folder / "report.txt").write_text(text(found), "utf-8")
    (folder / "report.html").write_text(page(found), "utf-8")


def _tables(found: dict[str, Any]) -> list[tuple[str, Sequence[str], list[list[str]]]]:
    """Return the tables of numbers: title, header, and rows."""
    numbers = found["numbers"]
    costs = numbers.get("cost", {}).get("rows", {})
    ramp = {f"{each['rate']} jobs/s": each for each in numbers.get("ramp", [])}
    tables: list[tuple[str, Sequence[str], list[list[str]]]] = []
    for title, rows, columns in (
        (_REQUESTS, numbers.get("latency", {}), _COLUMNS),
        (_PICKUP, numbers.get("pickup", {}), _COLUMNS),
        (_RAMP, ramp, ("reached", *_COLUMNS[1:], "errors", "stops")),
        (_COST, costs, ("assumed", "measured", "ratio")),
    ):
        cells = [
            [name, *(str(one.get(each, "")) for each in columns)] for name, one in rows.items()
        ]
        if cells:
            tables.append((title, ("", *columns), cells))
    return tables


def _summary(found: dict[str, Any]) -> str:
    counts = {verdict: sum(each["verdict"] == verdict for each in found["checks"])
              for verdict in ("passed", "failed", "skipped")}  # fmt: skip
    shown = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    end = "" if found["finished"] else ". The run did not finish"
    return f"{shown} in {found['seconds']} s for about ${found['spent']:.2f}{end}"


def text(found: dict[str, Any]) -> str:
    """Return the report as text."""
    lines = [f"{found['run']}: {_summary(found)}", ""]
    lines += [f"{key}: {json.dumps(value)}" for key, value in found["server"].items()] + [""]
    for each in found["checks"]:
        lines.append(f"{each['verdict']:8}{each['part']}: {each['name']}: {each['seen']}")
        lines += [f"        {each['todo']}."] if each["todo"] else []
    for title, header, rows in _tables(found):
        widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
        lines += ["", title]
        for row in (header, *rows):
            cells = zip(row, widths, strict=True)
            lines.append("  ".join(cell.ljust(width) for cell, width in cells).rstrip())
    return "\n".join(printable(line) for line in lines) + "\n"


def page(found: dict[str, Any]) -> str:
    """Return the report as an HTML page without other files."""
    shown = html.escape
    checks = "".join(
        f"<tr><td class={each['verdict']}>{each['verdict']}<td>{shown(each['part'])}"
        f"<td>{shown(each['name'])}<td>{shown(each['seen'])}<br><b>{shown(each['todo'])}</b>"
        for each in found["checks"]
    )
    tables = "".join(
        f"<h2>{shown(title)}</h2>{_plot(title, header, rows)}<table><tr>"
        + "".join(f"<th>{shown(cell)}" for cell in header)
        + "".join("<tr>" + "".join(f"<td>{shown(cell)}" for cell in row) for row in rows)
        + "</table>"
        for title, header, rows in _tables(found)
    )
    facts = "".join(f"<tr><td>{shown(key)}<td>{shown(json.dumps(value))}"
                    for key, value in found["server"].items())  # fmt: skip
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{found["run"]}</title>'
        f"<style>{_STYLE}</style><h1>{found['run']}</h1><p>{shown(_summary(found))}</p>"
        f"<table>{checks}</table>{tables}<h2>Deployment</h2><table>{facts}</table></html>\n"
    )


def _plot(title: str, header: Sequence[str], rows: list[list[str]]) -> str:
    """Return the plot of a table: bars from p50 to p99 and the maximum, or ratios of costs."""
    ends, top = ("p50", "p99", "max"), 5.0
    unit = "ms: from p50 to p99, with a line to the maximum"
    if title == _COST:
        ends, top, unit = ("ratio", "ratio", "ratio"), 0.0, "at the middle: as assumed"
    parts, height = [], _BAR * (len(rows) + 1) + 8
    for line, row in enumerate(rows):
        values = [float(row[header.index(each)]) for each in ends]
        x0, x1, x2 = (_LEFT + _place(each, top) * (_WIDTH - _LEFT - 70) for each in values)
        y = _BAR * line + 4
        parts.append(
            f'<text x="0" y="{y + 12}">{html.escape(row[0])}</text>'
            f'<rect x="{x0:.0f}" y="{y + 2}" width="{max(2, x1 - x0):.0f}" height="11" '
            f'fill="#3b7dd8"/><path d="M{x1:.0f} {y + 8}H{x2:.0f}" stroke="#3b7dd8"/>'
            f'<text x="{x2 + 6:.0f}" y="{y + 12}">{values[1]:g}</text>'
        )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{unit}">{"".join(parts)}'
        f'<text x="{_LEFT}" y="{height - 4}">{unit}</text></svg>'
    )


def _place(value: float, top: float) -> float:
    """Return the place of a duration from 1 ms to 10 ** `top` ms, from 0 to 1.

    With a `top` of 0: that of a ratio from 0 to 2.
    """
    return min(1.0, math.log10(max(1.0, value)) / top if top else value / 2)
