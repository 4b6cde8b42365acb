"""The headers of PUSH: the producer, how long it waits for room, and how full its queues are
(ojs-backpressure sections 5.2 and 7).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ojs.domain.access import Principal
from ojs.domain.errors import InvalidRequest, forbidden
from ojs.http.parameters import MAX_BLOCK_S, MAX_PRODUCER

if TYPE_CHECKING:
    from ojs.services.jobs.enqueue import Pushed

# ASCII digits only: `float` also knows nan, inf, 1e9, underscores and the digits of other scripts.
_SECONDS = re.compile(r"[0-9]+(\.[0-9]+)?")
# Time reserved to store the jobs and to send the answer before the function is stopped.
_SPARE_MS = 3_000


def producer(headers: Mapping[str, str], principal: Principal) -> str | None:
    """The producer: the key's holder, or without keys the name in the header; None if neither.

    Raises InvalidRequest naming the header, PermissionDenied if it names another than the holder.
    """
    header = headers.get("x-ojs-producer")
    if header is None:
        return principal.name
    name = header.strip()
    if not 1 <= len(name) <= MAX_PRODUCER or not name.isprintable():
        raise InvalidRequest(
            "X-OJS-Producer", f"must hold 1 to {MAX_PRODUCER} printable characters", value=header
        )
    if principal.name is not None and name != principal.name:
        raise forbidden()
    return name


def wait_ms(headers: Mapping[str, str], remaining_ms: Callable[[], int]) -> int:
    """How long (ms) the request may wait for room in a queue with the `block` strategy.

    It is at most MAX_BLOCK_S, whatever the client asks for. `remaining_ms` returns how long the
    function still runs. Raises InvalidRequest naming the header.
    """
    header = headers.get("ojs-block-timeout")
    if header is None:
        return 0
    if not _SECONDS.fullmatch(header.strip()):
        raise InvalidRequest(
            "OJS-Block-Timeout", "must be a number of seconds, such as 10 or 2.5", value=header
        )
    # Before multiplying: thousands of digits are an infinite float.
    requested_ms = int(min(float(header), MAX_BLOCK_S) * 1_000)
    return max(0, min(requested_ms, remaining_ms() - _SPARE_MS))


def pressure_headers(pushed: Iterable[Pushed]) -> dict[str, str]:
    """Headers for the fullest queue, if one is above its warning threshold."""
    found = [one.pressure for one in pushed if one.pressure is not None]
    if not found:
        return {}
    fullest = max(found, key=lambda pressure: pressure.fraction)
    return {
        "X-OJS-Queue-Depth": str(fullest.depth),
        "X-OJS-Queue-Bound": str(fullest.bound),
        "X-OJS-Queue-Pressure": f"{fullest.fraction:.2f}",
    }
