"""Changes of a job's state: the write of its record, and then the release of its permits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from ojs.domain.job import lifecycle
from ojs.domain.job.failure import Failure
from ojs.domain.job.job import MISSING, Job
from ojs.services.jobs.empty_lines import EmptyLines
from ojs.services.permits.lifecycle import Permits
from ojs.store.jobs.records import JobStore
from ojs.store.table.errors import LostRace, NotDone
from ojs.store.table.table import Put, Update

# Told of jobs as they are after a change: does what follows from their end, if they have ended.
JobEnded = Callable[[Job], None]


def ends_nothing(_job: Job) -> None:
    """A `JobEnded` for jobs from whose end nothing follows."""


class JobChanges:
    """Changes jobs, and releases what they need no more. What is not written releases nothing."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        permits: Permits,
        empty_lines: EmptyLines,
        ended: JobEnded = ends_nothing,
        freed: JobEnded = ends_nothing,
    ) -> None:
        """`ended` is told of each job that was changed, after it has released what it held; `freed`
        of each that has released permits for which others may wait.
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
        """Active to completed, as `JobStore.ack` writes it. `stopped` takes the job if the caller
        releases its permits (`Permits.release_stopped`). Raises LostRace.
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
    ) -> Job:
        """Compare-and-swap of a job record (`JobStore.replace`). Raises LostRace.

        Unless it `tells` of an end, the caller does what follows from it; `stopped` is that of
        `ack`.
        """
        after = self._jobs.replace(before, after, failure=failure, reported=reported, guard=guard)
        if self._permits.release_unused(before, after, stopped):
            self._freed(before)
        self._empty_lines.note(after)
        if tells:
            self._ended(after)
        return after

    def replace_all(
        self, changes: Sequence[tuple[Job, Job]], also: Sequence[Put | Update] = ()
    ) -> list[Job]:
        """Several compare-and-swaps and `also`, all or none (`JobStore.replace_all`).

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
        """Restore the lease of a worker that lost it, for `lease_ms` or the job's own time; False
        if another worker got the job since, or no permits are left for it.
        """
        if not lifecycle.resumable(
            job, worker_id=worker_id, attempt=attempt, lease_token=lease_token
        ):
            return False
        after = lifecycle.resume(job, now_ms=now_ms, lease_ms=lease_ms)
        resumed = self._permits.reacquire(job, after)
        if resumed is None:
            return False
        # Race: a fetch claims the job at the same time. The worker that loses has lost the job, as
        # any former owner has.
        try:
            self._jobs.replace(job, resumed)
        except NotDone:
            self._permits.undo_reacquire(resumed)
            raise
        except LostRace as lost:
            # After a repetition the job may have gone on, and its permits be released by now.
            if not lost.repeated:
                self._permits.undo_reacquire(resumed)
            return False
        return True
