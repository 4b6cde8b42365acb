"""Fairness backfill: assigns tags to jobs that were enqueued before their queue was fair.

A job without a tag has its arrival time as position. If the tags of a fair queue are before that
time, the job would wait until no tagged job is left. So the write that enables fairness also marks
the queue, and passes then visit all its jobs. Available jobs get tags, in order. Jobs that become
available later get the share that makes them request a tag.

A request in progress may still enqueue a job without a tag, and the index is delayed. So passes are
repeated until one that started SETTLED_MS after the change finds no such job. Then the mark is
removed. The request that enables fairness starts the first pass. The sweep continues it, with one
run at a time. Each step is a conditional write of one job record: a concurrent claim or
cancellation wins, and a run that crashed can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ojs.domain.errors import OjsError
from ojs.domain.fair_queue.tags import tagged
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.queue.queue import Queue
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.services.sweeps import (
    GoOn,
    SweepCounts,
    SweepQueues,
    SweepReport,
    always,
    counting_failures,
)
from ojs.store.jobs.fair_queue import BackfillCursor, BackfillCursors
from ojs.store.jobs.items import job_of
from ojs.store.jobs.records import JobStore
from ojs.store.queues.queues import QueueStore
from ojs.store.table import keys
from ojs.store.table.errors import readable
from ojs.store.table.keys import Position

# Longer than any request and the delay of the index (ms).
SETTLED_MS = 180_000
# Time (ms) for which a run has exclusive access to a queue. It is longer than any function runs.
# After a crash, the next run waits until this time has passed.
ALONE_MS = 60_000
# Maximum number of jobs that the request itself updates.
AT_ONCE = 500
_PAGE = 100
# Maximum number of pages that the request itself reads.
_REQUEST_PAGES = 20
_KINDS = (keys.ready, keys.pending, keys.due)


class FairnessBackfill:
    """Assigns tags to the jobs of queues that became fair."""

    name = "fairness_backfill"

    def __init__(
        self,
        *,
        queues: QueueStore,
        sweep_queues: SweepQueues,
        jobs: JobStore,
        placement: FairQueuePlacement,
        backfill_cursors: BackfillCursors,
    ) -> None:
        self._queues = queues
        self._every = sweep_queues
        self._jobs = jobs
        self._placement = placement
        self._cursors = backfill_cursors

    def begin(self, queue: Queue, *, now_ms: int) -> None:
        """Start the first pass in the request that makes a queue fair. The sweep continues it."""
        looks = iter(range(_REQUEST_PAGES))
        with suppress(OjsError):
            self._continue_pass(
                queue, now_ms, AT_ONCE, lambda: next(looks, None) is not None, SweepCounts()
            )

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """Continue the passes of all marked queues, starting at a random queue.

        The random start ensures that a run that ends early does not always omit the same queues.

        Args:
            now_ms: Current time in milliseconds since the epoch.
            limit: Approximate maximum number of jobs to update.
            go_on: Returns whether enough time is left to continue.

        Returns:
            Numbers of queues: tagging (visited), settled (done), failed. Numbers of jobs: tagged
            (got a tag), shared (got a share). And passes (completed) and `more` (1 if the run
            ended early and another run should follow).
        """
        counts = SweepCounts()
        for part in self._every.parts(counts):
            for queue in part:
                if queue.backfill_since_ms is None or queue.deletion is not None:
                    continue
                left = limit - counts["tagged"] - counts["shared"]
                if left <= 0 or not go_on():
                    counts["more"] = 1
                    return SweepReport(counts, failures=counts.failures)
                counts["tagging"] += 1
                with counting_failures(counts, f"queue {queue.name}"):
                    if queue.fairness is None:
                        # Fairness ended for another reason than the queue's own configuration.
                        self._queues.end_backfill(queue)
                    else:
                        self._continue_pass(queue, now_ms, left, go_on, counts)
        return SweepReport(+counts, failures=counts.failures)

    def _continue_pass(
        self,
        queue: Queue,
        now_ms: int,
        limit: int,
        go_on: GoOn,
        counts: SweepCounts,
    ) -> None:
        """Continue the pass of a queue, at most to its end."""
        since_ms = queue.backfill_since_ms or 0
        until_ms = now_ms + ALONE_MS
        mine, under_way = self._cursors.begin(queue.name, now_ms=now_ms, until_ms=until_ms)
        if not mine:
            return
        if under_way is None or under_way.since_ms != since_ms:
            under_way = BackfillCursor(since_ms, now_ms)
        done = 0
        while under_way.line < len(_KINDS) * queue.lanes:
            if done >= limit or not go_on():
                counts["more"] = 1
                self._cursors.save(queue.name, under_way, now_ms=now_ms)
                return
            under_way, seen_to = self._page(queue, under_way, counts)
            done += seen_to
            self._cursors.save(queue.name, under_way, now_ms=now_ms, until_ms=until_ms)
        counts["passes"] += 1
        if not under_way.found and under_way.began_ms - since_ms >= SETTLED_MS:
            # The mark is removed first. After a crash in between, the cursor belongs to a removed
            # mark and expires.
            self._queues.end_backfill(queue)
            self._cursors.forget(queue.name)
            counts["settled"] += 1
            return
        self._cursors.save(queue.name, BackfillCursor(since_ms, now_ms), now_ms=now_ms)

    def _page(
        self, queue: Queue, at: BackfillCursor, counts: SweepCounts
    ) -> tuple[BackfillCursor, int]:
        """Update the jobs of one page. Return where to continue, and how many jobs were updated.

        The available jobs of a lane come first, then the waiting jobs. A job that becomes
        available during the pass is either found there, or gets its tag through the share that the
        pass assigned.
        """
        lane, kind = divmod(at.line, len(_KINDS))
        line = _KINDS[kind](queue.name, lane)
        # Before the index: a job that gets its due entry now is then found in one of the two.
        slots = self._jobs.notes.slots() if kind == len(_KINDS) - 1 and at.after is None else ()
        found, last = self._jobs.index.listed(line, limit=_PAGE, after=at.after)
        if kind == 0:
            # The position of an available job shows whether it has a tag.
            found = [
                (job_id, key) for job_id, key in found if not tagged(Position.parse(key).order)
            ]
        records = self._jobs.read_records((job_id for job_id, _ in found), counts.fail)
        jobs = [
            records[job_id]
            for job_id, _ in found
            if job_id in records and _lacks_tag(records[job_id], queue)
        ]
        # Includes the jobs that were claimed recently.
        noted = readable(job_of, self._jobs.notes.running(queue.name, slots), counts.fail)
        jobs += [
            job
            for job in noted
            if job.lane == lane and job.id not in records and _lacks_tag(job, queue)
        ]
        done = self._update(jobs, queue, counts) if jobs else 0
        following = (
            replace(at, line=at.line + 1, after=None) if last is None else replace(at, after=last)
        )
        return replace(following, found=at.found or bool(jobs)), done

    def _update(self, jobs: Sequence[Job], queue: Queue, counts: SweepCounts) -> int:
        """Assign shares, and tags to available jobs. Return how many jobs were changed."""
        bare = [job for job in jobs if job.share is None]
        shared = {job.id: job for job in self._placement.with_shares(bare, queue)}
        wanted = [shared.get(job.id, job) for job in jobs]
        done = 0
        for before, after in zip(jobs, self._placement.assign_positions(wanted), strict=True):
            if after.share is not None and self._jobs.tag(before, after.share, after.order):
                counts["tagged" if after.order is not None else "shared"] += 1
                done += 1
        return done


def _lacks_tag(job: Job, queue: Queue) -> bool:
    """Return whether a job of the queue has no tag or share although it would now get one."""
    if job.queue != queue.name or job.state.terminal:
        return False
    if job.state is State.AVAILABLE:
        return job.order is not None and not tagged(job.order)
    return job.share is None
