"""The pages about frameworks: their tests run with the frameworks, as their reader runs them.

`make integrations` installs the frameworks.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ojs_aws.testing.server import PATH
from tests.architecture.modules import ROOT
from tests.library.pages import INTEGRATIONS, files, page

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive]

TOOLS = ROOT / "build" / "integrations"


@pytest.mark.parametrize("name", INTEGRATIONS)
def test_the_tests_of_a_page_pass_with_its_framework(name: str, tmp_path: Path) -> None:
    assert (TOOLS / ".installed").exists(), "the frameworks are missing: run `make integrations`"
    for file, text in files(page(name)).items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(text)
    environment = {n: v for n, v in os.environ.items() if not n.startswith(("OJS_", "PYTEST"))}
    environment |= {"PYTHONPATH": str(ROOT / "package"), PATH: str(ROOT)}
    done = subprocess.run(
        [TOOLS / "bin/python", "-m", "pytest", "-q", "-p", "ojs_aws.testing.plugin"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert f"{INTEGRATIONS[name]} passed" in done.stdout, done.stdout + done.stderr
