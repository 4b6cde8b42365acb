"""Changes the states of jobs: writes the job record, and then releases the permits of the job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from ojs.domain.job import lifecycle
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import MISSING, Job
from ojs.services.jobs.empty_lines import EmptyIndexCache
from ojs.services.permits.lifecycle import Permits
from ojs.store.jobs.records import JobStore
from ojs.store.table.errors import LostRace, WriteNotApplied
from ojs.store.table.table import Check, Put, Update

# Called with each changed job. If the job finished, it processes the effects, such as the next
# workflow step.
JobEnded = Callable[[Job], None]


def ends_nothing(_job: Job) -> None:
    """Do nothing: a `JobEnded` for jobs whose end has no effects."""


class JobChanges:
    """Changes jobs, and then releases their permits. A failed write releases nothing."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        permits: Permits,
        empty_lines: EmptyIndexCache,
        ended: JobEnded = ends_nothing,
        freed: JobEnded = ends_nothing,
    ) -> None:
        """Create the service from its stores and callbacks.

        `ended` is called with each changed job, after the release of its permits. `freed` is called
        with each job that released permits for which other jobs might wait.
        """
        self._freed = freed
        self._ended = ended
        self._empty_lines = empty_lines
        self._jobs = jobs
        self._permits = permits

    def ack(
        self,
        job_id: str,
        *,
        now_ms: int,
        worker_id: str | None,
        attempt: int | None,
        lease_token: str | None,
        result: Any = MISSING,
        stopped: list[Job] | None = None,
    ) -> Job:
        """Complete an active job (`JobStore.ack`).

        Args:
            job_id: ID of the job.
            now_ms: Current time in milliseconds since the epoch.
            worker_id: ID of the worker. None: not checked.
            attempt: Number of the reported attempt. None: not checked.
            lease_token: Lease token of the run. None: not checked, unless the run is fenced.
            result: Result of the job, a JSON value. Default: no result.
            stopped: If set, the job is added to this list, and the caller releases its permits
                (`Permits.release_stopped`).

        Returns:
            The completed job.

        Raises:
            LostRace: The job isn't active, or isn't under the caller's lease.
        """
        job = self._jobs.ack(
            job_id,
            now_ms=now_ms,
            worker_id=worker_id,
            attempt=attempt,
            lease_token=lease_token,
            result=result,
        )
        if self._permits.release(job, ended_ms=now_ms, stopped=stopped):
            self._freed(job)
        self._ended(job)
        return job

    def replace(
        self,
        before: Job,
        after: Job,
        *,
        failure: Failure | None = None,
        reported: bool = False,
        guard: Literal["op", "lease"] = "op",
        tells: bool = True,
        stopped: list[Job] | None = None,
        also: Sequence[Put | Check] = (),
    ) -> Job:
        """Replace a job record if it is unchanged (`JobStore.replace`).

        Args:
            before: The job as read.
            after: The changed job.
            failure: See `JobStore.replace`.
            reported: See `JobStore.replace`.
            guard: See `JobStore.replace`.
            tells: Whether to process the consequences of a finished job. If false, the caller
                does.
            stopped: See `ack`.
            also: See `JobStore.replace`.

        Returns:
            The stored job.

        Raises:
            LostRace: The job has changed, or a condition of `also` failed.
        """
        after = self._jobs.replace(
            before, after, failure=failure, reported=reported, guard=guard, also=also
        )
        if self._permits.release_unused(before, after, stopped):
            self._freed(before)
        self._empty_lines.note(after)
        if tells:
            self._ended(after)
        return after

    def replace_all(
        self, changes: Sequence[tuple[Job, Job]], also: Sequence[Put | Update] = ()
    ) -> list[Job]:
        """Replace several unchanged job records and write `also`: all or none.

        Raises LostRace.
        """
        stored = self._jobs.replace_all(changes, also)
        for (before, _), after in zip(changes, stored, strict=True):
            if self._permits.release_unused(before, after):
                self._freed(before)
            self._empty_lines.note(after)
            self._ended(after)
        return stored

    def resume(
        self,
        job: Job,
        *,
        worker_id: str | None,
        attempt: int | None = None,
        lease_token: str | None = None,
        lease_ms: int | None = None,
        now_ms: int,
    ) -> bool:
        """Restore the expired lease of a worker.

        Args:
            job: The job, as read.
            worker_id: ID of the worker.
            attempt: Number of the attempt. None: not checked.
            lease_token: Lease token of the run.
            lease_ms: Duration of the lease in milliseconds. Default: that of the job.
            now_ms: Current time in milliseconds since the epoch.

        Returns:
            Whether the lease is restored. False if another worker has claimed the job, or no
            permits are free.
        """
        if not lifecycle.resumable(
            job, worker_id=worker_id, attempt=attempt, lease_token=lease_token
        ):
            return False
        after = lifecycle.resume(job, now_ms=now_ms, lease_ms=lease_ms)
        resumed = self._permits.reacquire(job, after)
        if resumed is None:
            return False
        # Race: a fetch claims the job at the same time. The worker that loses has no lease then.
        try:
            self._jobs.replace(job, resumed)
        except WriteNotApplied:
            self._permits.undo_reacquire(resumed)
            raise
        except LostRace as lost:
            # The request was repeated, so the job might have changed and its permits might be
            # released.
            if not lost.repeated:
                self._permits.undo_reacquire(resumed)
            return False
        return True
