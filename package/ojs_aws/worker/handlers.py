"""Handlers by job type, their middleware, and the reports of their outcomes."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ojs_aws import tracing
from ojs_aws.client.call import to_json
from ojs_aws.worker import context as contexts
from ojs_aws.worker.context import JobCancelled, JobContext, JobFailed

if TYPE_CHECKING:
    from ojs_aws.worker.resources import Resources

Handler = Callable[[JobContext], Any]
Next = Callable[[JobContext], Any]
Middleware = Callable[[JobContext, Next], Any]

_FRAMES = 50
_MESSAGE = 10_000


@dataclass(frozen=True)
class Ending:
    """Outcome of a handler: an ack, a nack, or no report because the lease was lost.

    `entry` has `result`, `error`, or `requeue`, in the format of the API.
    """

    how: str  # "acks", "nacks", or "" for no report
    entry: dict[str, Any] = field(default_factory=dict)
    size: int = 0  # approximate size of the entry in characters

    @property
    def code(self) -> str | None:
        """Code of the error, or None."""
        found: str | None = self.entry.get("error", {}).get("code")
        return found


GIVEN_BACK = Ending("nacks", {"requeue": True})
NOTHING = Ending("")


def failure(
    code: str,
    message: str,
    *,
    kind: str | None = None,
    retryable: bool = True,
    details: dict[str, Any] | None = None,
    backtrace: list[str] | None = None,
) -> Ending:
    """Create a nack with an error."""
    error: dict[str, Any] = {
        "code": code or "error",
        "type": kind or code or "error",
        "message": message[:_MESSAGE],
        "retryable": retryable,
    }
    if details:
        error["details"] = details
    if backtrace:
        error["backtrace"] = backtrace
    # Text that is not valid UTF-8 can't be sent.
    error = _clean(error)
    return Ending("nacks", {"error": error}, len(str(error)))


def done(result: object) -> Ending:
    """Create an ack with a result, or a nack if JSON can't represent the result."""
    if result is None:
        return Ending("acks")
    try:
        text = to_json(result)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        message = f"The handler completed, but its result is not JSON: {error}."
        # A retry would return the same result, so the job is not retried.
        return failure("result_not_json", message, retryable=False)
    return Ending("acks", {"result": result}, len(text))


def ended(error: BaseException, job: JobContext) -> Ending:
    """Convert an exception of a handler to an outcome."""
    if isinstance(error, JobCancelled) or (job.cancelled and _is_interruption(error)):
        return stopped(job.cancelled or str(error))
    if isinstance(error, JobFailed):
        details = _json_or_text(error.details)
        return failure(
            error.code, str(error), kind=error.type, retryable=error.retryable, details=details
        )
    frames = traceback.format_exception(type(error), error, error.__traceback__)
    lines = "".join(frames).splitlines()[-_FRAMES:]
    return failure("handler_error", _text(error), kind=type(error).__name__, backtrace=lines)


def stopped(reason: str) -> Ending:
    """Return the outcome of a job whose handler was stopped."""
    if reason in (contexts.CANCELLED, contexts.LOST):
        return NOTHING
    if reason == contexts.TIMED_OUT:
        return failure("timeout", "The handler exceeded its timeout.", kind="TimeoutError")
    if reason == contexts.SHUTDOWN:
        return GIVEN_BACK
    # The handler raised the exception for another reason.
    return failure("job_cancelled", f"The handler raised JobCancelled: {reason}")


def _is_interruption(error: BaseException) -> bool:
    # The names are compared, because asyncio is not imported if no coroutine runs.
    return type(error).__name__ == "CancelledError"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a handler's exception may be anything
        return type(error).__name__


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {str(_clean(name)): _clean(inner) for name, inner in value.items()}
    return [_clean(each) for each in value] if isinstance(value, list) else value


def _json_or_text(details: dict[str, Any]) -> dict[str, Any]:
    try:
        to_json(details)
    except (TypeError, ValueError, RecursionError):
        return {str(name): repr(value)[:_MESSAGE] for name, value in details.items()}
    return details


