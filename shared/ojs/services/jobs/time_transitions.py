"""What time has decided: starts, retries, lost leases, timeouts, deadlines.

Fetch, reads and the sweeps all come here, so a job moves the same way whoever notices first.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace as changed

from ojs.clock import Clock
from ojs.domain.errors import BackendUnavailable, OjsError
from ojs.domain.ids import IdSource
from ojs.domain.job import failure as failures
from ojs.domain.job import lifecycle
from ojs.domain.job.job import Job
from ojs.services.dead_letter.copies import DeadLetterCopies
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.store.jobs.records import JobStore
from ojs.store.table.errors import LostRace

_TRIES = 5


class TimeTransitions:
    """Applies time to jobs."""

    def __init__(
        self,
        jobs: JobStore,
        copies: DeadLetterCopies,
        lines: FairQueuePlacement,
        clock: Clock,
        ids: IdSource,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._jobs = jobs
        self._copies = copies
        self._lines = lines
        self._clock = clock
        self._ids = ids
        self._chance = chance

    def settle(self, job: Job | None) -> Job | None:
        """The job after all that time has decided by now; None when it does not exist.

        Takes a head as read. Each step is one conditional write; whoever loses reads again.
        Jobs of a batch that is not committed do not exist.
        """
        for _ in range(_TRIES):
            if job is None or (job.batch is not None and self._jobs.staged([job.batch])):
                return None
            now_ms = self._clock.now_ms()
            if job.gone(now_ms):
                # Kept as long as it should be (queue-config seed, section 6.3): the table removes
                # it some time later.
                return None
            after, failure = lifecycle.by_time(
                job, now_ms=now_ms, order=self._ids.order(), chance=self._chance()
            )
            if after is job:
                return job
            if job.batch is not None:
                # Its batch is committed; from here on it is a job like any other.
                after = changed(after, batch=None)
            after = self._lines.enter(after)
            try:
                job = self._jobs.replace(job, after, failure=failure)
                if job.copy_due:
                    job = self._copies.follow(job)
            except LostRace:
                job = self._jobs.head(job.id)
        raise BackendUnavailable("Others are changing this job; try again.")

    def give_back(self, job: Job) -> None:
        """Put a job that was handed out, and did not reach its worker, back in line; what fails is
        left to the end of its lease.
        """
        try:
            back = lifecycle.requeue(job, now_ms=self._clock.now_ms(), order=self._ids.order())
            self._jobs.replace(job, self._lines.enter(back), guard="lease")
        except (LostRace, OjsError):
            return

    def end_without_content(self, claimed: Job) -> None:
        """Deal with a job that was just claimed and whose content is not in the store.

        Most often the job is gone by now: it ended and was deleted after the claim, and its content
        with it. One that is still under the lease of the claim cannot run: its attempt fails for
        good, with the type `content_missing`, so that its policy decides what becomes of it and an
        operator finds it. What fails here is left to the end of the lease.
        """
        with suppress(LostRace, OjsError):
            job = self._jobs.head(claimed.id)
            if job is None or job.lease is None or job.lease != claimed.lease:
                return
            now_ms = self._clock.now_ms()
            failure = failures.observed(
                "content_missing",
                "The content of the job is not in the store.",
                attempt=job.attempt,
                now_ms=now_ms,
                retryable=False,
            )
            after = lifecycle.fail(job, failure, now_ms=now_ms, chance=self._chance())
            # Race: the job ended, or its lease did. The loser leaves alone what stands there now.
            after = self._jobs.replace(job, after, failure=failure, guard="lease")
            if after.copy_due:
                self._copies.follow(after)

    def check(self, job: Job) -> Job | None:
        """Settle a job found in the due or expiry index; the very same job if nothing was due."""
        settled = self.settle(job)
        if settled is job and job.lease is not None:
            # Found at its first lease end, but extended since: file it where it ends now.
            self._jobs.refile(job)
        return settled
