"""Writes of the worker that has the lease of a job: they renew it, or restore an expired one."""

from __future__ import annotations

from collections.abc import Callable

from ojs.clock import Clock
from ojs.domain.errors import Conflict, NotFound
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.services.jobs.finish import check_token, not_held
from ojs.services.jobs.transitions import JobChanges
from ojs.store.jobs.records import Addition, JobStore, winner
from ojs.store.table.errors import LostRace
from ojs.store.table.races import retry_on_race, won_or


class LeasedWrite:
    """Changes the records of active jobs under their leases."""

    def __init__(self, *, jobs: JobStore, changes: JobChanges, clock: Clock) -> None:
        self._jobs = jobs
        self._changes = changes
        self._clock = clock

    def make(
        self,
        job_id: str,
        also: Addition,
        what: str,
        worker_id: str | None,
        lease_token: str | None,
        check: Callable[[Job], None] = lambda _: None,
    ) -> Job:
        """Renew the lease of an active job and make the changes `also`, in one write.

        An expired lease is restored if no other worker has claimed the job.

        Args:
            job_id: ID of the job.
            also: The changes.
            what: What the caller does, for errors.
            worker_id: ID of the worker. None: not checked.
            lease_token: Lease token of the run. None: not checked, unless the queue requires it.
            check: Raises the error if a condition of `also` does not hold for an active job.

        Returns:
            The job after the write.

        Raises:
            NotFound: The job doesn't exist.
            InvalidRequest: The queue requires the lease token.
            Conflict: The job isn't active, or isn't under the caller's lease.
        """

        def attempt() -> Job:
            now_ms = self._clock.now_ms()
            found = won_or(
                lambda: self._jobs.extend(
                    job_id, now_ms=now_ms, worker_id=worker_id, lease_token=lease_token, also=also
                ),
                lambda lost: lost,
            )
            if not isinstance(found, LostRace):
                return found
            job = winner(found)
            if job is None:
                raise NotFound("job", job_id)
            check_token(job, lease_token)
            resumed = self._changes.resume(
                job, worker_id=worker_id, lease_token=lease_token, now_ms=now_ms
            )
            if resumed:
                raise found
            if job.state is not State.ACTIVE:
                raise Conflict(
                    f"Can't {what} a job in state '{job.state}'. The state must be 'active'.",
                    current_state=job.state,
                    expected_states=[State.ACTIVE],
                    details={"job_id": job_id},
                )
            if lease_token is None or (job.lease and job.lease.token == lease_token):
                check(job)
            raise not_held(job, f"{what} the job", worker_id, None, lease_token)

        return retry_on_race(attempt)
