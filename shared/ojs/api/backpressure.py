"""Headers of enqueue requests and their responses.

A request names its producer and the time it waits for space (ojs-backpressure sections 5.2 and 7).
A response reports the depth of the queues and the state of the rate limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ojs.domain.access import Principal
from ojs.domain.errors import InvalidRequest, forbidden
from ojs.http.parameters import MAX_BLOCK_S, MAX_PRODUCER

if TYPE_CHECKING:
    from ojs.domain.rate_limit.limiter import LimitBounds, LimiterState
    from ojs.services.jobs.enqueue import Pushed
    from ojs.services.permits.rate_limits import RateLimitStatus

# ASCII digits only: `float` also accepts nan, inf, 1e9, underscores, and digits of other scripts.
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
# Time reserved to store the jobs and to send the response before Lambda stops the function.
_SPARE_MS = 3_000


def producer(headers: Mapping[str, str], principal: Principal) -> str | None:
    """Return the name of the producer, or None if the request names none.

    The name is that of the authenticated caller. Without authentication, the header has the name.

    Raises:
        InvalidRequest: The header is malformed.
        PermissionDenied: The header has a different name than the authenticated caller.
    """
    header = headers.get("x-ojs-producer")
    if header is None:
        return principal.name
    name = header.strip()
    if not 1 <= len(name) <= MAX_PRODUCER or not name.isprintable():
        raise InvalidRequest(
            "X-OJS-Producer", f"must have 1 to {MAX_PRODUCER} printable characters", value=header
        )
    if principal.name is not None and name != principal.name:
        raise forbidden()
    return name


def wait_ms(headers: Mapping[str, str], remaining_ms: Callable[[], int]) -> int:
    """Return how long the request can wait for space in a queue with the policy `block`, in ms.

    The maximum is `MAX_BLOCK_S`, and 3 seconds less than the remaining time of the function.

    Args:
        headers: Headers of the request. Their names are in lower case.
        remaining_ms: Returns the time until Lambda stops the function.

    Raises:
        InvalidRequest: The header is not a number of seconds.
    """
    header = headers.get("ojs-block-timeout")
    if header is None:
        return 0
    if not _SECONDS.fullmatch(header.strip()):
        raise InvalidRequest(
            "OJS-Block-Timeout", "must be a number of seconds, for example 10 or 2.5", value=header
        )
    # Limited before the multiplication: a text of thousands of digits is an infinite float.
    requested_ms = int(min(float(header), MAX_BLOCK_S) * 1_000)
    return max(0, min(requested_ms, remaining_ms() - _SPARE_MS))


def pressure_headers(pushed: Iterable[Pushed]) -> dict[str, str]:
    """Return the headers of the largest queue by depth, if one is above its warning threshold."""
    found = [one.pressure for one in pushed if one.pressure is not None]
    if not found:
        return {}
    fullest = max(found, key=lambda pressure: pressure.fraction)
    return {
        "X-OJS-Queue-Depth": str(fullest.depth),
        "X-OJS-Queue-Bound": str(fullest.bound),
        "X-OJS-Queue-Pressure": f"{fullest.fraction:.2f}",
    }


def limit_headers(status: RateLimitStatus | None) -> dict[str, str]:
    """Return the `X-RateLimit-*` headers of a response (ojs-rate-limiting section 10.4)."""
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
        # Seconds since the epoch, rounded up, so that the next job can start by then.
        "X-RateLimit-Reset": str(-(-reset_ms // 1_000)),
    }


def _tightest(
    bounds: LimitBounds, limiter: LimiterState, now_ms: int
) -> tuple[int, int, int] | None:
    """Return the limit with the fewest remaining jobs: limit, remaining jobs, next start in ms."""
    found = []
    if bounds.concurrency is not None:
        # The time at which a running job finishes is unknown.
        found.append((bounds.concurrency, max(0, bounds.concurrency - limiter.active), now_ms))
    if bounds.rate is not None:
        room = max(0, bounds.rate.limit - limiter.started(bounds.rate.period_ms, now_ms))
        found.append((bounds.rate.limit, room, limiter.reset_ms(bounds.rate, now_ms)))
    if bounds.throttle is not None:
        next_ms = limiter.next_ms(bounds.throttle)
        found.append((1, int(next_ms <= now_ms), max(now_ms, next_ms)))
    return min(found, key=lambda one: (one[1], -one[2]), default=None)
