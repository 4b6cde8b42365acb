"""Where handlers run: functions on threads or in processes, coroutines on an event loop.

Each way takes a lease and calls `ended` with it once, from a thread of its own, whatever the
handler does. Threads are daemons: a handler that hangs cannot keep the process from ending.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ojs_aws.client.job import Job
from ojs_aws.worker.context import JobContext, Lease
from ojs_aws.worker.handlers import Ending, Handlers, ended, failure, stopped

if TYPE_CHECKING:
    import asyncio
    from multiprocessing.connection import Connection

Ended = Callable[[Lease, Ending], None]


class Threads:
    """Functions, each on one of up to `most` threads."""

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
        """End the threads that are idle, and the others after their handlers."""
        for _ in self._threads:
            self._waiting.put(None)

    def _work(self) -> None:
        while (lease := self._waiting.get()) is not None:
            try:
                ending = self.run(lease)
            except Exception as error:  # noqa: BLE001 - no process could be started, or the like
                ending = ended(error, lease.context)
            with self._lock:
                self._idle += 1
            self._ended(lease, ending)
            del lease  # its arguments and result may be large

    def run(self, lease: Lease) -> Ending:
        """How the lease's handler ended."""
        if lease.context.cancelled:
            return stopped(lease.context.cancelled)
        return self._handlers.call(lease.context)


class Processes(Threads):
    """Functions, each in one of up to `most` processes, which are begun anew when they die."""

    def __init__(self, handlers: Handlers, most: int, ended: Ended) -> None:
        """Raise ValueError for handlers that another process cannot import."""
        import pickle

        super().__init__(handlers, most, ended)
        try:
            pickle.dumps(handlers)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise ValueError(f"processes cannot import a handler: {error}") from error
        self._own = threading.local()
        self._children: set[Child] = set()

    def run(self, lease: Lease) -> Ending:
        """How the handler ended, in the process that belongs to this thread."""
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
        """End the process that runs this lease's handler; whether there is one."""
        running = [child for child in list(self._children) if child.lease is lease]
        for child in running:
            child.kill()
        return bool(running)

    def stop(self) -> None:
        """End all processes."""
        super().stop()
        for child in list(self._children):
            child.kill()


class Child:
    """A process that runs handlers, one at a time."""

    def __init__(self, handlers: Handlers) -> None:
        import multiprocessing

        # A fork of a process with threads may inherit locks that nobody opens.
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
        """Whether it can take another job."""
        return self._process.is_alive()

    def run(self, lease: Lease) -> Ending:
        """How the lease's handler ended; if the process died, that is the job's failure."""
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
            return failure("process_died", f"the handler's process died with exit code {code}")
        finally:
            with self._sending:
                self.lease = None

    def cancel(self, lease: Lease) -> None:
        """Have the lease's handler told to stop, if it is the one that runs here."""
        # If the process has just died `run` says so.
        with self._sending, contextlib.suppress(OSError):
            if self.lease is lease:
                self._pipe.send(("cancel", lease.context.cancelled))

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()


def _child_main(pipe: Connection, handlers: Handlers) -> None:
    """The process of a Child: the first thread runs handlers, another one hears of cancellation."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the worker says when to end
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
            os._exit(0)  # the worker is gone, whatever the handler does

    threading.Thread(target=listen, daemon=True).start()
    while True:
        send("ended", handlers.call(jobs.get()))


class Loop:
    """Coroutines, on one event loop in a thread of its own."""

    def __init__(self, handlers: Handlers, ended: Ended) -> None:
        import asyncio

        self._asyncio = asyncio
        self._handlers = handlers
        self._ended = ended
        self._loop = asyncio.new_event_loop()
        self._seen = time.monotonic()
        self._asked = self._seen
        self._thread = threading.Thread(target=self._run, name="ojs-loop", daemon=True)
        self._thread.start()

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
            task.cancel()  # it was told before it could be interrupted

    def _end(self, lease: Lease, task: asyncio.Task[Ending]) -> None:
        lease.interrupt = lambda: None
        # Cancelled before it began: then the handler could not turn it into an ending.
        ending = stopped(lease.context.cancelled) if task.cancelled() else task.result()
        self._ended(lease, ending)

    def blocked(self) -> bool:
        """Whether the loop has not run since this was asked last."""
        blocked = self._asked > self._seen
        self._asked = time.monotonic()
        self._loop.call_soon_threadsafe(self._tick)
        return blocked

    def _tick(self) -> None:
        self._seen = time.monotonic()

    def stop(self) -> None:
        """End the loop, unless a coroutine blocks it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
