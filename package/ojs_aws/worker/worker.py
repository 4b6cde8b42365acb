"""The worker class: settings, handler decorators, and `run`."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from ojs_aws.client.blocking import Client
from ojs_aws.client.call import Misconfigured
from ojs_aws.client.job import Job
from ojs_aws.ids import uuid7
from ojs_aws.worker.context import TIMED_OUT, JobContext
from ojs_aws.worker.handlers import Ending, Handlers, failure
from ojs_aws.worker.session import Session
from ojs_aws.worker.settings import Settings

if TYPE_CHECKING:
    import asyncio
    from types import FrameType

    from typing_extensions import Unpack

    from ojs_aws.client.asynchronous import AsyncClient
    from ojs_aws.typed.clients import Clients
    from ojs_aws.typed.jobs import Declaration, Jobs
    from ojs_aws.typed.options import DeclaredOptions

logger = logging.getLogger("ojs_aws.worker")
F = TypeVar("F", bound=Callable[..., Any])
_HEALTHY_S = 60.0


class Worker:
    """Fetches and runs jobs.

        worker = Worker("http://localhost:8080", queues=["mail"])

        @worker.job("mail.send", queue="mail")
        def send(job: JobContext, to: str) -> None:
            post(to)

        worker.run()

    Functions run in threads, or with `processes=True` in processes. Coroutine functions run on one
    event loop.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        queues: Sequence[str] | None = None,
        key: str | None = None,
        pool: str | None = None,
        strategy: str | None = None,
        weights: Mapping[str, int] | None = None,
        concurrency: int = 10,
        processes: bool = False,
        lease_s: float = 60.0,
        heartbeat_s: float | None = None,
        timeout_s: float | None = 1_800.0,
        grace_s: float = 25.0,
        poll_s: float = 4.0,
        labels: Sequence[str] = (),
        realtime: bool = True,
        client: Client | None = None,
        worker_id: str | None = None,
    ) -> None:
        """Create a worker. Doesn't connect to the server.

        Args:
            url: URL of the server. Default: `OJS_URL`.
            queues: Queues to fetch from. Required unless `pool` is set.
            key: Access key. Default: `OJS_KEY`. With `OJS_AUTH=iam` and no key, requests are signed
                with AWS credentials.
            pool: Worker pool to join.
            strategy: Order of the queues: `strict`, `weighted`, `round-robin`, or `least-loaded`.
                Default: the server's default.
            weights: Weight of each queue, for the strategy `weighted`.
            concurrency: Maximum number of jobs that run at the same time, 1 to 1,000. Default: 10.
            processes: If true, functions run in processes. Default: false.
            lease_s: Duration of a lease in seconds. Jobs of a crashed worker run again after this
                time. Default: 60.
            heartbeat_s: Longest interval of heartbeats in seconds, at most a third of `lease_s`.
                Default: a third of `lease_s`, at most 20. The server can ask for a shorter one.
            timeout_s: Maximum duration of one attempt in seconds, for jobs without a timeout. None
                for no limit. Default: 1,800.
            grace_s: Time in seconds that jobs have to finish when the worker stops. The worker then
                returns unfinished jobs to their queues. Default: 25.
            poll_s: Maximum pause between two fetches in seconds, without a realtime connection.
                Default: 4.
            labels: Labels that the dashboard shows.
            realtime: Whether the server can tell the worker when to fetch, over a WebSocket
                connection. Default: true.
            client: Client to use instead of `url` and `key`.
            worker_id: ID of the worker. Default: generated.

        Raises:
            ValueError: A setting is out of range, or neither `queues` nor `pool` is set.
        """
        self.settings = Settings(
            queues, pool, strategy, weights, concurrency, processes, lease_s, heartbeat_s,
            timeout_s, grace_s, poll_s, tuple(labels), realtime,
        )  # fmt: skip
        self.handlers = Handlers()
        self._url = url
        self._key = key
        self._client = client
        self._worker_id = worker_id
        self._session: Session | None = None
        self._jobs: Jobs | None = None
        self._durable: Clients | None = None

    if not TYPE_CHECKING:  # type checkers report an unknown attribute

        def __getattr__(self, name: str) -> Any:
            from ojs_aws.hints import missing

            return missing(self, name)

    def job(self, name: str | None = None, **options: Unpack[DeclaredOptions]) -> Declaration:
        """Decorator that makes a function or coroutine function a job type, as `Jobs.job`.

        Args:
            name: Job type. Default: `module.function`.
            **options: Options of its jobs, for example `queue` and `retry`.

        Returns:
            The decorator. It returns a `JobType`, which enqueues jobs.

        Raises:
            TypeError: An option is unknown, or the function can't be a job.
            ValueError: The name is invalid, or declared already.
        """
        return self._own_jobs().job(name, **options)

    def include(self, jobs: Jobs) -> None:
        """Add the job types of `Jobs`, and those that it declares later.

        Args:
            jobs: The job types.

        Raises:
            ValueError: A job type already has a handler.
        """
        from ojs_aws.typed.performer import serve

        if self not in jobs.workers:
            serve(jobs.types, self.handlers)
            jobs.workers.append(self)
            jobs.use(self._own_jobs().clients)

    def autodiscover(self, package: str) -> None:
        """Import all modules `jobs` of a package, and include the `Jobs` that they contain.

        Args:
            package: Name of the package, for example `app`.

        Raises:
            ImportError: A module can't be imported, or there is none.
        """
        from ojs_aws.typed.discovery import modules_of
        from ojs_aws.typed.jobs import Jobs

        for module in modules_of(package):
            for value in vars(module).values():
                if isinstance(value, Jobs):
                    self.include(value)

    def bind(self, client: Client | AsyncClient) -> None:
        """Set the client that enqueues the jobs of this worker, as `Jobs.bind`."""
        self._own_jobs().bind(client)

    def _own_jobs(self) -> Jobs:
        if self._jobs is None:
            from ojs_aws.typed.clients import Clients
            from ojs_aws.typed.jobs import Jobs

            self._jobs = Jobs()
            if self._url or self._key or self._client:
                self._jobs.clients = Clients(self._url, self._key)
            if self._client is not None:
                self._jobs.clients.bind(self._client)
            self._jobs.workers.append(self)
        return self._jobs

    def lifespan(self, function: F) -> F:
        """Decorator that registers the resources of the process.

        The function is a generator, or returns a context manager, synchronous or asynchronous. It
        yields a mapping. Keyword-only parameters of jobs get its values by name. It is entered once
        a process: when the worker starts, or at the first event of a Lambda function.

        Args:
            function: The generator function.

        Returns:
            The function unchanged.
        """
        self.handlers.shared().lifespan = function
        return function

    def provide(self, function: F) -> F:
        """Decorator that registers a resource of one job, with the name of the function.

        The function is a generator, synchronous or asynchronous, and yields the resource. It can
        take the JobContext, and resources of `lifespan` as keyword-only parameters. An exception of
        the job is raised at its `yield`.

        Args:
            function: The generator function.

        Returns:
            The function unchanged.
        """
        self.handlers.shared().providers[function.__name__] = function
        return function

    def handler(self, job_type: str) -> Callable[[F], F]:
        """Decorator that registers a function or coroutine function for a job type.

        The function receives a `JobContext`. Its return value is the job's result: JSON, or None.

        Args:
            job_type: Job type, for example `mail.send`.

        Returns:
            The decorator. It returns the function unchanged.

        Raises:
            ValueError: The job type already has a handler.
        """

        def add(function: F) -> F:
            self.handlers.add(job_type, function)
            return function

        return add

    def middleware(self, function: F) -> F:
        """Decorator that registers middleware for all handlers of the same kind.

        Middleware receives the `JobContext` and the next function, and must call it (functions) or
        await it (coroutine functions). The first middleware is outermost. Functions wrap functions,
        and coroutine functions wrap coroutine functions.

        Args:
            function: The middleware.

        Returns:
            The function unchanged.
        """
        self.handlers.middleware.append(function)
        return function

    def run(self, *, signals: bool = True) -> None:
        """Run until SIGTERM, SIGINT, `stop`, or the server's directive `terminate`.

        A second signal ends the process immediately.

        Args:
            signals: Whether to handle SIGTERM and SIGINT. Requires the main thread. Default: true.

        Raises:
            ApiError: The server rejected the worker.
            WorkerStuck: Handlers that don't stop hold all slots.
            ValueError: The worker has no handlers, or no URL is given.
        """
        session = self._begin(None)
        before = self._on_signals(session) if signals else {}
        try:
            session.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._end()

    async def run_async(self, *, signals: bool = True) -> None:
        """Run as `run`, with coroutine functions on the event loop of the caller.

        Args:
            signals: Whether to handle SIGTERM and SIGINT. Requires the main thread. Default: true.

        Raises:
            ApiError: The server rejected the worker.
            WorkerStuck: Handlers that don't stop hold all slots.
            ValueError: The worker has no handlers, a resource is unknown, or no URL is given.
        """
        import asyncio

        from ojs_aws.client.background import in_thread

        session = self._begin(asyncio.get_running_loop())
        before = self._on_signals(session) if signals else {}
        running = asyncio.ensure_future(in_thread(session.run))
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            session.stop("run_async was cancelled")
            await running
            raise
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            if self._jobs is not None:
                await self._jobs.clients.aclose()
            if self._durable is not None:
                await self._durable.aclose()
            self._end()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run in the block of an `async with`, for example in the lifespan of a web application.

        Signals are left to the application. The block ends when active jobs have finished.

        Yields:
            None, while the worker runs.

        Raises:
            ApiError: The server rejected the worker. Raised at the end of the block.
        """
        import asyncio

        task = asyncio.ensure_future(self.run_async(signals=False))
        await asyncio.sleep(0)  # until the session has begun
        if task.done():
            await task  # it could not begin
        try:
            yield
        finally:
            self.stop()
            await task

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> Session:
        if not self.handlers.by_type:
            raise Misconfigured("a worker requires at least one handler or job")
        if "default" not in (self.settings.queues or ["default"]):
            for kind, each in self.handlers.by_type.items():
                if getattr(each, "queueless", False):
                    logger.warning("Job %s has no queue: its jobs wait in `default`", kind)
        client = Client(self._url, key=self._key) if self._client is None else self._client
        name = self._worker_id or f"worker-{uuid7()}"
        self._session = Session(self.settings, self.handlers, client, name, loop)
        self._session.server = self._of_durable_code
        return self._session

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is not None and session.client is not self._client:
            session.client.close()

    @property
    def healthy(self) -> bool:
        """Whether the worker runs, and reached the server in the last 60 seconds."""
        return self._session is not None and self._session.reached_s() <= _HEALTHY_S

    def stop(self) -> None:
        """Stop `run`. You can call this from another thread or from a handler."""
        if (session := self._session) is not None:
            session.stop("stop was called")

    def perform(self, job: Job | JobContext, *, within_s: float | None = None) -> Ending:
        """Run the handler of one job in this thread. For tests, and for Lambda.

        Args:
            job: The job, or its context.
            within_s: Time in seconds after which the handler is stopped. Default: no limit.

        Returns:
            The outcome: `how` is `acks` or `nacks`, and `entry` has the result or the error.
        """
        context = job if isinstance(job, JobContext) else JobContext(job)
        kind = context.job.type
        # This client outlives the event loop of one job.
        context.server = lambda: self._of_durable_code(self.server) if self.server else None
        if self.handlers.of(kind) is None:
            return failure("no_handler", f"The worker has no handler for job type {kind}.")
        self.handlers.prepare()
        if self.handlers.asynchronous(kind):
            if self.handlers.resources and self.handlers.resources.lifespan:
                from ojs_aws.client import background

                # Resources can belong to an event loop, so all jobs of the process use this one.
                return background.result(self._awaited(context, within_s))
            import asyncio

            return asyncio.run(self._awaited(context, within_s))
        if within_s is None:
            return self.handlers.call(context)
        late = threading.Timer(within_s, context.cancel, (TIMED_OUT,))
        late.daemon = True
        late.start()
        try:
            return self.handlers.call(context)
        finally:
            late.cancel()

    async def _awaited(self, context: JobContext, within_s: float | None) -> Ending:
        import asyncio

        running = asyncio.ensure_future(self.handlers.await_(context))
        done, _ = await asyncio.wait([running], timeout=within_s)
        if not done:
            context.cancel(TIMED_OUT)
            running.cancel()
        return await running

    def _of_durable_code(self, client: Client | None = None) -> Clients:
        """Return the clients of durable code, whatever `bind` has set."""
        if self._durable is None:
            from ojs_aws.typed.clients import Clients

            self._durable = Clients(self._url, self._key)
            if bound := client or self._client:
                self._durable.bind(bound)
        return self._durable

    @property
    def server(self) -> Client | None:
        """The client of this worker, or None if no URL is known."""
        if self._client is None and (self._url or os.environ.get("OJS_URL")):
            self._client = Client(self._url, key=self._key)
        return self._client

    @staticmethod
    def _on_signals(session: Session) -> dict[int, Any]:
        """Handle signals, if this is the main thread. Returns the previous handlers."""
        if threading.current_thread() is not threading.main_thread():
            return {}

        def stop_once(number: int, _frame: FrameType | None) -> None:
            signal.signal(number, signal.SIG_DFL)  # the second signal ends the process
            session.signal(signal.Signals(number).name)

        return {
            number: signal.signal(number, stop_once) for number in (signal.SIGINT, signal.SIGTERM)
        }
