"""What follows from the end of a job: its checkpoint is deleted, and its parent continues."""

from __future__ import annotations

from contextlib import suppress

from ojs.domain.errors import OjsError
from ojs.domain.job.job import Job
from ojs.services.jobs.children import Children
from ojs.store.jobs.checkpoints import CheckpointStore


class DurableEnds:
    """Processes the ends of jobs with durable code."""

    def __init__(self, *, checkpoints: CheckpointStore, children: Children) -> None:
        self._checkpoints = checkpoints
        self._children = children

    def job_ended(self, job: Job) -> None:
        """Process the end of a job. If this fails, the stream consumer repeats it."""
        with suppress(OjsError):
            self.repeat(job)

    def repeat(self, job: Job) -> None:
        """Process the end of a job, also a second time. Raises OjsError."""
        if job.durable.parent is not None:
            self._children.ended(job, job.durable.parent)
        if job.durable.checkpoints and not job.dead_letter:
            self._checkpoints.remove(job)
