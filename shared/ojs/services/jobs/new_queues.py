"""Creates queues on first use."""

from __future__ import annotations

from collections.abc import Collection

from ojs.clock import Clock
from ojs.domain.errors import QueueNotFound, TenantSuspended, TooManyQueues
from ojs.domain.queue.queue import Queue
from ojs.records import record
from ojs.store.queues.queues import QueueStore
from ojs.store.queues.registry import QueueRegistry

# Time (ms) for which a container uses its count of the registry.
COUNTED_MS = 60_000
# A container counts again before it creates more than this part (1/_PART) of the remaining queues.
_PART = 100


@record(frozen=True)
class _QueueBudget:
    """The number of remaining queues, and how many to create until the next count."""

    at_ms: int
    room: int
    share: int


class NewQueues:
    """Creates queues for one container, up to the maximum of the deployment.

    Queues are not counted in an item, because each creation would have to write it. Instead, a
    count reads the registry: one query per 1,000 queues. Existing queues need no count. If many
    queues are left, a container creates only a part of them per count. If few are left, it counts
    for each request. Containers that count at the same time can exceed the maximum by the queues of
    one request each.
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
        """Create the service.

        Args:
            queues: Store of the queues.
            registry: Registry of all queues.
            clock: Clock.
            strict_queues: Whether queues are never created on first use.
            max_queues: Maximum number of queues, or 0 for no limit.
        """
        self._queues = queues
        self._registry = registry
        self._clock = clock
        self._strict = strict_queues
        self._most = max_queues
        self._left = _QueueBudget(0, 0, 0)

    def make(self, names: Collection[str]) -> dict[str, Queue]:
        """Create queues that did not exist when they were read: all, or none above the maximum.

        Raises:
            QueueNotFound: The server is in strict mode.
            TooManyQueues: The server would exceed the maximum number of queues.
            TenantSuspended, TenantLimitExceeded: The tenant rejects the queue.
            BackendUnavailable: DynamoDB rejected a request. Some queues might be created.
        """
        if not names:
            return {}
        now_ms = self._clock.now_ms()
        first = min(names)
        if self._strict:
            raise QueueNotFound(first)
        tenants = (self._queues.with_tenant(Queue(name)).tenant for name in names)
        for tenant in tenants:
            if tenant is not None and tenant.suspended:
                raise TenantSuspended(tenant.id)
        if self._most:
            self._take(len(names), first, now_ms)
        return {name: self._queues.ensure(name, now_ms=now_ms) for name in sorted(names)}

    def _take(self, wanted: int, name: str, now_ms: int) -> None:
        left = self._left
        fresh = 0 <= now_ms - left.at_ms < COUNTED_MS
        # A rejected request causes no new count before the old one expires: a count is expensive.
        if not fresh or left.share < wanted <= left.room:
            room = self._most - self._registry.count(self._most)
            left = self._left = _QueueBudget(now_ms, room, room // _PART)
        if wanted > left.room:
            raise TooManyQueues(name, self._most)
        self._left = _QueueBudget(left.at_ms, left.room - wanted, max(left.share - wanted, 0))
