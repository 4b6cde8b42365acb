"""Tests are read one file at a time: what several of them need is in a module of its own."""

from __future__ import annotations

import re

import pytest

from tests.architecture.modules import ROOT

# Found in the text: to parse all tests takes seconds.
IMPORT = re.compile(
    r"""^[ ]* (?:
        (?: from | import ) [ ] tests \. (?: \w+ \. )* test_
        | from [ ] tests [\w.]* [ ] import [ ] (?: [^(\n]* | \( [^)]* ) \b test_
    )""",
    re.MULTILINE | re.VERBOSE,
)


def test_no_test_module_imports_another() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 150
    wrong = [
        f"{path.relative_to(ROOT)}: {found[0].strip()}"
        for path in files
        for found in IMPORT.finditer(path.read_text("utf-8"))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "text",
    [
        "from tests.unit.test_it import thing",
        "    import tests.test_it",
        "from tests.unit import this, test_it",
        "from tests.unit import (\n    this,\n    test_it,\n)",
    ],
)
def test_an_import_of_a_test_module_is_found(text: str) -> None:
    assert IMPORT.search(f"import this\n{text}\n")


def test_other_imports_are_not() -> None:
    text = (
        "from tests.unit import (\n    this,\n)\nfrom tests.it import that\n\ndef test_it(): ...\n"
    )
    assert not IMPORT.search(text)
