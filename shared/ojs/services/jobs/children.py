"""Child jobs: a job starts them, waits for them, and receives their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ojs.domain import jsontext
from ojs.domain.access import Reaches, everything
from ojs.domain.errors import (
    BackendError,
    Conflict,
    InvalidRequest,
    NotFound,
    OjsError,
    forbidden,
)
from ojs.domain.ids import derived_uuid7
from ojs.domain.job.durable import MAX_RESULT_BYTES, DurableOutcome, OutcomeKind, Parent
from ojs.domain.job.envelope import JobRequest, at_index
from ojs.domain.job.job import MISSING, Job
from ojs.domain.job.states import State
from ojs.services.jobs.signals import Signals
from ojs.store.jobs.records import JobStore
from ojs.store.table.races import retry_on_race


class Children:
    """Starts child jobs, and stores their outcomes for their parents."""

    def __init__(self, *, jobs: JobStore, signals: Signals) -> None:
        self._jobs = jobs
        self._signals = signals

    def adopted(
        self, requests: Sequence[JobRequest], *, batch: bool, reaches: Reaches = everything
    ) -> list[JobRequest]:
        """Return the requests with the IDs of child jobs, which are the same each time.

        The lease token of the parent shows that the caller runs it. Makes one read.

        Args:
            requests: The jobs to enqueue.
            batch: Whether errors name the index of a job.
            reaches: Whether the caller can use a queue.

        Raises:
            NotFound: A parent doesn't exist.
            PermissionDenied: The caller can't use the queue of a parent.
            Conflict: A parent isn't active with this lease.
            InvalidRequest: The ID of a job is not that of this child.
        """
        wanted = {each.parent.job_id for each in requests if each.parent is not None}
        found = self._jobs.read_records(wanted)
        adopted = []
        for index, request in enumerate(requests):
            try:
                adopted.append(_adopted(request, found.get, reaches))
            except OjsError as error:
                raise (at_index(error, index) if batch else error) from None
        return adopted

    def ended(self, job: Job, parent: Parent) -> None:
        """Store the outcome of a finished child job for its parent, and wake it.

        A dead letter can be retried, so it gets the outcome, too. Does nothing if the outcome is
        stored, or if the parent has finished or started over. Raises BackendError.
        """

        def attempt() -> None:
            there = self._jobs.read_record(parent.job_id)
            if there is None or there.durable.epoch != parent.epoch:
                return
            # A later job can have the ID of the parent.
            mine = _child_id(there, parent) == job.id
            if not mine or (there.state.terminal and not there.dead_letter):
                return
            try:
                self._signals.store(there, self._outcome(job, parent.name))
            except BackendError:
                raise
            except OjsError:
                # The outcome exists, or the parent has too many. Its wait ends at its time.
                return

        retry_on_race(attempt)

    def _outcome(self, job: Job, name: str) -> DurableOutcome:
        ok = job.state is State.COMPLETED
        if ok:
            (job,) = self._jobs.with_contents([job])
        value: Any = None if job.result is MISSING else job.result
        if not ok:
            value = {"code": job.state.value, "message": f"The child job is {job.state.value}."}
            if job.state is State.DISCARDED and job.noted:
                failure = job.noted[-1].failure
                value |= {"code": failure.code, "type": failure.type, "message": failure.message}
        if (size := jsontext.size_of(value)) > MAX_RESULT_BYTES:
            message = f"The result has {size} bytes. Read it from the child job."
            ok, value = False, {"code": "result_too_large", "message": message}
        value = value if ok else {**value, "job_id": job.id}
        return DurableOutcome(name, OutcomeKind.JOB, ok, value, job.id)


def _child_id(job: Job, parent: Parent) -> str:
    return derived_uuid7(job.created_ms, parent.compact())


def _adopted(
    request: JobRequest, found: Callable[[str], Job | None], reaches: Reaches
) -> JobRequest:
    wanted = request.parent
    if wanted is None:
        return request
    job = found(wanted.job_id)
    if job is None:
        raise NotFound("job", wanted.job_id)
    if not reaches(job.queue):
        raise forbidden()
    if job.lease is None or job.lease.token != wanted.lease_token:
        raise Conflict(
            "Can't start a child job, because its parent isn't active with this lease token.",
            current_state=job.state,
            expected_states=[State.ACTIVE],
            details={"job_id": job.id, "field": "parent.lease_token"},
        )
    parent = Parent(job.id, job.durable.epoch, wanted.name)
    child_id = _child_id(job, parent)
    if request.id not in (None, child_id):
        rule = "must be absent for a child job. The server derives it from parent"
        raise InvalidRequest("id", rule, value=request.id)
    return request.model_copy(update={"id": child_id, "parent": parent})
