"""docs/limits.md against the code."""

from __future__ import annotations

from pathlib import Path

from local.gateway import FUNCTION_BYTES
from ojs.services.jobs import fetch

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "limits.md").read_text("utf-8")


def test_the_numbers_of_the_page_are_the_code_s() -> None:
    kib = fetch._MAX_ANSWER_KIB
    assert f"about {kib:,} KiB of contents" in PAGE
    # The size that fits in base64, in MB, without the other fields of the event.
    fits = FUNCTION_BYTES * 3 / 4 / 2**20 - 0.1
    assert f"about {fits:.1f} MB fit" in PAGE
