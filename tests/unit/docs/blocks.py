"""The code blocks of tutorials and guides, and the tests that run them.

Lists the blocks that no test runs: `python -m tests.unit.docs.blocks [page ...]`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
# Where each kind of block of a page is run: `file` is a block below the name of its file, and
# `exchange` a command with the response below it.
_LIBRARY, _HTTP = "tests/library/test_server.py", "tests/examples/test_http_api_page.py"
_INTEGRATION = "tests/library/test_integrations.py"
RUN: dict[str, dict[str, str]] = {
    "README.md": {"sh": _LIBRARY, "json": _LIBRARY, "python": _LIBRARY},
    "docs/write-a-worker.md": {"file": _LIBRARY},
    "docs/test-your-jobs.md": {"file": _LIBRARY},
    "docs/jobs-as-functions.md": {"file": _LIBRARY},
    "docs/durable-jobs.md": {
        "file": "tests/library/test_durable_page.py",
        "python": "tests/library/test_durable_page.py",
    },
    "docs/your-first-workflow.md": {"file": _LIBRARY},
    "docs/fastapi.md": {"file": _INTEGRATION},
    "docs/flask.md": {"file": _INTEGRATION},
    "docs/django.md": {"file": _INTEGRATION},
    "docs/observability.md": {"file": _INTEGRATION},
    "docs/from-sqs.md": {"file": _LIBRARY},
    "docs/from-celery.md": {"file": _LIBRARY},
    "docs/outbox.md": {
        "file": "tests/library/test_outbox.py",
        "python": "tests/infra/test_outbox.py",
    },
    "docs/from-bullmq.md": {"file": _LIBRARY},
    "docs/workers-on-lambda.md": {
        "file": "tests/library/test_functions.py",
        "python": "tests/library/test_functions.py",
    },
    "docs/middleware.md": {
        "python": "tests/unit/functions/test_middleware_page.py",
        "exchange": "tests/unit/functions/test_middleware_page.py",
    },
    "docs/events.md": {"python": "tests/examples/test_events_page.py"},
    "examples/log_report/README.md": {"json": "tests/examples/test_log_report.py"},
    "docs/queues.md": {"exchange": _HTTP},
    "docs/size-limits.md": {"exchange": _HTTP},
    "docs/rate-limits.md": {"exchange": _HTTP},
    "docs/dead-letter.md": {"exchange": _HTTP},
    "docs/fair-scheduling.md": {"exchange": _HTTP},
    "docs/cron.md": {"exchange": _HTTP},
    "docs/workflows.md": {"exchange": _HTTP},
}
KINDS = ("sh", "python", "json")
_BLOCK = re.compile(
    r"(?P<before>[^\n]*)\n+^(?P<indent> *)```(?P<kind>\w+)\n(?P<text>.*?)^(?P=indent)```$"
    r"(?P<after>(?=\n\n```(?:http|json)$))?",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"^`[\w./]+`:$")
_REASON = re.compile(r"<!-- not run: (.+) -->$")


class Block(NamedTuple):
    """A block of a page. `test` runs it, or `reason` says why no test does."""

    page: str
    line: int
    kind: str
    text: str
    test: str | None
    reason: str | None


def pages() -> list[str]:
    """The tutorials and guides, as the navigation of the site lists them."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    nav = text.partition("  - Tutorials:")[2].partition("  - Reference:")[0]
    named = re.findall(r": (\S+\.md)$", nav, re.MULTILINE)
    moved = {"quickstart.md": "README.md"}
    found = [moved.get(name, name) for name in named]
    return [name for name in found if (ROOT / name).exists()]


def blocks(page: str, text: str) -> list[Block]:
    """The blocks of a page that are commands, programs, or JSON."""
    run = RUN.get(page, {})
    found = []
    answered = False
    for match in _BLOCK.finditer(text):
        kind, before = match["kind"], match["before"].strip()
        shapes = [kind]
        if _FILE.match(before):
            shapes.append("file")
        # A response is compared with that of the command above it.
        if (kind == "sh" and match["after"] is not None) or (kind == "json" and answered):
            shapes.append("exchange")
        answered = kind == "sh" and match["after"] is not None
        if kind in KINDS:
            test = next((run[shape] for shape in shapes if shape in run), None)
            line = text.count("\n", 0, match.start("text"))
            given = _REASON.search(before)
            reason = given[1] if given else None
            found.append(Block(page, line, kind, match["text"], test, reason))
    return found


def uncovered(page: str) -> list[Block]:
    """The blocks of a page that no test runs, without a reason."""
    text = (ROOT / page).read_text("utf-8")
    return [each for each in blocks(page, text) if not (each.test or each.reason)]


def main(chosen: list[str]) -> int:
    """Print the blocks that no test runs, and their number."""
    found = [block for page in chosen or pages() for block in uncovered(page)]
    for block in found:
        print(f"{block.page}:{block.line}: {block.kind}: {block.text.strip()[:90]!r}")
    print(len(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
