"""Copies of dead letters, as they follow from a change: which are due, which came to wait."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from ojs.domain.job.job import Job

_Changed = Iterable[tuple[Job | None, Job | None]]


class CopyMaker(Protocol):
    """Makes and drops them (`ojs.services.dead_letter.copies`)."""

    def make(self, record: Job) -> Job:
        """Make the copy that a dead letter is due, if it still is. Raises OjsError."""
        ...

    def trim(self, queue: str, most: int) -> bool:
        """Drop what waits beyond so many; False when there is more. Raises OjsError."""
        ...


def due(jobs: _Changed) -> Iterator[Job]:
    """Jobs that leave a copy which is yet to be made."""
    return (job for _, job in jobs if job is not None and job.copy_due)


def came_to_wait(jobs: _Changed) -> Iterator[tuple[str, int]]:
    """Queues in which one copy more waits now, each with how many may."""
    for before, job in jobs:
        if job is None or job.copy_of is None or job.copy_of.max_size is None:
            continue
        waited = before is not None and before.waiting_copy and before.queue == job.queue
        if job.waiting_copy and not waited:
            yield job.queue, job.copy_of.max_size
