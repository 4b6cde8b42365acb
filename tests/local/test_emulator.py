"""MiniStack pins an SDK, which is neither what is deployed nor what the server runs with."""

from __future__ import annotations

import re
from importlib.metadata import distributions
from pathlib import Path

import pytest

from local.emulator import find_ministack
from tests.architecture.modules import ROOT


def pins(name: str) -> dict[str, str]:
    """Version by package, of one file of pins."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


def test_no_pin_follows_from_the_emulator_s() -> None:
    for name in ("runtime", "local", "dev"):
        assert "ministack" not in pins(name), name
        assert "-c emulator" not in (ROOT / "requirements" / f"{name}.in").read_text("utf-8")
    # What is deployed is what is tested.
    assert pins("runtime")["botocore"] == pins("local")["botocore"] == pins("dev")["botocore"]


def test_ministack_runs_with_its_own_pins() -> None:
    program = find_ministack()
    assert program is not None, "make setup"
    (site,) = program.parents[1].glob("lib/python*/site-packages")
    installed = {each.name.lower(): each.version for each in distributions(path=[str(site)])}
    assert installed.items() >= pins("emulator").items()


def test_without_its_environment_it_is_not_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    assert find_ministack() is None
    # Made, and not yet installed.
    (tmp_path / "emulator" / "bin").mkdir(parents=True)
    (tmp_path / "emulator" / "bin" / "python").touch()
    assert find_ministack() is None
