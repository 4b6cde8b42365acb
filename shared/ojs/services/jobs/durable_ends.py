"""What follows from the end of a job with durable code: its checkpoint is deleted."""

from __future__ import annotations

from contextlib import suppress

from ojs.domain.errors import OjsError
from ojs.domain.job.job import Job
from ojs.store.jobs.checkpoints import CheckpointStore


class DurableEnds:
    """Processes the ends of jobs with durable code."""

    def __init__(self, *, checkpoints: CheckpointStore) -> None:
        self._checkpoints = checkpoints

    def job_ended(self, job: Job) -> None:
        """Process the end of a job. If this fails, the stream consumer repeats it."""
        with suppress(OjsError):
            self.repeat(job)

    def repeat(self, job: Job) -> None:
        """Process the end of a job, also a second time. Raises OjsError."""
        if job.durable.checkpoints and not job.dead_letter:
            self._checkpoints.remove(job)
