"""What importing a function costs: a cold start pays for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Powertools' tracer and the tools of tests and of local runs would each add their part to every
# cold start (design section 8).
FORBIDDEN = ("aws_xray_sdk", "aws_cdk", "moto", "ministack", "hypothesis", "local", "h11")


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'shared'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@pytest.mark.parametrize(
    "function", ["jobs", "workers", "admin", "stream", "sweep", "authorizer", "setup"]
)
def test_only_what_is_needed_is_imported(function: str) -> None:
    loaded = run(f"import sys, functions.{function}.handler; print(*sys.modules)").split()
    assert not [name for name in FORBIDDEN if name in loaded]


def test_import_time_stays_in_its_budget() -> None:
    code = (
        "import time; start = time.process_time(); import functions.jobs.handler;"
        "print(time.process_time() - start)"
    )
    # CPU seconds, the best of three, so that neighbours on the machine do not count. The bound is
    # loose (it takes 0.3 s here): it is there to notice a heavy library, not a slow machine.
    assert min(float(run(code)) for _ in range(3)) < 1.5


def test_the_authorizer_starts_quickest() -> None:
    """Every first request with a key waits for it, and then for its own function."""

    def took(function: str) -> float:
        code = (
            f"import time; start = time.process_time(); import functions.{function}.handler;"
            "print(time.process_time() - start)"
        )
        return min(float(run(code)) for _ in range(3))

    others = ("jobs", "workers", "admin", "stream", "sweep")
    assert took("authorizer") < min(took(function) for function in others)
    loaded = run("import sys, functions.authorizer.handler; print(*sys.modules)").split()
    heavy = ("pydantic", "aws_lambda_powertools", "ojs.domain.job.job", "ojs.runtime")
    assert not [name for name in heavy if name in loaded]
