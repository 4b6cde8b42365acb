"""Bulk operations: retry or purge many dead letters.

An operation scans the index of dead letters, oldest first, in slices: a page of the index, its job
records in one call, one conditional write for each matching job, then a write of the progress. The
request that begins an operation does as much as fits, and the sweep carries on. The cost and memory
for each job do not depend on the number of jobs.

Each job is retried or purged only as the dead letter that was found, so several workers on one
operation never dispatch a job twice. After a crash, the jobs of the current slice are done or not;
those done but not counted yet stay uncounted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ojs.clock import Clock
from ojs.domain.dead_letter.bulk import Action, BulkOperation, Phase, Refusal
from ojs.domain.dead_letter.filter import DeadLetterFilter
from ojs.domain.errors import (
    BackendTimeout,
    BackendUnavailable,
    Conflict,
    InvalidRequest,
    NotFound,
    OjsError,
    QueueFull,
    QueueMayStay,
)
from ojs.domain.ids import IdSource, is_uuid7
from ojs.domain.job.job import Job
from ojs.domain.page import Page
from ojs.domain.queue.queue import Queue
from ojs.services.dead_letter.redrive import Redrive
from ojs.services.dead_letter.search import DeadLetterSearch
from ojs.services.sweeps import GoOn, SweepReport, always
from ojs.store.dead_letter.bulk import BulkOperationStore, ClaimedOperation
from ojs.store.jobs import items
from ojs.store.jobs.records import JobStore
from ojs.store.queues.queues import QueueStore
from ojs.store.table.errors import LostRace

# Jobs that the request which begins an operation handles itself, at most.
REQUEST_JOBS = 500
# Jobs of one operation before the sweep goes on with the next, and index entries read for each job.
RUN_JOBS = 1_000
LOOKS_PER_JOB = 10
# Longer than a slice takes and than any function runs: a claim that is older is left by a crash.
CLAIM_MS = 60_000
# A full queue is tried again after this.
ROOM_MS = 20_000
# An operation that is not over by then is stopped: the queue that it waits for stays full.
LIFETIME_MS = 7 * 86_400_000
# One page of the index: one query and one BatchGet.
SLICE = 100
# Bytes of offloaded payloads in memory at a time, where a filter looks at args.
MAX_ARGS_BYTES = 8_000_000
_OPERATIONS = 20
_TRIES = 3


@dataclass
class Done:
    """What one run did: the operation as it is then, and the jobs that were handled."""

    operation: BulkOperation
    job_ids: list[str] = field(default_factory=list)
    errors: list[Refusal] = field(default_factory=list)
    # The store failed; do not go on at once.
    troubled: bool = False

    @property
    def rests(self) -> bool:
        """Whether the operation needs no further run now."""
        return self.troubled or self.operation.phase.over or self.operation.waiting_for_room


@dataclass
class _BulkRun:
    """One run under way: what it may still do, and what it did."""

    claim: ClaimedOperation
    jobs_left: int
    looks_left: int
    go_on: GoOn
    job_ids: list[str] = field(default_factory=list)
    errors: list[Refusal] = field(default_factory=list)
    # When the sweep should look at it next.
    look_at_ms: int = 0
    # The scan has reached the end; the store failed.
    over: bool = False
    troubled: bool = False

    @property
    def operation(self) -> BulkOperation:
        return self.claim.operation

    def now(self, operation: BulkOperation) -> None:
        self.claim = replace(self.claim, operation=operation)

    @property
    def may_go_on(self) -> bool:
        return not self.troubled and self.jobs_left > 0 and self.looks_left > 0 and self.go_on()


class BulkRunner:
    """Begins bulk operations and carries them on."""

    name = "bulk"

    def __init__(
        self,
        *,
        store: BulkOperationStore,
        jobs: JobStore,
        queues: QueueStore,
        dead_letter: DeadLetterSearch,
        redrive: Redrive,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._store = store
        self._jobs = jobs
        self._queues = queues
        self._dead_letter = dead_letter
        self._redrive = redrive
        self._clock = clock
        self._ids = ids

    def begin(
        self,
        action: Action,
        wanted: DeadLetterFilter,
        *,
        go_on: GoOn = always,
    ) -> Done:
        """Begin an operation, and handle up to REQUEST_JOBS jobs while `go_on` says so.

        It is stored before anything is done, and the sweep carries on whatever is left. Raises
        OjsError when it could not be stored.
        """
        now_ms = self._clock.now_ms()
        operation = BulkOperation(self._ids.uuid7(), action, wanted, now_ms, now_ms)
        claim = self._store.create(operation, claimed_until_ms=now_ms + CLAIM_MS)
        return self._work(claim, REQUEST_JOBS, go_on)

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Carry on operations that are not over, up to about `limit` jobs in all.

        Counts: retried, purged, refused (jobs that cannot be retried), waiting and ended
        (operations), failed (operations), `more`. Operations alternate, so that a large one does
        not hold up the others.
        """
        counts: Counter[str] = Counter()
        waiting = self._store.due(now_ms=now_ms, limit=_OPERATIONS)
        left = limit
        while waiting:
            for operation_id in list(waiting):
                if left <= 0 or not go_on():
                    counts["more"] = 1
                    return SweepReport(counts)
                done = self._run(operation_id, min(left, RUN_JOBS), go_on, counts)
                if done is None or done.rests:
                    waiting.remove(operation_id)
                if done is not None:
                    left -= max(1, len(done.job_ids) + len(done.errors))
        return SweepReport(counts)

    def get(self, operation_id: str) -> BulkOperation:
        """One operation. Raises NotFound."""
        found = self._store.get(operation_id, now_ms=self._clock.now_ms())
        if found is None:
            raise NotFound("operation", operation_id)
        return found

    def list(self, *, limit: int = 50, cursor: str | None = None) -> Page[BulkOperation]:
        """A page of running and recent operations, latest first. Raises InvalidRequest."""
        if cursor is not None and not is_uuid7(cursor):
            raise InvalidRequest("cursor", "is not one this server gave", value=cursor)
        return self._store.list(now_ms=self._clock.now_ms(), limit=limit, before=cursor)

    def stop(self, operation_id: str) -> BulkOperation:
        """Stop an operation; what it did stays. Raises NotFound, Conflict when it is over."""
        found = self.get(operation_id)
        if found.phase is Phase.RUNNING:
            try:
                return self._store.stop(found, now_ms=self._clock.now_ms())
            except LostRace:
                found = self.get(operation_id)
        if found.phase.over:
            raise Conflict(
                "The operation is over.",
                current_state=found.phase,
                expected_states=[Phase.RUNNING],
                details={"operation_id": operation_id},
            )
        return found

    # --- one run ----------------------------------------------------------------------------

    def _run(self, operation_id: str, jobs: int, go_on: GoOn, counts: Counter[str]) -> Done | None:
        """One run of an operation that is not claimed; None if it is claimed or over."""
        now_ms = self._clock.now_ms()
        try:
            claim = self._store.take(operation_id, now_ms=now_ms, until_ms=now_ms + CLAIM_MS)
            if claim is None:
                return None
            done = self._work(claim, jobs, go_on)
        except OjsError:
            # The claim expires, and a later run finds the operation as it was saved last.
            counts["failed"] += 1
            return None
        name = "retried" if done.operation.action is Action.RETRY else "purged"
        counts[name] += len(done.job_ids)
        counts["refused"] += len(done.errors)
        counts["waiting"] += done.operation.waiting_for_room
        counts["ended"] += done.operation.phase.over
        return done

    def _work(self, claim: ClaimedOperation, jobs: int, go_on: GoOn) -> Done:
        """Work on slices of an operation until it is over or the limits of this run are reached.
        Raises OjsError when the progress could not be saved.
        """
        run = _BulkRun(claim, jobs, jobs * LOOKS_PER_JOB, go_on)
        began_ms = self._clock.now_ms()
        run.look_at_ms = began_ms
        run.now(replace(run.operation, waiting_for_room=False))
        try:
            while True:
                if self._ended(run):
                    break
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
                run.now(run.operation.ended(Phase.COMPLETED, now_ms=now_ms))
            operation = self._store.release(run.claim, look_at_ms=run.look_at_ms)
        except LostRace:
            # The claim expired, or the operation was stopped: use what is stored.
            operation = self.get(run.operation.id)
        return Done(operation, run.job_ids, run.errors, run.troubled)

    def _ended(self, run: _BulkRun) -> bool:
        """Whether it is to end before the scan is complete."""
        now_ms = self._clock.now_ms()
        late = now_ms - run.operation.started_ms > LIFETIME_MS
        if run.operation.phase is Phase.STOPPING or late:
            run.now(run.operation.ended(Phase.STOPPED, now_ms=now_ms))
            return True
        return False

    def _slice(self, run: _BulkRun) -> None:
        """Handle one page of the index, and advance the operation's cursor accordingly."""
        wanted, size = run.operation.wanted, min(SLICE, run.jobs_left, run.looks_left)
        entries = self._jobs.index.dead(
            wanted.queue,
            # One more than is looked at, to see whether there is more.
            limit=size + 1,
            since_ms=wanted.since_ms,
            until_ms=run.operation.until_ms,
            after=run.operation.cursor,
            oldest_first=True,
        )
        more, entries = len(entries) > size, entries[:size]
        heads = self._jobs.heads(job_id for job_id, _ in entries)
        # Read once for each slice: a change of configuration holds from the next slice on.
        known: dict[str, Queue] = {}
        if run.operation.action is Action.RETRY:
            known, _ = self._queues.get_many(sorted({job.queue for job in heads.values()}))
        for key, job in self._candidates(wanted, entries, heads):
            try:
                meant = job is not None and wanted.matches_args(job)
                if meant and job is not None and not self._handle(run, job, known):
                    return
            except QueueFull:
                run.now(replace(run.operation, waiting_for_room=True))
                run.look_at_ms = self._clock.now_ms() + ROOM_MS
                run.jobs_left = 0
                return
            run.looks_left -= 1
            run.now(run.operation.passed(key))
        run.over = not more

    def _candidates(
        self,
        wanted: DeadLetterFilter,
        entries: Sequence[tuple[str, str]],
        heads: dict[str, Job],
    ) -> Iterator[tuple[str, Job | None]]:
        """The keys in order, each with its job if the job record may match, else None.

        Jobs come with their payload if the filter looks at args, MAX_ARGS_BYTES at a time.
        """
        part: list[tuple[str, Job | None]] = []
        size = 0
        for job_id, key in entries:
            job = heads.get(job_id)
            # The index may be behind: a job that was removed or discarded again is not the one
            # listed.
            if job is not None and not (wanted.matches_head(job) and _place(job) == key):
                job = None
            more = job.content_bytes if job is not None and wanted.args is not None else 0
            if part and size + more > MAX_ARGS_BYTES:
                yield from self._filled(wanted, part)
                part, size = [], 0
            part.append((key, job))
            size += more
        yield from self._filled(wanted, part)

    def _filled(
        self, wanted: DeadLetterFilter, part: Sequence[tuple[str, Job | None]]
    ) -> Iterator[tuple[str, Job | None]]:
        if wanted.args is None:
            yield from part
            return
        jobs = self._jobs.with_contents([job for _, job in part if job is not None])
        by_id = {job.id: job for job in jobs}
        for key, job in part:
            yield key, None if job is None else by_id[job.id]

    def _handle(self, run: _BulkRun, job: Job, known: dict[str, Queue]) -> bool:
        """Retry or purge one job; False when there is no time for it.

        Raises QueueFull, BackendUnavailable, BackendTimeout, QueueMayStay.
        """
        if not run.may_go_on:
            return False
        place = _place(job)
        found: Job | None = job
        for _ in range(_TRIES):
            # After a lost race look again: the change may only be that its copy was made.
            if found is None or not found.dead_letter or _place(found) != place:
                return True
            try:
                if run.operation.action is Action.PURGE:
                    self._dead_letter.remove(found)
                else:
                    self._redrive.bring_back(found, drops=False, known=known)
            except LostRace:
                found = self._jobs.head(job.id)
                continue
            except (BackendUnavailable, BackendTimeout, QueueMayStay):
                raise
            except OjsError as error:
                if isinstance(error, QueueFull) and not error.never(found.size):
                    raise
                refusal = Refusal.of(job.id, error)
                run.errors.append(refusal)
                run.now(run.operation.refused(refusal))
            else:
                run.job_ids.append(job.id)
                run.now(run.operation.done())
            run.jobs_left -= 1
            return True
        raise BackendUnavailable("Others are changing this job.")


def _place(job: Job) -> str:
    """The position of a dead letter in the index."""
    return str(items.index_entries(job).get("wsk", ""))
