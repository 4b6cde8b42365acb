"""Dead letter: list, look at, retry and delete jobs that failed for good (dead-letter seed)."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from ojs.clock import Clock
from ojs.domain import jsontext, lifecycle
from ojs.domain.errors import BackendUnavailable, Conflict, InvalidRequest, NotFound
from ojs.domain.ids import UUID7, IdSource
from ojs.domain.job import Job
from ojs.domain.page import Page
from ojs.domain.states import State
from ojs.services.bounds import Bounds
from ojs.store import items
from ojs.store.errors import LostRace
from ojs.store.jobs import Jobs
from ojs.store.queues import Queues

_CURSOR = re.compile(r"\d{15}\|" + UUID7.pattern)
# How many entries one request looks through. The same for every page: one that this cuts short is
# thus the last that can be reached by its number, and no job falls between two pages. The deepest
# numbered page (ojs.http.contract: 1 000 skipped, 200 shown) is well within.
MAX_READ = 1_500
# Read at a time when many have to be looked through: one BatchGet.
_ROUND = 100
# First read of each of several queues: costs the least that a query can.
_FIRST = 25
# Contents kept apart are loaded up to this size in all: an answer has no room for more.
MAX_PAGE_BYTES = 2_000_000
# Errors shown of each job in a listing. One may have some 100 KB; `get` has them all.
ERRORS_LISTED = 10
_NAMES = 1_000
_TRIES = 5


@dataclass
class _Look:
    """One listing under way: what is wanted, and how far it has come."""

    type: str | None
    skip: int
    limit: int
    before: str | None
    now_ms: int
    read: int = 0
    matched: int = 0
    found: list[Job] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """How many matches are still to come, those to be skipped included."""
        return self.skip + self.limit - self.matched

    @property
    def next_round(self) -> int:
        """How many entries to read next; 0 when it is over."""
        if not self.missing:
            return 0
        wanted = self.missing if self.type is None else max(self.missing, _ROUND)
        return min(wanted, MAX_READ - self.read)

    def take(self, key: str, job: Job | None) -> None:
        """One entry of the index, with the head that is there now."""
        self.read, self.before = self.read + 1, key
        # The index may be behind: a job that was retried or deleted is not listed, and one that
        # has come back since is listed at its new place only.
        listed = job is not None and items.index_entries(job).get("wsk") == key
        if job is None or not job.dead_letter or not listed or job.gone(self.now_ms):
            return
        if self.type in (None, job.type):
            self.matched += 1
            if self.matched > self.skip:
                self.found.append(job)


class DeadLetter:
    """Looks after jobs that are discarded but kept."""

    def __init__(
        self, jobs: Jobs, queues: Queues, bounds: Bounds, clock: Clock, ids: IdSource
    ) -> None:
        self._jobs = jobs
        self._queues = queues
        self._bounds = bounds
        self._clock = clock
        self._ids = ids

    def _line(self, name: str, before: str | None, first: int) -> Iterator[tuple[str, str]]:
        """Entries of one queue, latest first, read as they are asked for."""
        limit = first
        while True:
            entries = self._jobs.dead(name, limit=limit, before=before)
            yield from entries
            if len(entries) < limit:
                return
            before, limit = entries[-1][1], _ROUND

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
        skip: int = 0,
    ) -> Page[Job]:
        """Dead letters, latest first, each with its latest error.

        A page that is short and has a cursor ends where MAX_READ entries were looked through.
        Contents kept apart are loaded up to MAX_PAGE_BYTES in all; a job past that has `content`
        None. Costs one query for each queue when none is named, and more only for queues whose
        entries are used.

        The cursor names a place in time, so it stays right while jobs come and go. Raises
        InvalidRequest for a bad cursor, or when more is to be skipped than may be looked through.
        """
        if cursor is not None and not _CURSOR.fullmatch(cursor):
            raise InvalidRequest("cursor", "is not one this server gave", value=cursor)
        names = [queue] if queue is not None else self._all_queues()
        look = _Look(type, skip, limit, cursor, self._clock.now_ms())
        # From one queue all that is likely to be needed, and one to see whether there is more.
        first = look.next_round + 1 if len(names) == 1 else _FIRST
        # Merged as they are read: a queue is asked again only when what it gave is used up.
        entries = heapq.merge(
            *(self._line(name, cursor, first) for name in names),
            key=lambda entry: entry[1],
            reverse=True,
        )
        more = self._look_through(look, entries)
        if more and look.matched < skip:
            raise InvalidRequest("offset", "skips too much; go on with cursor instead", value=skip)
        return Page(list(self._filled(look.found)), look.before if more else None)

    def _look_through(self, look: _Look, entries: Iterator[tuple[str, str]]) -> bool:
        """Read until the page is full, nothing is left or MAX_READ is reached: whether more is."""
        while size := look.next_round:
            batch = list(islice(entries, size))
            if not batch:
                return False
            heads = self._jobs.heads(job_id for job_id, _ in batch)
            for job_id, key in batch:
                if not look.missing:
                    return True
                look.take(key, heads.get(job_id))
        return next(entries, None) is not None

    def _filled(self, found: Sequence[Job]) -> Sequence[Job]:
        """With contents as far as they fit into an answer, and the latest errors."""
        room = MAX_PAGE_BYTES
        loaded = []
        for job in found:
            if job.content_bytes <= room:
                room -= job.content_bytes
                loaded.append(job)
        by_id = {job.id: job for job in self._jobs.with_contents(loaded)}
        jobs = [by_id.get(job.id, job) for job in found]
        return self._jobs.with_errors(jobs, latest=ERRORS_LISTED)

    def get(self, job_id: str) -> Job:
        """One dead letter, whole. Raises NotFound, also for a job that is not one."""
        job = self._jobs.load(job_id)
        if job is None or not self._kept(job):
            raise NotFound("dead_letter_job", job_id)
        return job

    def _kept(self, job: Job) -> bool:
        """Whether it is a dead letter, and for as long as those are kept."""
        return job.dead_letter and not job.gone(self._clock.now_ms())

    def retry(self, job_id: str) -> Job:
        """Make it available again: attempts anew, id, policy and error history kept (DL §6.1).

        A copy of it that waits in a dead-letter queue is cancelled; one that a worker has, or had,
        is left alone.
        Of several retries at once exactly one dispatches; the others raise Conflict.
        """
        for _ in range(_TRIES):
            job = self._jobs.head(job_id)
            if job is None:
                raise NotFound("dead_letter_job", job_id)
            if not self._kept(job):
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
                self._return(job, after)
            except LostRace:
                continue
            revived = self._jobs.load(job_id)
            if revived is None:
                raise NotFound("dead_letter_job", job_id)
            return revived
        raise BackendUnavailable("Others are changing this job; try again.")

    def _return(self, job: Job, after: Job) -> None:
        """Back into its queue, which must have room for it, and its copy out of line.

        Raises QueueFull, LostRace.
        """
        copy = self._waiting_copy(job)
        queue = self._queues.get(job.queue)
        if queue is None or not queue.charged:
            self._swap(job, after, copy)
            return
        size = job.content_bytes or jsontext.size_of(job.content or {})
        after = replace(after, held=size)
        with self._bounds.room([after], {queue.name: queue}) as entry:
            self._swap(job, after, copy)
            entry.keep([after])

    def _waiting_copy(self, job: Job) -> Job | None:
        """The copy that the dead letter left, as long as no worker has taken it."""
        if job.copy_id is None or job.copy_due:
            return None
        copy = self._jobs.head(job.copy_id)
        if copy is None or copy.copy_of is None or copy.copy_of.job_id != job.id:
            return None
        return None if copy.state is State.ACTIVE or copy.state.terminal else copy

    def _swap(self, job: Job, after: Job, copy: Job | None) -> None:
        """The job comes back and its copy goes, both or neither. Raises LostRace."""
        # Races: a worker takes the copy, another retry, or whoever is about to make the copy, which
        # changes the dead letter too. The loser looks again: what waits now decides.
        if copy is None:
            self._jobs.replace(job, after)
            return
        cancelled = lifecycle.cancel(copy, now_ms=self._clock.now_ms())
        self._jobs.replace_all([(job, after), (copy, cancelled)])

    def delete(self, job_id: str) -> None:
        """Remove it for good. Raises NotFound."""
        for _ in range(_TRIES):
            job = self._jobs.head(job_id)
            if job is None or not self._kept(job):
                raise NotFound("dead_letter_job", job_id)
            try:
                self._jobs.delete(job)
            except LostRace:
                continue
            return
        raise BackendUnavailable("Others are changing this job; try again.")
