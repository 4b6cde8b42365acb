"""Type checkers report wrong calls of typed jobs and of durable code, and nothing else.

`make integrations` installs pyright. mypy is that of `make check`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.architecture.modules import ROOT
from tests.library.pages import files, page

pytestmark = pytest.mark.exhaustive

FOLDER = Path(__file__).parent / "integrations"
# With the number of wrong calls in each.
EXAMPLES = {FOLDER / "wrong_calls.py": 15, FOLDER / "wrong_durable_calls.py": 18}
PYRIGHT = ROOT / "build" / "integrations" / "node_modules" / ".bin" / "pyright"
# The oldest Python that the library supports, and the newest.
VERSIONS = ("3.10", "3.14")


def wrong_lines() -> set[tuple[str, int]]:
    """The names and line numbers of the wrong calls."""
    return {
        (example.name, number)
        for example in EXAMPLES
        for number, line in enumerate(example.read_text("utf-8").splitlines(), 1)
        if "  # wrong: " in line
    }


def printed(folder: Path, *command: str | Path, status: int = 1) -> str:
    environment = os.environ | {"MYPYPATH": str(ROOT / "package")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_the_examples_have_wrong_calls() -> None:
    counted = Counter(name for name, _ in wrong_lines())
    assert counted == {example.name: count for example, count in EXAMPLES.items()}


@pytest.mark.parametrize(
    "version",
    [VERSIONS[0], *(pytest.param(each, marks=pytest.mark.whole) for each in VERSIONS[1:])],
)
def test_mypy_reports_each_wrong_call_and_nothing_else(tmp_path: Path, version: str) -> None:
    found = printed(
        tmp_path, sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary",
        "--hide-error-context", "--python-version", version, *EXAMPLES,
    )  # fmt: skip
    reported = [line.split(":", 2) for line in found.splitlines() if ": error: " in line]
    lines = {(file, int(line)) for file, line, _ in reported}
    assert lines == {(str(FOLDER / name), line) for name, line in wrong_lines()}, found


@pytest.mark.parametrize("version", VERSIONS)
def test_pyright_reports_each_wrong_call_and_nothing_else(tmp_path: Path, version: str) -> None:
    assert PYRIGHT.exists(), "pyright is missing: run `make integrations`"
    for example in EXAMPLES:
        (tmp_path / example.name).write_text(example.read_text("utf-8"))
    settings = {"extraPaths": [str(ROOT / "package")], "pythonVersion": version}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    found = printed(
        tmp_path, PYRIGHT, "--project", tmp_path, "--pythonpath", sys.executable, "--outputjson"
    )
    reported = json.loads(found)["generalDiagnostics"]
    lines = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in reported}
    assert lines == wrong_lines(), reported


def test_the_programs_of_the_page_have_no_errors(tmp_path: Path) -> None:
    programs = files(page("jobs-as-functions"))
    del programs["test_checkout.py"]  # the tests of readers have no annotations
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
    printed(
        tmp_path, sys.executable, "-m", "mypy", "--strict", "--config-file=", *programs, status=0
    )
