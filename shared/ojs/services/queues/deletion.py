"""Deletion of queues with their jobs (ojs-queue-config, section 5.3).

A queue that is being deleted is `draining`: it accepts no jobs, running jobs continue, and waiting
jobs are discarded or moved. When the queue is empty, its item is deleted. A tombstone is kept for
10 minutes, because an enqueue request that started before the deletion may still store a job. The
sweep continues a deletion that a request did not finish, or that a crash interrupted.
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
    any_of,
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

# An enqueue request stores its jobs within seconds: a request takes at most 29 s.
TOMBSTONE_KEPT_MS = 600_000
_PAGE = 100
# Maximum number of jobs that the request itself processes. The sweep processes the rest.
_REQUEST_JOBS = 500
_PAGES = 20
# Queues that are processed in one round.
_SIDE_BY_SIDE = 8


@record
class _DeletionRun:
    """The work of one run for a queue that is being deleted."""

    queue: Queue
    deletion: Deletion
    # The IDs of the queue's waiting jobs, which are read when they are needed.
    waiting: Iterator[str]
    target: Queue | None = None
    # Whether all waiting jobs were processed.
    over: bool = False
    # Whether the target queue is at capacity.
    full: bool = False
    # Whether the queue can't be read. The next run tries again.
    troubled: bool = False
    # Cron jobs in the lanes of the queue, with their due times (ms).
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
        """Create the service.

        Args:
            queues: Store of the queues.
            jobs: Store of the jobs.
            changes: Writes changes of jobs.
            transitions: Applies transitions of jobs that are due.
            moves: Moves jobs to other queues.
            clock: Source of the current time.
            depth: Store of the depth counters.
            semaphore: Store of the concurrency permits.
            projected_depth: Returns the projected number of jobs in a queue.
            fire: Fires a cron job, by name.
            strict_queues: Whether queues must be created explicitly.
            for_each: Applies a function to several jobs concurrently.
        """
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
        """Start the deletion of a queue. A rejected deletion changes nothing.

        Strategies: `reject` deletes the queue only if it is empty. `discard` and `move` process
        the waiting jobs. `drain` lets workers finish them. Jobs of a type that the target does not
        allow stay, and so does the queue.

        Args:
            name: Name of the queue.
            strategy: The strategy, as received.
            target: Target queue of `move`. It must admit the producer.
            producer: Name of the producer.
            go_on: Returns whether enough time is left to continue.

        Returns:
            The deletion, and whether the queue is already deleted.

        Raises:
            InvalidRequest: The strategy or the target is invalid.
            NotFound: The queue does not exist.
            QueueNotFound: The target does not exist, and queues must be created explicitly.
            Conflict: The queue is not empty, is in a pool, or is being deleted.
            PermissionDenied: The target does not admit the producer.
        """
        deletion = self._parse_request(name, strategy, target)
        # Race: the queue is paused, resumed, added to a pool, or deleted after the read. The
        # losing request reads it again and repeats its checks.
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
        # The counted number can be delayed. Only _PAGES * _PAGE of the remaining jobs are read.
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
        """Process jobs of draining queues, and delete the queues that are empty.

        The queues are processed round-robin, with a slice of jobs each, so that a large or stuck
        queue does not delay the others. The jobs of a round are processed concurrently.

        Args:
            queues: The draining queues.
            counts: Receives `ended` and `failed` (jobs), `queues_deleted`, and `more` (1 if the
                limit or the time was reached).
            limit: Approximate maximum number of jobs.
            go_on: Returns whether enough time is left to continue.
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
            # A round. Unfinished queues go to the end of the list.
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
        """Return the work of one run for a deletion. None if the queue is not being deleted."""
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
        """Delete a queue whose jobs were processed, if it is empty."""
        if run.deletion.strategy is DeletionStrategy.REJECT:
            # The request crashed before its decision. Make the same decision now.
            counts["queues_deleted"] += self._delete_if_empty(run.queue, run.deletion)
            return
        # Jobs might have arrived in a lane that was read before. The queue is deleted only if one
        # check finds all lanes empty.
        now_ms = self._clock.now_ms()
        if not self._occupied(run.queue):
            self._queues.finish_deletion(run.queue, run.deletion, now_ms=now_ms)
            counts["queues_deleted"] += 1

    def _delete_if_empty(self, queue: Queue, deletion: Deletion) -> bool:
        """Finish or cancel a deletion with `reject`. Return whether the queue is deleted."""
        now_ms = self._clock.now_ms()
        # Race: a request stored a job after the queue was found empty. The deletion is cancelled.
        if self._holds_jobs(queue):
            self._queues.cancel_deletion(queue, deletion)
            return False
        self._queues.finish_deletion(queue, deletion, now_ms=now_ms)
        return True

    def look_after(self, limit: int, counts: SweepCounts, go_on: GoOn = always) -> None:
        """Process jobs that were added to deleted queues, and remove old tombstones.

        Args:
            limit: Maximum number of jobs.
            counts: Receives the counts of `resume`, and `crons` (cron jobs fired).
            go_on: Returns whether enough time is left to continue.
        """
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
            # The queue was created again, and its jobs belong to the new queue. Race: its name may
            # have been registered before the deletion removed it, so it is registered again.
            self._queues.register(gone.name)
            self._queues.remove_tombstone(gone)
            return
        deletion = gone.deletion
        if deletion is None:
            return
        if there is not None:
            # A run crashed after it wrote the tombstone. Finish the deletion.
            self._queues.finish_deletion(there, deletion, now_ms=now_ms)
        crons: dict[str, int] = {}
        match deletion.strategy:
            case DeletionStrategy.REJECT | DeletionStrategy.DRAIN:
                if self._occupied(gone, crons):
                    # An enqueue request was in progress. Its job is kept, and the queue is
                    # restored.
                    self._queues.restore(gone)
                    return
            case DeletionStrategy.DISCARD | DeletionStrategy.MOVE:
                # Includes running jobs that the index did not list when the queue was deleted: no
                # other sweep checks their leases.
                run = self._ending(gone, deletion, running=True)
                while not (run.over or run.full or run.troubled) and go_on():
                    if counts["ended"] >= limit:
                        break
                    self._end_slices([run], _PAGE, go_on, counts)
                crons |= run.crons
            case _:
                assert_never(deletion.strategy)
        self._fire_due(crons, counts, go_on)
        # The tombstone is kept as long as cron jobs are in the lanes.
        over = now_ms - deletion.began_ms > TOMBSTONE_KEPT_MS and not crons
        if over and not self._occupied(gone, crons) and not crons:
            # The counter first: after a crash in between, the tombstone still exists.
            before_ms = now_ms - TOMBSTONE_KEPT_MS
            self._counter.remove(gone.name, before_ms=before_ms)
            self._semaphore.remove(gone.name, before_ms=before_ms)
            self._queues.remove_tombstone(gone)

    def _fire_due(self, crons: Mapping[str, int], counts: SweepCounts, go_on: GoOn) -> None:
        """Fire the due cron jobs of a deleted queue, because no other sweep reads its lanes.

        If queues must be created explicitly, these cron jobs skip the run. Otherwise the first one
        creates the queue again, like an enqueue request.
        """
        for name, due_ms in crons.items():
            if due_ms <= self._clock.now_ms() and go_on():
                with counting_failures(counts, f"cron job {name}"):
                    self._fire(name)
                    counts["crons"] += 1

    # --- steps ------------------------------------------------------------------------------

    @staticmethod
    def _parse_request(name: str, strategy: object, target: object) -> Deletion:
        choices = any_of(DeletionStrategy)
        if strategy is None:
            raise InvalidRequest("strategy", f"is required. Send {choices}")
        with naming_field("strategy", strategy, f"must be {choices}"):
            chosen = DeletionStrategy(str(strategy))
        if chosen is not DeletionStrategy.MOVE:
            if target is not None:
                raise InvalidRequest("target_queue", "requires strategy move")
            return Deletion(chosen)
        if target is None:
            raise InvalidRequest("target_queue", "is required with strategy move")
        if not isinstance(target, str):
            raise InvalidRequest("target_queue", "must be the name of a queue", value=target)
        with naming_field("target_queue", target):
            envelope.check_queue(target)
        if target == name:
            raise InvalidRequest("target_queue", "must be a different queue", value=target)
        return Deletion(chosen, target)

    def _begin(self, name: str, deletion: Deletion, producer: str | None = None) -> Queue:
        """Read the queue and start its deletion.

        Raises LostRace if another request changed the queue first. Raises NotFound, QueueNotFound,
        Conflict, or PermissionDenied if it can't be deleted in this way.
        """
        queue = self._queues.get(name)
        if queue is None:
            raise NotFound("queue", name)
        _check_may_end(queue)
        if deletion.target is not None:
            self._check_target(deletion.target, producer)
        # Checked before the first write, so that other requests never see a queue as draining that
        # is not empty.
        if deletion.strategy is DeletionStrategy.REJECT and self._holds_jobs(queue):
            raise _still_holds_jobs(queue)
        return self._queues.begin_deletion(queue, deletion, now_ms=self._clock.now_ms())

    def _check_target(self, target: str, producer: str | None) -> None:
        """Reject an unusable target.

        A missing target is created with the first moved jobs. The policy for new queues applies to
        it.
        """
        found = self._queues.get(target)
        if found is None and self._strict:
            raise QueueNotFound(target)
        if found is not None and found.state is QueueState.DRAINING:
            raise Conflict(
                f"Target queue '{target}' is being deleted. Use another target_queue.",
                current_state=found.state,
                details={"queue": target, "field": "target_queue"},
            )
        found = found or self._queues.new(target, {}, now_ms=self._clock.now_ms())
        found.check_producer(producer)

    def _holds_jobs(self, queue: Queue) -> bool:
        """Return whether the queue contains jobs, or jobs that are being stored.

        The depth counter includes jobs that are being stored or that the index does not show yet.
        The sweep corrects a counter that a crash left too high. Statistics are not used, because
        they are delayed by some seconds.
        """
        counted = queue.tracks_depth and self._counter.value(queue.name).tracked > 0
        return counted or self._occupied(queue)

    def _occupied(self, queue: Queue, crons: dict[str, int] | None = None) -> bool:
        """Return whether the index lists an entry of the queue, or a job was claimed recently.

        Cron jobs do not count, because a queue can be deleted while cron jobs use it. They are
        added to `crons`.

        Entries that only a newer version knows count too, such as a job in a new state. They can't
        be processed here, and the queue must not be deleted before them: `reject` fails, and other
        deletions continue at a few queries per sweep until that version is deployed.
        """
        index, notes = self._jobs.index, self._jobs.notes
        # Before the index: a job that gets its due entry now is then found in one of the two.
        slots = notes.slots()
        if any(index.occupied(queue.name, lane, crons) for lane in range(queue.lanes)):
            return True
        # The index doesn't list recently claimed jobs.
        return next(notes.running(queue.name, slots), None) is not None

    def _waiting(
        self,
        queue: Queue,
        *,
        pages: int,
        running: bool = False,
        crons: dict[str, int] | None = None,
    ) -> Iterator[str]:
        """Yield the IDs of the jobs in a queue's lanes, from the index.

        With `running`, also yields running jobs, including recently claimed ones. Cron jobs are
        added to `crons`.
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
        """Return a run that discards or moves waiting jobs.

        With `running`, it also processes jobs with expired leases.
        """
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
        """Discard or move the next jobs of several queues concurrently. Return their number."""
        slices: list[list[tuple[_DeletionRun, Job]]] = []
        for run in turn:
            # The flag is reset when the slice is read.
            run.troubled = True
            with counting_failures(counts, f"deletion of queue {run.queue.name}"):
                ids = list(islice(run.waiting, size))
                run.over = len(ids) < size
                found = self._jobs.read_records(ids, counts.fail)
                slices.append([(run, found[job_id]) for job_id in ids if job_id in found])
                run.troubled = False
        # Alternate between the queues, so that the queues share the threads.
        mixed = [one for ones in zip_longest(*slices) for one in ones if one is not None]

        def end(one: tuple[_DeletionRun, Job]) -> bool | Exception:
            return self._try_to_end(one[0], one[1], go_on)

        ended = self._for_each(end, mixed)
        for (run, job), result in zip(mixed, ended, strict=True):
            if isinstance(result, BackendError) or not isinstance(result, bool | OjsError):
                counts.fail(f"job {job.id} of queue {run.queue.name}", result)
            elif isinstance(result, OjsError):
                # The target rejects the job. The operator must act, so the alarm doesn't count it.
                counts["failed"] += 1
                counts["refused"] += isinstance(result, JobTypeNotAllowed)
            else:
                counts["ended"] += result
        return len(mixed)

    def _try_to_end(self, run: _DeletionRun, job: Job, go_on: GoOn) -> bool | Exception:
        """Discard or move a waiting job, in any thread. Return the success, or the error."""
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
            pass  # fetched or cancelled by another request, or processed in the next run
        # A failed job must not delay the others. `_end_slices` counts it.
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
    """Raise Conflict for a queue that is in a pool or is already being deleted."""
    if queue.pools:
        # A pool must not lose a queue accidentally. An operator removes it from the pool first.
        raise Conflict(
            f"Can't delete queue '{queue.name}', because it is in a worker pool. Remove it from "
            "the pool first.",
            current_state=queue.state,
            details={"queue": queue.name, "pools": sorted(queue.pools)},
        )
    if queue.state is QueueState.DRAINING:
        raise Conflict(
            f"Queue '{queue.name}' is already being deleted.",
            current_state=QueueState.DRAINING,
            details={"queue": queue.name},
        )


def _still_holds_jobs(queue: Queue) -> Conflict:
    """Return the error of a rejected deletion, with the state before the deletion."""
    state = queue.state if queue.deletion is None else queue.deletion.before
    return Conflict(
        f"Can't delete queue '{queue.name}' with strategy 'reject', because it contains jobs. Use "
        "another strategy.",
        current_state=state,
        details={"queue": queue.name, "strategy": DeletionStrategy.REJECT.value},
    )
