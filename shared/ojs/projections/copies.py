"""Which copies of dead letters are due after a change, and in which queues a new one waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from ojs.domain.job.job import Job

_Changed = Iterable[tuple[Job | None, Job | None]]


class CopyMaker(Protocol):
    """Makes and drops copies (`ojs.services.dead_letter.copies`)."""

    def make(self, record: Job) -> Job:
        """Make the copy of a dead letter, if it is still due. Raises OjsError."""
        ...

    def trim(self, queue: str, most: int) -> bool:
        """Drop waiting copies beyond `most`; False when there are more to drop. Raises OjsError."""
        ...


def due(jobs: _Changed) -> Iterator[Job]:
    """Jobs whose copy is yet to be made."""
    return (job for _, job in jobs if job is not None and job.copy_due)


def came_to_wait(jobs: _Changed) -> Iterator[tuple[str, int]]:
    """Queues in which one more copy waits now, each with how many may wait."""
    for before, job in jobs:
        if job is None or job.copy_of is None or job.copy_of.max_size is None:
            continue
        waited = before is not None and before.waiting_copy and before.queue == job.queue
        if job.waiting_copy and not waited:
            yield job.queue, job.copy_of.max_size
