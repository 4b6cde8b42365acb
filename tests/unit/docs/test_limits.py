"""docs/limits.md against the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from ojs.store.table import MAX_TRANSACTION

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "limits.md").read_text("utf-8")
ROWS = re.findall(r"^\| .*? \| (?:-\d+ to )?(\d+)[^|]*\| `(ojs[\w.]+)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("value", "constant"), ROWS, ids=[constant for _, constant in ROWS])
def test_the_limit_is_the_code_s(value: str, constant: str) -> None:
    module, _, name = constant.rpartition(".")
    assert getattr(importlib.import_module(module), name) == int(value)


def test_no_row_is_left_out() -> None:
    # Headers and rules aside, all rows but the one that is half of a constant.
    tables = [line for line in PAGE.splitlines() if line.startswith("|")]
    headers = sum(line.startswith("| What") for line in tables)
    assert len(ROWS) == len(tables) - 2 * headers - 1
    assert f"| {MAX_TRANSACTION // 2} | half of `ojs.store.table.MAX_TRANSACTION` |" in PAGE
