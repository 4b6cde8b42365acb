"""The handler's view of its job, and the exceptions that change the outcome."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from ojs_aws.client.job import Job

if TYPE_CHECKING:
    from ojs_aws.typed.clients import Clients
    from ojs_aws.typed.parents import Parents


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

    def sleep(self, seconds: float) -> None:
        """Wait, and return early if the handler must stop.

        Args:
            seconds: Time to wait in seconds.

        Raises:
            JobCancelled: The handler must stop.
        """
        self._stop.wait(seconds)
        self.check()

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

    async def sleep(self, seconds: float) -> None:  # type: ignore[override]
        """Wait without blocking the event loop.

        Args:
            seconds: Time to wait in seconds.

        Raises:
            JobCancelled: The handler must stop.
        """
        import asyncio

        await asyncio.sleep(seconds)
        self.check()


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
