"""Tags for jobs that came before their queue was fair.

A job without a tag stands at the time it came. While a fair line is behind, its tags are behind
that time: the job would wait for all that comes, for as long as the line is never empty. So when
fairness is switched on the queue is marked in the same write, and from then on passes go over all
its jobs: those in line get the tags of their tenants, in order, those that will come into line
get the share that makes them ask for one.

Whoever pushes may not know of the change yet, for as long as a request lasts, and the index shows
what happened a moment later. So passes are repeated until one that began SETTLED_MS after the
change has met no job to be seen to; then the mark goes. The request that switches it on makes the
first pass, as far as it gets; the sweep goes on from there, one run at a time. Every step is a
compare-and-swap of one head: a claim or a cancel meanwhile wins, and runs may die anywhere and be
repeated.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from ojs.domain.errors import OjsError
from ojs.domain.fair_queue.tags import tagged
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.queue.queue import Queue
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.store.jobs.fair_queue import BackfillCursor, BackfillCursors
from ojs.store.jobs.records import JobStore
from ojs.store.queues.queues import QueueStore
from ojs.store.table import keys
from ojs.store.table.keys import Position

# Longer than any request, and than the index is behind.
SETTLED_MS = 180_000
# For how long a run has a queue to itself: no function runs for longer. After a crash nobody else
# goes on before.
ALONE_MS = 60_000
# Jobs that the request itself gives tags.
AT_ONCE = 500
_PAGE = 100
# Pages that it reads, whether anything is to be done to them or not.
_LOOKS = 20
_KINDS = (keys.ready, keys.pending, keys.due)
_NAMES = 100
_REGISTRY = 1_000


class FairnessBackfill:
    """Goes over the jobs of queues that have just become fair."""

    def __init__(
        self,
        queues: QueueStore,
        jobs: JobStore,
        lines: FairQueuePlacement,
        passes: BackfillCursors,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._queues = queues
        self._jobs = jobs
        self._lines = lines
        self._passes = passes
        self._choose = choose

    def begin(self, queue: Queue, *, now_ms: int) -> None:
        """What the request does that makes a queue fair; what fails is left to the sweep."""
        looks = iter(range(_LOOKS))
        try:
            self._go_over(queue, now_ms, AT_ONCE, lambda: next(looks, None) is not None, Counter())
        except OjsError:
            return

    def run_once(
        self, now_ms: int, limit: int, go_on: Callable[[], bool] = lambda: True
    ) -> dict[str, int]:
        """Carry on the passes of all queues that are marked, giving about `limit` jobs tags.

        Counts: tagging (queues looked at), tagged and shared (jobs that got a tag, or a share),
        passes (that came to the end), settled (queues that are done), failed, and `more` (1 when it
        ended early and another should follow). Begins at a random queue, so that a run cut short
        starves none.
        """
        counts: Counter[str] = Counter()
        names = self._names()
        start = self._choose(len(names)) if names else 0
        names = names[start:] + names[:start]
        for at in range(0, len(names), _NAMES):
            for queue in self._queues.tagging(names[at : at + _NAMES]):
                left = limit - counts["tagged"] - counts["shared"]
                if left <= 0 or not go_on():
                    counts["more"] = 1
                    return dict(counts)
                counts["tagging"] += 1
                try:
                    if queue.fairness is None:
                        # It is not fair any more, by something else than its own configuration.
                        self._queues.end_tagging(queue)
                        continue
                    self._go_over(queue, now_ms, left, go_on, counts)
                except OjsError:
                    # One queue must not hold up the others; the next minute finds it again.
                    counts["failed"] += 1
        return {name: count for name, count in counts.items() if count}

    def _go_over(
        self,
        queue: Queue,
        now_ms: int,
        limit: int,
        go_on: Callable[[], bool],
        counts: Counter[str],
    ) -> None:
        """Carry on the pass that is under way in a queue, up to its end at most."""
        since_ms = queue.tagging_ms or 0
        until_ms = now_ms + ALONE_MS
        mine, under_way = self._passes.begin(queue.name, now_ms=now_ms, until_ms=until_ms)
        if not mine:
            return
        if under_way is None or under_way.since_ms != since_ms:
            under_way = BackfillCursor(since_ms, now_ms)
        done = 0
        while under_way.line < len(_KINDS) * queue.lanes:
            if done >= limit or not go_on():
                counts["more"] = 1
                self._passes.save(queue.name, under_way, now_ms=now_ms)
                return
            under_way, seen_to = self._page(queue, under_way, counts)
            done += seen_to
            self._passes.save(queue.name, under_way, now_ms=now_ms, until_ms=until_ms)
        counts["passes"] += 1
        if not under_way.found and under_way.began_ms - since_ms >= SETTLED_MS:
            # First the mark: should we die in between, what is left of the pass is of a marking
            # that is over, and goes by itself.
            self._queues.end_tagging(queue)
            self._passes.forget(queue.name)
            counts["settled"] += 1
            return
        self._passes.save(queue.name, BackfillCursor(since_ms, now_ms), now_ms=now_ms)

    def _page(
        self, queue: Queue, at: BackfillCursor, counts: Counter[str]
    ) -> tuple[BackfillCursor, int]:
        """See to one page of a line; where to go on, and how many jobs were seen to.

        A lane's jobs in line come first, then those that wait to get there: whatever moves on
        meanwhile is met again, or is given its place by what the pass has left on its head.
        """
        lane, kind = divmod(at.line, len(_KINDS))
        line = _KINDS[kind](queue.name, lane)
        found, last = self._jobs.listed(line, limit=_PAGE, after=at.after)
        if kind == 0:
            # Of those in line the order tells.
            found = [
                (job_id, key) for job_id, key in found if not tagged(Position.parse(key).order)
            ]
        heads = self._jobs.heads(job_id for job_id, _ in found)
        jobs = [
            heads[job_id]
            for job_id, _ in found
            if job_id in heads and _unseen(heads[job_id], queue)
        ]
        done = self._see_to(jobs, queue, counts) if jobs else 0
        following = (
            replace(at, line=at.line + 1, after=None) if last is None else replace(at, after=last)
        )
        return replace(following, found=at.found or bool(jobs)), done

    def _see_to(self, jobs: Sequence[Job], queue: Queue, counts: Counter[str]) -> int:
        """Give jobs shares, and those in line tags; how many got either."""
        bare = [job for job in jobs if job.share is None]
        shared = {job.id: job for job in self._lines.all_under(bare, queue)}
        wanted = [shared.get(job.id, job) for job in jobs]
        done = 0
        for before, after in zip(jobs, self._lines.enter_all(wanted), strict=True):
            if after.share is not None and self._jobs.tag(before, after.share, after.order):
                counts["tagged" if after.order is not None else "shared"] += 1
                done += 1
        return done

    def _names(self) -> list[str]:
        names: list[str] = []
        after: str | None = None
        while True:
            page, after = self._queues.names(limit=_REGISTRY, after=after)
            names += page
            if after is None:
                return names


def _unseen(job: Job, queue: Queue) -> bool:
    """Whether a job of the queue lacks what it would have been given today."""
    if job.queue != queue.name or job.state.terminal:
        return False
    if job.state is State.AVAILABLE:
        return job.order is not None and not tagged(job.order)
    return job.share is None
