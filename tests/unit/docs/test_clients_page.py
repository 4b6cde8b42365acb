"""docs/clients.md against the table of clients' quirks."""

from __future__ import annotations

import re
from pathlib import Path

from ojs.http.binding import client_quirks
from ojs.http.features import MISSING

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "clients.md").read_text("utf-8")
ROWS = re.findall(r"^\| (.+?) \| `(.+?)` \| `(.+?)` \| `(.+?)` \| (.+) \|$", PAGE, re.MULTILINE)


def test_every_quirk_is_shown_and_no_other() -> None:
    assert [row for row in ROWS if row[1] != "User-Agent"] == [
        (quirk.client, quirk.product, quirk.accepts, quirk.answered, quirk.why)
        for quirk in client_quirks.QUIRKS
    ]


def test_the_page_is_found_where_media_types_are_described() -> None:
    assert "(clients.md" in (DOCS / "http-api.md").read_text("utf-8")
    assert "(docs/clients.md)" in (DOCS.parent / "README.md").read_text("utf-8")


def test_every_feature_that_is_not_offered_is_listed_and_no_other() -> None:
    _, _, after = PAGE.partition("## Unsupported features")
    rows = re.findall(r"^\| `(\S+)` \| (.+) \| (.+) \|$", after.partition("\n## ")[0], re.MULTILINE)
    assert rows == [
        (one.name, ", ".join(f"`{path}`" for path in one.paths), one.instead or "—")
        for one in MISSING
    ]
