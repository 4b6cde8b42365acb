"""Lists unique locks. The jobs that hold them are listed, because no index contains the locks."""

from __future__ import annotations

from ojs.clock import Clock
from ojs.domain.filters import jobs as job_filter
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job.job import Job
from ojs.domain.job.states import TERMINAL, State
from ojs.domain.page import Page
from ojs.records import record
from ojs.services.listing.jobs import JobListing
from ojs.store.jobs.records import JobStore
from ojs.store.jobs.unique_locks import UniqueLock, UniqueLocks

_WAITING = frozenset(State) - TERMINAL


@record(frozen=True)
class UniqueHolder:
    """A unique lock, and the job that holds it."""

    lock: UniqueLock
    job: Job


class UniqueListing:
    """Lists unique locks, or finds one; changes nothing."""

    def __init__(
        self, *, jobs: JobStore, unique_locks: UniqueLocks, listing: JobListing, clock: Clock
    ) -> None:
        self._jobs = jobs
        self._locks = unique_locks
        self._listing = listing
        self._clock = clock

    def page(
        self, wanted: JobFilter, *, limit: int, skip: int = 0, cursor: str | None = None
    ) -> Page[UniqueHolder]:
        """Return a page of locks whose jobs match. A short or empty page can have a cursor.

        If the filter has no states, only unfinished jobs match. The page has the limits of
        `JobListing.page`, and each lock takes half a read unit.

        Args:
            wanted: Filter of the jobs.
            limit: Maximum number of locks.
            skip: Number of matching jobs to skip.
            cursor: Cursor of the previous page.

        Returns:
            The page.

        Raises:
            InvalidRequest: As in `JobListing.page`.
        """
        if not wanted.states:
            wanted = job_filter.limited(wanted, _WAITING)
        found = self._listing.page(
            wanted.but(unique=True),
            limit=limit,
            skip=skip,
            cursor=cursor,
            spare_calls=1,
            spare_units=limit / 2,
        )
        now_ms = self._clock.now_ms()
        locks = self._locks.get_many(job.unique_key for job in found.items if job.unique_key)
        holders = [
            UniqueHolder(lock, job)
            for job in found.items
            if (lock := locks.get(job.unique_key or "")) is not None and lock.held_by(job, now_ms)
        ]
        return Page(holders, found.next_cursor)

    def find(self, key: str, wanted: JobFilter) -> Page[UniqueHolder]:
        """Return the lock of this key, if a matching job holds it. Makes two calls."""
        now_ms = self._clock.now_ms()
        lock = self._locks.get(key)
        job = None if lock is None else self._jobs.read_record(lock.job_id)
        if lock is None or job is None or not lock.held_by(job, now_ms) or job.gone(now_ms):
            return Page([], None)
        return Page([UniqueHolder(lock, job)] if wanted.matches_record(job) else [], None)
