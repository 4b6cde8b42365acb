"""The schedule: on and on, whatever happens."""

from __future__ import annotations

import threading

import pytest

from local.scheduler import Scheduler


def test_calls_again_after_a_failure(capfd: pytest.CaptureFixture[str]) -> None:
    third = threading.Event()
    calls: list[int] = []

    def task() -> None:
        calls.append(len(calls))
        if len(calls) == 3:
            third.set()
        if len(calls) < 3:
            raise RuntimeError("defect")

    scheduler = Scheduler(task, 0.001)
    scheduler.start()
    assert third.wait(60)
    scheduler.stop()
    ran = len(calls)
    assert ran >= 3
    assert "RuntimeError: defect" in capfd.readouterr().err


def test_pause_keeps_the_task_from_running() -> None:
    ran = threading.Event()
    scheduler = Scheduler(ran.set, 0.001)
    with scheduler.pause:
        scheduler.start()
        assert not ran.wait(0.05)
    assert ran.wait(60)
    scheduler.stop()


def test_stop_before_start_is_nothing() -> None:
    scheduler = Scheduler(lambda: None, 1)
    scheduler.stop()
    assert not threading.current_thread().name.startswith("scheduler")
