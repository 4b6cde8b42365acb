"""The worker as users make it: settings, handlers by decorator, and `run`."""

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
    """Does jobs of some queues.

        worker = Worker("http://localhost:8080", queues=["mail"])

        @worker.handler("mail.send")
        def send(job):
            post(*job.args)

        worker.run()

    Functions run on threads, or with `processes=True` in processes; coroutine functions run on one
    event loop. `concurrency` is how many jobs run at once, of all sorts together. A worker for a
    `pool` needs no queues.

    In seconds: `lease_s` is after how long the jobs of a worker that died go to another one;
    heartbeats extend it, each `heartbeat_s` or as often as the server asks, at least every 20 s and
    three times a lease. `timeout_s` is how long one attempt may take, if the
    job does not say; None for no limit. `grace_s` is how long jobs may go on when the worker
    stops; then they are given back. `poll_s` is the longest pause between two fetches.
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
        client: Client | None = None,
        worker_id: str | None = None,
    ) -> None:
        """`url` and `key` are the server's: OJS_URL and OJS_KEY of the environment when not given;
        with OJS_AUTH=iam in place of a key requests are signed with AWS credentials.
        Raises ValueError for settings that cannot work.
        """
        self.settings = Settings(
            queues, pool, strategy, weights, concurrency, processes, lease_s, heartbeat_s,
            timeout_s, grace_s, poll_s, tuple(labels),
        )  # fmt: skip
        self.handlers = Handlers()
        self._url = url
        self._key = key
        self._client = client
        self._worker_id = worker_id
        self._session: Session | None = None

    def handler(self, job_type: str) -> Callable[[F], F]:
        """Have jobs of a type handled by the function, or coroutine function, below.

        It is called with a JobContext, and what it returns is the job's result: JSON, or nothing.
        """

        def add(function: F) -> F:
            self.handlers.add(job_type, function)
            return function

        return add

    def middleware(self, function: F) -> F:
        """Put this around every handler of its sort: it is called with the JobContext and what
        comes next, which it calls (functions) or awaits (coroutine functions).

        The first one is outermost. Functions are put around functions, coroutine functions around
        coroutine functions.
        """
        self.handlers.middleware.append(function)
        return function

    def run(self, *, signals: bool = True) -> None:
        """Work until SIGTERM, SIGINT, `stop`, or until the server says so.

        Raises ApiError if the server refuses the worker, WorkerStuck if all handlers hang,
        ValueError without handlers or URL. A second signal ends the process at once.
        """
        if not self.handlers.by_type:
            raise ValueError("a worker needs handlers")
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
        """Have `run` end, from another thread or from a handler."""
        if (session := self._session) is not None:
            session.stop("told to")

    def perform(self, job: Job | JobContext, *, within_s: float | None = None) -> Ending:
        """Run the handler of one job here and now; how it ended. For tests, and for Lambda.

        After `within_s` seconds the handler is told to stop, as one that takes too long.
        """
        context = job if isinstance(job, JobContext) else JobContext(job)
        kind = context.job.type
        if self.handlers.of(kind) is None:
            return failure("no_handler", f"the worker has no handler for {kind}")
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
        """The client that it was made with, or one of the URL that it knows; None without."""
        if self._client is None and (self._url or os.environ.get("OJS_URL")):
            self._client = Client(self._url, key=self._key)
        return self._client

    @staticmethod
    def _on_signals(session: Session) -> dict[int, Any]:
        """Stop on signals, where they can be heard; the handlers that were there before."""
        if threading.current_thread() is not threading.main_thread():
            return {}

        def stop_once(number: int, _frame: FrameType | None) -> None:
            signal.signal(number, signal.SIG_DFL)  # the second time ends it at once
            session.signal(signal.Signals(number).name)

        return {
            number: signal.signal(number, stop_once) for number in (signal.SIGINT, signal.SIGTERM)
        }
