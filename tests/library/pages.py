"""The pages about the library, and the Python in them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Pages with tests of their own, by the name of their file, and how many tests.
TESTED = {
    "test-your-jobs": 4, "jobs-as-functions": 3, "from-sqs": 1, "from-celery": 2, "from-bullmq": 2,
}  # fmt: skip
# Pages whose tests need the framework that they are about.
INTEGRATIONS = {"fastapi": 2, "flask": 1, "django": 1, "observability": 1}
_FILE = re.compile(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page(name: str) -> str:
    """A page's text, by the name of its file."""
    return (ROOT / "docs" / f"{name}.md").read_text("utf-8")


def files(text: str) -> dict[str, str]:
    """The files that a page shows, by the name that stands above each."""
    return dict(_FILE.findall(text))


WRITE_A_WORKER = page("write-a-worker")
WORKERS_ON_LAMBDA = page("workers-on-lambda")
TEST_YOUR_JOBS = page("test-your-jobs")
