"""Dead letter: list, look at, retry and delete jobs that failed for good (dead-letter seed)."""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence

from ojs.clock import Clock
from ojs.domain import lifecycle
from ojs.domain.errors import BackendUnavailable, Conflict, InvalidRequest, NotFound
from ojs.domain.ids import UUID7, IdSource
from ojs.domain.job import Job
from ojs.domain.page import Page
from ojs.domain.states import State
from ojs.store.errors import LostRace
from ojs.store.jobs import Jobs
from ojs.store.queues import Queues

_CURSOR = re.compile(r"\d{15}\|" + UUID7.pattern)
# How many entries one request looks through for a filter, and how many queues it merges.
MAX_READ = 1_000
# A page ends early when the contents kept apart reach this size; a Lambda answers with 6 MB.
MAX_PAGE_BYTES = 2_000_000
_NAMES = 100
_TRIES = 5


class DeadLetter:
    """Looks after jobs that are discarded but kept."""

    def __init__(self, jobs: Jobs, queues: Queues, clock: Clock, ids: IdSource) -> None:
        self._jobs = jobs
        self._queues = queues
        self._clock = clock
        self._ids = ids

    def _latest(
        self, names: Sequence[str], *, before: str | None, limit: int
    ) -> list[tuple[str, str]]:
        lines = [self._jobs.dead(name, limit=limit, before=before) for name in names]
        merged = heapq.merge(*lines, key=lambda entry: entry[1], reverse=True)
        return [entry for entry, _ in zip(merged, range(limit), strict=False)]

    def _all_queues(self) -> Sequence[str]:
        names: list[str] = []
        after: str | None = None
        while True:
            page, after = self._queues.names(limit=_NAMES, after=after, consistent=True)
            names += page
            if after is None:
                return names

    def list(
        self,
        *,
        queue: str | None = None,
        type: str | None = None,  # noqa: A002 - the field's name
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[Job]:
        """Dead letters, latest first. A filtered page may be short and still have a cursor.

        The cursor names a place in time, so it stays right while jobs come and go. Raises
        InvalidRequest for a bad cursor.
        """
        if cursor is not None and not _CURSOR.fullmatch(cursor):
            raise InvalidRequest("cursor", "is not one this server gave", value=cursor)
        names = [queue] if queue is not None else self._all_queues()
        found: list[Job] = []
        before, read, size = cursor, 0, 0
        more = True
        while more and len(found) < limit and read < MAX_READ and size < MAX_PAGE_BYTES:
            entries = self._latest(names, before=before, limit=limit + 1)
            more = len(entries) > limit
            heads = self._jobs.heads(job_id for job_id, _ in entries[:limit])
            for job_id, key in entries[:limit]:
                if len(found) == limit or size >= MAX_PAGE_BYTES:
                    more = True
                    break
                read, before = read + 1, key
                job = heads.get(job_id)
                # The index may be behind: a job that was retried or deleted is not listed.
                if job is not None and job.dead_letter and type in (None, job.type):
                    found.append(job)
                    size += job.content_bytes
        jobs = self._jobs.with_errors(self._jobs.with_contents(found))
        return Page(jobs, before if more else None)

    def get(self, job_id: str) -> Job:
        """One dead letter, whole. Raises NotFound, also for a job that is not one."""
        job = self._jobs.load(job_id)
        if job is None or not job.dead_letter:
            raise NotFound("dead_letter_job", job_id)
        return job

    def retry(self, job_id: str) -> Job:
        """Make it available again: attempts anew, id, policy and error history kept (DL §6.1).

        Of several retries at once exactly one dispatches; the others raise Conflict.
        """
        for _ in range(_TRIES):
            job = self._jobs.head(job_id)
            if job is None:
                raise NotFound("dead_letter_job", job_id)
            if not job.dead_letter:
                if job.life and job.state is not State.DISCARDED:
                    raise Conflict(
                        "The job is not in dead letter any more.",
                        current_state=job.state,
                        expected_states=[State.DISCARDED],
                        details={"job_id": job_id},
                    )
                raise NotFound("dead_letter_job", job_id)
            after = lifecycle.revive(job, now_ms=self._clock.now_ms(), order=self._ids.order())
            try:
                self._jobs.replace(job, after)
            except LostRace:
                continue
            revived = self._jobs.load(job_id)
            if revived is None:
                raise NotFound("dead_letter_job", job_id)
            return revived
        raise BackendUnavailable("Others are changing this job; try again.")

    def delete(self, job_id: str) -> None:
        """Remove it for good. Raises NotFound."""
        for _ in range(_TRIES):
            job = self._jobs.head(job_id)
            if job is None or not job.dead_letter:
                raise NotFound("dead_letter_job", job_id)
            try:
                self._jobs.delete(job)
            except LostRace:
                continue
            return
        raise BackendUnavailable("Others are changing this job; try again.")
