"""Prices and ceilings: models of what was counted (counted.json) and what is assumed
(assumed.toml). Nothing here needs more than Python.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# Written by tests/performance/counted.py.
COUNTED = ROOT / "docs" / "numbers" / "counted.json"
ASSUMED = ROOT / "docs" / "numbers" / "assumed.toml"

Numbers = Mapping[str, float]


def counted() -> dict[str, Any]:
    """The units of each operation, as they were counted last."""
    found: dict[str, Any] = json.loads(COUNTED.read_text("utf-8"))
    return found


def assumed(others: Iterable[str] = ()) -> dict[str, float]:
    """Prices, settings and durations by name, with `others` in their place: `name=value`, or the
    path of a TOML file. Raises SystemExit for a name that there is not.
    """
    found = _flat(ASSUMED)
    for other in others:
        name, equals, value = other.partition("=")
        given = {name: float(value)} if equals else _flat(Path(other))
        if unknown := given.keys() - found.keys():
            raise SystemExit(f"{', '.join(sorted(unknown))}: there is {', '.join(found)}")
        found |= given
    return found


def _flat(path: Path) -> dict[str, float]:
    """The numbers of a TOML file, of all its sections together."""
    sections = tomllib.loads(path.read_text("utf-8")).values()
    return {name: float(value) for section in sections for name, value in section.items()}


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A table in Markdown, all columns but the first `words` to the right."""
    rule = [*["---"] * words, *["---:"] * (len(header) - words)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, rule, *rows))


def number(value: float) -> str:
    """At most two decimals, none that say nothing."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
