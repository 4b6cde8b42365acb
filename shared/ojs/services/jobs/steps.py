"""Outcomes of steps of durable code: stored once by name, and read by the next attempt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ojs.clock import Clock
from ojs.domain.errors import Conflict, NotFound
from ojs.domain.job.durable import (
    MAX_STEP_BYTES,
    MAX_STEPS,
    DurableOutcome,
    LeaseTokenRequired,
    TooManySteps,
)
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.records import record
from ojs.services.for_each import ForEach
from ojs.services.jobs.leased_write import LeasedWrite
from ojs.store.jobs import items
from ojs.store.jobs.records import Addition, JobStore
from ojs.store.jobs.steps import StepPage, StepStore, weight
from ojs.store.table.races import retry_on_race


@record(frozen=True)
class SavedSteps:
    """The job after a save, and by outcome the one of the same name that was first, or None."""

    job: Job
    first: list[DurableOutcome | None]


class Steps:
    """Saves, reads, and deletes outcomes of steps."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        steps: StepStore,
        leased: LeasedWrite,
        clock: Clock,
        for_each: ForEach,
    ) -> None:
        self._jobs = jobs
        self._steps = steps
        self._leased = leased
        self._clock = clock
        self._for_each = for_each

    def save(
        self,
        job_id: str,
        outcomes: Sequence[DurableOutcome],
        *,
        lease_token: str | None,
        version: int | None = None,
    ) -> SavedSteps:
        """Store outcomes of an active job, and renew its lease. Earlier attempts don't count then.

        If the process crashes between the writes, the outcomes are not stored, and their steps run
        again.

        Args:
            job_id: ID of the job.
            outcomes: The outcomes, with different names.
            lease_token: Lease token of the run.
            version: Version of the code. The first one counts.

        Raises:
            NotFound: The job doesn't exist.
            LeaseTokenRequired: The request has no lease token.
            Conflict: The job isn't active, or isn't under the caller's lease.
            TooManySteps: The job has stored too many outcomes, or too large ones.
        """
        if lease_token is None:
            raise LeaseTokenRequired(job_id)
        count, size = len(outcomes), weight(outcomes)

        def check(job: Job) -> None:
            found = job.durable
            if found.saves + count > MAX_STEPS or found.bytes + size > MAX_STEP_BYTES:
                raise TooManySteps(job_id)

        job = self._leased.make(
            job_id, _addition(count, size, version), "save a step of", None, lease_token, check
        )
        now_ms = self._clock.now_ms()

        def store(outcome: DurableOutcome) -> DurableOutcome | None:
            return self._steps.save(job, replace(outcome, attempt=job.attempt, stored_ms=now_ms))

        return SavedSteps(job, self._for_each(store, outcomes))

    def page(
        self, job_id: str, *, results: bool = True, after: str | None = None
    ) -> tuple[Job, StepPage]:
        """Return a job and a page of its outcomes. Raises NotFound."""
        job = self._jobs.existing(job_id, self._clock.now_ms())
        return job, self._steps.page(job, results=results, after=after)

    def with_outcomes(self, job: Job) -> Job:
        """Return a job with its checkpoint and its outcomes without results, for its history."""
        (job,) = self._jobs.with_checkpoints([job])
        outcomes, after = list[DurableOutcome](), None
        while job.durable.used:
            page = self._steps.page(job, results=False, after=after)
            outcomes += page.outcomes
            if (after := page.last) is None:
                break
        return replace(job, outcomes=tuple(outcomes))

    def forget(self, job_id: str, name: str) -> None:
        """Delete the outcome of a name, so that the step runs again.

        Raises:
            NotFound: The job or the outcome doesn't exist.
            Conflict: The job is active or completed.
        """

        def attempt() -> None:
            job = self._jobs.existing(job_id, self._clock.now_ms())
            if job.state in (State.ACTIVE, State.COMPLETED):
                expected = [each for each in State if each not in (State.ACTIVE, State.COMPLETED)]
                raise Conflict(
                    f"Can't delete a step of a job in state '{job.state}'. The state must not be "
                    "'active' or 'completed'.",
                    current_state=job.state,
                    expected_states=expected,
                    details={"job_id": job_id},
                )
            if not self._steps.forget(job, name):
                raise NotFound("step", name)

        retry_on_race(attempt)


def _addition(count: int, size: int, version: int | None) -> Addition:
    saves, stored = items.SAVES, items.SAVED_BYTES
    compute = {
        saves: f"if_not_exists(#{saves}, :zero) + :count",
        stored: f"if_not_exists(#{stored}, :zero) + :size",
        # The attempts before this one don't count.
        items.FORGIVEN: "#attempt - :one",
    }
    values = {":zero": 0, ":one": 1, ":count": count, ":size": size}
    if version is not None:
        compute[items.VERSION] = f"if_not_exists(#{items.VERSION}, :version)"
        values[":version"] = version
    conditions = [
        f"(attribute_not_exists(#{saves}) OR #{saves} <= :saves)",
        f"(attribute_not_exists(#{stored}) OR #{stored} <= :stored)",
    ]
    values |= {":saves": MAX_STEPS - count, ":stored": MAX_STEP_BYTES - size}
    return Addition(compute, conditions, {**values})
