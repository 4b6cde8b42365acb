"""Durable jobs that are pushed: they fall asleep by their answers, and carry checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ojs.domain.delivery.forms import direct, pushed
from ojs.domain.delivery.outcome import Verdict
from ojs.domain.job.durable import DurableOutcome, OutcomeKind
from tests.store.durable_jobs import answer, sent
from tests.store.pushing import Pushing

if TYPE_CHECKING:
    from tests.store.conftest import World

NAP: dict[str, Any] = {"waits": [{"kind": "sleep", "name": "nap", "for": "PT1H"}]}


@pytest.mark.parametrize(
    "suspend", [None, {}, {"waits": []}, {"waits": [{"kind": "nap", "name": "x", "for": "PT1S"}]}]
)
def test_an_answer_that_cannot_be_read_is_a_fault(suspend: Any) -> None:
    assert answer(suspend).verdict is Verdict.FAULT
    assert answer(NAP).verdict is Verdict.SUSPENDED


def test_a_pushed_job_falls_asleep_and_is_pushed_again(exact: World) -> None:
    pushing = Pushing(exact)
    pushing.put()
    job = exact.push(visibility_timeout_ms=60_000)
    (push,) = sent(pushing)
    exact.run.checkpoints.save(job.id, {"row": 1}, lease_token=push.token)
    done = DurableOutcome("a", OutcomeKind.STEP, ok=True, value=1, save="s")
    exact.run.steps.save(job.id, [done], lease_token=push.token)
    assert not pushing.settle((push, answer(NAP))).failed
    assert (exact.state(job), exact.run.jobs.get(job.id).attempt) == ("scheduled", 0)
    assert pushing.read().breaker.faults == 0
    # An outcome that comes again is stale.
    assert pushing.settle((push, answer(NAP))).stale == 1
    exact.clock.advance(3_600_000)
    pushing.minute()
    (again,) = sent(pushing)
    assert (again.job.id, again.job.attempt) == (job.id, 1)
    for event in (direct(again), pushed(again)["job"]):
        assert event["checkpoint"] == {"state": {"row": 1}, "sequence": 1}
        assert event["durable"]["steps"] == 2
    pushing.settle((again, answer({"waits": [{**NAP["waits"][0], "for": "P367D"}]})))
    assert exact.state(job) == "retryable"


def test_a_queued_push_carries_the_checkpoint(exact: World) -> None:
    pushing = Pushing(exact, sends=True)
    pushing.put()
    pushing.target.waits = True
    job = exact.push()
    pushing.pump()
    assert pushing.sends is not None
    ((name, job_id, token),) = pushing.sends.waiting
    exact.run.checkpoints.save(job.id, {"row": 1}, lease_token=token)
    assert exact.run.dispatch.send_one(name, job_id, token)
    (push,) = pushing.target.pushes
    assert direct(push)["last_checkpoint"] == {"row": 1}
