"""Rate limits of keys and of queues (ojs-rate-limiting section 10)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ojs import runtime
from ojs.domain import times
from ojs.domain.access import Scope
from ojs.domain.edits import make_version
from ojs.domain.errors import InvalidRequest, ValidationFailed
from ojs.domain.rate_limit.limiter import (
    LimiterState,
    Override,
    OverrideRequest,
    Rate,
    queue_key,
)
from ojs.domain.requests import Field
from ojs.http import models
from ojs.http.answer import Answer, AsIs, absent, derived, length, made, moment, shown, source
from ojs.http.answers import Count, Etag, Moment
from ojs.http.binding import paging, query
from ojs.http.binding.paging import Listed, Paged
from ojs.http.binding.request import Request
from ojs.http.endpoint import Permission, QueueScope, Reply, Resource
from ojs.http.parameters import PAGING
from ojs.records import record

if TYPE_CHECKING:
    from ojs.services.permits.rate_limits import RateLimitStatus
    from ojs.services.queues.configure import QueueUsage


@record(frozen=True)
class _Places:
    """The number of running jobs, and its limit."""

    limit: int | None
    active: int

    @property
    def available(self) -> int | None:
        return None if self.limit is None else max(0, self.limit - self.active)


@record(frozen=True)
class _Starts:
    """A limit of starts, and the counted starts."""

    rate: Rate
    limiter: LimiterState
    now_ms: int

    @property
    def started(self) -> int:
        return self.limiter.started(self.rate.period_ms, self.now_ms)

    @property
    def reset_ms(self) -> int:
        return self.limiter.reset_ms(self.rate, self.now_ms)

    @property
    def next_ms(self) -> int:
        return max(self.now_ms, self.limiter.next_ms(self.rate))


@record(frozen=True)
class _Summary:
    limit: int | None = None
    active: int | None = None
    available: int | None = None
    period_ms: int | None = None


@derived
def _running(status: RateLimitStatus) -> _Places:
    return _Places(status.bounds.concurrency, status.limiter.active)


@derived
def _counted(status: RateLimitStatus) -> _Places | None:
    limited = status.bounds.concurrency is not None
    return _running(status) if limited or status.limiter.counted else None


@derived
def _starts(status: RateLimitStatus, rate: Rate | None) -> _Starts | None:
    return None if rate is None else _Starts(rate, status.limiter, status.now_ms)


@derived
def _summary(status: RateLimitStatus) -> _Summary:
    limiter, bounds = status.limiter, status.bounds
    if bounds.rate is not None:
        limit, used = bounds.rate.limit, limiter.started(bounds.rate.period_ms, status.now_ms)
        return _Summary(limit, used, max(0, limit - used), bounds.rate.period_ms)
    if bounds.concurrency is not None:
        places = _running(status)
        return _Summary(places.limit, places.active, places.available)
    if bounds.throttle is None:
        return _Summary()
    used = int(limiter.next_ms(bounds.throttle) > status.now_ms)
    return _Summary(bounds.throttle.limit, used, 1 - used, bounds.throttle.period_ms)


@derived
def _paused(status: RateLimitStatus) -> int | None:
    until_ms = status.limiter.paused_ms
    return until_ms if until_ms is not None and until_ms > status.now_ms else None


@derived
def _laid_over(status: RateLimitStatus) -> Mapping[str, Any] | None:
    """Return the active override, or None. Its null limits are included."""
    override = status.limiter.override
    if override is None or not override.holds(status.now_ms):
        return None
    bounds = override.bounds
    flat: Any = Starts.of(bounds.rate)
    found: dict[str, Any] = dict(flat or {})
    limits = {
        "concurrency": bounds.concurrency,
        "rate": Starts.of(bounds.rate),
        "throttle": Starts.of(bounds.throttle),
    }
    found |= {name: limits[name] for name in limits if name in override.named}
    if override.until_ms is not None:
        found["expires_at"] = times.format_ms(override.until_ms)
    return found


@derived
def _places_of(usage: QueueUsage) -> _Places | None:
    limit = usage.queue.config.concurrency
    return None if limit is None else _Places(limit, usage.active)


@derived
def _starts_of(usage: QueueUsage) -> _Starts | None:
    config = usage.queue.config
    if config.rate_limit is None:
        return None
    rate = Rate(config.rate_limit, config.rate_period_ms)
    return _Starts(rate, LimiterState(windows={rate.period_ms: usage.passed}), usage.now_ms)


_s: RateLimitStatus = source()
_l: Listed[RateLimitStatus] = source()
_u: QueueUsage = source()
_p: _Places = source()
_rate: Rate = source()
_w: _Starts = source()
_sum: _Summary = source()


class Places(Answer[_Places]):
    """Active jobs of a key; a limit of them if there is one."""

    limit: Count = shown(_p.limit, absent=True)
    active: Count = _p.active
    available: Count = shown(_p.available, absent=True)


class Starts(Answer[Rate]):
    """Number of starts in each period."""

    limit: Annotated[int, Field(ge=1)] = _rate.limit
    period: str = length(_rate.period_ms)


class Window(Answer[_Starts]):
    """Starts in a sliding window."""

    _of: Starts = Starts.of(_w.rate)
    current_count: Count = _w.started
    window_resets_at: Moment = shown(moment(_w.reset_ms), says="when one more may start")


class Spacing(Answer[_Starts]):
    """Evenly spaced starts."""

    _of: Starts = Starts.of(_w.rate)
    next_allowed_at: Moment = moment(_w.next_ms)


class RateLimitOverride(AsIs):
    """The limits that hold instead of those of the jobs; null lifts a limit. `limit` and `period`
    are those of `rate`.
    """

    limit: int = absent()
    period: str = absent()
    concurrency: int | None = absent()
    rate: Starts | None = absent()
    throttle: Starts | None = absent()
    expires_at: Moment = absent()


class LimitSummary(Answer[_Summary]):
    """The main limit of a key: the rate, or else the concurrency, or else the throttle."""

    limit: Count = shown(_sum.limit, absent=True)
    period: str = shown(
        length(_sum.period_ms), absent=True, says="ISO 8601; absent where it is the concurrency"
    )
    active: Count = shown(_sum.active, absent=True, says="starts in the period, or running jobs")
    available: Count = shown(_sum.available, absent=True, says="the unused part of the limit")


class RunningOfKey(Answer["RateLimitStatus"]):
    """The running jobs of a key; `concurrency` and `available` where they are limited."""

    key: str = _s.key
    concurrency: Count = shown(_s.bounds.concurrency, absent=True)
    active: Count = _s.limiter.active
    available: Count = shown(_running(_s).available, absent=True)


class RateLimitAnswer(Answer["RateLimitStatus"]):
    """A key's limits, by the job pushed last and the override, and how much of them is used."""

    key: str = _s.key
    _flat: LimitSummary = LimitSummary.of(_summary(_s))
    concurrency: Places = shown(Places.of(_counted(_s)), absent=True)
    rate: Window = shown(Window.of(_starts(_s, _s.bounds.rate)), absent=True)
    throttle: Spacing = shown(Spacing.of(_starts(_s, _s.bounds.throttle)), absent=True)
    waiting_count: Count = shown(
        _s.waiting, absent=True, says="available jobs of the key; only of a single key"
    )
    waiting: Count = waiting_count
    waiting_count_exact: Literal[False] = shown(
        made(lambda exact: None if exact else False, _s.waiting_exact),
        absent=True,
        says="there may be more than were counted",
    )
    paused_until: Moment = shown(moment(_paused(_s)), absent=True)
    override: RateLimitOverride = shown(RateLimitOverride.of(_laid_over(_s)), absent=True)
    etag: Etag = made(lambda override: make_version(override or {}), _s.configuration)


