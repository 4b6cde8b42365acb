"""Rate limits of jobs: parses requests, and decides how many jobs can start now. Pure.

Implements ojs-rate-limiting. Jobs with the same key share the counters of that key. Each job is
checked against its own limits. A job starts only if all its limits allow it:

    concurrency   maximum number of active jobs
    rate          maximum number of starts in any interval of one period (sliding window)
    throttle      minimum time between two starts: period / limit
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Annotated, Any

from ojs.domain import times
from ojs.domain.fields import NumberRange
from ojs.domain.rate_limit.window import STEPS, RateWindow
from ojs.domain.requests import After, Before, Field, Model
from ojs.domain.tenants import check_tenant, get_local_name, get_tenant
from ojs.records import record

KEY_PATTERN = r"[a-zA-Z0-9][a-zA-Z0-9._:\-]*"
MAX_KEY = 255
# The permits of the active jobs of a key are stored in shards. Their number depends on the key's
# largest limit (`ojs.store.permits.semaphore`). For jobs with a smaller limit, all shards are read.
MAX_CONCURRENCY = 1_000
MAX_RATE = 1_000_000
# Maximum period of a rate.
MAX_PERIOD_MS = 31 * 86_400_000
# Maximum number of different periods that are counted for one key.
MAX_WINDOWS = 8
_KEY = re.compile(KEY_PATTERN)
_NAMED_PERIODS = {"second": 1_000, "minute": 60_000, "hour": 3_600_000, "day": 86_400_000}
_SECOND_MS = 1_000

# Kinds of limits that can block a start (ojs-rate-limiting, section 11.1, `strategy`).
CONCURRENCY, RATE, THROTTLE, PAUSE = "concurrency", "rate", "throttle", "pause"


class OnLimit(StrEnum):
    """The action on an available job while its rate limit is reached."""

    WAIT = "wait"
    RESCHEDULE = "reschedule"
    DROP = "drop"


def check_key(value: str) -> str:
    """Return `value` if it is a valid rate limit key.

    Raises ValueError with the violated rule if it is invalid.
    """
    if len(value) > MAX_KEY:
        raise ValueError(f"must have at most {MAX_KEY} characters")
    if not _KEY.fullmatch(value):
        raise ValueError(
            "must start with a letter or digit and contain only letters, digits, '.', '_', ':', "
            "and '-'"
        )
    return value


def check_any_key(value: str) -> str:
    """Check a key as `check_key`, but also accept the key of a queue (`queue_key`)."""
    tenant, bar, key = value.rpartition("|")
    if bar:
        return format_tenant_key(check_tenant(tenant), check_key(key))
    own = queue_key("")
    return own + check_key(value[len(own) :]) if value.startswith(own) else check_key(value)


def queue_key(queue: str) -> str:
    """Return the key of jobs whose limit has no key: one key per queue."""
    return format_tenant_key(get_tenant(queue), f"queue:{get_local_name(queue)}")


def format_tenant_key(tenant: str | None, key: str) -> str:
    """Return the stored form of a tenant's key. No request for a job can name such a key."""
    return key if tenant is None else f"{tenant}|{key}"


def limiter_name(key: str) -> str:
    """Return the short name of a key, 12 characters, for sort keys in the ready index."""
    digest = hashlib.blake2b(key.encode("utf-8"), digest_size=9).digest()
    return base64.urlsafe_b64encode(digest).decode("ascii")


