"""An event loop in a thread: the WebSocket connections of blocking clients and of workers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

_lock = threading.Lock()
# The loop of this process. A forked process has no thread of its parent.
_loops: dict[int, asyncio.AbstractEventLoop] = {}


def loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process. The first call starts it."""
    import asyncio

    with _lock:
        found = _loops.get(os.getpid())
        if found is None:
            _loops.clear()
            found = _loops[os.getpid()] = asyncio.new_event_loop()
            threading.Thread(target=found.run_forever, name="ojs-realtime", daemon=True).start()
    return found


def start(awaited: Coroutine[Any, Any, T]) -> Future[T]:
    """Start a coroutine on the loop."""
    import asyncio

    return asyncio.run_coroutine_threadsafe(awaited, loop())


def result(awaited: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the loop, and wait for its result. An interrupt cancels it."""
    future = start(awaited)
    try:
        return future.result()
    finally:
        future.cancel()


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a blocking function in a thread."""
    import asyncio

    return await asyncio.get_running_loop().run_in_executor(None, function, *args)
