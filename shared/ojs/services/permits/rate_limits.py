"""Job-level rate limits: registers their keys, and lets operators view and override them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain.errors import BAD_CURSOR, NotFound, naming_field
from ojs.domain.job.job import Job
from ojs.domain.page import Page
from ojs.domain.rate_limit.limiter import (
    LimitBounds,
    LimiterState,
    LimitSpec,
    Override,
    RateLimit,
    check_any_key,
    limiter_name,
)
from ojs.records import record
from ojs.store.jobs.records import JobStore
from ojs.store.permits.key_limits import KeyLimits
from ojs.store.table.keys import Position
from ojs.store.table.races import retry_on_race

if TYPE_CHECKING:
    from ojs.domain.edits import Edit

_BUSY = "Concurrent requests changed this rate limit."

# Time between two registrations of a key by one container, per kind of limit.
_REGISTER_EVERY_MS = 86_400_000
_REMEMBERED = 10_000
_LINE_PAGES = 5
# Maximum length of a pause's reason in characters.
_MAX_REASON = 1_000


@record(frozen=True)
class RateLimitStatus:
    """A key's limits and their use at `now_ms`.

    `waiting` is the number of available jobs, or None if they were not counted.
    """

    key: str
    limiter: LimiterState
    now_ms: int
    waiting: int | None = None
    waiting_exact: bool = True

    @property
    def bounds(self) -> LimitBounds:
        """The limits that apply: those of the most recently created job, with the override."""
        return self.limiter.in_force(self.limiter.bounds, self.now_ms)

    @property
    def configuration(self) -> Mapping[str, Any] | None:
        """The override as a request sets it, `{}` without one. None if the key isn't registered."""
        if self.limiter.key is None:
            return None
        override = self.limiter.override
        holds = override is not None and override.holds(self.now_ms)
        return override.configuration if override is not None and holds else {}


class RateLimits:
    """Registers, shows, pauses, and overrides keys."""

    def __init__(
        self, *, key_limits: KeyLimits, jobs: JobStore, lanes: Callable[[str], int], clock: Clock
    ) -> None:
        self._store = key_limits
        self._jobs = jobs
        self._lanes = lanes
        self._clock = clock
        self._known: BoundedMap[tuple[str, str], int] = BoundedMap(_REMEMBERED)

    def register(self, jobs: Iterable[tuple[RateLimit, str]]) -> None:
        """Register the keys of jobs that are about to be enqueued, each with its queue."""
        now_ms = self._clock.now_ms()
        for limit, queue in dict.fromkeys(jobs):
            kind = (limit.compact(), queue)
            if now_ms - self._known.get(kind, -_REGISTER_EVERY_MS) < _REGISTER_EVERY_MS:
                continue
            self._store.register(limit, queue, now_ms=now_ms)
            self._known.put(kind, now_ms)

    def pause(self, job: Job, until_ms: int, reason: str) -> None:
        """Start no job of this job's key before `until_ms`.

        Args:
            job: A job of the key. Without a limit, nothing happens.
            until_ms: End of the pause in milliseconds since the epoch.
            reason: Reason for the event. Cut to 1,000 characters.
        """
        now_ms = self._clock.now_ms()
        if job.limit is not None and until_ms > now_ms:
            self._store.pause(job, until_ms=until_ms, reason=reason[:_MAX_REASON], now_ms=now_ms)

    def status(self, limit: RateLimit, queue: str) -> RateLimitStatus:
        """Return the status of a job's key, from an eventually consistent read."""
        key = limit.key_in(queue)
        name = limiter_name(key)
        wanted = {name: limit.bounds.concurrency or 1}
        limiter = self._store.get_many(wanted, consistent=False)[name]
        return RateLimitStatus(key, limiter, self._clock.now_ms())

    def get(self, key: str) -> RateLimitStatus:
        """Return the status of a key with the number of waiting jobs. Raises NotFound."""
        limiter = self._store.get(limiter_name(key))
        if limiter is None:
            raise NotFound("rate_limit", key)
        waiting, exact = self.waiting(limiter_name(key), limiter.queues)
        return RateLimitStatus(key, limiter, self._clock.now_ms(), waiting, exact)

    def list(self, *, limit: int, cursor: str | None = None) -> Page[RateLimitStatus]:
        """Return a page of keys, ordered by key, without the number of waiting jobs.

        Raises InvalidRequest for an invalid cursor.
        """
        if cursor is not None:
            with naming_field("cursor", cursor, BAD_CURSOR):
                check_any_key(cursor)
        names, following = self._store.keys(limit=limit, after=cursor)
        limiters = self._store.get_many({limiter_name(key): 1 for key in names})
        now_ms = self._clock.now_ms()
        shown = [RateLimitStatus(key, limiters[limiter_name(key)], now_ms) for key in names]
        return Page(shown, following)

    def override(self, key: str, override: Override, edit: Edit | None = None) -> RateLimitStatus:
        """Override the bounds of a key's jobs. Replaces an earlier override.

        Raises PreconditionFailed for the precondition of `edit`.
        """

        def make_attempt() -> None:
            now_ms = self._clock.now_ms()
            before = self._changed(key)
            if edit is not None:
                edit.change("rate limit", key, before.configuration, override.configuration)
            seen = before.limiter.override
            self._store.override(key, override, seen=seen, now_ms=now_ms)

        retry_on_race(make_attempt, busy=_BUSY)
        return self._changed(key)

    def lift(self, key: str, edit: Edit | None = None) -> RateLimitStatus:
        """Remove the override and the pause of a key. Raises NotFound, PreconditionFailed."""

        def make_attempt() -> None:
            before = self._changed(key)
            if before.configuration is None:
                raise NotFound("rate_limit", key)
            if edit is not None:
                edit.change("rate limit", key, before.configuration, {})
            if not self._store.lift(key, seen=before.limiter.override):
                raise NotFound("rate_limit", key)

        retry_on_race(make_attempt, busy=_BUSY)
        return self._changed(key)

    def _changed(self, key: str) -> RateLimitStatus:
        name = limiter_name(key)
        limiter = self._store.get_many({name: 1})[name]
        return RateLimitStatus(key, limiter, self._clock.now_ms())

    def waiting(self, name: str, queues: Sequence[str]) -> tuple[int, bool]:
        """Count the available jobs of a key in the first pages of its queues.

        Return the number, and whether all pages were read.
        """
        count, exact = 0, True
        for queue in queues:
            for lane in range(self._lanes(queue)):
                found, whole = self._in_line(name, queue, lane)
                count, exact = count + found, exact and whole
        return count, exact

    def _in_line(self, name: str, queue: str, lane: int) -> tuple[int, bool]:
        count, after = 0, None
        for _ in range(_LINE_PAGES):
            entries, after = self._jobs.index.ready(queue, lane, limit=200, after=after)
            limits = (Position.parse(key).limit for _, key in entries)
            count += sum(1 for limit in limits if limit and LimitSpec.of(limit).limiter == name)
            if after is None:
                return count, True
        return count, False


def registered(jobs: Iterable[Job]) -> list[tuple[RateLimit, str]]:
    """Return the rate limits of the jobs that have one, each with the job's queue."""
    return [(job.limit, job.queue) for job in jobs if job.limit is not None]
