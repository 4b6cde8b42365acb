"""Bulk operations: retry or purge many dead letters; retry, cancel, delete or erase many jobs.

An operation scans the index of dead letters, oldest first, in slices: a page of the index, its job
records in one call, one conditional write for each matching job, then a write of the progress. One
on jobs in any state goes through a listing in the same way (`ojs.services.bulk.of_jobs`). The
request that begins an operation does as much as fits, and the sweep carries on. The cost and memory
for each job do not depend on the number of jobs.

Each job is dealt with only as it was found, so several workers on one
operation never dispatch a job twice. After a crash, the jobs of the current slice are done or not;
those done but not counted yet stay uncounted.
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
from ojs.services.dead_letter.redrive import Redrive
from ojs.services.listing.dead_letters import DeadLetterSearch, still_listed
from ojs.services.sweeps import GoOn, SweepCounts, SweepReport, always, counting_failures
from ojs.store.bulk.operations import BulkOperationStore, ClaimedOperation
from ojs.store.jobs.records import JobStore
from ojs.store.queues.queues import QueueStore
from ojs.store.table.races import unless_lost, wins

# Jobs that the request which begins an operation handles itself, at most.
REQUEST_JOBS = 500
# Jobs of one operation before the sweep goes on with the next, and index entries read for each job.
RUN_JOBS = 1_000
LOOKS_PER_JOB = 10
# Longer than a slice takes and than any function runs: a claim that is older is left by a crash.
CLAIM_MS = 60_000
# A full queue is tried again after this.
ROOM_MS = 20_000
# An erasure looks at everything again after this: the stream has told of jobs that ended by then.
AGAIN_MS = 60_000
# An operation that is not over by then is stopped: the queue that it waits for stays full.
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
    """Begins bulk operations and carries them on."""

    name = "bulk"

    def __init__(
        self,
        *,
        bulk_operations: BulkOperationStore,
        jobs: JobStore,
        queues: QueueStore,
        dead_letter: DeadLetterSearch,
        redrive: Redrive,
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
        go_on: GoOn = always,
    ) -> BulkRun:
        """Begin an operation, and handle up to REQUEST_JOBS jobs while `go_on` says so.

        It is stored before anything is done, and the sweep carries on whatever is left. Raises
        OjsError when it could not be stored.
        """
        now_ms = self._clock.now_ms()
        operation = BulkOperation(
            self._ids.uuid7(), action, wanted, now_ms, now_ms, dry_run=dry_run
        )
        claim = self._store.create(operation, claimed_until_ms=now_ms + CLAIM_MS)
        return self._work(claim, REQUEST_JOBS, go_on)

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Carry on operations that are not over, up to about `limit` jobs in all.

        Counts: retried, purged, cancelled, deleted, erased, refused (jobs that cannot be), counted
        (by dry runs), waiting and ended (operations), failed (operations), `more`. Operations
        alternate, so that a large one does not hold up the others.
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
        """One operation; of those on dead letters or `of_jobs` if said. Raises NotFound."""
        found = self._store.get(operation_id, now_ms=self._clock.now_ms())
        if found is None or of_jobs not in (None, found.action.of_jobs):
            raise NotFound("operation", operation_id)
        return found

    def list(
        self, *, limit: int = 50, cursor: str | None = None, of_jobs: bool = False
    ) -> Page[BulkOperation]:
        """A page of running and recent operations, latest first. Raises InvalidRequest."""
        if cursor is not None and not is_uuid7(cursor):
            raise InvalidRequest("cursor", BAD_CURSOR, value=cursor)
        return self._store.list(
            now_ms=self._clock.now_ms(), limit=limit, before=cursor, of_jobs=of_jobs
        )

    def stop(self, operation_id: str, *, of_jobs: bool | None = None) -> BulkOperation:
        """Stop an operation; what it did stays. Raises NotFound, Conflict when it is over."""
        found = self.get(operation_id, of_jobs=of_jobs)
        if found.phase is Phase.RUNNING:
            now_ms, running = self._clock.now_ms(), found
            stopped = unless_lost(lambda: self._store.stop(running, now_ms=now_ms))
            if stopped is not None:
                return stopped
            found = self.get(operation_id)
        if found.phase.over:
            raise Conflict(
                "The operation has finished.",
                current_state=found.phase,
                expected_states=[Phase.RUNNING],
                details={"operation_id": operation_id},
            )
        return found

    # --- one run ----------------------------------------------------------------------------

    def _run(
        self, operation_id: str, jobs: int, go_on: GoOn, counts: SweepCounts
    ) -> BulkRun | None:
        """One run of an operation that is not claimed; None if it is claimed or over."""
        now_ms = self._clock.now_ms()
        run = None
        # After a failure the claim expires, and a later run finds the operation as saved last.
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
        """Work on slices of an operation until it is over or the limits of this run are reached.
        Raises OjsError when the progress could not be saved.
        """
        run = BulkRun(claim, jobs, jobs * LOOKS_PER_JOB, go_on, self._clock.now_ms())
        run.now(replace(run.operation, waiting_for_room=False))
        if not wins(lambda: self._work_slices(run)):
            # The claim expired, or the operation was stopped: use what is stored.
            run.now(self.get(run.operation.id))
        return run

    def _work_slices(self, run: BulkRun) -> None:
        while not self._ended(run):
            try:
                self._slice(run)
            except (BackendUnavailable, BackendTimeout, QueueMayStay):
                # The next run sees whether the job was handled.
                run.troubled = True
            run.now(replace(run.operation, updated_ms=self._clock.now_ms()))
            if run.over or not run.may_go_on:
                break
            run.claim = self._store.save(run.claim, until_ms=self._clock.now_ms() + CLAIM_MS)
        if run.over and not run.operation.phase.over:
            now_ms = self._clock.now_ms()
            if run.operation.goes_round:
                run.waits, run.look_at_ms = True, now_ms + AGAIN_MS
                run.now(run.operation.next_round())
            else:
                run.now(run.operation.ended(Phase.COMPLETED, now_ms=now_ms))
        run.now(self._store.release(run.claim, look_at_ms=run.look_at_ms))

    def _ended(self, run: BulkRun) -> bool:
        """Whether it is to end before the scan is complete."""
        now_ms = self._clock.now_ms()
        late = now_ms - run.operation.started_ms > LIFETIME_MS
        if run.operation.phase is Phase.STOPPING or late:
            run.now(run.operation.ended(Phase.STOPPED, now_ms=now_ms))
            return True
        return False

    def _slice(self, run: BulkRun) -> None:
        """Handle one page of the index, and advance the operation's cursor accordingly."""
        if not isinstance(run.operation.wanted, DeadLetterFilter):
            try:
                self._of_jobs.handle(run)
            except QueueFull:
                self._wait_for_room(run)
            return
        wanted, size = run.operation.wanted, min(SLICE, run.jobs_left, run.looks_left)
        entries = self._jobs.index.dead(
            wanted.queue,
            # One more than is looked at, to see whether there is more.
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
        # Read once for each slice: a change of configuration holds from the next slice on.
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
        """The keys in order, each with its job if the job record may match, else None.

        Jobs come with their payload if the filter looks at args, MAX_ARGS_BYTES at a time.
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
        """Retry or purge one job; False when there is no time for it.

        Raises QueueFull, BackendUnavailable, BackendTimeout, QueueMayStay.
        """

        def act(found: Job) -> None:
            if run.operation.action is Action.PURGE:
                self._dead_letter.remove(found)
            else:
                self._redrive.bring_back(found, drops=False, known=known)

        return run.handle(self._jobs, job, lambda found: still_listed(found, key), act)
