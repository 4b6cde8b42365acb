"""Processes acks and nacks of many jobs in one request, each independently.

After a crash, some of them are processed. If the request is repeated, each job gets the correct
outcome, as for a repeated single ack or nack.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from ojs.domain.access import Reaches
from ojs.domain.errors import BackendUnavailable, InvalidRequest, OjsError, forbidden
from ojs.domain.job.job import Job
from ojs.records import record
from ojs.services.for_each import ForEach
from ojs.services.jobs.finish import JobFinisher
from ojs.services.sweeps import GoOn, always
from ojs.store.jobs.records import JobStore
from ojs.store.table.errors import UnreadableItem

# A job ID, and the keyword arguments of `JobFinisher.ack` or `JobFinisher.nack`.
Ending = tuple[str, Mapping[str, Any]]


@record(frozen=True)
class BatchOutcome:
    """The outcome of one ack or nack: the current job, or the error."""

    job_id: str
    result: Job | OjsError


@record(frozen=True)
class _Step:
    """One ack or nack of a request. `place` is its index in the request."""

    place: str
    job_id: str
    end: Callable[[], Job]


class BatchFinish:
    """Finishes attempts of many jobs at a worker's request."""

    def __init__(self, *, jobs: JobStore, finish: JobFinisher, for_each: ForEach) -> None:
        self._jobs = jobs
        self._finish = finish
        self._for_each = for_each

    def end(
        self,
        acks: Sequence[Ending],
        nacks: Sequence[Ending] = (),
        *,
        reaches: Reaches | None = None,
        by_token: bool = False,
        go_on: GoOn = always,
    ) -> tuple[list[BatchOutcome], list[BatchOutcome]]:
        """Complete some jobs and fail others.

        Several jobs are processed at the same time, each once. A second entry of the same job is
        rejected with InvalidRequest.

        Args:
            acks: The jobs to complete.
            nacks: The jobs to fail.
            reaches: Whether the caller can use a queue. A job in another queue is rejected with
                PermissionDenied, which takes one read per 100 jobs. None: not checked.
            by_token: Whether entries with a lease token are not checked by `reaches`.
            go_on: Returns whether enough time is left. After it returns false, the remaining jobs
                are unchanged, and their outcome is BackendUnavailable.

        Returns:
            The outcomes of `acks` and of `nacks`, in the order of the request.

        Raises:
            OjsError: The read for `reaches` failed. No job is changed.
        """
        steps = [
            _Step(f"{name}[{at}].job_id", job_id, partial(call, job_id, **told))
            for name, call, entries in (
                ("acks", self._finish.ack, acks),
                ("nacks", self._finish.nack, nacks),
            )
            for at, (job_id, told) in enumerate(entries)
        ]
        first = {step.job_id: step for step in reversed(steps)}
        named = {
            job_id
            for job_id, told in (*acks, *nacks)
            if not (by_token and told.get("lease_token") is not None)
        }
        barred = self._barred(named, reaches)

        def settle(step: _Step) -> BatchOutcome:
            try:
                if first[step.job_id] is not step:
                    rule = f"is a duplicate of {first[step.job_id].place}. Send each job once"
                    raise InvalidRequest(step.place, rule, value=step.job_id)
                if step.job_id in barred:
                    raise barred[step.job_id]
                if not go_on():
                    raise BackendUnavailable("The request timed out before it processed this job.")
                return BatchOutcome(step.job_id, step.end())
            except OjsError as error:
                return BatchOutcome(step.job_id, error)

        outcomes = self._for_each(settle, steps)
        return outcomes[: len(acks)], outcomes[len(acks) :]

    def _barred(self, job_ids: Collection[str], reaches: Reaches | None) -> Mapping[str, OjsError]:
        """Return an error for each job whose queue the caller can't use, or whose queue is unknown.

        Jobs that don't exist are rejected by the ack or nack.
        """
        if reaches is None or not job_ids:
            return {}
        damaged: dict[str, UnreadableItem] = {}
        found = self._jobs.read_records(job_ids, damaged.setdefault)
        return {what.removeprefix("job "): error for what, error in damaged.items()} | {
            job.id: forbidden() for job in found.values() if not reaches(job.queue)
        }
