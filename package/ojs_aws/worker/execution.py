"""Runs handlers: functions in threads or processes, coroutines on an event loop.

Each class accepts a lease and calls `ended` exactly once for it, from another thread. Threads are
daemons: a handler that doesn't stop can't keep the process from ending.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ojs_aws.client.job import Job
from ojs_aws.worker.context import JobContext, Lease
from ojs_aws.worker.handlers import Ending, Handlers, ended, failure, stopped

if TYPE_CHECKING:
    import asyncio
    from multiprocessing.connection import Connection

Ended = Callable[[Lease, Ending], None]


class Threads:
    """Runs functions in up to `most` threads."""

    def __init__(self, handlers: Handlers, most: int, ended: Ended) -> None:
        self._handlers = handlers
        self._most = most
        self._ended = ended
        self._waiting: queue.SimpleQueue[Lease | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._lock = threading.Lock()

    def start(self, lease: Lease) -> None:
        """Run the lease's handler as soon as a thread is free."""
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            elif len(self._threads) < self._most:
                name = f"ojs-handler-{len(self._threads)}"
                thread = threading.Thread(target=self._work, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()
        self._waiting.put(lease)

    def stop(self) -> None:
        """Stop idle threads now, and the others after their handlers return."""
        for _ in self._threads:
            self._waiting.put(None)

    def _work(self) -> None:
        while (lease := self._waiting.get()) is not None:
            try:
                ending = self.run(lease)
            except Exception as error:  # noqa: BLE001 - for example, no process could be started
                ending = ended(error, lease.context)
            with self._lock:
                self._idle += 1
            self._ended(lease, ending)
            del lease  # its arguments and result may be large

    def run(self, lease: Lease) -> Ending:
        """Run the lease's handler. Returns its outcome."""
        if lease.context.cancelled:
            return stopped(lease.context.cancelled)
        return self._handlers.call(lease.context)


class Processes(Threads):
    """Runs functions in up to `most` processes. A process that ended is replaced."""

    def __init__(self, handlers: Handlers, most: int, ended: Ended) -> None:
        """Raise ValueError if another process can't import a handler."""
        import pickle

        super().__init__(handlers, most, ended)
        try:
            pickle.dumps(handlers)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(f"processes require importable handlers: {error}") from error
        self._own = threading.local()
        self._children: set[Child] = set()

    def run(self, lease: Lease) -> Ending:
        """Run the handler in the process of this thread. Returns its outcome."""
        if lease.context.cancelled:
            return stopped(lease.context.cancelled)
        child: Child | None = getattr(self._own, "child", None)
        if child is None or not child.alive:
            child = self._own.child = Child(self._handlers)
            self._children.add(child)
        lease.interrupt = lambda: child.cancel(lease)
        ending = child.run(lease)
        lease.interrupt = lambda: None
        if not child.alive:
            self._children.discard(child)
        return ending

    def kill(self, lease: Lease) -> bool:
        """Kill the process that runs this lease's handler. Returns whether it was found."""
        running = [child for child in list(self._children) if child.lease is lease]
        for child in running:
            child.kill()
        return bool(running)

    def stop(self) -> None:
        """Stop all processes."""
        super().stop()
        for child in list(self._children):
            child.kill()


class Child:
    """A process that runs handlers, one at a time."""

    def __init__(self, handlers: Handlers) -> None:
        import multiprocessing

        # Use spawn: a forked process can inherit a locked lock.
        method = multiprocessing.get_context("spawn")
        self._pipe, other = method.Pipe()
        self._sending = threading.Lock()
        self.lease: Lease | None = None
        self._process = method.Process(
            target=_child_main, args=(other, handlers), name="ojs-handler", daemon=True
        )
        self._process.start()
        other.close()

    @property
    def alive(self) -> bool:
        """Whether the process can run another job."""
        return self._process.is_alive()

    def run(self, lease: Lease) -> Ending:
        """Run the lease's handler. If the process ends, the job fails."""
        try:
            with self._sending:
                self.lease = lease
                self._pipe.send(("run", lease.job))
            while True:
                what, value = self._pipe.recv()
                if what == "progress":
                    lease.context.progress(**value)
                else:
                    ending: Ending = value
                    return ending
        except (EOFError, OSError):
            self._process.join(5)
            if lease.context.cancelled:
                return stopped(lease.context.cancelled)
            code = self._process.exitcode
            message = f"The handler's process ended with exit code {code}."
            return failure("process_died", message)
        finally:
            with self._sending:
                self.lease = None

    def cancel(self, lease: Lease) -> None:
        """Stop the lease's handler, if it runs here."""
        # If the process has ended, `run` reports it.
        with self._sending, contextlib.suppress(OSError):
            if self.lease is lease:
                self._pipe.send(("cancel", lease.context.cancelled))

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()


def _child_main(pipe: Connection, handlers: Handlers) -> None:
    """Run jobs in the main thread, and receive cancellations in another one."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the worker decides when this process ends
    jobs: queue.SimpleQueue[JobContext] = queue.SimpleQueue()
    sending = threading.Lock()

    def send(what: str, value: object) -> None:
        with sending:
            pipe.send((what, value))

    def tell(report: dict[str, Any]) -> None:
        send("progress", {"fraction": report.pop("progress"), **report})

    def listen() -> None:
        current: JobContext | None = None
        try:
            while True:
                what, value = pipe.recv()
                if what == "run":
                    job: Job = value
                    current = JobContext(job, tell)
                    jobs.put(current)
                elif current is not None:
                    current.cancel(value)
        except (EOFError, OSError):
            os._exit(0)  # the worker has ended, so end this process

    threading.Thread(target=listen, daemon=True).start()
    handlers.prepare()
    while True:
        send("ended", handlers.call(jobs.get()))


class Loop:
    """Runs coroutines on one event loop, in a separate thread, or on the loop of the caller."""

    def __init__(
        self, handlers: Handlers, ended: Ended, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        import asyncio

        self._asyncio = asyncio
        self._handlers = handlers
        self._ended = ended
        self._seen = time.monotonic()
        self._asked = self._seen
        self._own = loop is None
        self._loop = loop or asyncio.new_event_loop()
        if self._own:
            threading.Thread(target=self._run, name="ojs-loop", daemon=True).start()

    def _run(self) -> None:
        self._asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def start(self, lease: Lease) -> None:
        """Run the lease's handler."""
        self._loop.call_soon_threadsafe(self._begin, lease)

    def _begin(self, lease: Lease) -> None:
        task: asyncio.Task[Ending] = self._loop.create_task(self._handlers.await_(lease.context))
        lease.interrupt = lambda: self._loop.call_soon_threadsafe(task.cancel)
        task.add_done_callback(lambda ended: self._end(lease, ended))
        if lease.context.cancelled:
            task.cancel()  # the handler was stopped before it could be interrupted

    def _end(self, lease: Lease, task: asyncio.Task[Ending]) -> None:
        lease.interrupt = lambda: None
        # If the task was cancelled before it started, the handler returned no outcome.
        ending = stopped(lease.context.cancelled) if task.cancelled() else task.result()
        self._ended(lease, ending)

    def result(self, awaited: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop, and wait for its result."""
        return self._asyncio.run_coroutine_threadsafe(awaited, self._loop).result()

    def blocked(self) -> bool:
        """Return whether the loop has not run since the previous call."""
        blocked = self._asked > self._seen
        self._asked = time.monotonic()
        self._loop.call_soon_threadsafe(self._tick)
        return blocked

    def _tick(self) -> None:
        self._seen = time.monotonic()

    def stop(self) -> None:
        """Stop the loop, unless a coroutine blocks it or the caller owns it."""
        if self._own:
            self._loop.call_soon_threadsafe(self._loop.stop)
