from __future__ import annotations

from dataclasses import replace

import pytest

from ojs.domain.queue.queue import Deletion, DeletionStrategy, Queue, QueueState, to_dict
from tests.unit.domain.arbitrary import NOW_MS

CREATED = "2026-05-28T20:26:40.000Z"
CHANGED = "2026-05-28T20:26:41.000Z"


def test_a_queue_that_was_never_paused_is_active_and_has_no_time_of_change() -> None:
    assert to_dict(Queue("mail", created_ms=NOW_MS)) == {
        "name": "mail",
        "state": "active",
        "status": "active",
        "paused": False,
        "created_at": CREATED,
    }


def test_a_paused_queue_shows_since_when() -> None:
    queue = Queue("mail", QueueState.PAUSED, created_ms=NOW_MS, changed_ms=NOW_MS + 1_000)
    assert queue.paused
    assert to_dict(queue) == {
        "name": "mail",
        "state": "paused",
        "status": "paused",
        "paused": True,
        "created_at": CREATED,
        "paused_at": CHANGED,
    }


def test_a_resumed_queue_shows_since_when() -> None:
    queue = Queue("mail", QueueState.ACTIVE, created_ms=NOW_MS, changed_ms=NOW_MS + 1_000)
    assert not queue.paused
    assert to_dict(queue) == {
        "name": "mail",
        "state": "active",
        "status": "active",
        "paused": False,
        "created_at": CREATED,
        "resumed_at": CHANGED,
    }


@pytest.mark.parametrize("paused", [False, True])
def test_what_a_queue_hands_out(paused: bool) -> None:
    state = QueueState.PAUSED if paused else QueueState.ACTIVE
    assert Queue("q", state).hands_out is not paused
    expected = {
        DeletionStrategy.DISCARD: False,
        DeletionStrategy.MOVE: False,
        DeletionStrategy.REJECT: not paused,
        DeletionStrategy.DRAIN: True,
    }
    assert set(expected) == set(DeletionStrategy)
    for strategy, hands_out in expected.items():
        ending = Deletion(strategy, paused=paused)
        queue = Queue("q", QueueState.DRAINING, deletion=ending)
        assert queue.hands_out is hands_out
        assert queue.may_stay is (strategy == DeletionStrategy.REJECT)
        # Being deleted in a way that is not known: nothing, until the sweep has looked at it.
        assert not replace(queue, deletion=None).hands_out
