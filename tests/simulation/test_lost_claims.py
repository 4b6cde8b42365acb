"""Fetches that compete for one lane: how many claims are lost for each job."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import pytest

from ojs.services.jobs import fetch
from ojs.store.jobs.records import JobStore
from ojs.store.table.errors import LostRace
from tests.simulation.actors import Producer, Worker
from tests.simulation.scheduler import Scheduler, by_chance
from tests.simulation.world import World

FETCHERS = 16


def lost_claims(jobs: int, seed: int) -> float:
    """Lost claims for each job that was handed out, while there are plenty: each container makes a
    call after any other's.
    """
    world = World(seed)
    scheduler = Scheduler(by_chance(world.chance, 0.0))
    world.start(scheduler)
    world.plan.on = False
    producer = Producer(world, "p")
    for _ in range(jobs // 50 + 1):
        producer.push(50, large=False)
    claim = JobStore.claim
    lost, got = list[str](), list[str]()

    def counted(self: JobStore, *args: Any, **how: Any) -> Any:
        try:
            return claim(self, *args, **how)
        except LostRace:
            lost.append(str(args[0]))
            raise

    def work(worker: Worker) -> None:
        while len(got) < jobs // 2:
            got.extend(job.id for job in worker.run.fetch.fetch(["default"], 1, worker.name))

    workers = [Worker(world, f"w{number}") for number in range(FETCHERS)]
    with mock.patch.object(JobStore, "claim", counted):
        scheduler.run([partial(work, worker) for worker in workers])
    return len(lost) / len(got)


@pytest.mark.parametrize("jobs", [500, pytest.param(2_000, marks=pytest.mark.exhaustive)])
def test_sixteen_on_one_lane_lose_a_claim_for_every_fourth_job_at_most(jobs: int) -> None:
    assert lost_claims(jobs, 1) <= 0.25


def test_who_does_not_step_aside_loses_more() -> None:
    with mock.patch.object(fetch, "_ASIDE_MS", 0):
        assert lost_claims(200, 1) > 0.5
