"""One run of a bulk operation, which handles slices of jobs or of dead letters."""

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

# One page of the index: one query and one BatchGet.
SLICE = 100
# Bytes of offloaded payloads in memory at a time, where a filter looks at args.
MAX_ARGS_BYTES = 8_000_000
_TRIES = 3


@record
class BulkRun:
    """One run of an operation: what it may still do, and what it did."""

    claim: ClaimedOperation
    jobs_left: int
    looks_left: int
    go_on: GoOn
    # When the sweep should look at it next.
    look_at_ms: int
    job_ids: list[str] = field(default_factory=list)
    errors: list[Refusal] = field(default_factory=list)
    # The scan has reached the end.
    over: bool = False
    # The store failed; do not go on at once.
    troubled: bool = False
    # The next round begins later.
    waits: bool = False

    @property
    def operation(self) -> BulkOperation:
        """The operation as it is now."""
        return self.claim.operation

    def now(self, operation: BulkOperation) -> None:
        """Replace the operation by what it is now."""
        self.claim = replace(self.claim, operation=operation)

    def done(self, job_id: str) -> None:
        """Count a job that was dealt with."""
        self.job_ids.append(job_id)
        self.now(self.operation.done())

    def refuse(self, refusal: Refusal) -> None:
        """Count a job that could not be dealt with."""
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
        """Deal with one job, unless it is not `meant` (any more); False when there is no time for
        it. Raises QueueFull, BackendUnavailable, BackendTimeout, QueueMayStay.
        """
        if not self.may_go_on:
            return False

        def attempt(found: Job | None) -> None:
            # After a lost race look again: the change may only be that its copy was made.
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
    def may_go_on(self) -> bool:
        """Whether there is time, and the limits of the run are not reached."""
        return not self.troubled and self.jobs_left > 0 and self.looks_left > 0 and self.go_on()

    @property
    def rests(self) -> bool:
        """Whether the operation needs no further run now."""
        idle = self.troubled or self.waits
        return idle or self.operation.phase.over or self.operation.waiting_for_room


def loaded(
    jobs: JobStore, likely: list[tuple[str, Job | None]]
) -> Iterator[tuple[str, Job | None]]:
    """The same keys and jobs with payloads, MAX_ARGS_BYTES at a time."""
    while likely:
        sizes = accumulate(0 if job is None else job.content_bytes for _, job in likely)
        fitting = max(1, sum(size <= MAX_ARGS_BYTES for size in sizes))
        part, likely = likely[:fitting], likely[fitting:]
        found = jobs.with_contents([job for _, job in part if job is not None])
        by_id = {job.id: job for job in found}
        for key, job in part:
            yield key, None if job is None else by_id[job.id]
