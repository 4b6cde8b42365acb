"""Rate limits: reading requests and building answers (ojs-rate-limiting section 10)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from ojs.domain import times
from ojs.domain.errors import InvalidRequest
from ojs.domain.rate_limit.limiter import (
    LimitBounds,
    LimiterState,
    Override,
    OverrideRequest,
    Rate,
    queue_key,
)
from ojs.http.binding import paging, query

if TYPE_CHECKING:
    from ojs.domain.page import Page
    from ojs.http.contract import answers
    from ojs.services.permits.rate_limits import RateLimitStatus
    from ojs.services.queues.configure import QueueUsage


def override(raw: Mapping[str, Any], *, now_ms: int) -> Override:
    """Read the override that an operator sets for a key.

    Raises InvalidRequest, ValidationFailed.
    """
    body = OverrideRequest.model_validate(raw)
    flat = body.model_fields_set & {"limit", "period"}
    if flat and (body.limit is None or body.period is None):
        missing, other = ("limit", "period") if body.limit is None else ("period", "limit")
        raise InvalidRequest(missing, f"is required together with {other}")
    if flat and "rate" in body.model_fields_set:
        raise InvalidRequest("limit", "cannot be combined with rate")
    until_ms = None
    if body.expires_at is not None:
        check = partial(times.timestamp_ms, now_ms=now_ms)
        until_ms = query.checked("expires_at", check, body.expires_at)
        if until_ms <= now_ms:
            raise InvalidRequest("expires_at", "must be in the future", value=body.expires_at)
    return body.override(until_ms)


def shown(status: RateLimitStatus) -> answers.RateLimitAnswer:
    """A key's limits and how much of them is used. What is not limited is absent."""
    limiter, now_ms, bounds = status.limiter, status.now_ms, status.bounds
    answer: answers.RateLimitAnswer = {"key": status.key}
    if bounds.concurrency is not None:
        answer["concurrency"] = _permits(bounds.concurrency, limiter.active)
    elif limiter.counted:
        answer["concurrency"] = {"active": limiter.active}
    if bounds.rate is not None:
        answer["rate"] = _window(bounds.rate, limiter, now_ms)
    if bounds.throttle is not None:
        next_ms = max(now_ms, limiter.next_ms(bounds.throttle))
        answer["throttle"] = {**_rate(bounds.throttle), "next_allowed_at": times.format_ms(next_ms)}
    answer.update(cast("answers.RateLimitAnswer", _summary(status)))
    if status.waiting is not None:
        answer["waiting_count"] = answer["waiting"] = status.waiting
        if not status.waiting_exact:
            answer["waiting_count_exact"] = False
    if limiter.paused_ms is not None and limiter.paused_ms > now_ms:
        answer["paused_until"] = times.format_ms(limiter.paused_ms)
    if limiter.override is not None and limiter.override.holds(now_ms):
        answer["override"] = _override(limiter.override)
    return answer


def _summary(status: RateLimitStatus) -> answers.LimitSummary:
    """The limit that tables of one line for each key show: the rate, or else the concurrency, or
    else the throttle.
    """
    limiter, now_ms, bounds = status.limiter, status.now_ms, status.bounds
    if bounds.rate is not None:
        used = limiter.started(bounds.rate.period_ms, now_ms)
        available = max(0, bounds.rate.limit - used)
        return {**_rate(bounds.rate), "active": used, "available": available}
    if bounds.concurrency is not None:
        available = max(0, bounds.concurrency - limiter.active)
        return {"limit": bounds.concurrency, "active": limiter.active, "available": available}
    if bounds.throttle is None:
        return {}
    used = int(limiter.next_ms(bounds.throttle) > now_ms)
    return {**_rate(bounds.throttle), "active": used, "available": 1 - used}


def _running(status: RateLimitStatus) -> answers.RunningOfKey:
    """A key and its running jobs, of how many if they are limited."""
    limit, active = status.bounds.concurrency, status.limiter.active
    shown: answers.RunningOfKey = {"key": status.key, "active": active}
    if limit is not None:
        shown |= {"concurrency": limit, "available": max(0, limit - active)}
    return shown


