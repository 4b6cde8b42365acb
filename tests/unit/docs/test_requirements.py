"""docs/requirements.md against the tests: what is answered is named by a test."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests.unit.docs.headings import anchors

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "requirements.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.read_text("utf-8").splitlines()
    if re.match(r"\| [A-Z]+-", line)
]
# The links to the public specification stand at the end of the page: `[QC 5.1]: https://…`.
LINKS = dict(re.findall(r"^\[([A-Z]+ [\d.]+)\]: (\S+)$", PAGE.read_text("utf-8"), re.MULTILINE))
SERIES = ("C", "QC", "BP", "DL", "FS", "ADM", "CRON", "WF", "SL")
DOCUMENTS = {
    "C": "ojs-core.md",
    "QC": "ojs-queue-config.md",
    "BP": "ojs-backpressure.md",
    "DL": "ojs-dead-letter.md",
    "FS": "ojs-fair-scheduling.md",
    "ADM": "ojs-admin-api.md",
    "CRON": "ojs-cron.md",
    "WF": "ojs-workflows.md",
    "SL": "ojs-serverless.md",
}
_PUBLIC = "https://github.com/openjobspec/spec/blob/main/spec/"
_ID = re.compile(r"([A-Z]+)-(\d+|[a-z])")


def place(requirement: str) -> tuple[int, int]:
    """Where a requirement stands on the page: its series, and its number or letter."""
    found = _ID.fullmatch(requirement)
    assert found, requirement
    series, number = found.groups()
    return SERIES.index(series), int(number) if number.isdigit() else ord(number) - ord("a") + 1


def markers(text: str) -> Iterator[ast.Call]:
    """The calls of `pytest.mark.requirement` in the text of a module, wherever they stand."""
    for node in ast.walk(ast.parse(text)):
        # All calls as text would take seconds.
        if not isinstance(node, ast.Call) or getattr(node.func, "attr", None) != "requirement":
            continue
        if ast.unparse(node.func) == "pytest.mark.requirement":
            yield node


def named_in(text: str) -> set[str]:
    """The requirements that the tests of a module name."""
    named = set()
    for call in markers(text):
        assert call.args, ast.unparse(call)
        assert not call.keywords, ast.unparse(call)
        for argument in call.args:
            assert isinstance(argument, ast.Constant), ast.unparse(call)
            assert isinstance(argument.value, str), ast.unparse(call)
            named.add(argument.value)
    return named


@pytest.fixture(scope="module")
def named() -> set[str]:
    """The requirements that any test names."""
    found: set[str] = set()
    for module in sorted((ROOT / "tests").rglob("test_*.py")):
        found |= named_in(module.read_text("utf-8"))
    return found


def test_the_rows_are_in_order_and_each_is_there_once() -> None:
    places = [place(row[0]) for row in ROWS]
    assert places[0] == (0, 1)
    for (series, number), following in pairwise(places):
        assert following in ((series, number + 1), (series + 1, 1))
    assert places[-1][0] == len(SERIES) - 1


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_says_what_how_firmly_where_and_whether(row: list[str]) -> None:
    requirement, text, level, where, here = row
    assert text[0].isupper() or text[0] in "`0"
    assert text.endswith(".")
    assert level in ("must", "should", "may", "described")
    series, _ = requirement.split("-")
    found = re.fullmatch(rf"\[([\d.]+)\]\[({series} \1)\]", where)
    assert found, where
    digits = found[1].replace(".", "")
    assert re.fullmatch(
        re.escape(_PUBLIC + DOCUMENTS[series]) + rf"#{digits}-[a-z0-9-]+", LINKS[found[2]]
    )
    status, colon, reason = here.partition(": ")
    assert status in ("yes", "differs", "in part", "no")
    assert (status == "yes") == (not colon)
    if colon:
        # Why it is so stands on one of our pages.
        links = re.findall(r"\]\(([^)]+)\)", reason)
        assert links
        for link in links:
            path, _, anchor = link.partition("#")
            target = (PAGE.parent / path).resolve() if path else PAGE
            assert target.is_file(), link
            assert target.is_relative_to(ROOT), link
            assert not anchor or anchor in anchors(target), link


def test_every_link_to_the_specification_is_used() -> None:
    assert {where.split("[")[2].rstrip("]") for *_, where, _ in ROWS} == LINKS.keys()


def test_requirements_that_tests_name_are_on_the_page(named: set[str]) -> None:
    assert sorted(named - {row[0] for row in ROWS}) == []


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_requirement_is_named_by_a_test_where_the_page_says_that_it_is_answered(
    row: list[str], named: set[str]
) -> None:
    requirement, *_, here = row
    assert (requirement in named) == (not here.startswith("no:"))


def test_tests_name_requirements_by_markers_alone() -> None:
    # A name or a comment would be found by no test of this page.
    for module in sorted((ROOT / "tests").rglob("test_*.py")):
        if module == Path(__file__):
            continue
        text = module.read_text("utf-8")
        loose = re.sub(r"pytest\.mark\.requirement\([^)]*\)", "", text)
        found = re.findall(r"\b(?:C|QC|DL|FS|ADM|CRON|WF)-\d{1,2}\b|\bBP-[a-z]\b", loose)
        assert not found, f"{module.relative_to(ROOT)}: {found}"
        assert not re.findall(r"def test_(?:qc|dl|fs|adm|cron|wf)_\d|def test_bp_[a-z]_", text), (
            module
        )


def test_a_marker_is_found_wherever_it_stands() -> None:
    text = """
pytestmark = [pytest.mark.exhaustive, pytest.mark.requirement("QC-1")]
class TestIt:
    @pytest.mark.requirement("BP-a", "FS-2")
    def test_it(self): ...
    @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.requirement("C-3"))])
    def test_them(self, n): "@pytest.mark.requirement('DL-4')"
"""
    assert named_in(text) == {"QC-1", "BP-a", "FS-2", "C-3"}
