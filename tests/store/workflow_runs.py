"""Workflows for tests of the store: created from raw requests, and run by a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.workflow import request
from ojs.store.table import keys

if TYPE_CHECKING:
    from ojs.runtime import Runtime
    from ojs.store.workflows.workflows import WorkflowRecord
    from tests.store.conftest import World

ERROR = {"type": "boom", "message": "It broke.", "retryable": False}
WORKER = "w"


def step(kind: str, *args: Any, **more: Any) -> dict[str, Any]:
    """A job of a workflow."""
    return {"type": kind, "args": list(args), **more}


def chain(*steps: Any, **more: Any) -> dict[str, Any]:
    return {"type": "chain", "steps": list(steps), **more}


def group(*jobs: Any, **more: Any) -> dict[str, Any]:
    return {"type": "group", "jobs": list(jobs), **more}


def batch(jobs: Sequence[Any], **callbacks: Any) -> dict[str, Any]:
    return {"type": "batch", "jobs": list(jobs), "callbacks": callbacks}


def create(run: Runtime, body: dict[str, Any], **more: Any) -> WorkflowRecord:
    definition = request.parse(body, now_ms=run.clock.now_ms())
    return run.workflow_creation.create(definition, **more)


def ack(run: Runtime, job: Job, result: Any = None) -> None:
    run.finish.ack(job.id, worker_id=WORKER, result=result)


def nack(run: Runtime, job: Job) -> None:
    run.finish.nack(job.id, worker_id=WORKER, error=ERROR)


def work(
    world: World,
    does: Callable[[Job], Any] = lambda job: job.type,
    *,
    queue: str = "default",
    most: int = 10_000,
) -> list[str]:
    """Do all jobs that can be fetched; `does` returns the result, or raises ValueError to fail.

    Returns the types of the jobs in the order in which they ran.
    """
    ran: list[str] = []
    while len(ran) < most and (jobs := world.fetch(queue, min(100, most - len(ran)), WORKER)):
        for job in jobs:
            ran.append(job.type)
            try:
                result = does(job)
            except ValueError:
                nack(world.run, job)
            else:
                ack(world.run, job, result)
    return ran


def noting(given: dict[str, Any], result: Callable[[Job], Any]) -> Callable[[Job], Any]:
    """Does jobs with this result, and notes the content that each was given, by its type."""

    def does(job: Job) -> Any:
        given[job.type] = job.content
        return result(job)

    return does


def now(world: World, record: WorkflowRecord) -> WorkflowRecord:
    """The workflow as it is."""
    return world.run.workflow_advance.current(record.id)[1]


def sweep(world: World, run: Runtime | None = None) -> Any:
    """A minute's look at workflows that are due."""
    return (run or world.run).workflow_sweep.run_once(world.clock.now_ms(), 100)


def jobs_of(world: World) -> list[dict[str, Any]]:
    """All job records."""
    return [
        item
        for item in world.items()
        if item["pk"]["S"].startswith(keys.job("")) and item["sk"]["S"] == keys.RECORD
    ]


def running(world: World) -> int:
    """How many job records are not final."""
    return sum(not State(item["state"]["S"]).terminal for item in jobs_of(world))
