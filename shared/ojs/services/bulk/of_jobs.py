"""Processes one slice of a bulk operation on jobs in any state.

The operation finds jobs in the order in which most of them change their state. Each write has the
condition that the job is unchanged. A job that changed and no longer matches is skipped. After a
crash, the slice is repeated. Its processed jobs no longer match. A job that was named by ID counts
as done if it reached the requested state after the start of the operation.

If no queue is named, jobs are omitted that were enqueued in the last seconds in a queue without
jobs. An erasure ignores the counters and reads all index partitions of all queues.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ojs.domain.bulk.operation import Action, BulkOperation, JobIds, Refusal
from ojs.domain.errors import (
    BackendUnavailable,
    InvalidRequest,
    NotFound,
    any_of,
)
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.queue.queue import Queue
from ojs.domain.stats import DAY_MS
from ojs.services.bulk.acts import JobActs
from ojs.services.bulk.run import SLICE, BulkRun, loaded
from ojs.services.dead_letter.archive import Archive
from ojs.services.listing.jobs import JobListing
from ojs.store.jobs.blobs import ARCHIVE
from ojs.store.jobs.records import JobStore
from ojs.store.queues.queues import QueueStore
from ojs.store.table.errors import ignore_unreadable


class JobSlices:
    """Processes slices of bulk operations on jobs."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        queues: QueueStore,
        listing: JobListing,
        acts: JobActs,
        archive: Archive,
        forget_workflow: Callable[[str], None],
    ) -> None:
        self._jobs = jobs
        self._queues = queues
        self._listing = listing
        self._acts = acts
        self._archive = archive
        self._forget_workflow = forget_workflow

    def handle(self, run: BulkRun) -> None:
        """Process the next jobs of an operation, and advance its cursor.

        Raises:
            QueueFull: The queue of a retried job is full.
            BackendUnavailable: DynamoDB rejected a request.
            BackendTimeout: The outcome of a write is unknown.
            QueueMayStay: The queue is being deleted if it is empty.
        """
        size = min(SLICE, run.jobs_left, run.looks_left)
        run.looks_left -= size
        if (run.operation.cursor or "").startswith(ARCHIVE):
            self._erase_archived(run, size)
        elif isinstance(run.operation.wanted, JobIds):
            self._handle_named(run, run.operation.wanted.ids, size)
        elif isinstance(run.operation.wanted, JobFilter):
            self._handle_matching(run, run.operation.wanted, size)

    def _handle_named(self, run: BulkRun, ids: tuple[str, ...], size: int) -> None:
        begin = int(run.operation.cursor or 0)
        part = ids[begin : begin + size]
        found = self._jobs.read_records(part, ignore_unreadable)
        staged = self._jobs.batches.uncommitted(
            {job.batch for job in found.values() if job.batch is not None}
        )
        known = self._known(run, list(found.values()))
        for number, job_id in enumerate(part, start=begin + 1):
            job = found.get(job_id)
            if job is None or job.batch in staged or job.gone(run.operation.updated_ms):
                run.refuse(Refusal.of(job_id, NotFound("job", job_id)))
                run.jobs_left -= 1
            elif not self._handle(run, job, known):
                return
            run.now(run.operation.passed(str(number)))
        if begin + len(part) >= len(ids):
            self._end(run)

    def _handle_matching(self, run: BulkRun, wanted: JobFilter, size: int) -> None:
        operation = run.operation
        try:
            part = self._listing.part(
                wanted,
                limit=size,
                cursor=operation.cursor,
                # Among finished jobs, only dead letters can be retried.
                log=operation.action is not Action.RETRY_JOBS,
                # The first round of an erasure processed all jobs that finished before its start.
                ended_since_ms=0 if operation.round == 1 else operation.started_ms - DAY_MS,
                # Counters have the delay of the DynamoDB stream, so the operation doesn't use them
                # to skip queues.
                everything=operation.action is Action.ERASE_JOBS,
            )
        except InvalidRequest as error:
            raise BackendUnavailable(f"The operation can't continue. {error.message}") from error
        likely: list[tuple[str, Job | None]] = [
            (cursor, job if _meant(operation, job) else None) for job, cursor in part.jobs
        ]
        known = self._known(run, [job for _, job in likely if job is not None])
        for cursor, job in loaded(self._jobs, likely) if wanted.of_content else likely:
            meant = job is not None and (not wanted.of_content or wanted.matches_content(job))
            if meant and job is not None and not self._handle(run, job, known):
                return
            run.now(run.operation.passed(cursor))
        if part.next_cursor is None:
            self._end(run)
        else:
            run.now(run.operation.passed(part.next_cursor))

    def _end(self, run: BulkRun) -> None:
        """Process the end of the table: an erasure continues in the archive."""
        if run.operation.action is Action.ERASE_JOBS:
            run.now(run.operation.passed(ARCHIVE))
        else:
            run.over = True

    def _erase_archived(self, run: BulkRun, size: int) -> None:
        """Remove matching jobs from the next archive objects of an erasure.

        Each object is read and rewritten without these jobs. After a crash, the object is either
        unchanged or completely rewritten. Raises the errors of `handle`.
        """
        operation = run.operation
        wanted = operation.wanted
        names = self._archive.names(
            after=operation.cursor or ARCHIVE,
            limit=size,
            queue=wanted.queue if isinstance(wanted, JobFilter) else None,
            # The first round of an erasure read all objects that were archived before its start.
            since_ms=0 if operation.round == 1 else operation.started_ms - DAY_MS,
        )
        for name, worth_a_look in names:
            if not run.has_budget:
                return
            if worth_a_look:
                for job_id in self._archive.erase(
                    name, partial(_archived, wanted), dry_run=operation.dry_run
                ):
                    run.done(job_id)
                    run.jobs_left -= 1
            run.now(run.operation.passed(name))
        run.over = len(names) < size

    def _known(self, run: BulkRun, jobs: list[Job]) -> dict[str, Queue]:
        """Return the queues of the dead letters to retry. A slice reads them once."""
        names = sorted({job.queue for job in jobs if job.dead_letter})
        if run.operation.action is not Action.RETRY_JOBS or not names:
            return {}
        return self._queues.get_many(names)[0]

    def _handle(self, run: BulkRun, job: Job, known: dict[str, Queue]) -> bool:
        """Process one job. Return false if the time is up. Raises the errors of `handle`."""
        operation = run.operation

        def act(found: Job) -> None:
            if not operation.dry_run:
                self._act(operation.action, found, known)

        return run.handle(
            self._jobs,
            job,
            lambda found: _meant(operation, found),
            act,
            lambda found: self._changed(run, job.id, found),
        )

    def _act(self, action: Action, job: Job, known: dict[str, Queue]) -> None:
        if action is Action.CANCEL_JOBS:
            self._acts.cancel(job)
        elif action is Action.DELETE_JOBS:
            self._acts.remove(job)
        elif action is Action.ERASE_JOBS:
            self._erase(job)
        else:
            self._acts.bring_back(job, known=known)

    def _erase(self, job: Job) -> None:
        """Delete the workflow of a job, and cancel and delete the job, if required.

        After a crash in between, the next round finds the job again.

        Raises:
            LostRace: Another request changed the job.
            Conflict: The workflow of the job is not finished.
        """
        if job.workflow is not None:
            self._forget_workflow(job.workflow.workflow_id)
        self._acts.remove(job if job.state.terminal else self._acts.cancel(job))

    def _changed(self, run: BulkRun, job_id: str, job: Job | None) -> None:
        """Count a job that was named by ID and does not match the operation."""
        operation = run.operation
        if not isinstance(operation.wanted, JobIds):
            return
        run.jobs_left -= 1
        if job is None:
            run.refuse(Refusal.of(job_id, NotFound("job", job_id)))
        elif _as_asked(operation, job):
            run.done(job_id)
        else:
            run.refuse(Refusal(job_id, "conflict", _reason(operation, job)))


