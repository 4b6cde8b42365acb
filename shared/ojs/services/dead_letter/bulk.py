"""Many dead letters at a time: retried, or purged (dead-letter seed, 6.2 and 10).

An operation looks through the line of dead letters, oldest first, in slices: a page of the line,
its heads in one call, one conditional write for each that is meant, and then how far it is. A
request begins it and does what fits; the sweep goes on with it. What a job costs is the same
however many there are, and so is the memory that it takes.

Each job comes back, or goes, only as the dead letter that was found: however many work on one
operation, none is dispatched twice for it. Whoever dies leaves the jobs of the slice they were in
as they were or dealt with; those of the latter that were not counted yet stay uncounted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from ojs.store.dead_letter.bulk import BulkOperationStore, ClaimedOperation
from ojs.store.jobs import items
from ojs.store.jobs.records import JobStore
from ojs.store.queues.queues import QueueStore
from ojs.store.table.errors import LostRace

# Jobs that the request which begins an operation deals with itself, at the most.
REQUEST_JOBS = 500
# Of one operation before the sweep turns to the next, and entries looked at for each of them.
TURN_JOBS = 1_000
LOOKS_PER_JOB = 10
# Longer than a slice takes, and than any function runs: whoever holds on longer is dead.
HOLD_MS = 60_000
# A full queue is asked again after this.
ROOM_MS = 20_000
# An operation that is not over by then never will be: the queue it waits for stays full.
LIFETIME_MS = 7 * 86_400_000
# One page of the line: one query and one BatchGet.
SLICE = 100
# Contents kept apart that are in memory at a time, where args are looked at.
MAX_ARGS_BYTES = 8_000_000
_OPERATIONS = 20
_TRIES = 3


@dataclass
class Done:
    """What one turn did: the operation as it is then, and the jobs that were dealt with."""

    operation: BulkOperation
    job_ids: list[str] = field(default_factory=list)
    errors: list[Refusal] = field(default_factory=list)
    # The store was in trouble: better not to go on at once.
    troubled: bool = False

    @property
    def rests(self) -> bool:
        """Whether there is nothing to do for now."""
        return self.troubled or self.operation.phase.over or self.operation.waiting_for_room


@dataclass
class _BulkRun:
    """One turn under way: what it may still do, and what it did."""

    held: ClaimedOperation
    jobs_left: int
    looks_left: int
    go_on: Callable[[], bool]
    job_ids: list[str] = field(default_factory=list)
    errors: list[Refusal] = field(default_factory=list)
    # When others should look at it next.
    look_at_ms: int = 0
    # Nothing is left to look at; or the store is in trouble.
    over: bool = False
    troubled: bool = False

    @property
    def operation(self) -> BulkOperation:
        return self.held.operation

    def now(self, operation: BulkOperation) -> None:
        self.held = replace(self.held, operation=operation)

    @property
    def may_go_on(self) -> bool:
        return not self.troubled and self.jobs_left > 0 and self.looks_left > 0 and self.go_on()


class BulkRunner:
    """Begins bulk operations and carries them on."""

    def __init__(
        self,
        store: BulkOperationStore,
        jobs: JobStore,
        queues: QueueStore,
        dead_letter: DeadLetterSearch,
        redrive: Redrive,
        *,
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
        go_on: Callable[[], bool] = lambda: True,
    ) -> Done:
        """Begin an operation, and deal with up to REQUEST_JOBS jobs as long as `go_on` says.

        It is stored before anything is done: from then on the sweep sees to its end. Raises
        OjsError when it could not be stored.
        """
        now_ms = self._clock.now_ms()
        operation = BulkOperation(self._ids.uuid7(), action, wanted, now_ms, now_ms)
        held = self._store.create(operation, held_until_ms=now_ms + HOLD_MS)
        return self._work(held, REQUEST_JOBS, go_on)

    def run_once(
        self, now_ms: int, limit: int, go_on: Callable[[], bool] = lambda: True
    ) -> dict[str, int]:
        """Carry on what others left, up to about `limit` jobs; counts by what was done.

        Keys: retried, purged, refused (jobs that cannot come back), waiting and ended (operations),
        failed (of them), and `more` (1 when another pass should follow). Takes turns, so that one
        large operation does not hold up the others.
        """
        counts: Counter[str] = Counter()
        waiting = self._store.due(now_ms=now_ms, limit=_OPERATIONS)
        left = limit
        while waiting:
            for operation_id in list(waiting):
                if left <= 0 or not go_on():
                    counts["more"] = 1
                    return dict(counts)
                done = self._turn(operation_id, min(left, TURN_JOBS), go_on, counts)
                if done is None or done.rests:
                    waiting.remove(operation_id)
                if done is not None:
                    left -= max(1, len(done.job_ids) + len(done.errors))
        return dict(counts)

    def get(self, operation_id: str) -> BulkOperation:
        """One operation. Raises NotFound."""
        found = self._store.get(operation_id, now_ms=self._clock.now_ms())
        if found is None:
            raise NotFound("operation", operation_id)
        return found

    def list(self, *, limit: int = 50, cursor: str | None = None) -> Page[BulkOperation]:
        """Operations that are not over or were so lately, latest first. Raises InvalidRequest."""
        if cursor is not None and not is_uuid7(cursor):
            raise InvalidRequest("cursor", "is not one this server gave", value=cursor)
        return self._store.list(now_ms=self._clock.now_ms(), limit=limit, before=cursor)

    def stop(self, operation_id: str) -> BulkOperation:
        """Have an operation end; what it did is done. Raises NotFound, Conflict when it is over."""
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

    # --- a turn -----------------------------------------------------------------------------

    def _turn(
        self, operation_id: str, jobs: int, go_on: Callable[[], bool], counts: Counter[str]
    ) -> Done | None:
        """One turn of an operation that nobody works on; None when there is nothing to do."""
        now_ms = self._clock.now_ms()
        try:
            held = self._store.take(operation_id, now_ms=now_ms, until_ms=now_ms + HOLD_MS)
            if held is None:
                return None
            done = self._work(held, jobs, go_on)
        except OjsError:
            # The hold runs out, and the next pass finds it as it was saved last.
            counts["failed"] += 1
            return None
        name = "retried" if done.operation.action is Action.RETRY else "purged"
        counts[name] += len(done.job_ids)
        counts["refused"] += len(done.errors)
        counts["waiting"] += done.operation.waiting_for_room
        counts["ended"] += done.operation.phase.over
        return done

    def _work(self, held: ClaimedOperation, jobs: int, go_on: Callable[[], bool]) -> Done:
        """Slices of an operation until it is over, or what may be done at once is. Raises OjsError
        when it could not be saved.
        """
        turn = _BulkRun(held, jobs, jobs * LOOKS_PER_JOB, go_on)
        began_ms = self._clock.now_ms()
        turn.look_at_ms = began_ms
        turn.now(replace(turn.operation, waiting_for_room=False))
        try:
            while True:
                if self._ended(turn):
                    break
                try:
                    self._slice(turn)
                except (BackendUnavailable, BackendTimeout, QueueMayStay):
                    # What became of the job it was about is seen the next time.
                    turn.troubled = True
                turn.now(replace(turn.operation, updated_ms=self._clock.now_ms()))
                if turn.over or not turn.may_go_on:
                    break
                turn.held = self._store.save(turn.held, until_ms=self._clock.now_ms() + HOLD_MS)
            if turn.over and not turn.operation.phase.over:
                now_ms = self._clock.now_ms()
                turn.now(turn.operation.ended(Phase.COMPLETED, now_ms=now_ms))
            operation = self._store.release(turn.held, look_at_ms=turn.look_at_ms)
        except LostRace:
            # The hold ran out, or somebody stopped it: what others say of it holds.
            operation = self.get(turn.operation.id)
        return Done(operation, turn.job_ids, turn.errors, turn.troubled)

    def _ended(self, turn: _BulkRun) -> bool:
        """Whether it is to end before all was looked at."""
        now_ms = self._clock.now_ms()
        late = now_ms - turn.operation.started_ms > LIFETIME_MS
        if turn.operation.phase is Phase.STOPPING or late:
            turn.now(turn.operation.ended(Phase.STOPPED, now_ms=now_ms))
            return True
        return False

    def _slice(self, turn: _BulkRun) -> None:
        """One page of the line; the operation then is as far as that was dealt with."""
        wanted, size = turn.operation.wanted, min(SLICE, turn.jobs_left, turn.looks_left)
        entries = self._jobs.dead(
            wanted.queue,
            # One more than is looked at, to see whether there is more.
            limit=size + 1,
            since_ms=wanted.since_ms,
            until_ms=turn.operation.until_ms,
            after=turn.operation.cursor,
            oldest_first=True,
        )
        more, entries = len(entries) > size, entries[:size]
        heads = self._jobs.heads(job_id for job_id, _ in entries)
        # Read once for a slice: what is configured holds from the next one on at the latest.
        known: dict[str, Queue] = {}
        if turn.operation.action is Action.RETRY:
            known, _ = self._queues.get_many(sorted({job.queue for job in heads.values()}))
        for key, job in self._likely(wanted, entries, heads):
            try:
                meant = job is not None and wanted.matches_args(job)
                if meant and job is not None and not self._dealt_with(turn, job, known):
                    return
            except QueueFull:
                turn.now(replace(turn.operation, waiting_for_room=True))
                turn.look_at_ms = self._clock.now_ms() + ROOM_MS
                turn.jobs_left = 0
                return
            turn.looks_left -= 1
            turn.now(turn.operation.passed(key))
        turn.over = not more

    def _likely(
        self,
        wanted: DeadLetterFilter,
        entries: Sequence[tuple[str, str]],
        heads: dict[str, Job],
    ) -> Iterator[tuple[str, Job | None]]:
        """The keys in order, each with the job there if it may be meant as far as its head tells.

        With their contents where args are looked at, no more than MAX_ARGS_BYTES at a time.
        """
        part: list[tuple[str, Job | None]] = []
        size = 0
        for job_id, key in entries:
            job = heads.get(job_id)
            # The index may be behind: a job that went, or died again, is not the one listed.
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

    def _dealt_with(self, turn: _BulkRun, job: Job, known: dict[str, Queue]) -> bool:
        """Retry or purge one; False when there is no time for it.

        Raises QueueFull, BackendUnavailable, BackendTimeout, QueueMayStay.
        """
        if not turn.may_go_on:
            return False
        place = _place(job)
        found: Job | None = job
        for _ in range(_TRIES):
            # Another is looked at when it was changed since: its copy may have been made.
            if found is None or not found.dead_letter or _place(found) != place:
                return True
            try:
                if turn.operation.action is Action.PURGE:
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
                turn.errors.append(refusal)
                turn.now(turn.operation.refused(refusal))
            else:
                turn.job_ids.append(job.id)
                turn.now(turn.operation.done())
            turn.jobs_left -= 1
            return True
        raise BackendUnavailable("Others are changing this job.")


def _place(job: Job) -> str:
    """Where a dead letter stands in the line."""
    return str(items.index_entries(job).get("wsk", ""))
