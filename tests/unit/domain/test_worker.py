from __future__ import annotations

from typing import Any

import pytest

from ojs.domain import times
from ojs.domain.pool.worker import DEAD_AFTER_MS, STOPPING, Directive, Worker
from tests.unit.domain.arbitrary import NOW_MS


def _worker(**given: Any) -> Worker:
    return Worker("w", **{"first_seen_ms": NOW_MS - 5, "last_seen_ms": NOW_MS} | given)


@pytest.mark.parametrize("directive", list(Directive))
@pytest.mark.parametrize("state", ["running", *sorted(STOPPING)])
def test_only_a_running_worker_that_is_told_nothing_else_gets_jobs(
    directive: Directive, state: str
) -> None:
    worker = _worker(state=state, directive=directive)
    assert worker.may_fetch is (directive is Directive.RUNNING and state == "running")


@pytest.mark.parametrize("state", ["drain", "draining", "shutting_down", "quiet", "terminate"])
def test_a_worker_that_says_it_is_stopping_is_shown_in_its_own_words(state: str) -> None:
    shown = _worker(state=state, directive=Directive.QUIET).to_dict(NOW_MS)
    assert (shown["state"], shown["directive"]) == (state, "quiet")


@pytest.mark.parametrize("directive", list(Directive))
def test_any_other_worker_is_shown_in_the_state_it_was_told(directive: Directive) -> None:
    shown = _worker(state="busy", directive=directive).to_dict(NOW_MS)
    assert shown["state"] == shown["directive"] == directive.value


def test_a_worker_is_stale_once_it_has_been_silent_for_more_than_thirty_seconds() -> None:
    assert DEAD_AFTER_MS == 30_000
    assert _worker().to_dict(NOW_MS + 30_000)["state"] == "running"
    assert _worker().to_dict(NOW_MS + 30_001)["state"] == "stale"
    assert _worker(state="drain").to_dict(NOW_MS + 30_001)["state"] == "stale"


def test_what_a_worker_says_of_itself_is_shown_but_cannot_replace_what_is_known() -> None:
    info = {"hostname": "h", "labels": ["a"], "id": "other", "state": "fine", "active_jobs": 99}
    shown = _worker(info=info, active_jobs=2).to_dict(NOW_MS)
    assert shown == {
        "hostname": "h",
        "labels": ["a"],
        "queues": [],
        "id": "w",
        "worker_id": "w",
        "state": "running",
        "directive": "running",
        "active_jobs": 2,
        "first_seen_at": times.format_ms(NOW_MS - 5),
        "last_heartbeat": times.format_ms(NOW_MS),
        "last_heartbeat_at": times.format_ms(NOW_MS),
    }
