"""A job type: enqueues jobs by reference to their function, and reads their results."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from ojs_aws.client import operations
from ojs_aws.client.call import Answer, Call
from ojs_aws.client.job import FINAL_STATES, Job
from ojs_aws.client.operations import JobRequest
from ojs_aws.errors import JobError, WaitTimeout
from ojs_aws.hints import hint
from ojs_aws.typed.clients import DEFAULT, Clients
from ojs_aws.typed.options import OF_REQUESTS, CallOptions, checked, request_fields
from ojs_aws.typed.signature import InvalidArguments, Signature

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ojs_aws.client.asynchronous import AsyncClient
    from ojs_aws.client.blocking import Client

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)  # steps of different results fit into one list
A = TypeVar("A")
B = TypeVar("B")
A_contra = TypeVar("A_contra", contravariant=True)
B_contra = TypeVar("B_contra", contravariant=True)
Trigger = Literal["all_succeeded", "all_done", "any_failed"]

MAX_MAPPED = 10_000
_BATCH = 1_000


class JobHandle(Generic[R]):
    """A job that was enqueued by reference.

    Attributes:
        job: The job as the server stored it.
    """

    def __init__(self, job: Job, job_type: JobType[..., R]) -> None:
        self.job = job
        self._type = job_type

    @property
    def id(self) -> str:
        """ID of the job."""
        return self.job.id

    def result(self, wait_s: float = 60.0) -> R:
        """Wait for the result.

        Args:
            wait_s: Time to wait in seconds. Default: 60.

        Returns:
            What the function returned.

        Raises:
            JobError: The job was discarded or cancelled.
            WaitTimeout: The job isn't in a final state after `wait_s`.
        """
        until = time.monotonic() + wait_s
        clients = self._type.jobs.clients
        while not (found := self._final(clients.run(self._ask(until)), until)):
            pass
        return found[0]

    async def aresult(self, wait_s: float = 60.0) -> R:
        """Wait for the result, as `result`."""
        until = time.monotonic() + wait_s
        while not (
            found := self._final(await self._type.jobs.clients.arun(self._ask(until)), until)
        ):
            pass
        return found[0]

    def _ask(self, until: float) -> Call[Answer]:
        left_s = max(0.0, until - time.monotonic())
        return operations.get_result(self.id, wait_s=math.ceil(left_s))

    def _final(self, answer: Answer, until: float) -> tuple[R] | None:
        """Return the result in a tuple, or None if the job isn't in a final state yet."""
        state = answer["state"]
        if state == "completed":
            return (self._type.read_result(answer.get("result")),)
        if state in FINAL_STATES:
            raise JobError(self.id, state, answer.get("error"))
        if time.monotonic() >= until:
            raise WaitTimeout(Job(self.id, self.job.type, state=state))
        return None


@dataclass(frozen=True)
class JobCall(Generic[R_co]):
    """A job of a workflow: a job type with its arguments. `JobType.job` returns it."""

    job_type: JobType[..., R_co]
    request: JobRequest
    needs: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    trigger: Trigger | None = None

    def after(
        self, *steps: str, ignore_failed: bool = False, trigger: Trigger | None = None
    ) -> JobCall[R_co]:
        """Return this step with dependencies, for `dag`.

        Args:
            *steps: Names of the steps that it needs. Several calls add up.
            ignore_failed: Whether these steps can fail. Default: false.
            trigger: When the step starts. Default: if the steps that it needs succeeded.

        Returns:
            The step with its dependencies.
        """
        ignored = (*self.ignored, *steps) if ignore_failed else self.ignored
        trigger = trigger or self.trigger
        return replace(self, needs=(*self.needs, *steps), ignored=ignored, trigger=trigger)

    @property
    def clients(self) -> Clients:
        """The clients of the job type."""
        return self.job_type.jobs.clients

    @property
    def kind(self) -> str:
        """The job type."""
        return self.job_type.name

    def wire(self) -> Answer:
        """Return the step as the API expects it."""
        step = self.request.wire("")
        del step["id"]
        if self.needs:
            step["depends_on"] = [
                {"id": each, "ignore_failed": True} if each in self.ignored else each
                for each in self.needs
            ]
        return {**step, **({"trigger": self.trigger} if self.trigger else {})}


