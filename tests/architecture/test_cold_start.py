"""What importing a function costs: a cold start pays for it."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Powertools' tracer and the tools of tests and of local runs would each add their part to every
# cold start.
FORBIDDEN = ("aws_xray_sdk", "aws_cdk", "moto", "ministack", "hypothesis", "local", "h11")


FUNCTIONS = ("jobs", "workers", "admin", "stream", "sweep", "authorizer", "setup")


@cache
def imported(function: str, _repetition: int = 0) -> tuple[float, frozenset[str]]:
    """The CPU seconds that importing a function takes, and the modules that are loaded then."""
    code = (
        f"import sys, time; start = time.process_time(); import functions.{function}.handler;"
        "print(time.process_time() - start, *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'shared'}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    took_s, *modules = done.stdout.split()
    return float(took_s), frozenset(modules)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_only_what_is_needed_is_imported(function: str) -> None:
    _, loaded = imported(function)
    assert not [name for name in FORBIDDEN if name in loaded]


# Once of three times is enough, so that neighbours on the machine do not count.
REPETITIONS = range(3)


def test_import_time_stays_in_its_budget() -> None:
    # It takes 0.3 s here: the bound is there to notice a heavy library, not a slow machine.
    assert any(imported("jobs", n)[0] < 1.5 for n in REPETITIONS)


def test_the_authorizer_starts_quickest() -> None:
    """Every first request with a key waits for it, and then for its own function."""
    others = ("jobs", "workers", "admin", "stream", "sweep")
    assert any(
        imported("authorizer", n)[0] < min(imported(function, n)[0] for function in others)
        for n in REPETITIONS
    )
    _, loaded = imported("authorizer")
    heavy = ("pydantic", "aws_lambda_powertools", "ojs.domain.job.job", "ojs.runtime")
    assert not [name for name in heavy if name in loaded]
