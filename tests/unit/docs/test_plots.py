"""The runs behind the pictures, as far as they need no library to draw with."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import pytest

from docs.plots import backlog
from ojs.domain.pool import pool as pools
from ojs.domain.pool.dispatch import DispatchStrategy


@pytest.mark.parametrize("setting", backlog.SETTINGS, ids=lambda each: each.title)
def test_each_pool_is_one_that_is_taken(setting: backlog.Setting) -> None:
    assert pools.parse("general", setting.body()).queues == backlog.QUEUES


def test_each_strategy_is_shown() -> None:
    assert {each.pool["strategy"] for each in backlog.SETTINGS} == set(DispatchStrategy)
    assert len({each.title for each in backlog.SETTINGS}) == len(backlog.SETTINGS)


def test_what_was_handed_out_adds_up() -> None:
    assert backlog.cumulated(["low", "critical", "low"]) == {
        "critical": [0, 0, 1, 1], "default": [0, 0, 0, 0], "low": [0, 1, 1, 2],
    }  # fmt: skip


class Served:
    """A server that hands out jobs in the order in which they came."""

    def __init__(self, most: int = 1_000) -> None:
        self.jobs: deque[str] = deque()
        self.asked: list[tuple[str, str]] = []
        self.acked: list[str] = []
        self.most = most

    def __call__(self, method: str, path: str, body: Mapping[str, Any]) -> Any:
        self.asked.append((method, path))
        if path == "/jobs/batch":
            assert len(body["jobs"]) <= 100
            self.jobs.extend(job["options"]["queue"] for job in body["jobs"])
        if path == "/workers/ack":
            self.acked.append(body["job_id"])
        if path != "/workers/fetch":
            return {}
        assert body["pool"] == "general"
        if not self.jobs or len(self.acked) >= self.most:
            return {"jobs": []}
        return {"jobs": [{"id": str(len(self.acked)), "queue": self.jobs.popleft()}]}


def test_a_backlog_is_worked_off_to_its_end() -> None:
    served = Served()
    order = backlog.worked_off(served, backlog.SETTINGS[0], jobs={"critical": 150, "low": 20})
    assert order == ["critical"] * 150 + ["low"] * 20
    assert len(served.acked) == len(set(served.acked)) == 170
    assert served.asked[:2] == [("POST", "/admin/reset"), ("PUT", "/admin/pools/general")]


def test_a_run_that_gets_stuck_says_so() -> None:
    with pytest.raises(SystemExit, match="strict: nothing more came after 7 jobs"):
        backlog.worked_off(Served(most=7), backlog.SETTINGS[0])
