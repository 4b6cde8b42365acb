"""Declares typed jobs: with their function, in a worker or apart from it, or without it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, overload

from ojs_aws.typed.clients import DEFAULT, Clients
from ojs_aws.typed.job_type import JobType, Registry
from ojs_aws.typed.options import DeclaredOptions, JobOptions, checked
from ojs_aws.typed.performer import serve
from ojs_aws.typed.signature import Signature
from ojs_aws.worker.context import AsyncJobContext, JobContext

if TYPE_CHECKING:
    from typing_extensions import Unpack


P = ParamSpec("P")
R = TypeVar("R")
_TYPE = re.compile(r"[a-z][a-z0-9_\-]*(\.[a-z][a-z0-9_\-]*)*")


def _valid(called: str, name: str) -> str:
    if _TYPE.fullmatch(name):
        return name
    raise ValueError(
        f"{called}: {name!r} must be lowercase segments separated by dots. Pass a name, for"
        " example mail.send"
    )


class Declaration:
    """The decorator that makes a function a job type."""

    def __init__(self, jobs: Jobs, name: str | None, options: dict[str, Any]) -> None:
        self._jobs = jobs
        self._name = name
        self._options = options

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncJobContext, P], Coroutine[Any, Any, R]]
    ) -> JobType[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R]) -> JobType[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> JobType[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> JobType[P, R]: ...

    def __call__(self, function: Callable[..., Any]) -> JobType[..., Any]:
        """Declare the function."""
        return self._jobs.add(self._name, function, self._options)


class Jobs(Registry):
    """Job types that are declared apart from a worker.

        jobs = Jobs(queue="mail")

        @jobs.job("mail.send")
        def send(job: JobContext, to: str) -> str: ...

    `worker.include(jobs)` adds them to a worker.
    """

    def __init__(self, **options: Unpack[JobOptions]) -> None:
        """Create it without jobs.

        Args:
            **options: Defaults of the options of its jobs.

        Raises:
            TypeError: An option is unknown, or has the wrong class.
        """
        super().__init__()
        self._options = checked("Jobs()", options, JobOptions)

    def job(self, name: str | None = None, **options: Unpack[DeclaredOptions]) -> Declaration:
        """Decorator that makes a function or coroutine function a job type.

        A first parameter with the annotation JobContext or AsyncJobContext gets the context. The
        other parameters are the arguments of the job. Keyword-only parameters get resources.

        Args:
            name: Job type. Default: `module.function`.
            **options: Options of its jobs. They precede those of `Jobs`.

        Returns:
            The decorator. It returns a `JobType`.

        Raises:
            TypeError: An option is unknown, or the function can't be a job. The message names the
                parameter and the rule.
            ValueError: The name is invalid, or declared already.
        """
        if callable(name):
            raise TypeError("job() needs parentheses: write @worker.job() above the function")
        own = checked(f"job({name!r})", options, DeclaredOptions)
        if own.get("version", 1) < 1:
            raise TypeError(f"job({name!r}): version must be 1 or more, but is {own['version']}")
        return Declaration(self, name, {**self._options, **own})

    def use(self, clients: Clients) -> None:
        """Enqueue jobs with these clients, unless it has others."""
        if self.clients is DEFAULT:
            self.clients = clients

    def add(
        self, name: str | None, function: Callable[..., Any], options: dict[str, Any]
    ) -> JobType[..., Any]:
        """Declare a function, as `job`."""
        where = getattr(function, "__qualname__", repr(function))
        if not inspect.isfunction(function) or where.endswith("<lambda>"):
            raise TypeError(f"job(): {where} must be a function that is defined with def")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"job(): {where} must return its result. It is a generator")
        name = _valid("job()", name or f"{function.__module__}.{where}")
        if name in self.types:
            there = self.types[name].signature.where
            raise ValueError(f"job({name!r}): {where} can't have the job type of {there}")
        signature = Signature(function, name)
        if signature.context is AsyncJobContext and not inspect.iscoroutinefunction(function):
            raise TypeError(f"{signature.where}: only `async def` functions get an AsyncJobContext")
        made: JobType[..., Any] = JobType(name, function, self, options, signature)
        for worker in self.workers:
            serve({name: made}, worker.handlers)
        self.types[name] = made
        return made


@overload
def declare(
    name: str, args: Callable[P, object], /, *, result: type[R], **options: Unpack[JobOptions]
) -> JobType[P, R]: ...
@overload
def declare(
    name: str, args: Callable[P, object], /, **options: Unpack[JobOptions]
) -> JobType[P, Any]: ...
def declare(
    name: str, args: Callable[..., object], /, *, result: Any = Any, **options: Any
) -> JobType[..., Any]:
    """Declare a job type for a producer that doesn't have its function.

    Args:
        name: Job type.
        args: Class whose fields are the arguments in order: a dataclass, NamedTuple, or model.
        result: Class of the result. Default: any JSON.
        **options: Options of its jobs.

    Returns:
        The job type.

    Raises:
        TypeError: An option is unknown, or a field can't be an argument of a job.
        ValueError: The name is invalid.
    """
    own = checked(f"declare({name!r})", options, JobOptions)
    signature = Signature(args, _valid("declare()", name), result)
    return JobType(name, args, Jobs(), own, signature)