@dataclass
class Handlers:
    """The handlers of a worker. Can be pickled if the handlers can. Each process gets a copy."""

    by_type: dict[str, Handler] = field(default_factory=dict)
    middleware: list[Middleware] = field(default_factory=list)
    # Of typed jobs. None if there are none.
    resources: Resources | None = None

    def add(self, kind: str, handler: Handler) -> None:
        """Add the handler of a job type. Raises ValueError if the type has a handler."""
        if kind in self.by_type:
            raise ValueError(f"job type {kind!r} already has a handler")
        self.by_type[kind] = handler

    def shared(self) -> Resources:
        """Return the resources of typed jobs."""
        if self.resources is None:
            from ojs_aws.worker.resources import Resources

            self.resources = Resources()
        return self.resources

    def prepare(self, run: Callable[[Coroutine[Any, Any, Any]], Any] | None = None) -> None:
        """Make the resources of typed jobs, if there are any. `run` runs a coroutine.

        Raises Misconfigured if a resource is unknown.
        """
        if self.resources is not None:
            import atexit

            from ojs_aws.client import background

            handlers: dict[str, Any] = self.by_type
            needs = [
                (each.where, each.resources, self.asynchronous(kind))
                for kind, each in handlers.items()
                if hasattr(each, "resources")
            ]
            if self.resources.start(needs, run or background.result) and run is None:
                atexit.register(self.resources.stop)

    def of(self, kind: str) -> Handler | None:
        """Return the handler of a job type, or None."""
        return self.by_type.get(kind)

    def asynchronous(self, kind: str) -> bool:
        """Return whether the handler of a job type is a coroutine function."""
        handler = self.by_type.get(kind)
        # The handler of a typed job has the function as an attribute.
        return inspect.iscoroutinefunction(getattr(handler, "function", handler))

    def call(self, job: JobContext) -> Ending:
        """Run the handler of a job in this thread. Return its outcome. Catches every exception."""
        caught: BaseException | None = None
        try:
            with _around(job):
                ending = done(self._wrapped(job.job.type, asynchronous=False)(job))
        except BaseException as error:  # noqa: BLE001 - a handler can raise SystemExit
            caught, ending = error, ended(error, job)
        return _decided(job, ending, caught)

    async def await_(self, job: JobContext) -> Ending:
        """Run the handler of a job in this task.

        Return its outcome, also if the task is cancelled.
        """
        caught: BaseException | None = None
        try:
            with _around(job):
                awaited: Awaitable[Any] = self._wrapped(job.job.type, asynchronous=True)(job)
                ending = done(await awaited)
        except BaseException as error:  # noqa: BLE001 - as in `call`
            caught, ending = error, ended(error, job)
        return _decided(job, ending, caught)

    def _wrapped(self, kind: str, *, asynchronous: bool) -> Handler:
        """Return the handler of a job type, wrapped in the middleware of the same kind.

        The first middleware is outermost.
        """
        inner = self.by_type[kind]
        for layer in reversed(self.middleware):
            if inspect.iscoroutinefunction(layer) == asynchronous:
                inner = _layered(layer, inner)
        return inner


def _decided(job: JobContext, ending: Ending, caught: BaseException | None) -> Ending:
    """Return the outcome of an attempt, which durable code can have decided."""
    if job.durable is None:
        return ending
    decided: Ending = job.durable.ending(ending, caught)
    return decided


def _layered(layer: Middleware, inner: Next) -> Handler:
    return lambda job: layer(job, inner)


@contextmanager
def _around(job: JobContext) -> Iterator[None]:
    token = contexts._CURRENT.set(job)  # noqa: SLF001 - only this function sets it
    facts = {
        "messaging.system": "ojs",
        "messaging.message.id": job.id,
        "messaging.destination.name": job.job.queue,
        "ojs.job.type": job.job.type,
        "ojs.job.attempt": job.attempt,
    }
    try:
        line = (job.id, job.job.raw.get("root_id") or job.id)
        with tracing.running(job.job.type, job.meta, facts, line):
            yield
    finally:
        contexts._CURRENT.reset(token)  # noqa: SLF001
