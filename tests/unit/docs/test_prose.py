"""Texts have no wording that the style guide excludes, and no long sentences.

The numbers in `prose_counts.json` may only fall: `python -m tests.unit.docs.prose --record`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.docs import prose

COUNTS = json.loads(prose.COUNTS.read_text("utf-8"))
PAGES = [path for path in prose.files() if path.suffix == ".md"]
MAX_ALLOWED = 25


@pytest.fixture(scope="module")
def all_hits() -> tuple[list[prose.Hit], list[list[str]]]:
    return prose.unallowed(list(prose.hits(prose.files())))


@pytest.mark.parametrize("scope", "DACUE")
def test_the_hits_of_a_scope_only_fall(all_hits: Any, scope: str) -> None:
    found = [str(hit) for hit in all_hits[0] if hit.scope == scope]
    assert len(found) <= COUNTS["hits"][scope], "\n".join(found)


def test_allowed_lines_are_few_and_have_a_reason(all_hits: Any) -> None:
    allowed = prose.rows(prose.ALLOWED)
    assert len(allowed) <= MAX_ALLOWED
    assert all(len(row) == 4 and row[3] for row in allowed)
    assert all_hits[1] == []


@pytest.mark.parametrize("page", PAGES, ids=[str(p.relative_to(prose.ROOT)) for p in PAGES])
def test_the_sentences_of_a_page_are_short(page: Path) -> None:
    found = prose.lengths(page)
    if recorded := COUNTS["sentences"].get(str(page.relative_to(prose.ROOT))):
        _, long, too_long = recorded
        assert found.fits or (found.long <= long and found.too_long <= too_long), found
    else:
        assert found.fits, found


def found(path: Path, text: str) -> list[tuple[int, str, str]]:
    path.write_text(text)
    return [(hit.line, hit.scope, hit.match) for hit in prose.hits([path])]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    return tmp_path / "page.md"


def test_code_and_link_targets_of_a_page_are_not_prose(page: Path) -> None:
    text = """# Page

```sh
echo whoever
```

- item

  ```json
  {"customer": "Room 12"}
  ```

Set `room` and `whoever
else`, as [the page](anew.md) describes.
"""
    assert found(page, text) == []


def test_a_table_cell_and_a_heading_are_prose(page: Path) -> None:
    text = "# What is kept\n\n| Who | |\n|---|---|\n| `a` | whoever asks |\n\nIt has 10 000 jobs.\n"
    assert sorted(line for line, _, _ in found(page, text)) == [1, 1, 5, 7]


def test_an_f_string_with_braces_is_prose(page: Path) -> None:
    text = 'raise ValueError(f"{name!r} is no {kind}, but {other} is")\n# a {word} in braces\n'
    hits = found(page.with_suffix(".py"), text)
    assert hits == [(1, "E", "is no x"), (1, "C", "is no x")]


def test_identifiers_are_not_prose(page: Path) -> None:
    assert found(page.with_suffix(".py"), "room = whoever()\n") == []


def test_a_generated_page_is_not_checked(page: Path) -> None:
    assert found(page, "<!-- Written by `make facts` from the code. -->\n\nwhoever asks\n") == []


def test_a_frozen_decision_is_checked_by_its_title(page: Path) -> None:
    (page.parent / "adr").mkdir()
    text = "# 12. Room\n\nWhoever asks.\n"
    assert found(page.parent / "adr" / "0012-room.md", text) == [(1, "A", "Room")]
    assert len(found(page.parent / "adr" / "0116-room.md", text)) == 2


def test_long_sentences_are_counted(page: Path) -> None:
    words = " ".join(["word"] * 26)
    page.write_text(f"One sentence. {words}.\n\n- {words} {words}.\n\n| {words} {words} |\n")
    assert prose.lengths(page) == prose.Lengths(3, 2, 1)
