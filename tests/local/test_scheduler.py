"""The schedule: on and on, whatever happens."""

from __future__ import annotations

import threading

import pytest

from local.scheduler import Precedence, Scheduler


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


# --- precedence -----------------------------------------------------------------------------------


class Time:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_other_work_waits_until_requests_are_answered() -> None:
    time_s = Time()
    precedence = Precedence(time_s)
    go_on = precedence.giving_way()
    time_s.now_s = 1_000.0
    assert go_on()
    went_on: list[bool] = []
    worker = threading.Thread(target=lambda: went_on.append(go_on()))
    with precedence.request():
        with precedence.request():
            worker.start()
        worker.join(0.05)
        assert not went_on
    worker.join(60)
    assert went_on == [True]


def test_other_work_waits_no_longer_than_it_has_worked() -> None:
    # It begins; it has done nothing yet; it has worked for 10 ms, and waits for as long; no longer.
    times_s = iter([0.0, 0.0, 0.01, 0.02, 0.02])
    precedence = Precedence(lambda: next(times_s))
    with precedence.request():
        go_on = precedence.giving_way()
        assert all(go_on() for _ in range(3))
    assert not list(times_s)
