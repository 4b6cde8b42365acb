"""What has no row fails when the module is imported."""

from __future__ import annotations

import runpy
from dataclasses import make_dataclass
from enum import StrEnum
from typing import Any

import pytest

from ojs.domain import stats
from ojs.domain.counters import definitions
from ojs.domain.events import types
from ojs.projections import events

KINDS = StrEnum("KINDS", {**types.EventType.__members__, "JOB_LENT": "job.lent"})  # type: ignore[misc]
FIELDS = make_dataclass("FIELDS", [("lent", int, 0)], bases=(stats.Activity,), frozen=True)


@pytest.mark.parametrize(
    ("where", "name", "more", "module"),
    [(types, "EventType", KINDS, events), (stats, "Activity", FIELDS, definitions)],
)
def test_a_row_is_missed_at_import(
    monkeypatch: pytest.MonkeyPatch, where: Any, name: str, more: Any, module: Any
) -> None:
    runpy.run_path(module.__file__)
    monkeypatch.setattr(where, name, more)
    with pytest.raises(TypeError, match="row"):
        runpy.run_path(module.__file__)
