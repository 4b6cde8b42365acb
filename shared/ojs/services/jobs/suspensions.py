"""Suspends jobs whose code waits: they have no worker, lease, or permits until they continue."""

from __future__ import annotations

from dataclasses import replace

from ojs.clock import Clock
from ojs.domain.ids import IdSource
from ojs.domain.job import lifecycle
from ojs.domain.job.durable import LETTERS, MAX_STEPS, Suspension, TooManySteps, Wait
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.job.suspending import suspension
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.services.jobs.transitions import JobChanges
from ojs.store.jobs.steps import StepStore
from ojs.store.table.errors import LostRace


class Suspensions:
    """Suspends active jobs at the request of their workers."""

    def __init__(
        self,
        *,
        steps: StepStore,
        changes: JobChanges,
        placement: FairQueuePlacement,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._steps = steps
        self._changes = changes
        self._placement = placement
        self._clock = clock
        self._ids = ids

    def read(self, raw: object) -> Suspension:
        """Read the suspension of a request. Raises InvalidRequest."""
        return suspension(raw, now_ms=self._clock.now_ms())

    def apply(self, job: Job, waits: Suspension, stopped: list[Job] | None) -> Job | None:
        """Suspend an active job as read, or make it available if its wait has ended.

        If the process crashes after it stored when a sleep ends, the next attempt continues with
        that time.

        Args:
            job: The job, as read.
            waits: The waits of its code.
            stopped: See `JobChanges.ack`.

        Returns:
            The stored job. None if a suspension for time would follow another one without a step.

        Raises:
            LostRace: The job has lost its lease.
            TooManySteps: The job has stored too many outcomes.
        """
        if job.durable.saves >= MAX_STEPS:
            raise TooManySteps(job.id)
        if waits.stops and job.durable.stopped == job.durable.saves:
            return None
        now_ms = self._clock.now_ms()
        waits = Suspension(
            tuple(self._stored(job, each, now_ms) for each in waits.waits), waits.all
        )
        while True:
            after = lifecycle.suspend(job, waits, now_ms=now_ms, order=self._ids.order())
            awaited = [each for each in waits.waits if each.kind in LETTERS]
            if after.state is not State.SCHEDULED:
                awaited = []
            try:
                return self._changes.replace(
                    job,
                    self._placement.assign_position(after),
                    guard="lease",
                    stopped=stopped,
                    also=[self._steps.missing(job, each) for each in awaited],
                )
            except LostRace as lost:
                # Race: a signal, or the end of a child job. The loser finds its outcome, and the
                # job doesn't wait for it.
                came = {each for each, item in zip(awaited, lost.items[1:], strict=False) if item}
                if not came:
                    raise
                left = tuple(each for each in waits.waits if each not in came)
                over = Suspension((Wait("sleep", "over", now_ms),))
                waits = Suspension(left, all=True) if waits.all and left else over

    def _stored(self, job: Job, wait: Wait, now_ms: int) -> Wait:
        """Return a wait with the end that the first attempt to wait has stored."""
        if wait.kind in ("job", "time"):
            return wait
        return replace(wait, until_ms=self._steps.end_of(job, wait, now_ms=now_ms))
