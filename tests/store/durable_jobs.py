"""Jobs that run durable code: what their workers ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ojs.domain.delivery import outcome
from ojs.domain.job.durable import DurableOutcome, OutcomeKind

if TYPE_CHECKING:
    from ojs.domain.job.job import Job
    from ojs.runtime import Runtime
    from ojs.services.jobs.steps import SavedSteps
    from tests.store.conftest import World
    from tests.store.pushing import Pushing


def active(world: World, worker: str = "w", **options: Any) -> Job:
    world.push(**options)
    (job,) = world.fetch(worker=worker)
    return job


def token(job: Job) -> str:
    assert job.lease is not None
    return job.lease.token


def done(name: str, value: Any = None, save: str = "s1", **more: Any) -> DurableOutcome:
    return DurableOutcome(
        name, OutcomeKind(more.pop("kind", "step")), more.pop("ok", True), value, save, **more
    )


def save(
    world: World, job: Job, *outcomes: DurableOutcome, run: Runtime | None = None
) -> SavedSteps:
    return (run or world.run).steps.save(job.id, outcomes, lease_token=token(job))


def stored(world: World, job: Job) -> dict[str, Any]:
    _, page = world.run.steps.page(job.id)
    return {one.name: one.value for one in page.outcomes}


def suspend(world: World, job: Job, *waits: dict[str, str], run: Runtime | None = None) -> Job:
    told = {"waits": list(waits)}
    found = (run or world.run).finish
    return found.nack(job.id, error=None, lease_token=token(job), suspend=told)


def sleep(name: str = "nap", length: str = "P3D") -> dict[str, str]:
    return {"kind": "sleep", "name": name, "for": length}


def signal(name: str = "ok", length: str = "P7D") -> dict[str, str]:
    return {"kind": "signal", "name": name, "for": length}


# --- jobs that are pushed -------------------------------------------------------------------------


def answer(suspend: Any) -> outcome.Outcome:
    return outcome.of_answer({"status": "suspended", "suspend": suspend}, job_id="x")


def sent(pushing: Pushing) -> list[Any]:
    pushing.target.pushes.clear()
    pushing.pump()
    return list(pushing.target.pushes)
