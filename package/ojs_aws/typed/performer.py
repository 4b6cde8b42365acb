"""Runs the function of a job type: converts its arguments and result, and fills its resources."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any

from ojs_aws.client.background import in_thread
from ojs_aws.typed.plain import Refused
from ojs_aws.typed.signature import InvalidArguments
from ojs_aws.worker.context import AsyncJobContext, JobContext, JobFailed
from ojs_aws.worker.resources import enter

if TYPE_CHECKING:
    from ojs_aws.typed.job_type import JobType
    from ojs_aws.worker.handlers import Handlers
    from ojs_aws.worker.resources import Resources


class _Kept:
    """Keeps the exception of a function. A resource that suppresses it doesn't complete the job."""

    error: BaseException

    def __enter__(self) -> _Kept:  # noqa: PYI034 - Self is not in Python 3.10
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if error is not None:
            self.error = error


class Performer:
    """The handler of a job type."""

    def __init__(self, job_type: JobType[..., Any], resources: Resources) -> None:
        self.job_type = job_type
        self.resources = job_type.signature.resources
        self.queueless = job_type.queue is None
        self.where = job_type.signature.where
        self._provided = resources

    @property
    def function(self) -> Callable[..., Any]:
        """The function of the job type."""
        return self.job_type.function

    def __call__(self, context: JobContext) -> Any:
        """Run the function. Returns its result in JSON, or a coroutine that does."""
        if inspect.iscoroutinefunction(self.function):
            return self._awaited(context)
        args = self._args(context)
        with ExitStack() as stack:
            given = {
                name: stack.enter_context(one)
                for name, one in self._provided.of(self.resources, context)
            }
            with _Kept() as kept:
                return self._result(self.function(*args, **given))
        raise kept.error

    async def _awaited(self, context: JobContext) -> Any:
        args = self._args(context)
        if isinstance(context.job.raw.get("parent_results"), dict):
            # A reference to large results. Reading them must not block the event loop.
            await in_thread(len, context.parents)
        async with AsyncExitStack() as stack:
            given = {
                name: await enter(stack, one)
                for name, one in self._provided.of(self.resources, context)
            }
            with _Kept() as kept:
                return self._result(await self.function(*args, **given))
        raise kept.error

    def _args(self, context: JobContext) -> list[Any]:
        signature, context.clients = self.job_type.signature, self.job_type.jobs.clients
        context.code_version = self.job_type.version
        try:
            args = signature.load(context.args)
        except InvalidArguments as error:
            raise JobFailed(
                str(error), code="invalid_arguments", type="InvalidArguments", retryable=False
            ) from None
        if signature.context is None:
            return args
        view = AsyncJobContext.of(context) if signature.context is AsyncJobContext else context
        return [view, *args]

    def _result(self, value: Any) -> Any:
        try:
            return self.job_type.signature.result(value, out=True)
        except Refused as error:
            message = f"{self.job_type.name}: {error}"
            raise JobFailed(message, code="result_not_json", retryable=False) from None


def serve(types: Mapping[str, JobType[..., Any]], handlers: Handlers) -> None:
    """Add job types to the handlers of a worker. Raises ValueError for a type that it has."""
    for name, job_type in types.items():
        handlers.add(name, Performer(job_type, handlers.shared()))
