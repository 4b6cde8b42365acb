"""The handler's view of its job, and the exceptions that change the outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from datetime import datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from ojs_aws.client.job import Job

if TYPE_CHECKING:
    from ojs_aws.typed.clients import Clients
    from ojs_aws.typed.parents import Parents
    from ojs_aws.worker.steps import ChildCall, Final, Signal, WorkflowCall

P = ParamSpec("P")
T = TypeVar("T")


class JobFailed(Exception):
    """The job failed. Raise it in a handler to set the fields of the job's error.

    Args:
        message: Text of the error.
        code: Error code. Default: `job_failed`.
        type: Error type. Default: the name of the exception class.
        retryable: Whether the job is retried. Default: true.
        details: More facts about the error. JSON object.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str = "job_failed",
        type: str | None = None,  # noqa: A002 - the specification's word
        retryable: bool = True,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.type = type or self.__class__.__name__
        self.retryable = retryable
        self.details = dict(details or {})

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self),), self.__dict__)


class JobCancelled(Exception):
    """The handler must stop, for `reason`. Don't catch it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# Reasons to stop a handler.
CANCELLED = "cancelled"  # a client cancelled the job: its state is final
LOST = "lost"  # its lease expired, and another worker may have claimed it
TIMED_OUT = "timeout"
SHUTDOWN = "shutdown"  # the worker stops and returns the job to its queue


class JobContext:
    """The job that a handler runs. Every handler receives it as its first argument."""

    # Clients of the job's type. None: those of the environment.
    clients: Clients | None = None
    # Returns the clients of durable code. None: `clients`.
    server: Callable[[], Clients | None] | None = None
    # Version of the handler's code, and when the last step can start (monotonic time in s).
    code_version = 1
    start_until: float | None = None
    # `Durable` of this attempt. None: the handler has made no durable call.
    durable: Any = None
    _parents: Parents | None = None

    def __init__(
        self, job: Job, tell: Callable[[dict[str, Any]], None] = lambda _progress: None
    ) -> None:
        self.job = job
        self._tell = tell
        self._stop = threading.Event()
        self._reason = ""

    if not TYPE_CHECKING:  # type checkers report an unknown attribute

        def __getattr__(self, name: str) -> Any:
            from ojs_aws.hints import missing

            return missing(self, name)

    @property
    def id(self) -> str:
        """ID of the job."""
        return self.job.id

    @property
    def args(self) -> list[Any]:
        """Positional arguments of the job."""
        return self.job.args

    @property
    def meta(self) -> dict[str, Any]:
        """Metadata of the job."""
        return self.job.meta

    @property
    def attempt(self) -> int:
        """Number of this attempt, starting at 1."""
        return self.job.attempt

    @property
    def parents(self) -> Parents:
        """Results of the earlier steps of a workflow: `job.parents[charge]`, by type or name."""
        if self._parents is None:
            from ojs_aws.typed.clients import DEFAULT
            from ojs_aws.typed.parents import Parents

            self._parents = Parents(self.job, self.clients or DEFAULT)
        return self._parents

    @property
    def cancelled(self) -> str:
        """Reason for the handler to stop, or "" if it can continue."""
        return self._reason

    def check(self) -> None:
        """Raise JobCancelled if the handler must stop. Call it regularly in a long handler.

        Raises:
            JobCancelled: The job was cancelled or timed out, its lease expired, or the worker
                stops.
        """
        if self._reason:
            raise JobCancelled(self._reason)

    def sleep(self, duration: float | str | timedelta, name: str = "sleep") -> None:
        """Wait. A number pauses the handler, which returns early if it must stop.

        A `timedelta` or a string such as `P3D` suspends the job: the attempt ends, and the handler
        runs again after that time. Below 5 seconds, it pauses, too.

        Args:
            duration: Seconds, or a `timedelta` or an ISO 8601 duration of at most 366 days.
            name: Name of a sleep that suspends the job.

        Raises:
            JobCancelled: The handler must stop.
            StepNameReused: The name was used before in this attempt.
        """
        if not isinstance(duration, (int, float)):
            self._now(self._code().sleep(duration, name))
            return
        self._stop.wait(duration)
        self.check()

    def _code(self) -> Any:
        if self.durable is None:
            self.durable = import_module("ojs_aws.worker.durable").Durable(self)
        return self.durable

    def _now(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of durable code, which never waits for an event loop here."""
        try:
            coroutine.send(None)
        except StopIteration as done:
            value: T = done.value
            return value
        raise AssertionError("use AsyncJobContext in a coroutine function")

    @property
    def version(self) -> int:
        """Version of the code of this job: `version=` of the code that stored its first step."""
        version: int = self._code().version
        return version

    def idempotency_key(self, name: str) -> str:
        """Return a key that is the same in all attempts, for the requests of a step.

        Args:
            name: Name of the step.

        Returns:
            `{id}/{epoch}/{name}`. The epoch changes when a dead letter starts afresh.
        """
        return f"{self.id}/{self._code().epoch}/{name}"

    @property
    def last_checkpoint(self) -> Any:
        """State of the latest checkpoint, or None."""
        return self._code().checkpoint

    def checkpoint(self, state: Any) -> None:
        """Store the state of the job, to resume from. It replaces the one before.

        Args:
            state: JSON value of at most 1 MiB.

        Raises:
            JobCancelled: The handler must stop.
        """
        self._now(self._code().save_checkpoint(state))

    @overload
    def step(
        self, name: str, function: Callable[..., T], /, *args: Any,
        key: str, final: Final = ..., **kwargs: Any,
    ) -> T: ...  # fmt: skip
    @overload
    def step(
        self, name: str, function: Callable[..., T], /, *args: Any, final: Final, **kwargs: Any
    ) -> T: ...
    @overload
    def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function once, and store its result. Later attempts return it.

        A function whose attempt ends before the result is stored runs again.

        Args:
            name: Name of the step: 1 to 64 letters, digits, and `_.:-`.
            function: The function. Its side effects should use `idempotency_key`.
            *args: Its arguments.
            **kwargs: Its arguments by name. Apart from them, `key` makes the name unique in a loop
                (1 to 100 characters without `|`), and `final` has the exceptions that are stored
                and not retried.

        Returns:
            The result, converted from JSON by the annotation of the function.

        Raises:
            StepFailed: The step failed in this or an earlier attempt, and is not retried.
            StepNameReused: The name was used before in this attempt.
            JobCancelled: The handler must stop.
        """
        return self._now(self._code().step(name, function, args, kwargs))

    def sleep_until(self, at: str | datetime, name: str = "sleep") -> None:
        """Suspend the job until a time, by the clock of the server.

        Args:
            at: Datetime or RFC 3339 string with a time zone, within 366 days.
            name: Name of the sleep.

        Raises:
            StepNameReused: The name was used before in this attempt.
            JobCancelled: The handler must stop.
        """
        self._now(self._code().sleep_until(at, name))

    def wait_for(self, name: str, *, timeout: str | timedelta) -> Signal | None:
        """Suspend the job until a signal is sent to it. It can be sent before or after this call.

        Args:
            name: Name of the signal.
            timeout: `timedelta` or ISO 8601 duration of at most 366 days.

        Returns:
            The signal, or None if it wasn't sent in time.

        Raises:
            StepNameReused: The name was used before in this attempt.
            JobCancelled: The handler must stop.
        """
        signal: Signal | None = self._now(self._code().wait_for(name, timeout))
        return signal

    @overload
    def run(self, call: ChildCall[T], *, name: str) -> T: ...
    @overload
    def run(self, call: WorkflowCall, *, name: str) -> list[Any]: ...
    def run(self, call: Any, *, name: str) -> Any:
        """Start a child job or a workflow, and suspend the job until it has finished.

        Args:
            call: A call such as `ship.job(order)`, or a workflow such as `group(…)`.
            name: Name of the step.

        Returns:
            The result of the child job, or the results of the steps of the workflow.

        Raises:
            StepFailed: The child job or the workflow failed or was cancelled.
            StepNameReused: The name was used before in this attempt.
            JobCancelled: The handler must stop.
        """
        return self._now(self._code().run(call, name))

    def gather(self, *calls: ChildCall[T], name: str) -> list[T]:
        """Start up to 50 child jobs together, and suspend the job until all have finished.

        Args:
            *calls: Calls such as `ship.job(order)`.
            name: Name of the step.

        Returns:
            The results in the order of the calls.

        Raises:
            StepFailed: A child job failed or was cancelled.
            StepNameReused: The name was used before in this attempt.
            JobCancelled: The handler must stop.
        """
        return self._now(self._code().gather(calls, name))

    def progress(
        self, fraction: float, message: str | None = None, data: Mapping[str, Any] | None = None
    ) -> None:
        """Report the progress of the job. A background thread sends it, at most once per second.

        A newer report replaces one that was not sent.

        Args:
            fraction: Progress from 0 to 1.
            message: Text that the dashboard shows.
            data: Any JSON object.
        """
        report = {"progress": fraction, "message": message, "data": data and dict(data)}
        self._tell({name: value for name, value in report.items() if value is not None})

    def cancel(self, reason: str) -> None:
        """Stop the handler. Only the first reason counts.

        Args:
            reason: Reason that `cancelled` returns.
        """
        self._reason = self._reason or reason
        self._stop.set()


class AsyncJobContext(JobContext):
    """The job that a coroutine function runs. Has the attributes of JobContext."""

    @classmethod
    def of(cls, job: JobContext) -> AsyncJobContext:
        """Return a view of the same job."""
        view = cls.__new__(cls)
        view.__dict__ = job.__dict__
        return view

    def _code(self) -> Any:
        code = super()._code()
        code.aio = True
        return code

    async def sleep(  # type: ignore[override]
        self, duration: float | str | timedelta, name: str = "sleep"
    ) -> None:
        """Wait without blocking the event loop, as `JobContext.sleep`."""
        if not isinstance(duration, (int, float)):
            await self._code().sleep(duration, name)
            return
        import asyncio

        await asyncio.sleep(duration)
        self.check()

    async def checkpoint(self, state: Any) -> None:  # type: ignore[override]
        """Store the state of the job, as `JobContext.checkpoint`."""
        await self._code().save_checkpoint(state)

    @overload  # type: ignore[override]
    async def step(
        self, name: str, function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any,
        key: str, final: Final = ..., **kwargs: Any,
    ) -> T: ...  # fmt: skip
    @overload
    async def step(
        self, name: str, function: Callable[..., T], /, *args: Any,
        key: str, final: Final = ..., **kwargs: Any,
    ) -> T: ...  # fmt: skip
    @overload
    async def step(
        self, name: str, function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any,
        final: Final, **kwargs: Any,
    ) -> T: ...  # fmt: skip
    @overload
    async def step(
        self, name: str, function: Callable[..., T], /, *args: Any, final: Final, **kwargs: Any
    ) -> T: ...
    @overload
    async def step(
        self, name: str, function: Callable[P, Coroutine[Any, Any, T]], /,
        *args: P.args, **kwargs: P.kwargs,
    ) -> T: ...  # fmt: skip
    @overload
    async def step(
        self, name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T: ...
    async def step(
        self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Any:
        """Run a function or coroutine function once, and store its result, as `JobContext.step`.

        A function runs in a thread.
        """
        return await self._code().step(name, function, args, kwargs)

    async def sleep_until(  # type: ignore[override]
        self, at: str | datetime, name: str = "sleep"
    ) -> None:
        """Suspend the job until a time, as `JobContext.sleep_until`."""
        await self._code().sleep_until(at, name)

    async def wait_for(  # type: ignore[override]
        self, name: str, *, timeout: str | timedelta
    ) -> Signal | None:
        """Suspend the job until a signal is sent to it, as `JobContext.wait_for`."""
        signal: Signal | None = await self._code().wait_for(name, timeout)
        return signal

    @overload  # type: ignore[override]
    async def run(self, call: ChildCall[T], *, name: str) -> T: ...
    @overload
    async def run(self, call: WorkflowCall, *, name: str) -> list[Any]: ...
    async def run(self, call: Any, *, name: str) -> Any:
        """Start a child job or a workflow, and wait for it, as `JobContext.run`."""
        return await self._code().run(call, name)

    async def gather(self, *calls: ChildCall[T], name: str) -> list[T]:  # type: ignore[override]
        """Start up to 50 child jobs together, and wait for all, as `JobContext.gather`."""
        results: list[T] = await self._code().gather(calls, name)
        return results


class Lease:
    """The lease of a job of this worker, until the server has confirmed the job's outcome."""

    def __init__(self, job: Job, timeout_s: float | None) -> None:
        self.job = job
        self.began = time.monotonic()
        limit_s = job.timeout_ms / 1_000 if job.timeout_ms else timeout_s
        # The timeout starts when the worker receives the job, so it doesn't depend on the clocks of
        # the server and the worker.
        self.until = None if limit_s is None else self.began + limit_s
        self.progress: dict[str, Any] | None = None
        self.context = JobContext(job, self._note)
        # Interrupts the handler. None if the handler can't be interrupted, because it runs in a
        # thread.
        self.interrupt: Callable[[], object] = lambda: None
        self.running = True  # the handler has not returned yet
        self.settled = False  # the outcome is decided

    @property
    def key(self) -> tuple[str, int, str | None]:
        """Identifies the lease.

        The worker can have two leases of one job at the same time, for two attempts.
        """
        return self.job.id, self.job.attempt, self.job.lease_token

    def _note(self, report: dict[str, Any]) -> None:
        self.progress = report

    def stop(self, reason: str) -> None:
        """Stop the handler."""
        self.context.cancel(reason)
        self.interrupt()


_CURRENT: ContextVar[JobContext | None] = ContextVar("ojs_job", default=None)


def current_job() -> JobContext | None:
    """Return the context of the job that this code runs in.

    Returns:
        The context, or None outside a handler.
    """
    return _CURRENT.get()
