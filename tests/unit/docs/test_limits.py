"""docs/limits.md against the code."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from local.gateway import FUNCTION_BYTES
from ojs.services.jobs import fetch
from ojs.store.table.table import MAX_TRANSACTION

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "limits.md").read_text("utf-8")
ROWS = re.findall(r"^\| .*? \| (?:-\d+ to )?(\d+)[^|]*\| `(ojs[\w.]+)` \|$", PAGE, re.MULTILINE)


@pytest.mark.parametrize(("value", "constant"), ROWS, ids=[constant for _, constant in ROWS])
def test_the_limit_is_the_code_s(value: str, constant: str) -> None:
    module, _, name = constant.rpartition(".")
    assert getattr(importlib.import_module(module), name) == int(value)


def test_the_numbers_between_the_tables_are_the_code_s() -> None:
    kib = fetch._MAX_ANSWER_KIB
    assert f"about {kib:,} KiB of contents" in PAGE
    # The size that fits in base64, in MB, without the other fields of the event.
    fits = FUNCTION_BYTES * 3 / 4 / 2**20 - 0.1
    assert f"about {fits:.1f} MB fit" in PAGE


def test_no_row_is_left_out() -> None:
    # Headers and rules aside, all rows but the one that is half of a constant.
    limits, _, _ = PAGE.partition("## Throughput")
    tables = [line for line in limits.splitlines() if line.startswith("|")]
    headers = sum(line.startswith("| What") for line in tables)
    assert len(ROWS) == len(tables) - 2 * headers - 1
    assert f"| {MAX_TRANSACTION // 2} | half of `ojs.store.table.table.MAX_TRANSACTION` |" in PAGE