class QueueLimitsAnswer(Answer["QueueUsage"]):
    """The limits of a queue, and their usage. Limits that are not set are absent."""

    queue: str = _u.queue.name
    key: str = shown(
        made(queue_key, _u.queue.name), says="the subject of its events: `queue:` and its name"
    )
    concurrency: Places = shown(Places.of(_places_of(_u)), absent=True)
    rate: Window = shown(Window.of(_starts_of(_u)), absent=True)
    rate_limit: Starts | None = shown(
        _u.queue.layers.document.get("rate_limit"), says="the configured limit"
    )
    etag: Etag = made(lambda layers: make_version(layers.own), _u.queue.layers)


class RateLimitsAnswer(Paged["RateLimitStatus"]):
    """A page of keys, and the running jobs of the same keys."""

    items: list[RateLimitAnswer] = RateLimitAnswer.each(_l.items)
    rate_limits: list[RunningOfKey] = RunningOfKey.each(_l.items)


# --- endpoints ------------------------------------------------------------------------------------

_LOOK = Permission(Scope.ADMIN_READ, QueueScope.ALL)
_MANAGE = Permission(Scope.ADMIN_WRITE, QueueScope.ALL)

limits = Resource("rate-limits", "rate limits")
both = Resource(
    "rate-limits/{key}", "rate limits", also={"{}_override": "rate-limits/{key}/override"}
)
of_queues = Resource("admin/queues/{name}/rate-limit", "rate limits")


