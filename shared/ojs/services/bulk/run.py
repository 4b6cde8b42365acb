"""One run of a bulk operation. It processes slices of jobs or dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field, replace
from itertools import accumulate
from typing import cast

from ojs.domain.bulk.operation import BulkOperation, Refusal
from ojs.domain.errors import (
    BackendTimeout,
    BackendUnavailable,
    OjsError,
    QueueFull,
    QueueMayStay,
)
from ojs.domain.job.job import Job
from ojs.records import record
from ojs.services.sweeps import GoOn
from ojs.store.bulk.operations import ClaimedOperation
from ojs.store.jobs.records import JobStore
from ojs.store.table.races import retry_as_found

# Number of index entries in a slice. One query and one BatchGetItem call read them.
SLICE = 100
# Maximum bytes of offloaded payloads in memory, if a filter reads args.
MAX_ARGS_BYTES = 8_000_000
_TRIES = 3


@record
class BulkRun:
    """The state of one run of an operation: its remaining limits and its results."""

    claim: ClaimedOperation
    jobs_left: int
    looks_left: int
    go_on: GoOn
    # When the sweep continues the operation (ms since the epoch).
    look_at_ms: int
    job_ids: list[str] = field(default_factory=list)
    errors: list[Refusal] = field(default_factory=list)
    # Whether the scan has reached the end.
    over: bool = False
    # Whether the backend failed. The run stops then.
    troubled: bool = False
    # Whether the next round starts later.
    waits: bool = False

    @property
    def operation(self) -> BulkOperation:
        """The current state of the operation."""
        return self.claim.operation

    def now(self, operation: BulkOperation) -> None:
        """Replace the operation by its new state."""
        self.claim = replace(self.claim, operation=operation)

    def done(self, job_id: str) -> None:
        """Count a processed job."""
        self.job_ids.append(job_id)
        self.now(self.operation.done())

    def refuse(self, refusal: Refusal) -> None:
        """Count a job that can't be processed."""
        self.errors.append(refusal)
        self.now(self.operation.refused(refusal))

    def handle(
        self,
        jobs: JobStore,
        job: Job,
        meant: Callable[[Job], bool],
        act: Callable[[Job], object],
        passed: Callable[[Job | None], object] = lambda _: None,
    ) -> bool:
        """Process one job, if it still matches.

        Args:
            jobs: Store of the jobs.
            job: The job, as read.
            meant: Whether a job matches.
            act: Processes a matching job.
            passed: Called with a job that doesn't match, or with None if it was deleted.

        Returns:
            False if the limits of the run are reached. The job is not processed then.

        Raises:
            QueueFull: The queue of a retried job is full.
            BackendUnavailable: DynamoDB rejected a request.
            BackendTimeout: The outcome of a write is unknown.
            QueueMayStay: The queue is being deleted if it is empty.
        """
        if not self.has_budget:
            return False

        def attempt(found: Job | None) -> None:
            # After a lost race, check again: the change might only be the creation of its copy.
            if found is None or not meant(found):
                passed(found)
                return
            try:
                act(found)
            except (BackendUnavailable, BackendTimeout, QueueMayStay, QueueFull):
                raise
            except OjsError as error:
                self.refuse(Refusal.of(job.id, error))
            else:
                self.done(job.id)
            self.jobs_left -= 1

        first = cast("Job | None", job)
        retry_as_found(attempt, first, lambda _: jobs.read_record(job.id), tries=_TRIES)
        return True

    @property
    def has_budget(self) -> bool:
        """Whether time is left and no limit of the run is reached."""
        return not self.troubled and self.jobs_left > 0 and self.looks_left > 0 and self.go_on()

    @property
    def rests(self) -> bool:
        """Return whether the operation needs no further run now."""
        idle = self.troubled or self.waits
        return idle or self.operation.phase.over or self.operation.waiting_for_room


def loaded(
    jobs: JobStore, likely: list[tuple[str, Job | None]]
) -> Iterator[tuple[str, Job | None]]:
    """Yield the keys and the jobs with their payloads, MAX_ARGS_BYTES at a time."""
    while likely:
        sizes = accumulate(0 if job is None else job.content_bytes for _, job in likely)
        fitting = max(1, sum(size <= MAX_ARGS_BYTES for size in sizes))
        part, likely = likely[:fitting], likely[fitting:]
        found = jobs.with_contents([job for _, job in part if job is not None])
        by_id = {job.id: job for job in found}
        for key, job in part:
            yield key, None if job is None else by_id[job.id]
