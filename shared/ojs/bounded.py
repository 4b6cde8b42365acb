"""Data that a container keeps between requests: collections with a size limit, cached items."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    from ojs.clock import Clock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
D = TypeVar("D")


class BoundedMap(Generic[K, V]):
    """A map of at most `size` keys. If it is full, it removes the key whose value was set first.

    Threads can share it: each method is atomic.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: object = None) -> object:
        """Return the value of a key, or the default."""
        with self._lock:
            return self._values.get(key, default)

    def put(self, key: K, value: V) -> None:
        """Set the value of a key."""
        self.update(key, lambda _: value)

    def update(self, key: K, change: Callable[[V | None], V]) -> V | None:
        """Replace the value of a key with the result of `change`.

        Returns the previous value, or None if there was none. `change` must not use the map.
        """
        with self._lock:
            before = self._values.get(key)
            self._values[key] = change(before)
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)
        return before

    def forget(self, key: K) -> None:
        """Remove a key if it exists."""
        with self._lock:
            self._values.pop(key, None)


class BoundedSet(Generic[K]):
    """A set of at most `size` members. If it is full, it removes the member that was added first.

    Threads can share it.
    """

    def __init__(self, size: int) -> None:
        self._members: BoundedMap[K, bool] = BoundedMap(size)

    def __contains__(self, member: K) -> bool:
        return self._members.get(member, False)

    def add(self, member: K) -> None:
        """Add a member."""
        self._members.put(member, True)


class CachedItem:
    """An item of the table that a container reads again when its copy is too old.

    Another call reads it in addition, so it needs no separate call. Threads can share it.
    """

    def __init__(self, key: tuple[str, str], clock: Clock, fresh_ms: int) -> None:
        self._key = key
        self._clock = clock
        self._fresh_ms = fresh_ms
        # The time of the last read (ms), and the item.
        self._seen: BoundedMap[str, tuple[int, dict[str, Any] | None]] = BoundedMap(1)

    @property
    def item(self) -> dict[str, Any] | None:
        """The item at the last read. None: it did not exist."""
        return self._seen.get("", (0, None))[1]

    def list_unread(self) -> Sequence[tuple[str, str]]:
        """Return the keys to read with the next call: the item's key if the copy is too old."""
        asked_ms, _ = self._seen.get("", (None, None))
        fresh = asked_ms is not None and 0 <= self._clock.now_ms() - asked_ms < self._fresh_ms
        return () if fresh else (self._key,)

    def note(self, items: Mapping[tuple[str, str], Any], *, asked_ms: int) -> None:
        """Cache the result of a strongly consistent read of `unread` that started at `asked_ms`."""
        seen, now_ms = (asked_ms, items.get(self._key)), self._clock.now_ms()
        # Race: another request of this container. The later read is kept, unless the clock was set
        # back since.
        self._seen.update(
            "", lambda before: before if before and asked_ms < before[0] <= now_ms else seen
        )

    def forget(self) -> None:
        """Read the item with the next call."""
        self._seen.forget("")
