"""Signals for jobs that wait, or will wait, for them: stored once, with the wake-up."""

from __future__ import annotations

from dataclasses import replace

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.errors import Conflict, Duplicate, NotFound, PayloadTooLarge
from ojs.domain.ids import IdSource
from ojs.domain.job import lifecycle
from ojs.domain.job.durable import (
    MAX_SIGNALS,
    MAX_STEP_BYTES,
    MAX_STEPS,
    DurableOutcome,
    OutcomeKind,
    TooManySteps,
)
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.jobs.transitions import JobChanges
from ojs.store.jobs.records import JobStore
from ojs.store.jobs.steps import StepStore, weight
from ojs.store.table.errors import LostRace
from ojs.store.table.races import retry_on_race

MAX_SIGNAL_BYTES = 65_536


class Signals:
    """Stores outcomes that come from outside a job: signals, and results of child jobs."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        steps: StepStore,
        changes: JobChanges,
        placement: FairQueuePlacement,
        transitions: TimeTransitions,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._jobs = jobs
        self._steps = steps
        self._changes = changes
        self._placement = placement
        self._transitions = transitions
        self._clock = clock
        self._ids = ids

    def send(
        self, job_id: str, name: str, data: object, *, key: str | None = None
    ) -> DurableOutcome:
        """Send a signal to a job.

        The signal and the wake-up are one transaction, so a crash loses neither.

        Args:
            job_id: ID of the job.
            name: Name of the signal.
            data: The data of the signal, a JSON value.
            key: Identifies the request. A repeated request with the same key returns the same
                signal.

        Raises:
            NotFound: The job doesn't exist.
            Conflict: The job is in a final state, or its wait for the signal has ended.
            Duplicate: The signal was sent before, with another key.
            PayloadTooLarge: The data is too large.
            TooManySteps: The job has stored too many signals.
        """
        if (size := jsontext.size_of(data)) > MAX_SIGNAL_BYTES:
            raise PayloadTooLarge("data", size=size, limit=MAX_SIGNAL_BYTES)
        token = key or self._ids.token()
        outcome = DurableOutcome(name, OutcomeKind.SIGNAL, ok=True, value=data, save=token)

        def attempt() -> DurableOutcome:
            job = self._transitions.apply(self._jobs.read_record(job_id))
            if job is None:
                raise NotFound("job", job_id)
            try:
                if job.state.terminal:
                    raise _over(job, f"it is in state '{job.state}'")
                return self.store(job, outcome)
            except (Conflict, TooManySteps):
                # The job can have finished since the first request with the key.
                first = None if key is None else self._steps.get(job, outcome)
                if first is None or first.save != token:
                    raise
                return first

        return retry_on_race(attempt)

    def store(self, job: Job, outcome: DurableOutcome) -> DurableOutcome:
        """Store an outcome of a job as read, and make the job available if it waits for it.

        Raises:
            LostRace: The job has changed.
            Conflict: The job's wait has ended.
            Duplicate: The outcome exists, from another request.
            TooManySteps: The job has stored too many outcomes.
        """
        now_ms = self._clock.now_ms()
        outcome = replace(outcome, attempt=job.attempt, stored_ms=now_ms)
        after, woken = self._after(job, outcome, now_ms)
        outcome = replace(outcome, woken=woken)
        try:
            # Races: any change of the job, such as its suspension for this signal. The loser reads
            # again. Or an outcome of this name exists.
            if after is None:
                self._steps.add_signal(job, outcome)
            else:
                put = self._steps.putting(job, outcome)
                self._changes.replace(job, self._placement.assign_position(after), also=[put])
        except LostRace as lost:
            first = self._steps.existing(lost)
            if first is None:
                raise
            if first.save == outcome.save:
                return first
            if not first.ok and first.kind is OutcomeKind.SIGNAL:
                raise _over(job, "its wait for the signal has ended") from None
            raise Duplicate(
                f"The {outcome.kind} '{outcome.name}' of the job exists.",
                details={"job_id": job.id, "name": outcome.name},
            ) from None
        return outcome

    def _after(self, job: Job, outcome: DurableOutcome, now_ms: int) -> tuple[Job | None, bool]:
        """Return the job after an outcome, and whether it becomes available.

        None: it doesn't wait for the outcome.
        """
        durable = job.durable
        waits = durable.waits if job.state is State.SCHEDULED else None
        awaited = waits is not None and waits.includes(outcome.kind, outcome.name)
        # The job itself starts its children, so they are as many as its steps.
        most = MAX_SIGNALS if outcome.kind is OutcomeKind.SIGNAL else MAX_STEPS
        full = durable.saves >= MAX_STEPS if awaited else durable.signals >= most
        size = durable.bytes + weight([outcome])
        if full or size > MAX_STEP_BYTES:
            raise TooManySteps(job.id)
        if waits is None or not awaited:
            return None, False
        left = waits.without(outcome.kind, outcome.name)
        counted = replace(durable, saves=durable.saves + 1, bytes=size, waits=left)
        after = replace(job, durable=counted)
        if left is not None:
            return replace(after, scheduled_ms=left.until_ms), False
        return lifecycle.promote(after, now_ms=now_ms, order=self._ids.order()), True


def _over(job: Job, why: str) -> Conflict:
    return Conflict(
        f"Can't signal the job, because {why}.",
        current_state=job.state,
        details={"job_id": job.id},
    )
