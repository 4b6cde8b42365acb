"""docs/access.md against the permissions of the code."""

from __future__ import annotations

import re
from pathlib import Path

from ojs.api import operations as contract
from ojs.domain.access import KEPT_S, Scope

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "access.md").read_text("utf-8")


def test_every_kind_of_queue_scope_is_explained() -> None:
    table = PAGE.partition("## Permissions by operation")[2]
    for operation in contract.OPERATIONS:
        reach = operation.permission.reach.value
        assert reach == "none" or reach in table


def test_every_scope_is_explained() -> None:
    assert set(re.findall(r"^\| `([\w:]+)` \| .+ \|$", PAGE, re.MULTILINE)) == {*Scope}


def test_how_long_keys_are_listed() -> None:
    assert f"Keys are listed for {KEPT_S // 86_400} days" in PAGE
