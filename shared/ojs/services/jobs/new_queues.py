"""Makes the queues that jobs are sent to before anybody else made them."""

from __future__ import annotations

from collections.abc import Collection

from ojs.clock import Clock
from ojs.domain.errors import QueueNotFound, TooManyQueues
from ojs.domain.queue.queue import Queue
from ojs.records import record
from ojs.store.queues.queues import QueueStore
from ojs.store.queues.registry import QueueRegistry

# How long a container relies on its count of the registry.
COUNTED_MS = 60_000
# It counts again before it makes more than this part of the queues that are left.
_PART = 100


@record(frozen=True)
class _Left:
    """How many more queues there may be, and how many to make until they are counted again."""

    at_ms: int
    room: int
    share: int


class NewQueues:
    """Makes queues for one container, as many as the deployment is to have at most (`most`).

    There is no counter, which each would have to write. A count reads the registry: one query for a
    thousand queues, and none for queues that are there. Containers that count at the same moment
    may together go beyond the limit, by what their one request each makes: with many left a
    container makes only a part on each count, and with few it counts for each request.
    """

    def __init__(
        self,
        queues: QueueStore,
        registry: QueueRegistry,
        clock: Clock,
        *,
        strict_queues: bool,
        max_queues: int,
    ) -> None:
        """`strict`: none is made. With a `most` of 0 there is no limit."""
        self._queues = queues
        self._registry = registry
        self._clock = clock
        self._strict = strict_queues
        self._most = max_queues
        self._left = _Left(0, 0, 0)

    def make(self, names: Collection[str]) -> dict[str, Queue]:
        """Make queues that were not there a moment ago: none if there is no room for all.

        Raises QueueNotFound in strict mode, TooManyQueues, BackendUnavailable.
        """
        if not names:
            return {}
        now_ms = self._clock.now_ms()
        first = min(names)
        if self._strict:
            raise QueueNotFound(first)
        if self._most:
            self._take(len(names), first, now_ms)
        return {name: self._queues.ensure(name, now_ms=now_ms) for name in sorted(names)}

    def _take(self, wanted: int, name: str, now_ms: int) -> None:
        left = self._left
        fresh = 0 <= now_ms - left.at_ms < COUNTED_MS
        # What was refused is refused again without a count, which may be dear.
        if not fresh or left.share < wanted <= left.room:
            room = self._most - self._registry.count(self._most)
            left = self._left = _Left(now_ms, room, room // _PART)
        if wanted > left.room:
            raise TooManyQueues(name, self._most)
        self._left = _Left(left.at_ms, left.room - wanted, max(left.share - wanted, 0))