def _meant(operation: BulkOperation, job: Job) -> bool:
    """Return whether the record of a job matches the operation."""
    wanted, action = operation.wanted, operation.action
    if job.state not in action.states or not operation.covers(job):
        return False
    if action is Action.RETRY_JOBS and job.state is State.DISCARDED and not job.dead_letter:
        return False
    return not isinstance(wanted, JobFilter) or wanted.matches_record(job)


def _archived(wanted: object, shown: Mapping[str, Any]) -> bool:
    """Return whether an archived job matches the erasure."""
    if isinstance(wanted, JobIds):
        return shown["id"] in wanted.ids
    assert isinstance(wanted, JobFilter)
    job = Job(shown["id"], shown["type"], shown["queue"], State.DISCARDED, 0, content=shown)
    return wanted.matches_record(job) and wanted.matches_content(job)


def _as_asked(operation: BulkOperation, job: Job) -> bool:
    """Return whether a job reached the requested state after the start of the operation.

    The operation before a crash, or another request, might have changed it.
    """
    began_ms = operation.started_ms
    if operation.action is Action.CANCEL_JOBS:
        return job.state is State.CANCELLED and (job.cancelled_ms or 0) >= began_ms
    if operation.action is Action.RETRY_JOBS:
        came_back = job.life > 0 or job.attempt > 0
        return not job.state.terminal and came_back and (job.enqueued_ms or 0) >= began_ms
    return False


def _reason(operation: BulkOperation, job: Job) -> str:
    """Return the reason why an operation can't process a job that was named by ID."""
    what = operation.action.shown
    if job.state not in operation.action.states:
        states = any_of(sorted(operation.action.states))
        return f"Can't {what} a job in state '{job.state}'. The state must be {states}."
    if not operation.covers(job):
        return f"The state changed to '{job.state}' after the operation started."
    return f"Can't {what} a job in state '{job.state}' that is not a dead letter."
