"""Lists, reads, and deletes dead letters: discarded jobs that are retained.

`ojs.services.dead_letter.redrive` retries one of them, `ojs.services.bulk.runner` many.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field, replace

from ojs.domain.errors import BAD_CURSOR, InvalidRequest, NotFound
from ojs.domain.filters.dead_letters import EVERYTHING, DeadLetterFilter
from ojs.domain.ids import UUID7
from ojs.domain.job.job import Job
from ojs.domain.page import Page
from ojs.records import record
from ojs.store.jobs import items
from ojs.store.jobs.records import JobStore
from ojs.store.table.errors import ignore_unreadable
from ojs.store.table.races import retry_on_race

# A sort key in an index partition of dead letters.
POSITION = re.compile(r"\d{15}\|" + UUID7.pattern)
# Maximum number of index entries that one request reads. The limit is the same for each page, so
# only the last numbered page can be short, and no job is missed between two pages. The deepest
# numbered page (ojs.http.parameters: 1,000 skipped, 200 listed) is within this limit.
MAX_READ = 1_500
# Maximum bytes of offloaded payloads that a search of args reads: about 30 calls to the bucket.
MAX_ARGS_BYTES = 8_000_000
# Number of entries that a filter reads at a time, by one BatchGetItem call.
_ROUND = 100
# Maximum total size of the offloaded payloads in a response.
MAX_PAGE_BYTES = 2_000_000
# Maximum number of errors of each job in a listing. They can have about 100 KB in total. `get`
# returns all errors.
ERRORS_LISTED = 10


def still_listed(job: Job, key: str) -> bool:
    """Return whether a job is still the dead letter that the index lists at a key.

    The index is eventually consistent. A job that was retried or deleted does not count as a dead
    letter. A job that was discarded again is listed with its new key only.
    """
    return job.dead_letter and items.index_entries(job)["wsk"] == key


@record
class _SearchPage:
    """The state of one listing: its filter and its progress."""

    wanted: DeadLetterFilter
    skip: int
    limit: int
    before: str | None
    read: int = 0
    args_bytes: int = 0
    matched: int = 0
    found: list[Job] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """Number of matches that are still to be found, including those to skip."""
        return self.skip + self.limit - self.matched

    @property
    def next_round(self) -> int:
        """Return the number of entries to read next, or 0 if the page is full."""
        if not self.missing:
            return 0
        wanted = max(self.missing, _ROUND) if self.wanted.picky else self.missing
        return min(wanted, MAX_READ - self.read)

    def may_match(self, key: str, job: Job) -> bool:
        """Return whether an index entry might match, by the current job record."""
        return self.wanted.matches_record(job) and still_listed(job, key)

    def passed(self, key: str) -> None:
        """Record that an entry was processed."""
        self.read, self.before = self.read + 1, key

    def take(self, job: Job) -> None:
        """Record a match."""
        self.matched += 1
        if self.matched > self.skip:
            self.found.append(job)


class DeadLetterSearch:
    """Lists, reads, and deletes dead letters."""

    def __init__(self, jobs: JobStore) -> None:
        self._jobs = jobs

    def list(
        self,
        wanted: DeadLetterFilter = EVERYTHING,
        *,
        limit: int = 50,
        cursor: str | None = None,
        skip: int = 0,
    ) -> Page[Job]:
        """Return a page of dead letters, most recent first, each with its most recent errors.

        A page is short if MAX_READ entries, or MAX_ARGS_BYTES of offloaded payloads for a search
        of args, were read. Then it has a cursor. Offloaded payloads are returned up to
        MAX_PAGE_BYTES in total. Other jobs have the `content` None.

        Takes one query and one read of the job records, again for each 100 entries that a filter
        reads, and the reads of payloads and errors. The cursor is a time, so it stays valid if
        dead letters are added or deleted.

        Args:
            wanted: Filter of the dead letters.
            limit: Maximum number of dead letters.
            cursor: Cursor of the previous page.
            skip: Number of matching dead letters to skip.

        Returns:
            The page.

        Raises:
            InvalidRequest: The cursor is invalid, or `skip` is more than one request can read.
        """
        if cursor is not None and not POSITION.fullmatch(cursor):
            raise InvalidRequest("cursor", BAD_CURSOR, value=cursor)
        look = _SearchPage(wanted, skip, limit, cursor)
        more = self._look_through(look)
        if more and look.matched < skip:
            raise InvalidRequest("offset", "skips too many items. Use cursor", value=skip)
        return Page(list(self._filled(look.found)), look.before if more else None)

    def _look_through(self, look: _SearchPage) -> bool:
        """Read until the page is full, or the end or a limit is reached.

        Returns whether more entries might follow.
        """
        wanted = look.wanted
        while size := look.next_round:
            # Read one more entry than is processed. It shows whether more entries follow.
            entries = self._jobs.index.dead(
                wanted.queue,
                limit=size + 1,
                since_ms=wanted.since_ms,
                until_ms=wanted.until_ms,
                before=look.before,
            )
            likely, too_much = self._candidates(look, entries[:size])
            for _, key in entries[:size]:
                if not look.missing or key == too_much:
                    return True
                look.passed(key)
                if key in likely and wanted.matches_content(likely[key]):
                    look.take(likely[key])
            if len(entries) <= size:
                return False
        return True

    def _candidates(
        self, look: _SearchPage, entries: Sequence[tuple[str, str]]
    ) -> tuple[dict[str, Job], str | None]:
        """Return the jobs that match by their records, by key.

        If args are searched, the jobs have their payloads. The result then also contains the key
        of the first job whose payload is too large for one request.
        """
        # `read_records` skips records that can't be read, so that the other entries are returned.
        records = self._jobs.read_records((job_id for job_id, _ in entries), ignore_unreadable)
        likely = {
            key: records[job_id]
            for job_id, key in entries
            if job_id in records and look.may_match(key, records[job_id])
        }
        if not look.wanted.of_content:
            return likely, None
        within: dict[str, Job] = {}
        too_much = None
        for key, job in likely.items():
            size = job.content_bytes if job.content is None else 0
            if look.args_bytes and look.args_bytes + size > MAX_ARGS_BYTES:
                too_much = key
                break
            look.args_bytes += size
            within[key] = job
        contents = self._jobs.with_contents(list(within.values()), ignore_unreadable)
        return dict(zip(within, contents, strict=True)), too_much

    def _filled(self, found: Sequence[Job]) -> Sequence[Job]:
        """Yield the jobs with their most recent errors, and with payloads as far as they fit."""
        room = MAX_PAGE_BYTES
        loaded = []
        for job in found:
            if job.content_bytes <= room:
                room -= job.content_bytes
                loaded.append(job)
        by_id = {job.id: job for job in self._jobs.with_contents(loaded, ignore_unreadable)}
        # A search of args might have read the payload of a job above the limit.
        jobs = [by_id[job.id] if job.id in by_id else replace(job, content=None) for job in found]
        return self._jobs.with_errors(jobs, latest=ERRORS_LISTED)

    def get(self, job_id: str) -> Job:
        """Return a dead letter with all its errors. Raises NotFound, also for other states."""
        job = self._jobs.load(job_id)
        if job is None or not job.dead_letter:
            raise NotFound("dead_letter_job", job_id)
        return job

    def delete(self, job_id: str) -> None:
        """Delete a dead letter. Raises NotFound."""

        def attempt() -> None:
            job = self._jobs.read_record(job_id)
            if job is None or not job.dead_letter:
                raise NotFound("dead_letter_job", job_id)
            self.remove(job)

        retry_on_race(attempt)

    def remove(self, job: Job) -> None:
        """Delete a dead letter, as read, at a client's request.

        Marks it as being deleted first, which emits the event `dead_letter.deleted`. Pruning emits
        no such event. Raises LostRace if the job has changed.
        """
        self._jobs.removal.delete(self._jobs.removal.mark_deleting(job))