@record(frozen=True)
class Rate:
    """Maximum number of starts in a period (ms)."""

    limit: int
    period_ms: int

    @property
    def interval_ms(self) -> int:
        """The time in ms between two evenly spaced starts, rounded up."""
        return -(-self.period_ms // self.limit)


@record(frozen=True)
class LimitBounds:
    """The limits of a job. None means no limit."""

    concurrency: int | None = None
    rate: Rate | None = None
    throttle: Rate | None = None

    @property
    def timed(self) -> bool:
        """Whether starts of jobs are limited."""
        return self.rate is not None or self.throttle is not None

    def compact(self) -> str:
        """Return the form in job records and sort keys, for example `c5;r100/60000;t10/1000`."""
        parts = [] if self.concurrency is None else [f"c{self.concurrency}"]
        parts += [
            f"{letter}{rate.limit}/{rate.period_ms}"
            for letter, rate in (("r", self.rate), ("t", self.throttle))
            if rate is not None
        ]
        return ";".join(parts)

    @classmethod
    def of(cls, text: str) -> LimitBounds:
        """Read the result of `compact`. Unknown letters are ignored."""
        given = {part[0]: part[1:] for part in text.split(";") if part}

        def rate(letter: str) -> Rate | None:
            if letter not in given:
                return None
            limit, _, period_ms = given[letter].partition("/")
            return Rate(int(limit), int(period_ms))

        return cls(int(given["c"]) if "c" in given else None, rate("r"), rate("t"))


_ON_LIMIT = {OnLimit.WAIT: "", OnLimit.RESCHEDULE: "m", OnLimit.DROP: "d"}


@record(frozen=True)
class RateLimit:
    """A job's rate limit. If `key` is None, the key of its queue applies (`queue_key`)."""

    key: str | None
    bounds: LimitBounds = LimitBounds()
    on_limit: OnLimit = OnLimit.WAIT

    def key_in(self, queue: str) -> str:
        """Return the key under which a job of this queue is counted."""
        return queue_key(queue) if self.key is None else self.key

    def compact(self) -> str:
        """Return the stored form in a job record: limits, `on_limit`, and the key."""
        return f"{self._rules()}|{self.key or ''}"

    def spec(self, queue: str) -> str:
        """Return the form in a sort key of the ready index: all data for a claim except the key
        itself.
        """
        return ";".join(filter(None, (limiter_name(self.key_in(queue)), self._rules())))

    def _rules(self) -> str:
        return ";".join(filter(None, (self.bounds.compact(), _ON_LIMIT[self.on_limit])))

    @classmethod
    def of(cls, text: str) -> RateLimit:
        """Read the result of `compact`."""
        rules, _, key = text.partition("|")
        return cls(key or None, LimitBounds.of(rules), _on_limit(rules))


@record(frozen=True)
class LimitSpec:
    """The rate limit of a job, as read from a sort key of the ready index."""

    limiter: str
    bounds: LimitBounds
    on_limit: OnLimit

    @classmethod
    @lru_cache(maxsize=1_024)
    def of(cls, text: str) -> LimitSpec:
        """Read the result of `RateLimit.spec`."""
        limiter, _, rules = text.partition(";")
        return cls(limiter, LimitBounds.of(rules), _on_limit(rules))


def _on_limit(rules: str) -> OnLimit:
    parts = rules.split(";")
    given = (name for name, letter in _ON_LIMIT.items() if letter and letter in parts)
    return next(given, OnLimit.WAIT)


# --- requests -----------------------------------------------------------------------------------


def _period_ms(value: object, *, named: bool = False) -> int:
    if named and isinstance(value, str) and value in _NAMED_PERIODS:
        return _NAMED_PERIODS[value]
    ms = times.short_duration_ms(value)
    if not 1 <= ms <= MAX_PERIOD_MS:
        raise ValueError(
            f"must be greater than zero and at most {MAX_PERIOD_MS // 86_400_000} days"
        )
    return ms


def _iso(value: object) -> object:
    _period_ms(value)
    return value


def _period(value: str) -> str:
    _period_ms(value, named=True)
    return value


Number = Annotated[int, NumberRange(1, MAX_RATE)]
Concurrency = Annotated[int, NumberRange(0, MAX_CONCURRENCY)]
Key = Annotated[str, Field(min_length=1, max_length=MAX_KEY), After(check_key)]


class StartsRequest(Model):
    """At most `limit` starts in each `period`."""

    limit: Number
    period: Annotated[str, Before(_iso), Field(description="ISO 8601 or `1m`, at most 31 days")]

    def rate(self) -> Rate:
        """Return the corresponding Rate."""
        return Rate(self.limit, _period_ms(self.period))


def _spaced(value: StartsRequest) -> StartsRequest:
    if value.limit > value.rate().period_ms:
        raise ValueError("must be at most one start per millisecond")
    return value


Throttle = Annotated[StartsRequest, After(_spaced)]
Starts = Number | StartsRequest


class RateLimitRequest(Model):
    """A job's rate limit, in one of three forms: as in ojs-rate-limiting, section 6; a number as
    `rate` with a `period`; or `max_per_second`. Without a key it uses the queue's limit.
    """

    key: Key | None = None
    concurrency: Concurrency | None = None
    rate: Starts | None = Field(
        None, description="{limit, period}, or the number of starts in each `period`"
    )
    period: Annotated[str, Before(_period)] | None = Field(
        None, description="of a `rate` that is a number: second, minute, hour, day or ISO 8601"
    )
    max_per_second: Number | None = None
    throttle: Throttle | None = None
    on_limit: OnLimit | None = None

    def agree(self) -> None:
        if self.max_per_second is not None and self.rate is not None:
            raise ValueError("can't have both rate and max_per_second. Send one of them")
        number = isinstance(self.rate, int)
        if number != (self.period is not None):
            raise ValueError("must have period if rate is a number, and only then")
        asked = (self.key, self.concurrency, self.rate, self.max_per_second, self.throttle)
        if all(value is None for value in asked):
            raise ValueError("must have key, concurrency, rate, throttle, or max_per_second")

    def limit(self, tenant: str | None = None) -> RateLimit:
        """Return the corresponding RateLimit. `tenant` is the tenant of the job's queue."""
        rate: Rate | None = None
        if self.max_per_second is not None:
            rate = Rate(self.max_per_second, _SECOND_MS)
        elif isinstance(self.rate, StartsRequest):
            rate = self.rate.rate()
        elif self.rate is not None:
            rate = Rate(self.rate, _period_ms(self.period, named=True))
        throttle = None if self.throttle is None else self.throttle.rate()
        bounds = LimitBounds(self.concurrency, rate, throttle)
        key = None if self.key is None else format_tenant_key(tenant, self.key)
        return RateLimit(key, bounds, self.on_limit or OnLimit.WAIT)


class OverrideRequest(Model):
    """Limits of a key that replace the limits of its jobs.

    Null removes a limit. If a field is absent, the limits of the jobs apply. `limit` and `period`
    together are an alias of `rate`.
    """

    concurrency: Concurrency | None = None
    rate: StartsRequest | None = None
    limit: Number | None = None
    period: Annotated[str, Before(_iso)] | None = Field(
        None, description="with `limit`: ISO 8601 or `1m`, at most 31 days"
    )
    throttle: Throttle | None = None
    expires_at: str | None = Field(None, description="RFC 3339; when not given, until deleted")

    def agree(self) -> None:
        if not self.model_fields_set & {"concurrency", "rate", "throttle", "limit", "period"}:
            raise ValueError("must have concurrency, rate, or throttle")

    def override(self, until_ms: int | None) -> Override:
        """Return the corresponding Override, in force until `until_ms` or without an end."""
        rate = None if self.rate is None else self.rate.rate()
        named = self.model_fields_set & {"concurrency", "rate", "throttle"}
        if self.limit is not None:
            rate, named = Rate(self.limit, _period_ms(self.period)), {*named, "rate"}
        throttle = None if self.throttle is None else self.throttle.rate()
        given = LimitBounds(self.concurrency, rate, throttle)
        return Override(given, frozenset(named), until_ms)


@record(frozen=True)
class Override:
    """Limits that replace the limits of jobs in the fields `named`. Time in milliseconds."""

    bounds: LimitBounds
    named: frozenset[str]
    until_ms: int | None = None

    def holds(self, now_ms: int) -> bool:
        """Return whether the override is in force at `now_ms`."""
        return self.until_ms is None or now_ms < self.until_ms

    def over(self, bounds: LimitBounds) -> LimitBounds:
        """Return the limits of a job after this override."""
        laid: dict[str, Any] = {name: getattr(self.bounds, name) for name in self.named}
        return replace(bounds, **laid)

    @property
    def configuration(self) -> dict[str, Any]:
        """The request that sets this override."""
        starts = {"rate": self.bounds.rate, "throttle": self.bounds.throttle}
        limits: dict[str, Any] = {
            name: rate and {"limit": rate.limit, "period": times.round_duration(rate.period_ms)}
            for name, rate in starts.items()
        }
        limits["concurrency"] = self.bounds.concurrency
        ends = {} if self.until_ms is None else {"expires_at": times.format_ms(self.until_ms)}
        return {name: limits[name] for name in sorted(self.named)} | ends

    def compact(self) -> str:
        """Return the stored form: field names, end, and limits."""
        until = "" if self.until_ms is None else str(self.until_ms)
        return f"{','.join(sorted(self.named))}|{until}|{self.bounds.compact()}"

    @classmethod
    def of(cls, text: str) -> Override:
        """Read the result of `compact`."""
        named, until, bounds = text.split("|")
        return cls(
            LimitBounds.of(bounds), frozenset(named.split(",")), int(until) if until else None
        )


# --- decisions ----------------------------------------------------------------------------------


@record(frozen=True)
class LimitDecision:
    """The number of jobs that can start.

    If it is 0, also the limit that blocks them, and its end if known.
    """

    count: int
    strategy: str = ""
    limit: int = 0
    current: int = 0
    free_ms: int | None = None


@record(frozen=True)
class LimiterState:
    """The counters of one key.

    `active` is the number of acquired permits in the shards that were read. From `look_ms` (ms),
    the server checks whether the jobs of these permits still run. `most` is the largest limit with
    which a permit was acquired, if that limit needs several shards. If `counted`, all active jobs
    of the key acquire permits. If `timed`, all starts are counted.
    """

    key: str | None = None
    active: int = 0
    look_ms: int | None = None
    most: int = 0
    # Permits of jobs that version 0.2 claimed, which are included in `active`: job and acquisition
    # time (ms).
    left: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    windows: Mapping[int, RateWindow] = field(default_factory=dict)
    last_ms: int | None = None
    paused_ms: int | None = None
    override: Override | None = None
    counted: bool = False
    timed: bool = False
    # Limits of the most recently enqueued job, for responses, and the queues of its jobs.
    bounds: LimitBounds = LimitBounds()
    queues: tuple[str, ...] = ()
    # When the key was found to throttle jobs.
    throttled_since_ms: int | None = None
    op: str | None = None

    def in_force(self, bounds: LimitBounds, now_ms: int) -> LimitBounds:
        """Return the limits of a job after the override, if one is in force."""
        if self.override is not None and self.override.holds(now_ms):
            return self.override.over(bounds)
        return bounds

    def permits(self, bounds: LimitBounds, now_ms: int) -> int | None:
        """Return the total number of permits for a start, or None if it acquires no permit."""
        most = self.in_force(bounds, now_ms).concurrency
        return MAX_CONCURRENCY if most is None and self.counted else most

    def counts_starts(self, bounds: LimitBounds, now_ms: int) -> bool:
        """Return whether a start of a job with these limits is counted."""
        return self.timed or self.in_force(bounds, now_ms).timed

    def room(self, bounds: LimitBounds, now_ms: int, wanted: int) -> LimitDecision:
        """Decide how many jobs can start now.

        Args:
            bounds: Limits of the jobs.
            now_ms: Current time in milliseconds since the epoch.
            wanted: Maximum number of jobs to start.

        Returns:
            The decision, with a count of at most `wanted`.
        """
        if self.paused_ms is not None and now_ms < self.paused_ms:
            return LimitDecision(0, PAUSE, free_ms=self.paused_ms)
        applied = self.in_force(bounds, now_ms)
        decisions = [
            decision
            for decision in (
                self._concurrency(bounds, now_ms),
                self._rate(applied.rate, now_ms),
                self._throttle(applied.throttle, now_ms),
            )
            if decision is not None
        ]
        least = min(decisions, key=lambda decision: decision.count, default=LimitDecision(wanted))
        if least.count >= wanted:
            return LimitDecision(wanted)
        if least.count:
            return least
        # If several limits block, report the one that blocks longest.
        blocking = [decision for decision in decisions if not decision.count]
        return max(blocking, key=lambda decision: decision.free_ms or now_ms)

    def _concurrency(self, bounds: LimitBounds, now_ms: int) -> LimitDecision | None:
        limit = self.permits(bounds, now_ms)
        if limit is None:
            return None
        return LimitDecision(max(0, limit - self.active), CONCURRENCY, limit, self.active)

    def _rate(self, rate: Rate | None, now_ms: int) -> LimitDecision | None:
        if rate is None:
            return None
        windows = self._recent(now_ms)
        if rate.period_ms not in windows and len(windows) >= MAX_WINDOWS:
            return LimitDecision(0, RATE, rate.limit, rate.limit)
        window = windows.get(rate.period_ms, RateWindow())
        room = window.room(now_ms, limit=rate.limit, period_ms=rate.period_ms)
        return LimitDecision(
            room, RATE, rate.limit, window.used, self.reset_ms(rate, now_ms) if not room else None
        )

    def _throttle(self, rate: Rate | None, now_ms: int) -> LimitDecision | None:
        if rate is None:
            return None
        next_ms = self.next_ms(rate)
        if next_ms <= now_ms:
            return LimitDecision(1, THROTTLE, rate.limit)
        return LimitDecision(0, THROTTLE, rate.limit, rate.limit, next_ms)

    def next_ms(self, throttle: Rate) -> int:
        """Return the time (ms) of the next start that a throttle allows."""
        return 0 if self.last_ms is None else self.last_ms + throttle.interval_ms

    def started(self, period_ms: int, now_ms: int) -> int:
        """Return the number of counted starts in the last period."""
        return self._recent(now_ms).get(period_ms, RateWindow()).used

    def reset_ms(self, rate: Rate, now_ms: int) -> int:
        """Return the time (ms) at which a rate allows one more start, `now_ms` or later."""
        window = self._recent(now_ms).get(rate.period_ms, RateWindow())
        over = window.used - rate.limit
        for step, count in window.passed:
            if over < 0:
                break
            over -= count
            free_ms = -(-(step + STEPS + 1) * rate.period_ms // STEPS)
            if over < 0:
                return max(now_ms, free_ms)
        return now_ms

    def _recent(self, now_ms: int) -> dict[int, RateWindow]:
        """Return the windows with starts in their last period."""
        recent = {period: window.recent(now_ms, period) for period, window in self.windows.items()}
        return {period: window for period, window in recent.items() if window.passed}

    def with_starts(self, bounds: LimitBounds, now_ms: int, count: int) -> LimiterState:
        """Count starts.

        Args:
            bounds: Limits of the started jobs.
            now_ms: Current time in milliseconds since the epoch.
            count: Number of started jobs.

        Returns:
            The new state.
        """
        windows = self._recent(now_ms)
        rate = self.in_force(bounds, now_ms).rate
        if rate is not None:
            windows.setdefault(rate.period_ms, RateWindow())
        return replace(
            self,
            windows={
                period: window.with_starts(count, now_ms, period)
                for period, window in windows.items()
            },
            # The clock of another container might be ahead.
            last_ms=max(now_ms, self.last_ms or 0),
        )

    def without_starts(self, started_ms: int, count: int) -> LimiterState:
        """Return the state without `count` starts that were counted at `started_ms` but did not
        happen.
        """
        return replace(
            self,
            windows={
                period: window.with_starts(-count, started_ms, period)
                for period, window in self.windows.items()
            },
        )
