"""The end of a queue: what becomes of its jobs (queue-config seed, section 5.3).

A queue that ends is `draining`: nothing gets in, running jobs go on, what waits is discarded or
moved. When it is empty it goes, and a note of it stays for a while: a push that was under way when
the end began may still come, and must not be lost. All of it is done in steps that the sweep takes
up where a request, or a crash, left them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.errors import Conflict, InvalidRequest, NotFound, OjsError, QueueFull, QueueNotFound
from ojs.domain.ids import IdSource
from ojs.domain.job import envelope, lifecycle
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.queue.queue import DRAIN, MOVE, REJECT, STRATEGIES, Deletion, Queue, QueueState
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.permits.backpressure import QueueBounds
from ojs.services.queues.configure import until_won
from ojs.store.jobs.records import JobStore
from ojs.store.permits.counters import Gates
from ojs.store.queues import queues as store
from ojs.store.table.errors import LostRace

# A push that was under way is stored within seconds: a request has 29 s in all.
NOTE_KEPT_MS = 600_000
_PAGE = 100
# What one request does itself; the sweep does the rest.
_REQUEST_JOBS = 500
_PAGES = 20


class QueueDeletion:
    """Ends queues."""

    def __init__(
        self,
        queues: store.QueueStore,
        jobs: JobStore,
        due: TimeTransitions,
        bounds: QueueBounds,
        gates: Gates,
        clock: Clock,
        ids: IdSource,
        *,
        lines: FairQueuePlacement,
        depth: Callable[[str], int],
        strict: bool = False,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        """`depth` tells how many jobs a queue holds, as far as they were counted."""
        self._queues = queues
        self._jobs = jobs
        self._due = due
        self._bounds = bounds
        self._gates = gates
        self._lines = lines
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
        """End a queue; how, with how many jobs were dealt with, and whether it is gone already.

        `reject` only if it is empty, `discard` or `move` (to `target`) what waits in it, or `drain`
        until all of it is worked off. A deletion that is refused changes nothing. Raises
        InvalidRequest, NotFound, QueueNotFound (strict mode: there is no such target), Conflict.
        """
        ending = self._asked(name, strategy, target)
        # Lost when somebody pauses the queue, resumes it, takes it into a pool or begins to end it
        # after it was read: what is there then decides.
        queue = until_won(lambda: self._begin(name, ending))
        if ending.strategy == REJECT:
            # Race: a push that was stored after the look before the beginning. It wins.
            if self._holds_jobs(queue):
                self._queues.take_back(queue, queue.ending or ending)
                raise _still_holds_jobs(queue)
            self._finish(queue, ending)
            return ending, True
        counted = self._depth(name)
        done = self.carry_on(queue, limit=_REQUEST_JOBS, go_on=go_on)
        left = 0
        if not done["queues_deleted"]:
            left = sum(1 for _ in self._waiting(queue, pages=1, running=True))
        # What was counted may be late, and what is left is seen a page deep.
        affected = max(counted, done["ended"] + left) if left else done["ended"]
        ended = replace(ending, affected=affected)
        return ended, bool(done["queues_deleted"])

    def carry_on(
        self, queue: Queue, *, limit: int, go_on: Callable[[], bool] = lambda: True
    ) -> Counter[str]:
        """Deal with up to `limit` jobs of a draining queue, and let it go when it is empty.

        Counts `ended` and `failed` jobs, and `queues_deleted`.
        """
        counts: Counter[str] = Counter()
        ending = queue.ending
        if ending is None:
            return counts
        if ending.strategy == REJECT:
            # Whoever asked died between the look and the end: what they would have found decides.
            if self._holds_jobs(queue):
                self._queues.take_back(queue, ending)
                return counts
            self._finish(queue, ending)
            counts["queues_deleted"] += 1
            return counts
        full = False
        if ending.strategy != DRAIN:
            full = self._deal(queue, ending, limit, go_on, counts)
        # Jobs may wait in a place that was looked at before; only an empty look of all ends it.
        if not full and counts["ended"] < limit and not self._occupied(queue):
            self._finish(queue, ending)
            counts["queues_deleted"] += 1
        return counts

    def look_after(self, limit: int, go_on: Callable[[], bool] = lambda: True) -> Counter[str]:
        """Deal with what came to queues that are gone, and forget them after a while."""
        counts: Counter[str] = Counter()
        now_ms = self._clock.now_ms()
        for gone in self._queues.gone(limit=_PAGE):
            if counts["ended"] >= limit or not go_on():
                counts["more"] = 1
                break
            there = self._queues.get(gone.name)
            if there is not None and there.ending != gone.ending:
                # Made anew, and perhaps ending again, in a way of its own: what is in its lines is
                # its own. Whoever made it may have put its name into the registry before the end
                # took the old one's out.
                self._queues.register(gone.name)
                self._queues.forget(gone)
                continue
            ending = gone.ending
            if ending is None:
                continue
            if there is not None:
                # We died between the note and the end.
                self._finish(there, ending)
            if ending.strategy in (REJECT, DRAIN):
                if self._occupied(gone):
                    # A push was under way: it wins, and the queue lives on as it was.
                    self._queues.revive(gone)
                    continue
            else:
                # Also a job that runs, if the index did not show it when the queue went: nobody
                # else looks at its lease any more.
                self._deal(gone, ending, limit, go_on, counts, running=True)
            if now_ms - ending.began_ms > NOTE_KEPT_MS and not self._occupied(gone):
                # The gate first: should we die in between, the note is still there.
                self._gates.remove(gone.name, before_ms=now_ms - NOTE_KEPT_MS)
                self._queues.forget(gone)
        return counts

    # --- steps ------------------------------------------------------------------------------

    @staticmethod
    def _asked(name: str, strategy: object, target: object) -> Deletion:
        if strategy is None:
            raise InvalidRequest("strategy", f"is required: one of {', '.join(STRATEGIES)}")
        if not isinstance(strategy, str) or strategy not in STRATEGIES:
            rule = f"must be one of {', '.join(STRATEGIES)}"
            raise InvalidRequest("strategy", rule, value=strategy)
        if strategy != MOVE:
            if target is not None:
                raise InvalidRequest("target_queue", "is for the strategy 'move' only")
            return Deletion(strategy)
        if target is None:
            raise InvalidRequest("target_queue", "is required for the strategy 'move'")
        if not isinstance(target, str):
            raise InvalidRequest("target_queue", "must be a queue's name", value=target)
        try:
            envelope.check_queue(target)
        except ValueError as error:
            raise InvalidRequest("target_queue", str(error), value=target) from None
        if target == name:
            raise InvalidRequest("target_queue", "must be another queue", value=target)
        return Deletion(strategy, target)

    def _begin(self, name: str, ending: Deletion) -> Queue:
        """Begin to end the queue, which is read here. Raises LostRace when it is not as it was
        read, and NotFound, QueueNotFound or Conflict when it cannot be ended so.
        """
        queue = self._queues.get(name)
        if queue is None:
            raise NotFound("queue", name)
        _check_may_end(queue)
        if ending.target is not None:
            self._check_target(ending.target)
        # Nothing is written before the look: pushes and fetches of a queue that is not empty never
        # see its end.
        if ending.strategy == REJECT and self._holds_jobs(queue):
            raise _still_holds_jobs(queue)
        return self._queues.begin_end(queue, ending, now_ms=self._clock.now_ms())

    def _check_target(self, target: str) -> None:
        """A target that is not there is made when the first jobs are moved."""
        found = self._queues.get(target)
        if found is None and self._strict:
            raise QueueNotFound(target)
        if found is not None and found.state is QueueState.DRAINING:
            raise Conflict(
                f"The target queue '{target}' is ending itself.",
                current_state=found.state,
                details={"queue": target, "field": "target_queue"},
            )

    def _finish(self, queue: Queue, ending: Deletion) -> None:
        self._queues.finish_end(queue, ending)

    def _holds_jobs(self, queue: Queue) -> bool:
        """Whether jobs are in the queue, or about to be.

        The gate knows of each job that it was charged for, also of one that is being stored or that
        the index does not show yet; what a crash left there too much is put right by the sweep. The
        counters of the statistics are not asked: they are seconds late, also with the last job that
        is done.
        """
        charged = queue.charged and self._gates.level(queue.name).charged > 0
        return charged or self._occupied(queue)

    def _occupied(self, queue: Queue) -> bool:
        """Whether the index shows jobs in the queue."""
        return next(self._waiting(queue, pages=1, running=True), None) is not None

    def _waiting(self, queue: Queue, *, pages: int, running: bool = False) -> Iterator[str]:
        """Ids of the jobs in a queue's lines, as the index has them."""
        for lane in range(queue.lanes):
            yield from self._jobs.lined_up(queue.name, lane, pages=pages, running=running)

    def _deal(
        self,
        queue: Queue,
        ending: Deletion,
        limit: int,
        go_on: Callable[[], bool],
        counts: Counter[str],
        *,
        running: bool = False,
    ) -> bool:
        """Discard or move what waits, and with `running` what ran until its time was over; True
        when the target has no room for more.
        """
        target = None
        if ending.target is not None:
            now_ms = self._clock.now_ms()
            target = self._queues.get(ending.target)
            target = target or self._queues.ensure(ending.target, now_ms=now_ms)
        waiting = self._waiting(queue, pages=_PAGES, running=running)
        ids = list(islice(waiting, limit))
        for start in range(0, len(ids), _PAGE):
            for job in self._jobs.heads(ids[start : start + _PAGE]).values():
                if not go_on():
                    counts["more"] = 1
                    return False
                try:
                    if self._end(job, queue, ending, target):
                        counts["ended"] += 1
                except QueueFull:
                    return True
                except LostRace:
                    continue  # it was fetched or cancelled meanwhile, or comes again next time
                except OjsError:
                    counts["failed"] += 1
        return False

    def _end(self, job: Job, queue: Queue, ending: Deletion, target: Queue | None) -> bool:
        """One job that waits: discarded or moved. Raises LostRace, QueueFull."""
        settled = self._due.settle(job)
        waits = settled is not None and settled.queue == queue.name and not settled.state.terminal
        if settled is None or not waits or settled.state is State.ACTIVE:
            return False
        now_ms = self._clock.now_ms()
        if target is None:
            after, failure = lifecycle.withdraw(settled, now_ms=now_ms)
            self._jobs.replace(settled, after, failure=failure)
            return True
        lane = self._choose(target.lanes) if target.lanes > 1 else 0
        held = None
        if target.charged:
            held = settled.content_bytes or jsontext.size_of(settled.content or {})
        moved = lifecycle.move(
            settled, queue=target.name, lane=lane, order=self._ids.order(), held=held
        )
        moved = self._lines.under(moved, target)
        with self._bounds.room([moved], {target.name: target}, drops=False) as entry:
            moved = self._lines.enter(moved)
            self._jobs.replace(settled, moved)
            entry.keep([moved])
        self._jobs.let_go(settled, now_ms=now_ms)
        return True


def _check_may_end(queue: Queue) -> None:
    """Raise Conflict for a queue that is in a pool, or ending already."""
    if queue.pools:
        # What a pool serves must be there; an operator takes the queue out of it knowingly.
        raise Conflict(
            f"The queue '{queue.name}' is in a worker pool; take it out first.",
            current_state=queue.state,
            details={"queue": queue.name, "pools": sorted(queue.pools)},
        )
    if queue.state is QueueState.DRAINING:
        raise Conflict(
            f"The queue '{queue.name}' is ending already.",
            current_state=QueueState.DRAINING,
            details={"queue": queue.name},
        )


def _still_holds_jobs(queue: Queue) -> Conflict:
    """The refusal of an end with `reject`; with the state that the queue has again after it."""
    state = queue.state if queue.ending is None else queue.ending.before
    return Conflict(
        f"The queue '{queue.name}' still holds jobs.",
        current_state=state,
        details={"queue": queue.name, "strategy": REJECT},
    )
