"""The job sweep: applies time transitions that no request has applied, and undoes batches that a
crash left half stored.

It may run twice at the same time: every step is the conditional write that a fetch or a read makes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable

from ojs.domain.errors import OjsError
from ojs.domain.job.states import State
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.queues.deletion import QueueDeletion
from ojs.services.sweeps import GoOn, SweepReport, always, counting_failures, queue_names
from ojs.store.jobs.records import JobStore
from ojs.store.queues.queues import QueueStore

_PAGE = 100
_BATCHES = 10


class JobSweep:
    """Sweeps all queues."""

    name = "jobs"

    def __init__(
        self,
        *,
        jobs: JobStore,
        queues: QueueStore,
        transitions: TimeTransitions,
        deletion: QueueDeletion,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._jobs = jobs
        self._queues = queues
        self._transitions = transitions
        self._deletion = deletion
        self._choose = choose

    def run_once(self, now_ms: int, limit: int, go_on: GoOn = always) -> SweepReport:
        """One pass over every queue, moving at most about `limit` jobs; counts by what was done.

        Keys: promoted, stalled_or_timed_out, expired, batches_undone, refiled, failed, ended (jobs
        of deleted queues), queues_deleted, and `more`
        (1 when the pass ended early and another should follow). `go_on` says whether there is time
        left. Begins at a random queue, so that a pass cut short starves no queue.
        """
        counts: Counter[str] = Counter()
        self._undo_batches(now_ms, counts, go_on)
        for names in queue_names(self._queues, self._choose):
            queues, _ = self._queues.get_many(names)
            for queue in queues.values():
                if queue.deletion is not None and go_on():
                    with counting_failures(counts):
                        counts.update(self._deletion.carry_on(queue, limit=limit, go_on=go_on))
                for lane in range(queue.lanes):
                    if counts.total() >= limit or not go_on():
                        counts["more"] = 1
                        return SweepReport(counts)
                    self._line(queue.name, lane, now_ms, counts)
        counts.update(self._deletion.look_after(limit, go_on))
        return SweepReport(counts)

    def _line(self, queue: str, lane: int, now_ms: int, counts: Counter[str]) -> None:
        due = self._jobs.index.due(queue, lane, now_ms=now_ms, limit=_PAGE)
        expiring = self._jobs.index.expiring(queue, lane, now_ms=now_ms, limit=_PAGE)
        if len(due) == _PAGE or len(expiring) == _PAGE:
            counts["more"] = 1
        self._apply(dict.fromkeys([*due, *expiring]), frozenset(due), counts)

    def _apply(self, job_ids: Iterable[str], due: frozenset[str], counts: Counter[str]) -> None:
        records = self._jobs.read_records(job_ids)
        for job in records.values():
            after = None
            with counting_failures(counts):
                # Only jobs found in the due index have an entry there to update.
                apply = (
                    self._transitions.apply_indexed if job.id in due else self._transitions.apply
                )
                after = apply(job)
            if after is None:
                continue
            if after is job:
                if job.id in due:
                    counts["refiled"] += 1
            elif after.state is State.DISCARDED and not after.completed_ms:
                counts["expired"] += 1
            elif job.state is State.ACTIVE:
                counts["stalled_or_timed_out"] += 1
            else:
                counts["promoted"] += 1

    def _undo_batches(self, now_ms: int, counts: Counter[str], go_on: GoOn) -> None:
        failures = 0
        for token in self._jobs.batches.stale(now_ms=now_ms, limit=_BATCHES):
            if not go_on():
                counts["more"] = 1
                return
            try:
                undone = self._jobs.batches.undo(token, now_ms=now_ms)
            except OjsError:
                # A batch that fails must not delay the others, nor the jobs of the queues.
                counts["failed"] += 1
                failures += 1
                if failures > 1:
                    return
                continue
            # A batch that is undone again counts only if some of its jobs were stored late.
            if undone.first or undone.jobs:
                counts["batches_undone"] += 1
