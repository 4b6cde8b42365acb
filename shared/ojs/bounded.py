"""Collections with a size limit, for data that a container keeps between requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar, overload

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
