"""The pages about the library, and the Python in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WRITE_A_WORKER = (ROOT / "docs" / "write-a-worker.md").read_text("utf-8")
TEST_YOUR_JOBS = (ROOT / "docs" / "test-your-jobs.md").read_text("utf-8")
_FILE = re.compile(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def files(page: str) -> dict[str, str]:
    """The files that a page shows, by the name that stands above each."""
    return dict(_FILE.findall(page))
