"""docs/access.md against the table of permissions."""

from __future__ import annotations

import re
from pathlib import Path

from ojs.api import operations as contract
from ojs.domain.access import KEPT_S, Scope

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "access.md").read_text("utf-8")
ROWS = re.findall(
    r"^\| (GET|POST|PUT|PATCH|DELETE) \| `(/\S+)` \| (?:`([\w:]+)`|any key) \| (.+) \|$",
    PAGE,
    re.MULTILINE,
)


def test_every_operation_is_shown_as_it_is_guarded() -> None:
    shown = {(method, path): (scope or None, reach) for method, path, scope, reach in ROWS}
    assert len(shown) == len(ROWS)
    needed = {
        (operation.method, operation.path): operation.permission
        for operation in contract.OPERATIONS
    }
    assert shown == {
        at: (each.scope.value if each.scope else None, each.reach.value)
        for at, each in needed.items()
    }


def test_every_scope_is_explained() -> None:
    assert set(re.findall(r"^\| `([\w:]+)` \| .+ \|$", PAGE, re.MULTILINE)) == {*Scope}


def test_how_long_keys_are_listed() -> None:
    assert f"Keys are listed for {KEPT_S // 86_400} days" in PAGE
