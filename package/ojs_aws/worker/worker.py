"""The worker class: settings, handler decorators, and `run`."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ojs_aws.client.blocking import Client
from ojs_aws.client.job import Job
from ojs_aws.ids import uuid7
from ojs_aws.worker.context import TIMED_OUT, JobContext
from ojs_aws.worker.handlers import Ending, Handlers, failure
from ojs_aws.worker.session import Session
from ojs_aws.worker.settings import Settings

if TYPE_CHECKING:
    from types import FrameType

F = TypeVar("F", bound=Callable[..., Any])


class Worker:
    """Fetches and runs jobs.

        worker = Worker("http://localhost:8080", queues=["mail"])

        @worker.handler("mail.send")
        def send(job):
            post(*job.args)

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
        if not self.handlers.by_type:
            raise ValueError("a worker requires at least one handler")
        client, own = self._client, self._client is None
        if client is None:
            client = Client(self._url, key=self._key)
        name = self._worker_id or f"worker-{uuid7()}"
        session = self._session = Session(self.settings, self.handlers, client, name)
        before = self._on_signals(session) if signals else {}
        try:
            session.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            self._session = None
            if own:
                client.close()

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
        if self.handlers.of(kind) is None:
            return failure("no_handler", f"The worker has no handler for job type {kind}.")
        if self.handlers.asynchronous(kind):
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
