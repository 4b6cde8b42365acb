"""Type checkers report wrong calls of typed jobs, and nothing else.

`make integrations` installs pyright. mypy is that of `make check`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.modules import ROOT
from tests.library.pages import files, page

pytestmark = pytest.mark.exhaustive

EXAMPLE = Path(__file__).parent / "integrations" / "wrong_calls.py"
PYRIGHT = ROOT / "build" / "integrations" / "node_modules" / ".bin" / "pyright"
# The oldest Python that the library supports, and the newest.
VERSIONS = ("3.10", "3.14")


def wrong_lines() -> list[int]:
    lines = EXAMPLE.read_text("utf-8").splitlines()
    return [number for number, line in enumerate(lines, 1) if "  # wrong: " in line]


def printed(folder: Path, *command: str | Path, status: int = 1) -> str:
    environment = os.environ | {"MYPYPATH": str(ROOT / "package")}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_the_example_has_fifteen_wrong_calls() -> None:
    assert len(wrong_lines()) == 15


@pytest.mark.parametrize("version", VERSIONS)
def test_mypy_reports_each_wrong_call_and_nothing_else(tmp_path: Path, version: str) -> None:
    found = printed(
        tmp_path, sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary",
        "--hide-error-context", "--python-version", version, EXAMPLE,
    )  # fmt: skip
    errors = [line for line in found.splitlines() if ": error: " in line]
    assert [line for line in errors if not line.startswith(f"{EXAMPLE}:")] == []
    lines = [int(line.removeprefix(f"{EXAMPLE}:").partition(":")[0]) for line in errors]
    assert lines == wrong_lines(), found


@pytest.mark.parametrize("version", VERSIONS)
def test_pyright_reports_each_wrong_call_and_nothing_else(tmp_path: Path, version: str) -> None:
    assert PYRIGHT.exists(), "pyright is missing: run `make integrations`"
    (tmp_path / EXAMPLE.name).write_text(EXAMPLE.read_text("utf-8"))
    settings = {"extraPaths": [str(ROOT / "package")], "pythonVersion": version}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    found = printed(
        tmp_path, PYRIGHT, "--project", tmp_path, "--pythonpath", sys.executable, "--outputjson"
    )
    reported = json.loads(found)["generalDiagnostics"]
    lines = [each["range"]["start"]["line"] + 1 for each in reported]
    assert lines == wrong_lines(), reported


def test_the_programs_of_the_page_have_no_errors(tmp_path: Path) -> None:
    programs = files(page("jobs-as-functions"))
    del programs["test_checkout.py"]  # the tests of readers have no annotations
    for name, text in programs.items():
        (tmp_path / name).write_text(text)
    printed(
        tmp_path, sys.executable, "-m", "mypy", "--strict", "--config-file=", *programs, status=0
    )
