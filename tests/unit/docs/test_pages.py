"""What holds for all pages: links lead somewhere, ADRs are short, README names the test command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from functions.admin.handler import app as admin
from functions.jobs.handler import app as jobs
from functions.workers.handler import app as workers
from ojs.api.operations import OPERATIONS
from tests.unit.docs.headings import FENCE, anchors

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "examples").rglob("*.md"),
]
ADRS = sorted((ROOT / "docs" / "adr").glob("*.md"))
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("adr", ADRS, ids=[adr.name for adr in ADRS])
def test_an_adr_is_short_and_whole(adr: Path) -> None:
    text = adr.read_text("utf-8")
    assert len(text.splitlines()) <= 100
    parts = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert parts == ["Context", "Decision", "Number", "Consequence"]
    assert text.startswith(f"# {int(adr.name[:4])}. ")


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_adrs_are_named_by_their_number(page: Path) -> None:
    for number, file in re.findall(r"\[ADR (\d+)\]\([^)]*?(\d{4})-", page.read_text("utf-8")):
        assert int(number) == int(file)


def test_the_readme_names_the_test_command() -> None:
    assert re.search(r"^make test\b", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)


def test_the_first_page_leads_to_all() -> None:
    first = (ROOT / "docs" / "README.md").read_text("utf-8")
    linked = {link.partition("#")[0] for link in _LINK.findall(first)}
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages - linked == set()
    assert "(docs/README.md)" in (ROOT / "README.md").read_text("utf-8")


def test_operations_of_the_same_words_are_one_operation() -> None:
    """But for those of which the page says so, and two whose answers are the same all the same."""
    bound = {**admin._bound, **jobs._bound, **workers._bound}
    doing: dict[str, set[str]] = {}
    for operation in OPERATIONS:
        # A partial function is another one each time it is made; its text has what it is of.
        doing.setdefault(operation.summary, set()).add(str(bound[operation.id].implementation))
    assert {summary for summary, several in doing.items() if len(several) > 1} == {
        "Read a job", "Delete a dead letter permanently", "List queues with their counts",
        "Report how far a job is",
    }  # fmt: skip
