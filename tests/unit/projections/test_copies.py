from __future__ import annotations

from dataclasses import replace

from ojs.domain.job.copies import CopyTarget, Origin
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.projections.dead_letters import due, new_copies
from tests.unit.domain.arbitrary import NOW_MS

JOB = Job("019539a4-b68c-7def-8000-1a2b3c4d5e6f", "email.send", "mail", State.ACTIVE, NOW_MS)
COPY = replace(JOB, queue="dead", state=State.AVAILABLE, copy_of=Origin("x", 5))


def test_a_copy_is_due_until_it_is_made() -> None:
    dying = replace(JOB, copies_to=CopyTarget("dead"))
    dead = replace(dying, state=State.DISCARDED, dead_letter=True, copy_id="c", copy_due=True)
    made = replace(dead, copy_due=False)
    assert list(due([(dying, dead)])) == [dead]
    assert list(due([(dead, made), (dead, None), (JOB, dying), (None, JOB)])) == []


def test_a_copy_comes_to_wait_when_it_is_made_comes_back_or_is_moved() -> None:
    active, retryable = (replace(COPY, state=s) for s in (State.ACTIVE, State.RETRYABLE))
    for before in (None, active, retryable, replace(COPY, queue="other")):
        assert list(new_copies([(before, COPY)])) == [("dead", 5)]
    for after in (None, active, replace(COPY, state=State.DISCARDED), replace(COPY, priority=1)):
        assert list(new_copies([(COPY, after)])) == []
    unbounded = replace(COPY, copy_of=Origin("x"))
    assert list(new_copies([(None, unbounded), (None, JOB)])) == []
