"""Limits the rate of requests of access keys.

Each container counts the requests of a key. Once a second it adds its count to the total of all
containers, and reads the total. If the rate of all containers is above the limit, the container
rejects its share in the next second. So a container sees a higher rate up to a second late.
"""

from __future__ import annotations

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain.access import Principal
from ojs.domain.errors import OjsError, TooManyRequests
from ojs.records import record
from ojs.store.deployment.access_keys import AccessKeyStore

_REMEMBERED = 1_000
_PERIOD_MS = 1_000
# The measured rate varies, because containers report at different times.
_SLACK = 1.1


@record
class _Count:
    """What a container knows of a key.

    Attributes:
        since_ms: Start of the current second of this container.
        total: The requests of all containers at that time. None: unknown.
        own: The requests of this container since then.
        passed: Those of them that were not rejected.
        share: The share of them that is allowed, above 0 and at most 1.
        room: The share of a request that earlier requests left.
    """

    since_ms: int
    total: int | None = None
    own: int = 0
    passed: int = 0
    share: float = 1.0
    room: float = 0.0


class KeyRates:
    """Counts the requests of keys with a limit, for one container.

    Threads of the local server share the counts without a lock. They can miss single requests.
    """

    def __init__(self, keys: AccessKeyStore, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        self._counts: BoundedMap[str, _Count] = BoundedMap(_REMEMBERED)

    def check(self, caller: Principal) -> None:
        """Count a request. Raises TooManyRequests if the key of the caller exceeds its limit.

        Makes at most one call a second for a key with a limit, and none for others.
        """
        limit = caller.max_requests_per_s
        if limit is None or caller.key is None:
            return
        now_ms = self._clock.now_ms()
        count = self._counts.get(caller.key)
        if count is None:
            self._counts.put(caller.key, count := _Count(now_ms))
            self._tell(caller.key, count, limit, now_ms)
        elif not 0 <= now_ms - count.since_ms < _PERIOD_MS:
            self._tell(caller.key, count, limit, now_ms)
        count.own += 1
        count.room = min(1.0, count.room + count.share)
        if count.passed >= limit or count.room < 1.0:
            raise TooManyRequests(limit)
        count.room -= 1.0
        count.passed += 1

    def _tell(self, key_id: str, count: _Count, limit: int, now_ms: int) -> None:
        """Add the count of the last second to the total, and decide the share of the next one."""
        passed_s = max(1.0, (now_ms - count.since_ms) / _PERIOD_MS)
        own, before = count.own, count.total
        # Set before the call, so that other threads and a failed call don't repeat it at once.
        count.since_ms, count.own, count.passed = now_ms, 0, 0
        count.total, count.share = None, 1.0
        try:
            count.total = self._keys.count_requests(key_id, own, now_ms=now_ms)
        except OjsError:
            # A limit that can't be checked rejects nothing.
            return
        # A total of another day starts at 0 again.
        others = 0 if before is None else max(0, count.total - before - own)
        # All own requests were in the first second. Those of others were spread.
        rate = own + others / passed_s
        count.share = min(1.0, _SLACK * limit / max(rate, 1.0))
