"""Acks and nacks of many jobs in one request: each is settled, and answered, for itself.

Nothing ties them together: a request that dies in between has settled some of them, and the same
request again gives each its right answer, as the repetition of a single ack or nack does.
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
from ojs.services.jobs.finish import Finish
from ojs.services.sweeps import GoOn, always
from ojs.store.jobs.records import JobStore
from ojs.store.table.errors import UnreadableItem

# A job's id, and what `Finish.ack` or `Finish.nack` is to be told of it.
Ending = tuple[str, Mapping[str, Any]]


@record(frozen=True)
class BatchOutcome:
    """What became of one ack or nack: the job as it is now, or why it was refused."""

    job_id: str
    result: Job | OjsError


@record(frozen=True)
class _Step:
    """One ack or nack of a request; `place` is where it stands in it."""

    place: str
    job_id: str
    end: Callable[[], Job]


class BatchFinish:
    """Ends the attempts of many jobs at a worker's request."""

    def __init__(self, *, jobs: JobStore, finish: Finish, for_each: ForEach) -> None:
        self._jobs = jobs
        self._finish = finish
        self._for_each = for_each

    def end(
        self,
        acks: Sequence[Ending],
        nacks: Sequence[Ending] = (),
        *,
        reaches: Reaches | None = None,
        go_on: GoOn = always,
    ) -> tuple[list[BatchOutcome], list[BatchOutcome]]:
        """Complete some jobs and fail others; returns the outcomes, in the order of the request.

        Several are settled at the same time, each job once: a second entry of the same job is
        refused with InvalidRequest, whatever becomes of the first. With `reaches` a job in another
        queue is refused with PermissionDenied; that costs one read for a hundred jobs. Once `go_on`
        returns False the others are left alone, and their outcome is BackendUnavailable. Raises
        OjsError only if that read fails: then nothing is settled.
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
        barred = self._barred(first, reaches)

        def settle(step: _Step) -> BatchOutcome:
            try:
                if first[step.job_id] is not step:
                    rule = f"is that of {first[step.job_id].place} too; each job is settled once"
                    raise InvalidRequest(step.place, rule, value=step.job_id)
                if step.job_id in barred:
                    raise barred[step.job_id]
                if not go_on():
                    raise BackendUnavailable("There was no time left for it; send it again.")
                return BatchOutcome(step.job_id, step.end())
            except OjsError as error:
                return BatchOutcome(step.job_id, error)

        outcomes = self._for_each(settle, steps)
        return outcomes[: len(acks)], outcomes[len(acks) :]

    def _barred(self, job_ids: Collection[str], reaches: Reaches | None) -> Mapping[str, OjsError]:
        """Why some of these jobs are out of reach: each of another queue, or of one that cannot be
        known. Those that do not exist are left to the operation.
        """
        if reaches is None or not job_ids:
            return {}
        damaged: dict[str, UnreadableItem] = {}
        found = self._jobs.read_records(job_ids, damaged.setdefault)
        return {what.removeprefix("job "): error for what, error in damaged.items()} | {
            job.id: forbidden() for job in found.values() if not reaches(job.queue)
        }
