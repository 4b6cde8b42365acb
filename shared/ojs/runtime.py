"""The composition root: one set of services for each container, built on first use."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ojs.clock import Clock, SystemClock
from ojs.domain.ids import IdSource
from ojs.services.dead_letter import DeadLetter
from ojs.services.due import Due
from ojs.services.enqueue import Enqueue
from ojs.services.fetch import Fetch
from ojs.services.finish import Finish
from ojs.services.jobs import Jobs
from ojs.services.middleware import Middleware
from ojs.services.queues import Queues
from ojs.services.sweep import Sweep
from ojs.services.workers import Workers
from ojs.settings import Settings
from ojs.store import clients
from ojs.store import jobs as job_store
from ojs.store import queues as queue_store
from ojs.store import workers as worker_store
from ojs.store.blobs import Blobs, S3Blobs
from ojs.store.locks import Locks
from ojs.store.table import Table
from ojs.store.texts import Texts

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from ojs.services.events import Events
    from ojs.services.gauges import Gauges
    from ojs.services.stats import Stats


@dataclass
class Runtime:
    """Everything a handler may need."""

    settings: Settings
    clock: Clock
    ids: IdSource
    table: Table
    blobs: Blobs
    enqueue: Enqueue
    fetch: Fetch
    finish: Finish
    jobs: Jobs
    workers: Workers
    dead_letter: DeadLetter
    queues: Queues
    sweep: Sweep

    # What only some functions need is loaded when it is first asked for: a cold start pays for
    # every module.

    @cached_property
    def stats(self) -> Stats:
        """Statistics."""
        from ojs.services.stats import Stats
        from ojs.store import stats as stats_store

        return Stats(stats_store.Stats(self.table), queue_store.Queues(self.table), self.clock)

    @cached_property
    def events(self) -> Events:
        """The event log."""
        from ojs.services.events import Events
        from ojs.store.event_log import EventLog

        return Events(EventLog(self.table), self.clock)

    @cached_property
    def gauges(self) -> Gauges:
        """The gauges sweep."""
        from ojs.services.gauges import Gauges
        from ojs.store import stats as stats_store

        return Gauges(
            stats_store.Stats(self.table),
            queue_store.Queues(self.table),
            worker_store.Workers(self.table),
        )


def build(
    settings: Settings,
    *,
    client: DynamoDBClient | None = None,
    blobs: Blobs | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    middleware: Sequence[Middleware] = (),
    measure: bool = False,
) -> Runtime:
    """Wire the services together. What is not given is the real thing."""
    clock = clock or SystemClock()
    ids = ids or IdSource(clock)
    table = Table(client or clients.dynamodb(), settings.table, measure=measure)
    if blobs is None:
        blobs = S3Blobs(clients.s3, settings.bucket or "")
    jobs = job_store.Jobs(table, Texts(table, blobs), ids)
    queues = queue_store.Queues(table)
    due = Due(jobs, clock, ids)
    return Runtime(
        settings=settings,
        clock=clock,
        ids=ids,
        table=table,
        blobs=blobs,
        enqueue=Enqueue(jobs, queues, Locks(table), due, clock, ids, chain=middleware),
        fetch=Fetch(jobs, queues, due, clock, ids),
        finish=Finish(jobs, due, clock, ids),
        jobs=Jobs(jobs, due, clock, ids),
        workers=Workers(worker_store.Workers(table), jobs, clock),
        dead_letter=DeadLetter(jobs, queues, clock, ids),
        queues=Queues(queues, clock),
        sweep=Sweep(jobs, queues, due),
    )


_lock = threading.Lock()
_current: Runtime | None = None


def current() -> Runtime:
    """The container's runtime, built from the environment on first use."""
    global _current  # noqa: PLW0603 - one runtime for each container is the point
    if _current is None:
        with _lock:
            if _current is None:
                _current = build(Settings.from_environment())
    return _current


def use(runtime: Runtime) -> None:
    """Put a runtime in place: the local server and tests bring their own."""
    global _current  # noqa: PLW0603 - see current()
    _current = runtime
