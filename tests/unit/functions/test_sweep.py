"""The minute sweep's handler."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from functions.sweep import handler as module
from functions.sweep.handler import handler

if TYPE_CHECKING:
    from tests.unit.functions.client import Api

EVENT = json.loads(
    (Path(__file__).parents[3] / "events" / "sweep" / "schedule.json").read_text("utf-8")
)


class Context:
    """A Lambda that has so much time left, less with each look."""

    def __init__(self, left_ms: int, each_ms: int = 0) -> None:
        self.left_ms = left_ms
        self.each_ms = each_ms

    def get_remaining_time_in_millis(self) -> int:
        self.left_ms -= self.each_ms
        return self.left_ms


class Sweep:
    """A sweep that tells what it is told to tell."""

    def __init__(self, *passes: dict[str, int]) -> None:
        self.passes = list(passes)
        self.limits: list[int] = []

    def run_once(self, _now_ms: int, limit: int, go_on: Callable[[], bool]) -> dict[str, int]:
        self.limits.append(limit)
        if not go_on():
            return {"more": 1}
        return self.passes.pop(0) if self.passes else {}


def test_the_sweep_does_what_time_has_decided(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert handler(EVENT, Context(50_000)) == {}
    assert not caplog.records
    job_id = api.push(options={"scheduled_at": "+PT5S"})
    api.push(options={"expires_at": "+PT5S"})
    api.clock.advance(6_000)
    assert handler(EVENT, None) == {"promoted": 1, "expired": 1}
    (record,) = caplog.records
    assert record.__dict__["counts"] == {"promoted": 1, "expired": 1}
    assert [job["id"] for job in api.fetch(count=5)] == [job_id]
    assert handler(EVENT, Context(50_000)) == {}


def test_the_sweep_goes_on_while_there_is_more(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep({"promoted": 3, "more": 1}, {"expired": 1, "more": 1}, {"promoted": 1})
    monkeypatch.setattr(api.runtime, "sweep", sweep)
    assert handler(EVENT, Context(50_000)) == {"promoted": 4, "expired": 1}
    assert sweep.limits == [module.PASS_LIMIT] * 3


def test_the_sweep_ends_before_it_is_stopped(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(*[{"promoted": 1, "more": 1}] * 1_000)
    monkeypatch.setattr(api.runtime, "sweep", sweep)
    context = Context(20_000, each_ms=2_000)
    result = handler(EVENT, context)
    assert result["more"] == 1
    assert result["promoted"] < 10
    assert context.left_ms >= module.SPARE_MS - 2 * context.each_ms
    assert handler(EVENT, Context(module.SPARE_MS)) == {"more": 1}


def test_the_sweep_leaves_what_fails_to_the_next_minute(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = Sweep(*[{"failed": 5, "more": 1}] * 1_000)
    monkeypatch.setattr(api.runtime, "sweep", sweep)
    result: dict[str, Any] = handler(EVENT, Context(50_000))
    assert result == {"failed": 5, "more": 1}
    assert len(sweep.limits) == 1


def test_the_sweep_is_bounded(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = Sweep(*[{"promoted": 1, "more": 1}] * 1_000)
    monkeypatch.setattr(api.runtime, "sweep", sweep)
    assert handler(EVENT, Context(10**9))["promoted"] == module.MAX_PASSES