class Registry:
    """Where job types are declared.

    Attributes:
        types: The job types by name.
        workers: Workers that include them.
        clients: What their jobs are enqueued with.
    """

    def __init__(self) -> None:
        self.types: dict[str, JobType[..., Any]] = {}
        self.workers: list[Any] = []
        self.clients: Clients = DEFAULT

    def bind(self, client: Client | AsyncClient) -> None:
        """Set the client that enqueues these jobs, and others without a URL in this process.

        Args:
            client: For `enqueue`, or an AsyncClient for `aenqueue`. Default: one by `OJS_URL`.
        """
        self.clients.bind(client)


# Type checkers find the types of one or two arguments of `map` by these calls.
class _Of1(Protocol[A_contra, R_co]):
    def job(self, a: A_contra, /) -> JobCall[R_co]: ...


class _Of2(Protocol[A_contra, B_contra, R_co]):
    def job(self, a: A_contra, b: B_contra, /) -> JobCall[R_co]: ...


class JobType(Generic[P, R]):
    """A job type with its function. `@worker.job` and `@jobs.job` return it.

    Calling it calls the function, for example in a test.

    Attributes:
        name: The job type.
        jobs: Where it was declared.
        queue: Queue of its jobs. None: `default`.
        version: Version of its code.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        jobs: Registry,
        options: Mapping[str, Any],
        signature: Signature,
    ) -> None:
        self.name = name
        self.jobs = jobs
        self.signature = signature
        self._options = dict(options)
        self.version: int = self._options.pop("version", 1)
        self.queue: str | None = self._options.get("queue")
        functools.update_wrapper(self, function)
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, with its context if it has one. No job is enqueued.

        Raises:
            TypeError: A resource is missing.
        """
        if lacks := [f"{each}=…" for each in self.signature.resources if each not in kwargs]:
            raise TypeError(
                f"{self.name}() is called directly, so pass its resources:"
                f" {', '.join(lacks)}. A worker fills them only for jobs"
            )
        return self.function(*args, **kwargs)

    def __reduce__(self) -> str:
        # Found by its name, as a function.
        return self.__qualname__  # type: ignore[no-any-return, attr-defined, unused-ignore]

    if not TYPE_CHECKING:  # type checkers report an unknown attribute

        def __getattr__(self, name: str) -> Any:
            known = [each for each in dir(JobType) if each[0] != "_"]
            use = hint("JobType", name, known) if name[0] != "_" else ""
            raise AttributeError(f"{self.__qualname__} is a job type without {name!r}.{use}")

    def __repr__(self) -> str:
        return f"<JobType {self.signature}>"

    def options(self, **options: Unpack[CallOptions]) -> JobType[P, R]:
        """Return this job type with other options. They precede those of its declaration.

        Args:
            **options: As in `Client.enqueue`; `retry`, `unique`, and `rate_limit` are objects.

        Returns:
            The job type for one or more calls.

        Raises:
            TypeError: An option is unknown, or has the wrong class.
        """
        more = checked(f"{self.name}.options()", options, CallOptions)
        all_ = {"version": self.version, **self._options, **more}
        return JobType(self.name, self.function, self.jobs, all_, self.signature)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue one job.

        Args:
            *args: Arguments of the function, without its context.
            **kwargs: The same by name.

        Returns:
            The job, with its future result.

        Raises:
            InvalidArguments: The arguments don't fit the function. Nothing was sent.
            Duplicate: A job with this unique key exists.
            QueueFull: The queue is at capacity.
        """
        call = operations.enqueue_job(**self._fields("enqueue", args, kwargs))
        return JobHandle(self.jobs.clients.run(call), self)

    delay = enqueue

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue one job without blocking the event loop, as `enqueue`."""
        call = operations.enqueue_job(**self._fields("aenqueue", args, kwargs))
        return JobHandle(await self.jobs.clients.arun(call), self)

    @overload
    def map(self: _Of1[A, R], a: Iterable[A], /) -> list[JobHandle[R]]: ...
    @overload
    def map(self: _Of2[A, B, R], a: Iterable[A], b: Iterable[B], /) -> list[JobHandle[R]]: ...
    @overload
    def map(
        self, a: Iterable[Any], b: Iterable[Any], c: Iterable[Any], /, *more: Iterable[Any]
    ) -> list[JobHandle[R]]: ...
    def map(self, *columns: Iterable[Any]) -> list[JobHandle[Any]]:
        """Enqueue a job for each item, as the function `map`: in atomic batches of 1,000.

        Args:
            *columns: Values of the first argument, of the second one, and so on. All have the
                same length, up to 10,000.

        Returns:
            The jobs in order.

        Raises:
            InvalidArguments: There are too many items, or one doesn't fit. Nothing was sent.
            ApiError: The server rejected a batch. Earlier batches are stored.
        """
        stored = [self.jobs.clients.run(call) for call in self._batches(columns)]
        return [JobHandle(job, self) for jobs in stored for job in jobs]

    @overload
    async def amap(self: _Of1[A, R], a: Iterable[A], /) -> list[JobHandle[R]]: ...
    @overload
    async def amap(
        self: _Of2[A, B, R], a: Iterable[A], b: Iterable[B], /
    ) -> list[JobHandle[R]]: ...
    @overload
    async def amap(
        self, a: Iterable[Any], b: Iterable[Any], c: Iterable[Any], /, *more: Iterable[Any]
    ) -> list[JobHandle[R]]: ...
    async def amap(self, *columns: Iterable[Any]) -> list[JobHandle[Any]]:
        """Enqueue a job for each item without blocking the event loop, as `map`."""
        stored = [await self.jobs.clients.arun(call) for call in self._batches(columns)]
        return [JobHandle(job, self) for jobs in stored for job in jobs]

    def job(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[R]:
        """Return a job to use in a workflow. Nothing is sent.

        Args:
            *args: Arguments of the function, without its context.
            **kwargs: The same by name.

        Returns:
            The step for `chain`, `group`, `batch`, or `dag`.

        Raises:
            InvalidArguments: The arguments don't fit the function.
            TypeError: The job has an option that a step can't have, for example an ID.
        """
        fields = self._fields("job", args, kwargs)
        if request := OF_REQUESTS & fields.keys():
            raise TypeError(f"{self.name}.job(): a step can't have the option {min(request)!r}")
        return JobCall(self, JobRequest(**fields))

    def try_out(
        self, *args: Any, steps: Mapping[str, Any] | None = None,
        signals: Mapping[str, Any] | None = None, **kwargs: Any,
    ) -> R:  # fmt: skip
        """Run the durable function without a server, for a unit test. Sleeps take no time.

        Args:
            *args: Arguments of the function, without its context.
            steps: Results of steps and child jobs by name, or the exceptions that they fail with.
                Other steps run.
            signals: Data of signals by name. The wait for another one returns None.
            **kwargs: Arguments by name, and resources.

        Returns:
            What the function returned.

        Raises:
            StepFailed: A step failed, and the function doesn't catch it.
            LookupError: The result of a child job is missing in `steps`.
        """
        from ojs_aws.typed.trial import try_out

        found: R = try_out(self, args, kwargs, steps or {}, signals or {})
        return found

    def read_result(self, value: Any) -> R:
        """Convert a result from JSON. Raises ValueError if it doesn't fit the annotation."""
        result: R = self.signature.result(value, out=False)
        return result

    def _fields(
        self, method: str, args: Iterable[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments of `enqueue_job` for one call."""
        called = f"{self.name}.{method}()"
        arguments = self.signature.bind(called, tuple(args), kwargs)
        fields = request_fields(self._options, arguments)
        return {"type": self.name, "args": self.signature.dump(called, arguments), **fields}

    def _batches(self, columns: tuple[Iterable[Any], ...]) -> list[Call[list[Job]]]:
        called = f"{self.name}.map()"
        if not columns or any(isinstance(each, (str, bytes, Mapping)) for each in columns):
            raise InvalidArguments(f"{called}: pass a list for each argument of {self.signature}")
        lists = [list(islice(each, MAX_MAPPED + 1)) for each in columns]
        if max(map(len, lists)) > MAX_MAPPED:
            raise InvalidArguments(f"{called}: pass at most {MAX_MAPPED:,} items in one call")
        if len({len(each) for each in lists}) > 1:
            raise InvalidArguments(f"{called}: the lists must have the same length")
        made = [self._fields("map", row, {}) for row in zip(*lists)]  # noqa: B905
        request = {name: made[0].get(name) for name in OF_REQUESTS} if made else {}
        if request.pop("id", None) is not None:
            raise TypeError(f"{called}: several jobs can't have one id")
        key = request.pop("idempotency_key", None)
        jobs = [
            JobRequest(**{name: each[name] for name in each.keys() - OF_REQUESTS}) for each in made
        ]
        return [
            operations.enqueue_batch(
                jobs[at : at + _BATCH],
                idempotency_key=None if key is None else f"{key}/{at}",
                **request,
            )
            for at in range(0, len(jobs), _BATCH)
        ]
