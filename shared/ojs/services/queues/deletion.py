"""Deletion of queues, and what happens to their jobs (ojs-queue-config, section 5.3).

A queue that is being deleted is `draining`: it takes no jobs, running jobs continue, and waiting
jobs are discarded or moved. When it is empty its item is deleted; a tombstone stays for a while: a
push under way when the deletion began may still store a job, which must not be lost. The sweep
continues a deletion where a request, or a crash, left it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import assert_never

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    OjsError,
    QueueFull,
    QueueNotFound,
    naming_field,
)
from ojs.domain.ids import IdSource
from ojs.domain.job import envelope, lifecycle
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.queue.queue import Deletion, DeletionStrategy, Queue, QueueState
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.jobs.transitions import JobChanges
from ojs.services.permits.backpressure import QueueBounds
from ojs.services.permits.lifecycle import Permits
from ojs.services.queues.configure import until_won
from ojs.store.jobs.records import JobStore
from ojs.store.permits.depth_counter import DepthCounter
from ojs.store.permits.semaphore import ConcurrencySemaphore
from ojs.store.queues import queues as store
from ojs.store.table.errors import LostRace

# A push under way is stored within seconds: a request takes at most 29 s.
TOMBSTONE_KEPT_MS = 600_000
_PAGE = 100
# Jobs that the request itself deals with; the sweep does the rest.
_REQUEST_JOBS = 500
_PAGES = 20


class QueueDeletion:
    """Deletes queues."""

    def __init__(
        self,
        *,
        queues: store.QueueStore,
        jobs: JobStore,
        changes: JobChanges,
        permits: Permits,
        transitions: TimeTransitions,
        bounds: QueueBounds,
        clock: Clock,
        ids: IdSource,
        placement: FairQueuePlacement,
        counter: DepthCounter,
        semaphore: ConcurrencySemaphore,
        depth: Callable[[str], int],
        strict: bool = False,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        """`depth` returns the counted number of jobs in a queue."""
        self._queues = queues
        self._jobs = jobs
        self._changes = changes
        self._permits = permits
        self._transitions = transitions
        self._bounds = bounds
        self._counter = counter
        self._semaphore = semaphore
        self._placement = placement
        self._clock = clock
        self._ids = ids
        self._depth = depth
        self._strict = strict
        self._choose = choose

    def delete(
        self,
        name: str,
        strategy: object,
        target: object = None,
        *,
        go_on: Callable[[], bool] = lambda: True,
    ) -> tuple[Deletion, bool]:
        """Begin to delete a queue. Returns the deletion, and whether the queue is gone already.

        `reject` deletes it only if it is empty, `discard` and `move` (to `target`) deal with the
        waiting jobs, `drain` lets workers finish them. A refused deletion changes nothing. Raises
        InvalidRequest, NotFound, QueueNotFound (strict mode: the target does not exist), Conflict.
        """
        deletion = self._parse_request(name, strategy, target)
        # Race: the queue is paused, resumed, added to a pool or deleted after it was read. The
        # loser reads it again and decides anew.
        queue = until_won(lambda: self._begin(name, deletion))
        if deletion.strategy is DeletionStrategy.REJECT:
            if not self._delete_if_empty(queue, queue.deletion or deletion):
                raise _still_holds_jobs(queue)
            return deletion, True
        counted = self._depth(name)
        done = self.carry_on(queue, limit=_REQUEST_JOBS, go_on=go_on)
        if done["queues_deleted"]:
            return replace(deletion, affected=done["ended"]), True
        left = sum(1 for _ in self._waiting(queue, pages=1, running=True))
        # The counted number may be late, and only one page of the remaining jobs is read.
        affected = max(counted, done["ended"] + left) if left else done["ended"]
        return replace(deletion, affected=affected), False

    def carry_on(
        self, queue: Queue, *, limit: int, go_on: Callable[[], bool] = lambda: True
    ) -> Counter[str]:
        """Deal with up to `limit` jobs of a draining queue, and delete it when it is empty.

        Counts `ended` and `failed` jobs, and `queues_deleted`.
        """
        counts: Counter[str] = Counter()
        deletion = queue.deletion
        if deletion is None:
            return counts
        full = False
        match deletion.strategy:
            case DeletionStrategy.REJECT:
                # The request crashed before it decided: decide now as it would have.
                if self._delete_if_empty(queue, deletion):
                    counts["queues_deleted"] += 1
                return counts
            case DeletionStrategy.DISCARD | DeletionStrategy.MOVE:
                full = self._end_jobs(queue, deletion, limit, go_on, counts)
            case DeletionStrategy.DRAIN:
                pass
            case _:
                assert_never(deletion.strategy)
        # Jobs may have come to a lane that was read before: the queue is deleted only when all
        # lanes are empty in one look.
        if not full and counts["ended"] < limit and not self._occupied(queue):
            self._queues.finish_deletion(queue, deletion)
            counts["queues_deleted"] += 1
        return counts

    def _delete_if_empty(self, queue: Queue, deletion: Deletion) -> bool:
        """Finish or cancel a deletion with `reject`; returns whether the queue is gone."""
        # Race: a push stored a job after the queue was found empty. The push wins.
        if self._holds_jobs(queue):
            self._queues.cancel_deletion(queue, deletion)
            return False
        self._queues.finish_deletion(queue, deletion)
        return True

    def look_after(self, limit: int, go_on: Callable[[], bool] = lambda: True) -> Counter[str]:
        """Deal with jobs that came to deleted queues, and remove old tombstones."""
        counts: Counter[str] = Counter()
        now_ms = self._clock.now_ms()
        for gone in self._queues.tombstones(limit=_PAGE):
            if counts["ended"] >= limit or not go_on():
                counts["more"] = 1
                break
            there = self._queues.get(gone.name)
            if there is not None and there.deletion != gone.deletion:
                # The queue was created again, and its jobs are its own. Race: its name may have
                # been registered before the deletion removed it, so it is registered once more.
                self._queues.register(gone.name)
                self._queues.remove_tombstone(gone)
                continue
            deletion = gone.deletion
            if deletion is None:
                continue
            if there is not None:
                # A run crashed after it wrote the tombstone: finish the deletion.
                self._queues.finish_deletion(there, deletion)
            match deletion.strategy:
                case DeletionStrategy.REJECT | DeletionStrategy.DRAIN:
                    if self._occupied(gone):
                        # A push was under way: it wins, and the queue is restored.
                        self._queues.restore(gone)
                        continue
                case DeletionStrategy.DISCARD | DeletionStrategy.MOVE:
                    # Also running jobs, if the index did not show them when the queue was deleted:
                    # no other sweep checks their leases.
                    self._end_jobs(gone, deletion, limit, go_on, counts, running=True)
                case _:
                    assert_never(deletion.strategy)
            if now_ms - deletion.began_ms > TOMBSTONE_KEPT_MS and not self._occupied(gone):
                # The counter first: after a crash in between the tombstone is still there.
                before_ms = now_ms - TOMBSTONE_KEPT_MS
                self._counter.remove(gone.name, before_ms=before_ms)
                self._semaphore.remove(gone.name, before_ms=before_ms)
                self._queues.remove_tombstone(gone)
        return counts

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

    def _begin(self, name: str, deletion: Deletion) -> Queue:
        """Read the queue and begin its deletion.

        Raises LostRace when the queue changed meanwhile, and NotFound, QueueNotFound or Conflict
        when it cannot be deleted in this way.
        """
        queue = self._queues.get(name)
        if queue is None:
            raise NotFound("queue", name)
        _check_may_end(queue)
        if deletion.target is not None:
            self._check_target(deletion.target)
        # Checked before anything is written, so that pushes and fetches of a queue that is not
        # empty never see it draining.
        if deletion.strategy is DeletionStrategy.REJECT and self._holds_jobs(queue):
            raise _still_holds_jobs(queue)
        return self._queues.begin_deletion(queue, deletion, now_ms=self._clock.now_ms())

    def _check_target(self, target: str) -> None:
        """Refuse an unusable target. A missing one is created when the first jobs are moved."""
        found = self._queues.get(target)
        if found is None and self._strict:
            raise QueueNotFound(target)
        if found is not None and found.state is QueueState.DRAINING:
            raise Conflict(
                f"The target queue '{target}' is being deleted, too.",
                current_state=found.state,
                details={"queue": target, "field": "target_queue"},
            )

    def _holds_jobs(self, queue: Queue) -> bool:
        """Whether jobs are in the queue, or are about to be.

        The depth counter includes jobs that are being stored or that the index does not show yet;
        the sweep repairs what a crash left in it too much. The counters of the statistics are not
        used: they are seconds late.
        """
        counted = queue.tracks_depth and self._counter.value(queue.name).tracked > 0
        return counted or self._occupied(queue)

    def _occupied(self, queue: Queue) -> bool:
        """Whether the index shows anything in the queue.

        Also what only a newer version knows, such as a job in a state of its own. It is not ended
        here, and the queue must not go from under it: `reject` refuses, and any other deletion
        stays under way, at a few queries a sweep, until a version that knows it is deployed.
        """
        index = self._jobs.index
        return any(index.occupied(queue.name, lane) for lane in range(queue.lanes))

    def _waiting(self, queue: Queue, *, pages: int, running: bool = False) -> Iterator[str]:
        """Ids of the jobs in a queue's lanes, from the index."""
        for lane in range(queue.lanes):
            yield from self._jobs.index.lined_up(queue.name, lane, pages=pages, running=running)

    def _end_jobs(
        self,
        queue: Queue,
        deletion: Deletion,
        limit: int,
        go_on: Callable[[], bool],
        counts: Counter[str],
        *,
        running: bool = False,
    ) -> bool:
        """Discard or move waiting jobs, and with `running` those whose lease ended.

        Returns True when the target has no room for more.
        """
        target = None
        if deletion.target is not None:
            now_ms = self._clock.now_ms()
            target = self._queues.get(deletion.target)
            target = target or self._queues.ensure(deletion.target, now_ms=now_ms)
        waiting = self._waiting(queue, pages=_PAGES, running=running)
        left = limit
        # Usually one round. Jobs that are gone, or that only a newer version knows, are not read,
        # and must not keep the others from their turn.
        while left > 0 and (ids := list(islice(waiting, left))):
            for start in range(0, len(ids), _PAGE):
                for job in self._jobs.read_records(ids[start : start + _PAGE]).values():
                    left -= 1
                    if not go_on():
                        counts["more"] = 1
                        return False
                    try:
                        if self._end(job, queue, deletion, target):
                            counts["ended"] += 1
                    except QueueFull:
                        return True
                    except LostRace:
                        continue  # fetched or cancelled meanwhile, or met again in the next run
                    except OjsError:
                        counts["failed"] += 1
        return False

    def _end(self, job: Job, queue: Queue, deletion: Deletion, target: Queue | None) -> bool:
        """Discard or move one waiting job. Raises LostRace, QueueFull."""
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
        lane = target.choose_lane(self._choose)
        reserved = None
        if target.tracks_depth:
            reserved = before.content_bytes or jsontext.size_of(before.content or {})
        moved = lifecycle.move(
            before, queue=target.name, lane=lane, order=self._ids.order(), reserved_bytes=reserved
        )
        moved = self._placement.with_share(moved, target)
        with self._bounds.room([moved], {target.name: target}, drops=False) as reservation:
            moved = self._placement.assign_position(moved)
            self._changes.replace(before, moved)
            reservation.keep([moved])
        self._permits.release(before, ended_ms=now_ms)
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
