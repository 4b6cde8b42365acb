"""Actions of operators on jobs in any state. Bulk operations apply them one by one.

Each action is one transaction, or one write with the condition that the job record is unchanged. Of
concurrent actions, one succeeds, and the others read the job and decide again. If an action is
repeated after a lost response, the job already has its new state: the action is rejected or changes
nothing.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace

from ojs.clock import Clock
from ojs.domain.access import Reaches, everything
from ojs.domain.errors import Conflict, NotFound, any_of
from ojs.domain.ids import IdSource
from ojs.domain.job import lifecycle
from ojs.domain.job.durable import LETTERS, Wait, WaitingForSignal
from ojs.domain.job.job import Job
from ojs.domain.job.states import TERMINAL, State, Trigger, sources
from ojs.domain.queue.queue import Queue
from ojs.services.dead_letter.redrive import DeadLetterRetrier
from ojs.services.jobs.moving import JobMover
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.jobs.transitions import JobChanges
from ojs.services.listing.dead_letters import DeadLetterSearch
from ojs.services.permits.rate_limits import RateLimits, registered
from ojs.store.jobs.records import JobStore
from ojs.store.table.races import retry_on_race
from ojs.store.table.table import Put


def ended(job: Job, wait: Wait, now_ms: int) -> Put:
    """Return the write that ends a sleep of a job now."""
    from ojs.store.jobs.steps import StepStore

    return StepStore.ending(job, replace(wait, until_ms=now_ms), now_ms=now_ms)


RETRIABLE = frozenset({State.RETRYABLE, State.DISCARDED})


class JobActs:
    """Retries, starts, changes, cancels, and deletes jobs."""

    def __init__(
        self,
        *,
        jobs: JobStore,
        changes: JobChanges,
        transitions: TimeTransitions,
        placement: FairQueuePlacement,
        moves: JobMover,
        redrive: DeadLetterRetrier,
        dead_letter: DeadLetterSearch,
        limits: RateLimits,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._jobs = jobs
        self._changes = changes
        self._transitions = transitions
        self._placement = placement
        self._moves = moves
        self._redrive = redrive
        self._dead_letter = dead_letter
        self._limits = limits
        self._clock = clock
        self._ids = ids

    # --- one job, by its id -------------------------------------------------------------------

    def retry(self, job_id: str, reaches: Reaches = everything) -> Job:
        """Make a dead letter available with attempts reset to 0, or a retryable job immediately.

        Raises:
            NotFound: The job does not exist.
            Conflict: The job is in another state.
            OjsError: Any error of `DeadLetterRetrier.bring_back`, for dead letters.
        """

        def attempt() -> Job:
            job = self._current(job_id)
            back = self.bring_back(job, drops=True, reaches=reaches)
            return replace(back, previous_state=job.state)

        return self._whole(retry_on_race(attempt))

    def run_now(self, job_id: str) -> Job:
        """Make a scheduled or retryable job available immediately. Raises NotFound, Conflict."""

        def attempt() -> Job:
            return self._hastened(self._current(job_id))

        return self._whole(retry_on_race(attempt))

    def change(
        self, job_id: str, *, priority: int | None, queue: str | None, caller: str | None = None
    ) -> Job:
        """Change the priority of a waiting job, move it to another queue, or both.

        Args:
            job_id: ID of the job.
            priority: New priority, or None.
            queue: New queue, or None. It must allow the caller as a producer.
            caller: Name of the caller. It is stored.

        Returns:
            The changed job.

        Raises:
            NotFound: The job does not exist.
            Conflict: The job is active or in a final state.
            QueueDraining: The new queue is being deleted.
            QueueNotFound: The new queue does not exist, and the server is in strict mode.
            TooManyQueues: The server has the maximum number of queues.
            JobTypeNotAllowed: The new queue doesn't allow the job type.
            PermissionDenied: The new queue doesn't allow the caller.
            QueueFull: The new queue is full.
        """

        def attempt() -> Job:
            job = self._current(job_id)
            lifecycle.check_waiting(job)
            if queue is not None and queue != job.queue:
                return self._moved(job, queue, priority, caller)
            if priority is None or priority == job.priority:
                return job
            after = lifecycle.reprioritize(job, priority=priority, order=self._ids.order())
            # Race: a fetch claims the job, or a time transition changes it. The loser reads again
            # and raises Conflict if the job is not waiting then.
            return self._changes.replace(job, self._placement.assign_position(after))

        return self._whole(retry_on_race(attempt))

    def delete(self, job_id: str) -> None:
        """Delete a finished job permanently, with all its items. Raises NotFound, Conflict."""
        retry_on_race(lambda: self.remove(self._current(job_id)))

    # --- jobs as read -------------------------------------------------------------------------

    def bring_back(
        self,
        job: Job,
        *,
        drops: bool = False,
        known: MutableMapping[str, Queue] | None = None,
        reaches: Reaches = everything,
    ) -> Job:
        """Make a dead letter or a retryable job available.

        Args:
            job: The job, as read.
            drops: Whether another job can be discarded if the queue is full.
            known: Queues that were just read. Queues that are read here are added.
            reaches: Whether the caller can use a queue.

        Returns:
            The available job.

        Raises:
            LostRace: Another request changed the job.
            Conflict: The job is in another state.
            OjsError: Any error of `DeadLetterRetrier.bring_back`, for dead letters.
        """
        if job.state is State.RETRYABLE or job.durable.waits is not None:
            return self._hastened(job)
        if not job.dead_letter:
            what = f"a job in state '{job.state}'"
            if job.state is State.DISCARDED:
                what = "a discarded job that is not a dead letter"
            raise Conflict(
                f"Can't retry {what}. The job must be retryable or a dead letter.",
                current_state=job.state,
                expected_states=sorted(RETRIABLE),
                details={"job_id": job.id},
            )
        return self._redrive.bring_back(job, drops=drops, known=known, reaches=reaches)

    def cancel(self, job: Job) -> Job:
        """Cancel a job as read. Raises LostRace, and Conflict if the job is in a final state."""
        after = lifecycle.cancel(job, now_ms=self._clock.now_ms())
        return self._changes.replace(job, replace(after, batch=None))

    def remove(self, job: Job) -> None:
        """Delete a finished job as read.

        Raises LostRace, and Conflict if its state is not final.
        """
        if not job.state.terminal:
            raise Conflict(
                f"Can't delete a job in state '{job.state}'. The state must be "
                f"{any_of(sorted(TERMINAL))}. Cancel the job first.",
                current_state=job.state,
                expected_states=sorted(TERMINAL),
                details={"job_id": job.id},
            )
        if job.dead_letter:
            self._dead_letter.remove(job)
        else:
            # Race: another deletion, or the time to live of the item. If the job is already
            # deleted, the request has succeeded.
            self._jobs.removal.delete(job)

    # --- steps --------------------------------------------------------------------------------

    def _current(self, job_id: str) -> Job:
        """Return the job record after due time transitions. Raises NotFound."""
        job = self._transitions.apply(self._jobs.read_record(job_id))
        if job is None:
            raise NotFound("job", job_id)
        return job

    def _hastened(self, job: Job) -> Job:
        if job.state not in sources(Trigger.DUE):
            expected = sorted(sources(Trigger.DUE))
            raise Conflict(
                f"Can't run a job in state '{job.state}' now. The state must be "
                f"{any_of(expected)}.",
                current_state=job.state,
                expected_states=expected,
                details={"job_id": job.id},
            )
        now_ms = self._clock.now_ms()
        after = lifecycle.hasten(job, now_ms=now_ms, order=self._ids.order())
        waits = job.durable.waits
        if waits is not None and any(wait.kind in LETTERS for wait in waits.waits):
            raise WaitingForSignal(
                "Can't end the wait of the job, because it waits for a signal or for a child job. "
                "Send the signal, or cancel the job.",
                current_state=job.state,
                details={"job_id": job.id},
            )
        # Race: the sweep or a fetch processes a due transition of the job, or it is cancelled. The
        # loser reads again.
        return self._changes.replace(
            job,
            self._placement.assign_position(replace(after, batch=None)),
            # The sleep ends for its code, too.
            also=[ended(job, each, now_ms) for each in (waits.waits if waits else ())],
        )

    def _moved(self, job: Job, queue: str, priority: int | None, caller: str | None) -> Job:
        target = self._redrive.queue(queue, {})
        target.check_job(job.type, caller)
        self._limits.register(registered([replace(job, queue=queue)]))
        return self._moves.move(job, target, priority=priority, changed_by=caller)

    def _whole(self, job: Job) -> Job:
        (whole,) = self._jobs.with_contents([job])
        return replace(whole, previous_state=job.previous_state)
