"""Output of commands: tables for people, JSON for programs.

Names, args, and messages come from clients and can be malicious. Characters that are not printable
are escaped, so no text can move the cursor, change colors, or overwrite other text.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Width of tables if the output is not a terminal.
_PIPE_WIDTH = 1_000
_CUT = 60


def printable(value: object) -> str:
    """Format a value on one line, with control characters escaped."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in str(value).encode("utf-8", "backslashreplace").decode()
    )


def compact(value: Any, *, cut: int | None = _CUT) -> str:
    """Format a JSON value on one line of at most `cut` characters."""
    text = printable(json.dumps(value, ensure_ascii=False, separators=(",", ":")))
    return text if cut is None or len(text) <= cut else f"{text[: cut - 1]}…"


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add the option for JSON output."""
    parser.add_argument("--json", action="store_true", help="print JSON, one object per line")


def count(text: str) -> int:
    """Parse a number option. Raises ArgumentTypeError."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError("must be a whole number, or 0 for all")
    return int(text)


def as_json(value: Any) -> None:
    """Print a value as JSON, with non-ASCII characters escaped."""
    print(json.dumps(value), flush=True)


def note(text: str) -> None:
    """Print a line to standard error."""
    print(printable(text), file=sys.stderr, flush=True)


def console(stream: TextIO | None = None) -> Console:
    """Return a console for a stream. Default: standard output."""
    from rich.console import Console

    stream = stream or sys.stdout
    width = None if stream.isatty() else _PIPE_WIDTH
    return Console(file=stream, width=width, markup=False, highlight=False, emoji=False)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Return a table. Columns whose title starts with `#` are right-aligned."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        number = column.startswith("#")
        first = column is columns[0]
        made.add_column(
            column.removeprefix("#"), justify="right" if number else "left", no_wrap=number or first
        )
    for row in rows:
        made.add_row(*(Text(printable("" if each is None else each)) for each in row))
    return made


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table."""
    console().print(table(columns, rows))


def number(count: int | str, noun: str) -> str:
    """Format a count with its noun."""
    return f"{count} {noun}" if str(count) == "1" else f"{count} {noun}s"


def span(seconds: float | None) -> str:
    """Format a duration, for example `3m 12s`."""
    if seconds is None:
        return ""
    whole = int(seconds)
    parts = [(whole // 86_400, "d"), (whole // 3_600 % 24, "h"), (whole // 60 % 60, "m")]
    said = [f"{number}{unit}" for number, unit in [*parts, (whole % 60, "s")] if number]
    return " ".join(said[:2]) or "0s"


def wait(seconds: float) -> None:
    """Wait for a number of seconds."""
    time.sleep(seconds)
