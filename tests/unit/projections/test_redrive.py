"""Dead letters that come back with changes: what is counted, and where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ojs.domain.dead_letter.override import JobOverrideRequest
from ojs.domain.events.types import EventType
from ojs.domain.job import lifecycle
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.projections.counters import Tally, day_of
from ojs.projections.transitions import happened
from ojs.store.dead_letter import counters as dead_letters
from ojs.store.table import keys

NOW_MS = 1_900_000_000_000
DEAD = Job(
    id="019539a4-0000-7000-8000-000000000000",
    type="invoice.generate",
    queue="billing",
    state=State.DISCARDED,
    created_ms=NOW_MS - 10,
    content={"args": [1]},
    attempt=3,
    discarded_ms=NOW_MS - 5,
    completed_ms=NOW_MS - 5,
    dead_letter=True,
    error_type="Boom",
)


@pytest.mark.requirement("DL-15")
def test_a_job_that_moves_leaves_one_queue_and_enters_the_other() -> None:
    override = JobOverrideRequest(queue="again", args=["x" * 100]).override()
    moved = replace(override.applied(DEAD), reserved_bytes=123)
    after = lifecycle.revive(moved, now_ms=NOW_MS, order="a")
    after = replace(after, reserved_bytes=123)
    what = happened(DEAD, after, written_ms=NOW_MS)
    assert [one.kind for one in what] == [EventType.DEAD_LETTER_RETRIED, EventType.JOB_ENQUEUED]
    tally = Tally()
    tally.move(DEAD, after)
    for one in what:
        tally.add(one)
    left, there = tally.counts["billing", keys.NOW], tally.counts["again", keys.NOW]
    assert +left == {}
    assert (left["discarded"], left["dead"]) == (-1, -1)
    assert (there["available"], there["p0"], there["held"], there["held_b"]) == (1, 1, 1, 123)
    assert there["t_enqueued"] == 1
    assert tally.moved_dead["billing"] == {
        (dead_letters.BY_TYPE, "invoice.generate"): -1,
        (dead_letters.BY_ERROR, "Boom"): -1,
    }
    # Retried is a dead letter of the queue where it died.
    day = day_of(what[0])[1]
    assert tally.counts["billing", day] == {"dead_retried": 1}
    assert tally.counts["again", day] == {"enqueued": 1}
