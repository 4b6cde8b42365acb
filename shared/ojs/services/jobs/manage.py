"""INFO, CANCEL, ACTIVATE, and progress: operations on one job by its ID."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ojs.clock import Clock
from ojs.domain import jsontext, times
from ojs.domain.access import Reaches
from ojs.domain.errors import InvalidRequest, NotFound, PayloadTooLarge
from ojs.domain.ids import IdSource
from ojs.domain.job import lifecycle
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.records import record
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.jobs.transitions import JobChanges, JobEnded, ends_nothing
from ojs.store.jobs import records as store
from ojs.store.table.errors import LostRace, ignore_unreadable
from ojs.store.table.races import retry_on_race, won_or

MAX_PROGRESS_BYTES = 4_096


@record(frozen=True)
class Progress:
    """The progress that the current attempt reported. `progress` is between 0 and 1."""

    job_id: str
    state: State
    progress: float | None = None
    message: str | None = None
    data: Mapping[str, Any] | None = None
    updated_ms: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object, with null for missing values (ojs-progress, section 7.1)."""
        return {
            "job_id": self.job_id,
            "state": self.state.value,
            "progress": 1.0 if self.state is State.COMPLETED else self.progress,
            "message": self.message,
            "data": self.data,
            "updated_at": None if self.updated_ms is None else times.format_ms(self.updated_ms),
        }


class JobManagement:
    """Shows and changes single jobs."""

    def __init__(
        self,
        *,
        jobs: store.JobStore,
        changes: JobChanges,
        transitions: TimeTransitions,
        placement: FairQueuePlacement,
        clock: Clock,
        ids: IdSource,
        cancelled: JobEnded = ends_nothing,
    ) -> None:
        """Create the service. `cancelled` is called with each cancelled job that was running."""
        self._cancelled = cancelled
        self._jobs = jobs
        self._changes = changes
        self._transitions = transitions
        self._placement = placement
        self._clock = clock
        self._ids = ids

    def get(self, job_id: str) -> Job:
        """Return the complete job, after due time transitions. Raises NotFound."""
        return self._current(self._jobs.load, job_id)

    def _current(self, read: Callable[[str], Job | None], job_id: str) -> Job:
        job = read(job_id)
        current = self._transitions.apply(job)
        if current is not None and current is not job:
            current = read(job_id)
        if current is None:
            raise NotFound("job", job_id)
        return current

    def list_final(self, job_ids: Sequence[str], reaches: Reaches, *, most: int) -> dict[str, Job]:
        """Return the final jobs among these by ID, with their results (`JobReader.with_results`).

        Jobs in queues that the caller can't use, and jobs whose result has expired, are skipped.
        """
        now_ms = self._clock.now_ms()
        found = self._jobs.read_records(job_ids, ignore_unreadable).values()
        ended = [
            job
            for job in found
            if job.state.terminal
            and reaches(job.queue)
            and not job.gone(now_ms)
            and not job.has_expired_result(now_ms)
        ]
        return {job.id: job for job in self._jobs.with_results(ended, most)}

    def queue_of(self, job_id: str) -> str:
        """Return the name of a job's queue. Raises NotFound."""
        record = self._jobs.read_record(job_id)
        if record is None:
            raise NotFound("job", job_id)
        return record.queue

    def queues_of(self, job_ids: Sequence[str]) -> dict[str, str]:
        """Return the queues of these jobs by job ID. Jobs that don't exist are skipped."""
        return {job_id: record.queue for job_id, record in self._jobs.read_records(job_ids).items()}

    def record(self, job_id: str) -> Job:
        """Return only the job record, after due time transitions. Raises NotFound."""
        return self._current(self._jobs.read_record, job_id)

    def cancel(self, job_id: str) -> Job:
        """Cancel a job that is not in a final state.

        The worker of an active job is informed by its next heartbeat.

        Raises NotFound, Conflict.
        """
        job = self._change(job_id, lambda job, now_ms: lifecycle.cancel(job, now_ms=now_ms))
        if job.previous_state is State.ACTIVE:
            self._cancelled(job)
        return job

    def activate(self, job_id: str) -> Job:
        """Activate a pending job. Raises NotFound, Conflict."""
        return self._change(
            job_id,
            lambda job, now_ms: lifecycle.activate(job, now_ms=now_ms, order=self._ids.order()),
        )

    def _change(self, job_id: str, change: Any) -> Job:
        def attempt() -> tuple[Job, Job]:
            before = self._transitions.apply(self._jobs.read_record(job_id))
            if before is None:
                raise NotFound("job", job_id)
            after = self._placement.assign_position(change(before, self._clock.now_ms()))
            return before, self._changes.replace(before, replace(after, batch=None))

        before, stored = retry_on_race(attempt)
        (stored,) = self._jobs.with_contents([stored])
        return replace(stored, previous_state=before.state)

    def report_progress(
        self,
        job_id: str,
        *,
        progress: float | None,
        worker_id: str | None = None,
        message: str | None = None,
        data: Mapping[str, Any] | None = None,
        lease_token: str | None = None,
    ) -> Progress:
        """Store the progress of a running job. Counts as a heartbeat.

        The progress never decreases within an attempt. A report for a job that isn't active, or
        that another worker runs, is ignored (ojs-progress, section 6.1).

        Args:
            job_id: ID of the job.
            progress: Progress, limited to the range from 0 to 1.
            worker_id: ID of the worker. None: not checked.
            message: Text for people.
            data: JSON object.
            lease_token: Lease token of the run. None: not checked.

        Returns:
            The stored progress.

        Raises:
            NotFound: The job doesn't exist.
            InvalidRequest: Both `progress` and `data` are None.
            PayloadTooLarge: The report is too large.
        """
        if progress is None and data is None:
            raise InvalidRequest("progress", "is required unless data is given")
        value = None if progress is None else min(1.0, max(0.0, progress))
        report = {"progress": value, "message": message, "data": data}
        if (size := jsontext.size_of(report)) > MAX_PROGRESS_BYTES:
            raise PayloadTooLarge("data", size=size, limit=MAX_PROGRESS_BYTES)
        now_ms = self._clock.now_ms()
        job = won_or(
            lambda: self._jobs.extend(
                job_id, now_ms=now_ms, worker_id=worker_id, lease_token=lease_token
            ),
            lambda lost: self._ignored(job_id, lost),
        )
        if job is None:
            return self.progress(job_id)
        details = {"message": message, "data": data}
        saved = self._jobs.progress.save(job, value, details, now_ms=now_ms)
        if value is None or not saved:
            return self.progress(job_id)
        return Progress(job_id, job.state, value, message, data, now_ms)

    @staticmethod
    def _ignored(job_id: str, lost: LostRace) -> None:
        if store.winner(lost) is None:
            raise NotFound("job", job_id) from None

    def progress(self, job_id: str) -> Progress:
        """Return the progress of the current attempt. Raises NotFound."""
        job = self._current(self._jobs.with_progress, job_id)
        reported = job.progress or {}
        value = reported.get("progress")
        return Progress(
            job_id,
            job.state,
            None if value is None else float(value),
            reported.get("message"),
            reported.get("data"),
            reported.get("updated_ms"),
        )
