"""Rate limits over HTTP (ojs-rate-limiting section 10; requirements section 1.8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ojs.domain import times
from ojs.domain.errors import InvalidRequest
from ojs.domain.job import envelope
from ojs.domain.rate_limit.limiter import (
    LimitBounds,
    LimiterState,
    Override,
    OverrideRequest,
    Rate,
    queue_key,
)

if TYPE_CHECKING:
    from ojs.domain.page import Page
    from ojs.services.permits.rate_limits import RateLimitStatus
    from ojs.services.queues.configure import QueueUsage

_UNITS = ((86_400_000, "P", "D"), (3_600_000, "PT", "H"), (60_000, "PT", "M"), (1_000, "PT", "S"))


def override(raw: Mapping[str, Any], *, now_ms: int) -> Override:
    """What an operator wants to hold for a key. Raises InvalidRequest or ValidationFailed."""
    try:
        asked = OverrideRequest.model_validate(dict(raw))
    except ValidationError as error:
        raise envelope.from_pydantic(error) from None
    until_ms = None
    if asked.expires_at is not None:
        try:
            until_ms = times.timestamp_ms(asked.expires_at, now_ms=now_ms)
        except ValueError as error:
            raise InvalidRequest("expires_at", str(error), value=asked.expires_at) from None
        if until_ms <= now_ms:
            raise InvalidRequest("expires_at", "must be in the future", value=asked.expires_at)
    return asked.override(until_ms)


def shown(standing: RateLimitStatus) -> dict[str, Any]:
    """How a key stands. What is not limited is absent."""
    cell, now_ms = standing.cell, standing.now_ms
    answer: dict[str, Any] = {"key": standing.key} | _bounds(standing.bounds, cell, now_ms)
    if cell.takes_places(standing.bounds, now_ms) and "concurrency" not in answer:
        answer["concurrency"] = {"active": len(cell.holders)}
    if standing.waiting is not None:
        answer["waiting_count"] = standing.waiting
        if not standing.waiting_exact:
            answer["waiting_count_exact"] = False
    if cell.paused_ms is not None and cell.paused_ms > now_ms:
        answer["paused_until"] = times.format_ms(cell.paused_ms)
    if cell.override is not None and cell.override.holds(now_ms):
        answer["override"] = _override(cell.override)
    return answer


def of_queue(standing: QueueUsage) -> dict[str, Any]:
    """How a queue's own limits stand. What is not limited is absent."""
    queue, config = standing.queue, standing.queue.config
    answer: dict[str, Any] = {"queue": queue.name, "key": queue_key(queue.name)}
    if config.concurrency is not None:
        answer["concurrency"] = {
            "limit": config.concurrency,
            "active": standing.active,
            "available": max(0, config.concurrency - standing.active),
        }
    if config.rate_limit is not None:
        rate, now_ms = Rate(config.rate_limit, config.rate_period_ms), standing.now_ms
        cell = LimiterState(windows={rate.period_ms: standing.passed})
        answer |= _bounds(LimitBounds(rate=rate), cell, now_ms)
    # As it was given: it may be written in another way.
    answer["rate_limit"] = queue.layers.document.get("rate_limit")
    return answer


def page(found: Page[RateLimitStatus], pagination: Mapping[str, Any]) -> dict[str, Any]:
    """A page of keys; how many jobs wait for each is told of one key at a time."""
    items = [shown(standing) for standing in found.items]
    return {"items": items, "pagination": dict(pagination)}


def headers(standing: RateLimitStatus | None) -> dict[str, str]:
    """`X-RateLimit-*` of a push: how the limit of the job stands (ojs-rate-limiting 10.4)."""
    if standing is None:
        return {}
    cell, now_ms = standing.cell, standing.now_ms
    found = _tightest(standing.bounds, cell, now_ms)
    if found is None:
        return {}
    limit, remaining, reset_ms = found
    if cell.paused_ms is not None and cell.paused_ms > now_ms:
        remaining, reset_ms = 0, max(reset_ms, cell.paused_ms)
    return {
        "X-RateLimit-Limit": str(limit),
        "X-RateLimit-Remaining": str(remaining),
        # Not before there is room: seconds, rounded up.
        "X-RateLimit-Reset": str(-(-reset_ms // 1_000)),
    }


def _tightest(bounds: LimitBounds, cell: LimiterState, now_ms: int) -> tuple[int, int, int] | None:
    """Limit, what remains of it, and when one more may start, of the limit with least room."""
    found = []
    if bounds.concurrency is not None:
        room = max(0, bounds.concurrency - len(cell.holders))
        ends = [holder.until_ms for holder in cell.holders.values()]
        reset_ms = now_ms if room else max(now_ms, min(ends, default=now_ms))
        found.append((bounds.concurrency, room, reset_ms))
    if bounds.rate is not None:
        room = max(0, bounds.rate.limit - cell.started(bounds.rate.period_ms, now_ms))
        found.append((bounds.rate.limit, room, cell.reset_ms(bounds.rate, now_ms)))
    if bounds.throttle is not None:
        next_ms = cell.next_ms(bounds.throttle)
        found.append((1, int(next_ms <= now_ms), max(now_ms, next_ms)))
    return min(found, key=lambda one: (one[1], -one[2]), default=None)


def _bounds(bounds: LimitBounds, cell: LimiterState, now_ms: int) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if bounds.concurrency is not None:
        used = len(cell.holders)
        shown["concurrency"] = {
            "limit": bounds.concurrency,
            "active": used,
            "available": max(0, bounds.concurrency - used),
        }
    if bounds.rate is not None:
        shown["rate"] = {
            **_rate(bounds.rate),
            "current_count": cell.started(bounds.rate.period_ms, now_ms),
            "window_resets_at": times.format_ms(cell.reset_ms(bounds.rate, now_ms)),
        }
    if bounds.throttle is not None:
        next_ms = max(now_ms, cell.next_ms(bounds.throttle))
        shown["throttle"] = {
            **_rate(bounds.throttle), "next_allowed_at": times.format_ms(next_ms),
        }  # fmt: skip
    return shown


def _override(override: Override) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name in sorted(override.named):
        value = getattr(override.bounds, name)
        shown[name] = _rate(value) if isinstance(value, Rate) else value
    if override.until_ms is not None:
        shown["expires_at"] = times.format_ms(override.until_ms)
    return shown


def _rate(rate: Rate) -> dict[str, Any]:
    return {"limit": rate.limit, "period": duration(rate.period_ms)}


def duration(ms: int) -> str:
    """A length in ms as an ISO 8601 duration, in the largest unit that has it whole."""
    for unit, before, after in _UNITS:
        if ms % unit == 0:
            return f"{before}{ms // unit}{after}"
    return f"PT{ms // 1_000}.{ms % 1_000:03d}S"
