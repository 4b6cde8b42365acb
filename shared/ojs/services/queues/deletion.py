"""Deletion of queues, and what happens to their jobs (ojs-queue-config, section 5.3).

A queue that is being deleted is `draining`: it takes no jobs, running jobs continue, and waiting
jobs are discarded or moved. When it is empty its item is deleted; a tombstone stays for a while: a
push under way when the deletion began may still store a job, which must not be lost. The sweep
continues a deletion where a request, or a crash, left it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice, zip_longest
from typing import assert_never

from ojs.clock import Clock
from ojs.domain.errors import (
    BackendError,
    Conflict,
    InvalidRequest,
    JobTypeNotAllowed,
    NotFound,
    OjsError,
    QueueFull,
    QueueNotFound,
    naming_field,
)
from ojs.domain.job import envelope, lifecycle
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.queue.queue import Deletion, DeletionStrategy, Queue, QueueState
from ojs.records import record
from ojs.services.for_each import ForEach, in_threads
from ojs.services.jobs.moving import JobMover
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.jobs.transitions import JobChanges
from ojs.services.queues.configure import until_won
from ojs.services.sweeps import GoOn, SweepCounts, always, counting_failures
from ojs.store.bounds.depth_counter import DepthCounter
from ojs.store.jobs.records import JobStore
from ojs.store.permits.semaphore import ConcurrencySemaphore
from ojs.store.queues import queues as store
from ojs.store.table import keys
from ojs.store.table.errors import LostRace

# A push under way is stored within seconds: a request takes at most 29 s.
TOMBSTONE_KEPT_MS = 600_000
_PAGE = 100
# Jobs that the request itself deals with; the sweep does the rest.
_REQUEST_JOBS = 500
_PAGES = 20
# Queues that take turns in one round.
_SIDE_BY_SIDE = 8


@record
class _DeletionRun:
    """What one run does for one queue that is being deleted."""

    queue: Queue
    deletion: Deletion
    # The ids of its waiting jobs; read as it goes on.
    waiting: Iterator[str]
    target: Queue | None = None
    # All waiting jobs were looked at.
    over: bool = False
    # The target has no room for more.
    full: bool = False
    # The queue cannot be read; the next run tries again.
    troubled: bool = False
    # Cron jobs that stand in its lanes, and when each is due (ms).
    crons: dict[str, int] = field(default_factory=dict)


class QueueDeletion:
    """Deletes queues."""

    def __init__(
        self,
        *,
        queues: store.QueueStore,
        jobs: JobStore,
        changes: JobChanges,
        transitions: TimeTransitions,
        moves: JobMover,
        clock: Clock,
        depth: DepthCounter,
        semaphore: ConcurrencySemaphore,
        projected_depth: Callable[[str], int],
        fire: Callable[[str], object],
        strict_queues: bool = False,
        for_each: ForEach = in_threads,
    ) -> None:
        """`depth` returns the counted number of jobs in a queue, `fire` fires a cron job."""
        self._fire = fire
        self._for_each = for_each
        self._queues = queues
        self._jobs = jobs
        self._changes = changes
        self._transitions = transitions
        self._moves = moves
        self._counter = depth
        self._semaphore = semaphore
        self._clock = clock
        self._depth = projected_depth
        self._strict = strict_queues

    def delete(
        self,
        name: str,
        strategy: object,
        target: object = None,
        *,
        producer: str | None = None,
        go_on: GoOn = always,
    ) -> tuple[Deletion, bool]:
        """Begin to delete a queue. Returns the deletion, and whether the queue is gone already.

        `reject` deletes it only if it is empty, `discard` and `move` (to `target`) deal with the
        waiting jobs, `drain` lets workers finish them. The target must admit the `producer`. Jobs
        of a type that it does not allow stay, and the queue with them. A refused deletion changes
        nothing. Raises InvalidRequest, NotFound, QueueNotFound (strict mode: the target does not
        exist), Conflict, PermissionDenied.
        """
        deletion = self._parse_request(name, strategy, target)
        # Race: the queue is paused, resumed, added to a pool or deleted after it was read. The
        # loser reads it again and decides anew.
        queue = until_won(lambda: self._begin(name, deletion, producer))
        if deletion.strategy is DeletionStrategy.REJECT:
            if not self._delete_if_empty(queue, queue.deletion or deletion):
                raise _still_holds_jobs(queue)
            return deletion, True
        counted = self._depth(name)
        done = SweepCounts()
        self.resume([queue], done, limit=_REQUEST_JOBS, go_on=go_on)
        if done["queues_deleted"]:
            return replace(deletion, affected=done["ended"]), True
        remaining = self._waiting(queue, pages=_PAGES, running=True)
        # The counted number can be late, and at most so many of the remaining jobs are read.
        left = sum(1 for _ in islice(remaining, _PAGES * _PAGE))
        affected = max(counted, done["ended"] + left) if left else done["ended"]
        return replace(deletion, affected=affected, refused=done["refused"]), False

    def resume(
        self,
        queues: Sequence[Queue],
        counts: SweepCounts,
        *,
        limit: int,
        go_on: GoOn = always,
    ) -> None:
        """Deal with up to about `limit` jobs of draining queues, and delete those that are empty.

        The queues take turns, a slice of jobs each, so that a large or stuck one does not hold up
        the others; the jobs of a round are dealt with at the same time. Counts `ended` and `failed`
        jobs, `queues_deleted`, and `more` when the limit or the time was reached.
        """
        left: list[_DeletionRun] = []
        for queue in queues:
            with counting_failures(counts, f"deletion of queue {queue.name}"):
                if (run := self._run(queue)) is not None:
                    left.append(run)
        done = 0
        share = max(1, min(_PAGE, limit // max(1, min(len(left), _SIDE_BY_SIDE))))
        while left:
            if done >= limit or not go_on():
                counts["more"] = 1
                break
            # A round; those that are not done go to the end of the line.
            turn, left = left[:_SIDE_BY_SIDE], left[_SIDE_BY_SIDE:]
            done += self._end_slices(turn, min(share, limit - done), go_on, counts)
            for run in turn:
                if run.troubled or run.full:
                    continue
                if not run.over:
                    left.append(run)
                    continue
                with counting_failures(counts, f"deletion of queue {run.queue.name}"):
                    self._finish(run, counts)

    def _run(self, queue: Queue) -> _DeletionRun | None:
        """What one run has to do for the deletion of a queue."""
        deletion = queue.deletion
        if deletion is None:
            return None
        match deletion.strategy:
            case DeletionStrategy.DISCARD | DeletionStrategy.MOVE:
                return self._ending(queue, deletion)
            case DeletionStrategy.REJECT | DeletionStrategy.DRAIN:
                return _DeletionRun(queue, deletion, iter(()))
            case _:
                assert_never(deletion.strategy)

    def _finish(self, run: _DeletionRun, counts: Counter[str]) -> None:
        """Delete a queue whose jobs were dealt with, if it is empty."""
        if run.deletion.strategy is DeletionStrategy.REJECT:
            # The request crashed before it decided: decide now as it would have.
            counts["queues_deleted"] += self._delete_if_empty(run.queue, run.deletion)
            return
        # Jobs may have come to a lane that was read before: the queue is deleted only when all
        # lanes are empty in one look.
        now_ms = self._clock.now_ms()
        if not self._occupied(run.queue):
            self._queues.finish_deletion(run.queue, run.deletion, now_ms=now_ms)
            counts["queues_deleted"] += 1

    def _delete_if_empty(self, queue: Queue, deletion: Deletion) -> bool:
        """Finish or cancel a deletion with `reject`; returns whether the queue is gone."""
        now_ms = self._clock.now_ms()
        # Race: a push stored a job after the queue was found empty. The push wins.
        if self._holds_jobs(queue):
            self._queues.cancel_deletion(queue, deletion)
            return False
        self._queues.finish_deletion(queue, deletion, now_ms=now_ms)
        return True

    def look_after(self, limit: int, counts: SweepCounts, go_on: GoOn = always) -> None:
        """Deal with jobs that came to deleted queues, and remove old tombstones."""
        for gone in self._queues.tombstones(limit=_PAGE, unreadable=counts.fail):
            if counts["ended"] >= limit or not go_on():
                counts["more"] = 1
                break
            with counting_failures(counts, f"deleted queue {gone.name}"):
                self._look_after(gone, limit, counts, go_on)

    def _look_after(self, gone: Queue, limit: int, counts: SweepCounts, go_on: GoOn) -> None:
        now_ms = self._clock.now_ms()
        there = self._queues.get(gone.name)
        if there is not None and there.deletion != gone.deletion:
            # The queue was created again, and its jobs are its own. Race: its name may have
            # been registered before the deletion removed it, so it is registered once more.
            self._queues.register(gone.name)
            self._queues.remove_tombstone(gone)
            return
        deletion = gone.deletion
        if deletion is None:
            return
        if there is not None:
            # A run crashed after it wrote the tombstone: finish the deletion.
            self._queues.finish_deletion(there, deletion, now_ms=now_ms)
        crons: dict[str, int] = {}
        match deletion.strategy:
            case DeletionStrategy.REJECT | DeletionStrategy.DRAIN:
                if self._occupied(gone, crons):
                    # A push was under way: it wins, and the queue is restored.
                    self._queues.restore(gone)
                    return
            case DeletionStrategy.DISCARD | DeletionStrategy.MOVE:
                # Also running jobs, if the index did not show them when the queue was deleted:
                # no other sweep checks their leases.
                run = self._ending(gone, deletion, running=True)
                while not (run.over or run.full or run.troubled) and go_on():
                    if counts["ended"] >= limit:
                        break
                    self._end_slices([run], _PAGE, go_on, counts)
                crons |= run.crons
            case _:
                assert_never(deletion.strategy)
        self._fire_due(crons, counts, go_on)
        # The tombstone stays while they stand there.
        over = now_ms - deletion.began_ms > TOMBSTONE_KEPT_MS and not crons
        if over and not self._occupied(gone, crons) and not crons:
            # The counter first: after a crash in between the tombstone is still there.
            before_ms = now_ms - TOMBSTONE_KEPT_MS
            self._counter.remove(gone.name, before_ms=before_ms)
            self._semaphore.remove(gone.name, before_ms=before_ms)
            self._queues.remove_tombstone(gone)

    def _fire_due(self, crons: Mapping[str, int], counts: SweepCounts, go_on: GoOn) -> None:
        """Fire cron jobs of a queue that is gone, by when they are due (ms): no other sweep looks
        at its lanes. In strict mode they skip their ticks; otherwise the first one makes the queue
        again, as a push does.
        """
        for name, due_ms in crons.items():
            if due_ms <= self._clock.now_ms() and go_on():
                with counting_failures(counts, f"cron job {name}"):
                    self._fire(name)
                    counts["crons"] += 1

    # --- steps ------------------------------------------------------------------------------

    @staticmethod
    def _parse_request(name: str, strategy: object, target: object) -> Deletion:
        choices = f"one of {', '.join(DeletionStrategy)}"
        if strategy is None:
            raise InvalidRequest("strategy", f"is required: {choices}")
        with naming_field("strategy", strategy, f"must be {choices}"):
            chosen = DeletionStrategy(str(strategy))
        if chosen is not DeletionStrategy.MOVE:
            if target is not None:
                raise InvalidRequest("target_queue", "is for the strategy 'move' only")
            return Deletion(chosen)
        if target is None:
            raise InvalidRequest("target_queue", "is required for the strategy 'move'")
        if not isinstance(target, str):
            raise InvalidRequest("target_queue", "must be a queue's name", value=target)
        with naming_field("target_queue", target):
            envelope.check_queue(target)
        if target == name:
            raise InvalidRequest("target_queue", "must be another queue", value=target)
        return Deletion(chosen, target)

    def _begin(self, name: str, deletion: Deletion, producer: str | None = None) -> Queue:
        """Read the queue and begin its deletion.

        Raises LostRace when the queue changed meanwhile, and NotFound, QueueNotFound, Conflict or
        PermissionDenied when it cannot be deleted in this way.
        """
        queue = self._queues.get(name)
        if queue is None:
            raise NotFound("queue", name)
        _check_may_end(queue)
        if deletion.target is not None:
            self._check_target(deletion.target, producer)
        # Checked before anything is written, so that pushes and fetches of a queue that is not
        # empty never see it draining.
        if deletion.strategy is DeletionStrategy.REJECT and self._holds_jobs(queue):
            raise _still_holds_jobs(queue)
        return self._queues.begin_deletion(queue, deletion, now_ms=self._clock.now_ms())

    def _check_target(self, target: str, producer: str | None) -> None:
        """Refuse an unusable target. A missing one is created when the first jobs are moved, and
        has the rules of the policy for new queues.
        """
        found = self._queues.get(target)
        if found is None and self._strict:
            raise QueueNotFound(target)
        if found is not None and found.state is QueueState.DRAINING:
            raise Conflict(
                f"The target queue '{target}' is being deleted, too.",
                current_state=found.state,
                details={"queue": target, "field": "target_queue"},
            )
        found = found or self._queues.new(target, {}, now_ms=self._clock.now_ms())
        found.check_producer(producer)

    def _holds_jobs(self, queue: Queue) -> bool:
        """Whether jobs are in the queue, or are about to be.

        The depth counter includes jobs that are being stored or that the index does not show yet;
        the sweep repairs what a crash left in it too much. The counters of the statistics are not
        used: they are seconds late.
        """
        counted = queue.tracks_depth and self._counter.value(queue.name).tracked > 0
        return counted or self._occupied(queue)

    def _occupied(self, queue: Queue, crons: dict[str, int] | None = None) -> bool:
        """Whether the index shows anything in the queue, or something was claimed a moment ago.

        Cron jobs do not count, and are added to `crons`: a queue may be deleted under them.

        Also what only a newer version knows, such as a job in a state of its own. It is not ended
        here, and the queue must not go from under it: `reject` refuses, and any other deletion
        stays under way, at a few queries a sweep, until a version that knows it is deployed.
        """
        index, notes = self._jobs.index, self._jobs.notes
        # Before the index: a job that gets its due entry now is found here or there.
        slots = notes.slots()
        if any(index.occupied(queue.name, lane, crons) for lane in range(queue.lanes)):
            return True
        # What was claimed a moment ago is not in the index.
        return next(notes.running(queue.name, slots), None) is not None

    def _waiting(
        self,
        queue: Queue,
        *,
        pages: int,
        running: bool = False,
        crons: dict[str, int] | None = None,
    ) -> Iterator[str]:
        """Ids of the jobs in a queue's lanes, from the index; those that were claimed a moment ago
        are among the `running` ones. Cron jobs are added to `crons`.
        """
        slots = self._jobs.notes.slots() if running else ()
        for lane in range(queue.lanes):
            yield from self._jobs.index.query_waiting(
                queue.name, lane, pages=pages, running=running, crons=crons
            )
        for item in self._jobs.notes.running(queue.name, slots):
            if "wpk" not in item:
                yield keys.job_id(str(item["pk"]))

    def _ending(self, queue: Queue, deletion: Deletion, *, running: bool = False) -> _DeletionRun:
        """A run that discards or moves waiting jobs, and with `running` those whose lease ended."""
        target = None
        if deletion.target is not None:
            now_ms = self._clock.now_ms()
            target = self._queues.get(deletion.target)
            target = target or self._queues.ensure(deletion.target, now_ms=now_ms)
        crons: dict[str, int] = {}
        waiting = self._waiting(queue, pages=_PAGES, running=running, crons=crons)
        return _DeletionRun(queue, deletion, waiting, target, crons=crons)

    def _end_slices(
        self, turn: Sequence[_DeletionRun], size: int, go_on: GoOn, counts: SweepCounts
    ) -> int:
        """Discard or move the next jobs of several queues at the same time; returns how many were
        looked at.
        """
        slices: list[list[tuple[_DeletionRun, Job]]] = []
        for run in turn:
            # Until the slice is read and dealt with.
            run.troubled = True
            with counting_failures(counts, f"deletion of queue {run.queue.name}"):
                ids = list(islice(run.waiting, size))
                run.over = len(ids) < size
                found = self._jobs.read_records(ids, counts.fail)
                slices.append([(run, found[job_id]) for job_id in ids if job_id in found])
                run.troubled = False
        # A job of each in turn, so that they share the threads.
        mixed = [one for ones in zip_longest(*slices) for one in ones if one is not None]

        def end(one: tuple[_DeletionRun, Job]) -> bool | Exception:
            return self._try_to_end(one[0], one[1], go_on)

        ended = self._for_each(end, mixed)
        for (run, job), result in zip(mixed, ended, strict=True):
            if isinstance(result, BackendError) or not isinstance(result, bool | OjsError):
                counts.fail(f"job {job.id} of queue {run.queue.name}", result)
            elif isinstance(result, OjsError):
                # The target does not take it: that is for the operator, not for the alarm.
                counts["failed"] += 1
                counts["refused"] += isinstance(result, JobTypeNotAllowed)
            else:
                counts["ended"] += result
        return len(mixed)

    def _try_to_end(self, run: _DeletionRun, job: Job, go_on: GoOn) -> bool | Exception:
        """Discard or move one waiting job, in any thread; whether that was done, or the error."""
        if run.full:
            return False
        if not go_on():
            run.over = False
            return False
        try:
            return self._end(job, run.queue, run.deletion, run.target)
        except QueueFull:
            run.full = True
        except LostRace:
            pass  # fetched or cancelled meanwhile, or met again in the next run
        # One job that cannot be dealt with must not hold up the others; `_end_slices` counts it.
        except Exception as error:  # noqa: BLE001
            return error
        return False

    def _end(self, job: Job, queue: Queue, deletion: Deletion, target: Queue | None) -> bool:
        """Discard or move one waiting job. Raises LostRace, QueueFull, JobTypeNotAllowed."""
        before = self._transitions.apply(job)
        if before is None or before.queue != queue.name:
            return False
        if before.state is State.ACTIVE or before.state.terminal:
            return False
        now_ms = self._clock.now_ms()
        if target is None:
            after, failure = lifecycle.withdraw(before, now_ms=now_ms)
            self._changes.replace(before, after, failure=failure)
            return True
        target.check_allowed(before.type)
        self._moves.move(before, target)
        return True


def _check_may_end(queue: Queue) -> None:
    """Raise Conflict for a queue that is in a pool, or is being deleted already."""
    if queue.pools:
        # A pool must not lose a queue by accident: an operator removes it from the pool first.
        raise Conflict(
            f"The queue '{queue.name}' is in a worker pool; take it out first.",
            current_state=queue.state,
            details={"queue": queue.name, "pools": sorted(queue.pools)},
        )
    if queue.state is QueueState.DRAINING:
        raise Conflict(
            f"The queue '{queue.name}' is being deleted already.",
            current_state=QueueState.DRAINING,
            details={"queue": queue.name},
        )


def _still_holds_jobs(queue: Queue) -> Conflict:
    """The error that refuses a deletion with `reject`, with the state before it began."""
    state = queue.state if queue.deletion is None else queue.deletion.before
    return Conflict(
        f"The queue '{queue.name}' still holds jobs.",
        current_state=state,
        details={"queue": queue.name, "strategy": DeletionStrategy.REJECT.value},
    )