def to_override(raw: Mapping[str, Any], *, now_ms: int) -> Override:
    """Read the override that an operator sets for a key.

    Raises:
        InvalidRequest: A field is malformed, or fields can't be combined.
        ValidationFailed: A limit violates a rule of rate limit policies.
    """
    body = OverrideRequest.model_validate(raw)
    flat = body.model_fields_set & {"limit", "period"}
    if flat and (body.limit is None or body.period is None):
        missing, other = ("limit", "period") if body.limit is None else ("period", "limit")
        raise InvalidRequest(missing, f"is required with {other}")
    if flat and "rate" in body.model_fields_set:
        raise InvalidRequest("limit", "can't be combined with rate")
    until_ms = None
    if body.expires_at is not None:
        check = partial(times.timestamp_ms, now_ms=now_ms)
        until_ms = query.checked("expires_at", check, body.expires_at)
        if until_ms <= now_ms:
            raise InvalidRequest("expires_at", "must be in the future", value=body.expires_at)
    return body.override(until_ms)


@limits.endpoint("GET", _LOOK, RateLimitsAnswer, query=PAGING)
def list_rate_limits(request: Request) -> Reply:
    """List the keys of rate limits.

    One page of keys, in order.
    """
    return Reply(RateLimitsAnswer.of(paging.asked(request.query, runtime.current().limits.list)))


@limits.endpoint("GET /{key}", _LOOK, RateLimitAnswer, errors=(404,), versioned=True)
def get_rate_limit(request: Request) -> Reply:
    """Read the state of a key's rate limit.

    The limits, and how much of each is used.
    """
    return Reply(RateLimitAnswer.of(runtime.current().limits.get(request.named)))


@limits.endpoint(
    "PUT /{key}",
    _MANAGE,
    RateLimitAnswer,
    request=OverrideRequest,
    example={"concurrency": 0, "expires_at": "+PT1H"},
    strict_query=False,
    versioned=True,
)
@limits.endpoint(
    "PUT /{key}/override",
    _MANAGE,
    RateLimitAnswer,
    request=OverrideRequest,
    example={"rate": {"limit": 10, "period": "PT1M"}, "throttle": None},
    name="put_rate_limit_override",
    strict_query=False,
    versioned=True,
)
def put_rate_limit(request: Request) -> Reply:
    """Override a key's rate limit.

    The key under the override.
    """
    current = runtime.current()
    override = to_override(request.object(), now_ms=current.clock.now_ms())
    found = current.limits.override(request.named, override, request.edit)
    return Reply(RateLimitAnswer.of(found))


@both.endpoint(
    "DELETE", _MANAGE, RateLimitAnswer, errors=(404,), strict_query=False, versioned=True
)
def delete_rate_limit(request: Request) -> Reply:
    """Remove a key's override and pause.

    The key, as in the jobs.
    """
    return Reply(RateLimitAnswer.of(runtime.current().limits.lift(request.named, request.edit)))


@of_queues.endpoint(
    "PUT",
    Permission(Scope.ADMIN_WRITE, QueueScope.PATH),
    QueueLimitsAnswer,
    request=models.QueueLimitsRequest,
    example={"concurrency": 20, "rate": {"limit": 1_000, "period": "PT1H"}},
    versioned=True,
)
def set_queue_limits(request: Request) -> Reply:
    """Set a queue's own limits.

    What holds for the queue, and how much is used.
    """
    current, name = runtime.current(), request.named
    try:
        config = request.parsed(models.QueueLimitsRequest).config()
    except ValidationFailed as error:
        # The status is 400, as for other fields of the configuration. 422 is for job policies.
        raise InvalidRequest(error.field, error.reason, details=error.details) from None
    queue = current.queues.configure(name, config, request.edit)
    return Reply(QueueLimitsAnswer.of(current.queues.usage(queue)))
