"""Resources of jobs: those of the process (`lifespan`), and those of one job (`provide`)."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from ojs_aws.client.call import Misconfigured
from ojs_aws.hints import hint

if TYPE_CHECKING:
    from ojs_aws.worker.context import JobContext

# A job: its function, the names of its resources, and whether it is a coroutine function.
Need = tuple[str, Sequence[str], bool]
# Runs a coroutine on an event loop, and waits for its result.
Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Resources:
    """The resources of a worker. Processes get a copy of the definitions."""

    def __init__(self) -> None:
        self.lifespan: Callable[[], Any] | None = None
        self.providers: dict[str, Callable[..., Any]] = {}
        self._reset()

    def _reset(self) -> None:
        self._values: Mapping[str, Any] = {}
        # The process and the runner of the event loop that it was entered on.
        self._entered: tuple[int, Run] | None = None
        self._stack = AsyncExitStack()
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {"lifespan": self.lifespan, "providers": self.providers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def start(self, needs: Iterable[Need], run: Run) -> bool:
        """Enter the lifespan, unless this process has. Returns whether it did.

        Raises:
            Misconfigured: A job needs a resource that is unknown, or that it can't await.
        """
        with self._lock:
            if self._entered == (os.getpid(), run):
                return False
            self.stop()
            self._stack = stack = AsyncExitStack()
            if self.lifespan is not None:
                run(self._enter(self.lifespan, stack))
            self._entered = os.getpid(), run
            try:
                self._check(needs)
            except Misconfigured:
                self.stop()
                raise
            return True

    async def _enter(self, lifespan: Callable[[], Any], stack: AsyncExitStack) -> None:
        values = await enter(stack, _made(lifespan))
        if not isinstance(values, Mapping):
            raise TypeError(f"lifespan must yield a mapping of names to resources, but {values!r}")
        self._values = values

    def stop(self) -> None:
        """Leave the lifespan, unless a parent of this process entered it."""
        entered, self._entered = self._entered, None
        if entered is not None and entered[0] == os.getpid() and self.lifespan is not None:
            entered[1](self._stack.aclose())

    def _check(self, needs: Iterable[Need]) -> None:
        known = sorted({*self._values, *self.providers})
        for where, names, awaits in needs:
            for name in names:
                if name not in known:
                    raise Misconfigured(
                        f"{where} needs the resource {name!r}, but the worker has"
                        f" {', '.join(known) or 'none'}.{hint('resources', name, known)}"
                        " Add it with @worker.provide or @worker.lifespan"
                    )
                if not awaits and inspect.isasyncgenfunction(self.providers.get(name)):
                    raise Misconfigured(f"{where}: only `async def` functions get {name!r}")

    def of(self, names: list[str], job: JobContext) -> Iterator[tuple[str, Any]]:
        """Return a context manager for each name."""
        for name in names:
            provider = self.providers.get(name)
            if provider is None:
                yield name, nullcontext(self._values[name])
                continue
            parameters = inspect.signature(provider).parameters.values()
            apart = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
            given = {each: self._values[each] for each in apart}
            yield name, _made(provider, *[job] * (len(parameters) > len(apart)), **given)


def _made(function: Callable[..., Any], *args: Any, **given: Any) -> Any:
    """Call a function. Returns its context manager."""
    if inspect.isasyncgenfunction(function):
        return asynccontextmanager(function)(*args, **given)
    if inspect.isgeneratorfunction(function):
        return contextmanager(function)(*args, **given)
    made = None if inspect.iscoroutinefunction(function) else function(*args, **given)
    if not hasattr(made, "__enter__") and not hasattr(made, "__aenter__"):
        raise TypeError(f"{function.__qualname__} must yield, or return a context manager")
    return made


async def enter(stack: AsyncExitStack, manager: Any) -> Any:
    """Enter a context manager, or an asynchronous one."""
    if hasattr(manager, "__aenter__") and not isinstance(manager, nullcontext):
        return await stack.enter_async_context(manager)
    return stack.enter_context(manager)
