"""Many jobs to a target that fails at random: each ends as its outcomes say, whatever is lost."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import pytest

from ojs.domain.delivery.outcome import Outcome, Verdict
from ojs.domain.job import envelope
from tests.store.conftest import make_world
from tests.store.pushing import (
    CRASHED,
    DONE,
    FAILED,
    REFUSED,
    THROTTLED,
    Pushing,
    settled,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mypy_boto3_dynamodb import DynamoDBClient

    from ojs.domain.delivery.push import Push
    from ojs.services.deliveries.settle import SettledReport

ATTEMPTS = 4
RETRY = {"max_attempts": ATTEMPTS, "initial_interval": "PT5S", "jitter": False}
# What each attempt does, and how often.
ACTS = [(DONE, 60), (FAILED, 14), (CRASHED, 8), (REFUSED, 3), (THROTTLED, 3), (None, 4)]
_ENDS = {Verdict.COMPLETED: "completed", Verdict.REFUSED: "discarded"}


class Drain:
    """Functions that answer in any order, twice, late, or never."""

    def __init__(self, pushing: Pushing, seed: int) -> None:
        self.pushing = pushing
        self.chance = random.Random(seed)
        # What counted of each job: outcomes that came while their lease was the job's.
        self.counted: defaultdict[str, list[Outcome]] = defaultdict(list)
        self.seen: list[tuple[Push, Outcome]] = []
        self.most = 0

    def run(self, made: Sequence[str]) -> None:
        """Until all jobs have ended."""
        world, flying = self.pushing.world, self.pushing.target.flying
        for _ in range(40 * len(made)):
            self.most = max(self.most, len(flying))
            if flying:
                self.one(flying.pop(self.chance.randrange(min(len(flying), 50))))
                continue
            if not self.pushing.wakes.waiting and all(
                world.run.jobs.get(job_id).state.terminal for job_id in made
            ):
                return
            world.clock.advance(20_000)
            self.pushing.minute()
            self.pushing.pump()

    def one(self, push: Push) -> None:
        """One function ends."""
        (outcome,) = self.chance.choices([act for act, _ in ACTS], [n for _, n in ACTS])
        if outcome is not None:
            if not self.settled(push, outcome).stale:
                self.counted[push.job.id].append(outcome)
            if self.chance.random() < 0.05:
                self.seen.append((push, outcome))
        if self.seen and self.chance.random() < 0.05:
            # Twice, and perhaps after the job has gone on.
            late, said = self.seen.pop()
            report = self.settled(late, said)
            assert report.stale == 1 or said.verdict is Verdict.COMPLETED

    def settled(self, push: Push, outcome: Outcome) -> SettledReport:
        report = self.pushing.world.run.dispatch.settle([settled(push, outcome)])
        assert not report.failed
        return report


@pytest.mark.requirement("SL-9")
@pytest.mark.parametrize(
    "jobs",
    [
        40,
        pytest.param(120, marks=pytest.mark.exhaustive),
        pytest.param(1_000, marks=pytest.mark.whole),
        pytest.param(10_000, marks=pytest.mark.whole),
    ],
)
def test_each_job_ends_as_its_outcomes_say(dynamodb: DynamoDBClient, jobs: int) -> None:
    world = make_world(dynamodb)
    pushing = Pushing(world)
    concurrency = 40 if jobs > 100 else 5
    pushing.put(concurrency=concurrency, timeout_ms=5_000)
    made: list[str] = []
    for at in range(0, jobs, 200):
        requests = [
            envelope.parse({"type": "a.b", "args": [n], "options": {"retry": RETRY}})
            for n in range(at, min(at + 200, jobs))
        ]
        made += [pushed.job.id for pushed in world.run.enqueue.push_batch(requests)]
    drain = Drain(pushing, jobs)
    drain.run(made)
    found = {job_id: world.run.jobs.get(job_id) for job_id in made}
    assert drain.most <= concurrency
    for job_id, job in found.items():
        last = drain.counted[job_id][-1] if drain.counted[job_id] else None
        if last is not None and last.verdict in _ENDS:
            assert job.state.value == _ENDS[last.verdict]
        else:
            # All its attempts failed, or nobody heard of the last one.
            assert (job.state.value, job.attempt) == ("discarded", ATTEMPTS)
        assert job.attempt <= ATTEMPTS
    assert Counter(job.state.value for job in found.values())["completed"] > 0.8 * jobs
    dynamodb.delete_table(TableName=world.table)
