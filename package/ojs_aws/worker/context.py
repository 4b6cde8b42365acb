"""What a handler sees of its job, and how it ends it in another way than by returning."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from ojs_aws.client.job import Job


class JobFailed(Exception):
    """The job cannot be done. Raise it in a handler to say more than an exception's name.

    With `retryable=False` it is not tried again. `code` and `details` stand in the job's error.
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
    """The handler shall stop: `reason` says why. Let it through."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# Why a handler is to stop.
CANCELLED = "cancelled"  # by somebody: the job is final
LOST = "lost"  # its lease has ended, and it may be another worker's
TIMED_OUT = "timeout"
SHUTDOWN = "shutdown"  # the worker stops: the job is given back


class JobContext:
    """The job that a handler runs, and its way to the server. Handlers get it as first argument."""

    def __init__(
        self, job: Job, tell: Callable[[dict[str, Any]], None] = lambda _progress: None
    ) -> None:
        self.job = job
        self._tell = tell
        self._stop = threading.Event()
        self._reason = ""

    @property
    def id(self) -> str:
        """The job's id."""
        return self.job.id

    @property
    def args(self) -> list[Any]:
        """The job's arguments."""
        return self.job.args

    @property
    def meta(self) -> dict[str, Any]:
        """The job's facts beside its arguments."""
        return self.job.meta

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1 on."""
        return self.job.attempt

    @property
    def cancelled(self) -> str:
        """Why the handler shall stop; "" while it may go on."""
        return self._reason

    def check(self) -> None:
        """Raise JobCancelled if the handler shall stop: call it now and then."""
        if self._reason:
            raise JobCancelled(self._reason)

    def sleep(self, seconds: float) -> None:
        """Wait, but not when the handler shall stop. Raises JobCancelled then."""
        self._stop.wait(seconds)
        self.check()

    def progress(
        self, fraction: float, message: str | None = None, data: Mapping[str, Any] | None = None
    ) -> None:
        """Report how far the job is, from 0 to 1. It is sent in the background, at most once a
        second: the latest counts.
        """
        report = {"progress": fraction, "message": message, "data": data and dict(data)}
        self._tell({name: value for name, value in report.items() if value is not None})

    def cancel(self, reason: str) -> None:
        """Tell the handler to stop. The first reason counts."""
        self._reason = self._reason or reason
        self._stop.set()


class Lease:
    """A job this worker has a lease on, until the server has heard what became of it."""

    def __init__(self, job: Job, timeout_s: float | None) -> None:
        self.job = job
        self.began = time.monotonic()
        limit_s = job.timeout_ms / 1_000 if job.timeout_ms else timeout_s
        # Each attempt has its time from when it was handed out, whatever the clocks say.
        self.until = None if limit_s is None else self.began + limit_s
        self.progress: dict[str, Any] | None = None
        self.context = JobContext(job, self._note)
        # Stops what runs the handler, as far as that can be.
        self.interrupt: Callable[[], object] = lambda: None
        self.running = True  # the handler has not ended yet
        self.settled = False  # what became of the job is decided

    @property
    def key(self) -> tuple[str, int, str | None]:
        """What it is known by: a job may come again while an earlier attempt still runs."""
        return self.job.id, self.job.attempt, self.job.lease_token

    def _note(self, report: dict[str, Any]) -> None:
        self.progress = report

    def stop(self, reason: str) -> None:
        """Tell the handler to stop."""
        self.context.cancel(reason)
        self.interrupt()


_CURRENT: ContextVar[JobContext | None] = ContextVar("ojs_job", default=None)


def current_job() -> JobContext | None:
    """The job whose handler calls this; None elsewhere."""
    return _CURRENT.get()
