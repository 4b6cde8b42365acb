"""Bulk operations: retry or purge many dead letters; retry, cancel, delete or erase many jobs.

An operation reads the index of dead letters, oldest first, in slices. A slice takes one page of the
index, one call for its job records, one conditional write per matching job, and one write of the
progress. An operation on jobs in any state processes a listing in the same way
(`ojs.services.bulk.of_jobs`). The request that starts an operation processes the first jobs, and
the sweep continues. The cost and memory per job do not depend on the number of jobs.

Each write has the condition that the job is unchanged, so concurrent runs of an operation never
process a job twice. After a crash, some jobs of the current slice are processed but not counted.
They stay uncounted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ojs.clock import Clock
from ojs.domain import times
from ojs.domain.bulk.operation import Action, BulkOperation, JobIds, Phase, Refusal
from ojs.domain.errors import (
    BAD_CURSOR,
    BackendTimeout,
    BackendUnavailable,
    Conflict,
    InvalidRequest,
    NotFound,
    OjsError,
    QueueFull,
    QueueMayStay,
)
from ojs.domain.filters.dead_letters import DeadLetterFilter
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.ids import IdSource, is_uuid7
from ojs.domain.job.job import Job
from ojs.domain.page import Page
from ojs.domain.queue.queue import Queue
from ojs.services.bulk.of_jobs import JobSlices
from ojs.services.bulk.run import SLICE, BulkRun, loaded
from ojs.services.dead_letter.redrive import DeadLetterRetrier
from ojs.services.listing.dead_letters import DeadLetterSearch, still_listed
from ojs.services.sweeps import GoOn, SweepCounts, SweepReport, always, counting_failures
from ojs.store.bulk.operations import BulkOperationStore, ClaimedOperation
from ojs.store.jobs.records import JobStore
from ojs.store.queues.queues import QueueStore
from ojs.store.table.races import unless_lost, wins

# Maximum number of jobs that are processed by the request that starts an operation.
REQUEST_JOBS = 500
# Maximum number of jobs of one operation before the sweep continues with the next one, and number
# of index entries that are read per job.
RUN_JOBS = 1_000
LOOKS_PER_JOB = 10
# Duration of a claim (ms). It is longer than a slice and than any function runs, so an older claim
# belongs to a run that crashed.
CLAIM_MS = 60_000
# Delay until a retry after a full queue.
ROOM_MS = 20_000
# Delay until the second round of an erasure. By then, the stream consumer has processed the jobs
# that finished during the first round.
AGAIN_MS = 60_000
# An operation that has not finished after this time is stopped, because its queue stays full.
LIFETIME_MS = 7 * 86_400_000
_OPERATIONS = 20
_COUNTED = {
    Action.RETRY: "retried",
    Action.PURGE: "purged",
    Action.RETRY_JOBS: "retried",
    Action.CANCEL_JOBS: "cancelled",
    Action.DELETE_JOBS: "deleted",
    Action.ERASE_JOBS: "erased",
}


class BulkRunner:
    """Starts and continues bulk operations."""

    name = "bulk"

    def __init__(
        self,
        *,
        bulk_operations: BulkOperationStore,
        jobs: JobStore,
        queues: QueueStore,
        dead_letter: DeadLetterSearch,
        redrive: DeadLetterRetrier,
        job_slices: JobSlices,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._of_jobs = job_slices
        self._store = bulk_operations
        self._jobs = jobs
        self._queues = queues
        self._dead_letter = dead_letter
        self._redrive = redrive
        self._clock = clock
        self._ids = ids

    def begin(
        self,
        action: Action,
        wanted: DeadLetterFilter | JobFilter | JobIds,
        *,
        dry_run: bool = False,
        clears: Sequence[str] = (),
        go_on: GoOn = always,
    ) -> BulkRun:
        """Start an operation, and process up to REQUEST_JOBS jobs.

        The operation is stored first. The sweep processes the remaining jobs.

        Args:
            action: Action on each job.
            wanted: Filter or IDs of the jobs.
            dry_run: Whether matching jobs are only counted.
            clears: What the code of retried dead letters continues without.
            go_on: Returns False when the time is up.

        Returns:
            The run, with the operation and the processed jobs.

        Raises:
            OjsError: The operation or its progress could not be stored.
        """
        now_ms = self._clock.now_ms()
        operation = BulkOperation(
            self._ids.uuid7(),
            action,
            wanted,
            now_ms,
            now_ms,
            dry_run=dry_run,
            clears=tuple(clears),
        )
        claim = self._store.create(operation, claimed_until_ms=now_ms + CLAIM_MS)
        return self._work(claim, REQUEST_JOBS, go_on)

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Continue the unfinished operations.

        Operations alternate, so that a large one doesn't delay the others.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Approximate maximum number of jobs, across operations.
            go_on: Returns whether enough time is left to continue.

        Returns:
            Numbers of jobs: retried, purged, cancelled, deleted, erased, refused (can't be
            processed), counted (by dry runs). Numbers of operations: waiting, ended, failed. And
            `more`.
        """
        counts = SweepCounts()
        waiting = self._store.due(now_ms=now_ms, limit=_OPERATIONS)
        left = limit
        while waiting:
            for operation_id in list(waiting):
                if left <= 0 or not go_on():
                    counts["more"] = 1
                    return SweepReport(counts, failures=counts.failures)
                run = self._run(operation_id, min(left, RUN_JOBS), go_on, counts)
                if run is None or run.rests:
                    waiting.remove(operation_id)
                if run is not None:
                    left -= max(1, len(run.job_ids) + len(run.errors))
        return SweepReport(counts, failures=counts.failures)

    def get(self, operation_id: str, *, of_jobs: bool | None = None) -> BulkOperation:
        """Return an operation; with `of_jobs`, only of that kind (jobs or dead letters).

        Raises:
            NotFound: The operation does not exist, or is of the other kind.
        """
        found = self._store.get(operation_id, now_ms=self._clock.now_ms())
        if found is None or of_jobs not in (None, found.action.of_jobs):
            raise NotFound("operation", operation_id)
        return found

    def list(
        self, *, limit: int = 50, cursor: str | None = None, of_jobs: bool = False
    ) -> Page[BulkOperation]:
        """Return a page of running and recent operations, most recent first.

        Args:
            limit: Maximum number of operations.
            cursor: ID of the last operation of the previous page.
            of_jobs: Whether to return operations on jobs instead of those on dead letters.

        Returns:
            The page.

        Raises:
            InvalidRequest: The cursor is invalid.
        """
        if cursor is not None and not is_uuid7(cursor):
            raise InvalidRequest("cursor", BAD_CURSOR, value=cursor)
        return self._store.list(
            now_ms=self._clock.now_ms(), limit=limit, before=cursor, of_jobs=of_jobs
        )

    def stop(self, operation_id: str, *, of_jobs: bool | None = None) -> BulkOperation:
        """Stop an operation. Its changes are not undone.

        Raises:
            NotFound: The operation does not exist.
            Conflict: The operation has ended.
        """
        found = self.get(operation_id, of_jobs=of_jobs)
        if found.phase is Phase.RUNNING:
            now_ms, running = self._clock.now_ms(), found
            stopped = unless_lost(lambda: self._store.stop(running, now_ms=now_ms))
            if stopped is not None:
                return stopped
            found = self.get(operation_id)
        if found.phase.over:
            raise Conflict(
                f"Can't stop an operation in state '{found.phase}'. The state must be "
                f"'{Phase.RUNNING}'.",
                current_state=found.phase,
                expected_states=[Phase.RUNNING],
                details={"operation_id": operation_id},
            )
        return found

    # --- one run ----------------------------------------------------------------------------

    def _run(
        self, operation_id: str, jobs: int, go_on: GoOn, counts: SweepCounts
    ) -> BulkRun | None:
        """Run an operation, or None if it has ended or another run has claimed it."""
        now_ms = self._clock.now_ms()
        run = None
        # After a failure, the claim expires, and a later run continues from the saved progress.
        with counting_failures(counts, f"bulk operation {operation_id}"):
            claim = self._store.take(operation_id, now_ms=now_ms, until_ms=now_ms + CLAIM_MS)
            if claim is not None:
                run = self._work(claim, jobs, go_on)
        if run is None:
            return None
        name = "counted" if run.operation.dry_run else _COUNTED[run.operation.action]
        counts[name] += len(run.job_ids)
        counts["refused"] += len(run.errors)
        counts["waiting"] += run.operation.waiting_for_room
        counts["ended"] += run.operation.phase.over
        return run

    def _work(self, claim: ClaimedOperation, jobs: int, go_on: GoOn) -> BulkRun:
        """Process slices of an operation until its end or a limit of this run.

        Raises:
            OjsError: The progress could not be saved.
        """
        run = BulkRun(claim, jobs, jobs * LOOKS_PER_JOB, go_on, self._clock.now_ms())
        run.now(replace(run.operation, waiting_for_room=False))
        if not wins(lambda: self._work_slices(run)):
            # The claim expired, or the operation was stopped: return the stored operation.
            run.now(self.get(run.operation.id))
        return run

    def _work_slices(self, run: BulkRun) -> None:
        while not self._ended(run):
            try:
                self._slice(run)
            except (BackendUnavailable, BackendTimeout, QueueMayStay):
                # It is unknown whether the job was processed. The next run detects that.
                run.troubled = True
            run.now(replace(run.operation, updated_ms=self._clock.now_ms()))
            if run.over or not run.has_budget:
                break
            run.claim = self._store.save(run.claim, until_ms=self._clock.now_ms() + CLAIM_MS)
        if run.over and not run.operation.phase.over:
            now_ms = self._clock.now_ms()
            if run.operation.needs_second_pass:
                run.waits, run.look_at_ms = True, now_ms + AGAIN_MS
                run.now(run.operation.next_round())
            else:
                run.now(run.operation.ended(Phase.COMPLETED, now_ms=now_ms))
        run.now(self._store.release(run.claim, look_at_ms=run.look_at_ms))

    def _ended(self, run: BulkRun) -> bool:
        """End an operation that was stopped or exceeds its lifetime. Return whether it ended."""
        now_ms = self._clock.now_ms()
        late = now_ms - run.operation.started_ms > LIFETIME_MS
        if run.operation.phase is Phase.STOPPING or late:
            run.now(run.operation.ended(Phase.STOPPED, now_ms=now_ms))
            return True
        return False

    def _slice(self, run: BulkRun) -> None:
        """Process one page of the index, and advance the cursor of the operation."""
        if not isinstance(run.operation.wanted, DeadLetterFilter):
            try:
                self._of_jobs.handle(run)
            except QueueFull:
                self._wait_for_room(run)
            return
        wanted, size = run.operation.wanted, min(SLICE, run.jobs_left, run.looks_left)
        entries = self._jobs.index.dead(
            wanted.queue,
            # Read one more entry than is processed. It shows whether more entries follow.
            limit=size + 1,
            since_ms=wanted.since_ms,
            until_ms=min(run.operation.started_ms + 1, wanted.until_ms or times.MAX_MS),
            after=run.operation.cursor,
            oldest_first=True,
        )
        more, entries = len(entries) > size, entries[:size]
        unreadable: dict[str, OjsError] = {}
        records = self._jobs.read_records((job_id for job_id, _ in entries), unreadable.setdefault)
        damaged = {
            key: Refusal.of(job_id, unreadable[f"job {job_id}"])
            for job_id, key in entries
            if f"job {job_id}" in unreadable
        }
        # The queues are read once per slice: a configuration change applies from the next slice on.
        known: dict[str, Queue] = {}
        if run.operation.action is Action.RETRY:
            known, _ = self._queues.get_many(sorted({job.queue for job in records.values()}))
        for key, job in self._candidates(wanted, entries, records):
            try:
                meant = job is not None and wanted.matches_content(job)
                if meant and job is not None and not self._handle(run, job, key, known):
                    return
            except QueueFull:
                self._wait_for_room(run)
                return
            if (refusal := damaged.get(key)) is not None:
                run.refuse(refusal)
            run.looks_left -= 1
            run.now(run.operation.passed(key))
        run.over = not more

    def _wait_for_room(self, run: BulkRun) -> None:
        run.now(replace(run.operation, waiting_for_room=True))
        run.look_at_ms = self._clock.now_ms() + ROOM_MS
        run.jobs_left = 0

    def _candidates(
        self,
        wanted: DeadLetterFilter,
        entries: Sequence[tuple[str, str]],
        records: dict[str, Job],
    ) -> Iterator[tuple[str, Job | None]]:
        """Yield the keys in order, each with its job if the record matches, else None.

        If the filter reads args, the jobs have their payloads, MAX_ARGS_BYTES at a time.
        """
        likely: list[tuple[str, Job | None]] = []
        for job_id, key in entries:
            job = records.get(job_id)
            meant = job is not None and wanted.matches_record(job) and still_listed(job, key)
            likely.append((key, job if meant else None))
        if not wanted.of_content:
            yield from likely
            return
        yield from loaded(self._jobs, likely)

    def _handle(self, run: BulkRun, job: Job, key: str, known: dict[str, Queue]) -> bool:
        """Retry or purge one job. Return false if the time is up. Raises as `BulkRun.handle`."""

        def act(found: Job) -> None:
            if run.operation.action is Action.PURGE:
                self._dead_letter.remove(found)
            else:
                clears = run.operation.clears
                self._redrive.bring_back(found, drops=False, known=known, clears=clears)

        return run.handle(self._jobs, job, lambda found: still_listed(found, key), act)