def of_queue(usage: QueueUsage) -> answers.QueueLimitsAnswer:
    """A queue's own limits and how much of them is used. What is not limited is absent."""
    queue, config = usage.queue, usage.queue.config
    answer: answers.QueueLimitsAnswer = {
        "queue": queue.name,
        "key": queue_key(queue.name),
        # In the units in which it was configured.
        "rate_limit": queue.layers.document.get("rate_limit"),
    }
    if config.concurrency is not None:
        answer["concurrency"] = _permits(config.concurrency, usage.active)
    if config.rate_limit is not None:
        rate = Rate(config.rate_limit, config.rate_period_ms)
        limiter = LimiterState(windows={rate.period_ms: usage.passed})
        answer["rate"] = _window(rate, limiter, usage.now_ms)
    return answer


def page(found: Page[RateLimitStatus], pagination: answers.Pagination) -> answers.RateLimitsAnswer:
    """A page of keys, in two shapes. Waiting jobs are counted only where a single key is read."""
    return {
        "items": [shown(status) for status in found.items],
        "rate_limits": [_running(status) for status in found.items],
        **paging.with_total(pagination),
    }


def headers(status: RateLimitStatus | None) -> dict[str, str]:
    """The `X-RateLimit-*` headers of a push (ojs-rate-limiting section 10.4)."""
    if status is None:
        return {}
    limiter, now_ms = status.limiter, status.now_ms
    found = _tightest(status.bounds, limiter, now_ms)
    if found is None:
        return {}
    limit, remaining, reset_ms = found
    if limiter.paused_ms is not None and limiter.paused_ms > now_ms:
        remaining, reset_ms = 0, max(reset_ms, limiter.paused_ms)
    return {
        "X-RateLimit-Limit": str(limit),
        "X-RateLimit-Remaining": str(remaining),
        # Seconds since the epoch, rounded up: no earlier than there is room.
        "X-RateLimit-Reset": str(-(-reset_ms // 1_000)),
    }


def _tightest(
    bounds: LimitBounds, limiter: LimiterState, now_ms: int
) -> tuple[int, int, int] | None:
    """The limit with the least room: its number, its room, and when (ms) the next job may start."""
    found = []
    if bounds.concurrency is not None:
        # When a running job ends is not known.
        found.append((bounds.concurrency, max(0, bounds.concurrency - limiter.active), now_ms))
    if bounds.rate is not None:
        room = max(0, bounds.rate.limit - limiter.started(bounds.rate.period_ms, now_ms))
        found.append((bounds.rate.limit, room, limiter.reset_ms(bounds.rate, now_ms)))
    if bounds.throttle is not None:
        next_ms = limiter.next_ms(bounds.throttle)
        found.append((1, int(next_ms <= now_ms), max(now_ms, next_ms)))
    return min(found, key=lambda one: (one[1], -one[2]), default=None)


def _permits(limit: int, active: int) -> answers.Places:
    return {"limit": limit, "active": active, "available": max(0, limit - active)}


def _window(rate: Rate, limiter: LimiterState, now_ms: int) -> answers.Window:
    return {
        **_rate(rate),
        "current_count": limiter.started(rate.period_ms, now_ms),
        "window_resets_at": times.format_ms(limiter.reset_ms(rate, now_ms)),
    }


def _override(override: Override) -> answers.RateLimitOverride:
    bounds = override.bounds
    answer: answers.RateLimitOverride = {}
    if bounds.rate is not None:
        answer.update(_rate(bounds.rate))  # type: ignore[typeddict-item]
    if "concurrency" in override.named:
        answer["concurrency"] = bounds.concurrency
    if "rate" in override.named:
        answer["rate"] = None if bounds.rate is None else _rate(bounds.rate)
    if "throttle" in override.named:
        answer["throttle"] = None if bounds.throttle is None else _rate(bounds.throttle)
    if override.until_ms is not None:
        answer["expires_at"] = times.format_ms(override.until_ms)
    return answer


def _rate(rate: Rate) -> answers.Starts:
    return {"limit": rate.limit, "period": times.round_duration(rate.period_ms)}
