"""The composition root: one set of services for each container, built on first use."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ojs.clock import Clock, SystemClock
from ojs.domain.ids import IdSource
from ojs.services.bounds import Bounds
from ojs.services.copies import Copies
from ojs.services.dead_letter import DeadLetter
from ojs.services.due import Due
from ojs.services.ending import EndOfQueues
from ojs.services.enqueue import Enqueue
from ojs.services.fetch import Fetch
from ojs.services.finish import Finish
from ojs.services.jobs import Jobs
from ojs.services.limits import FetchLimits, RateLimits
from ojs.services.lines import Lines
from ojs.services.membership import Membership
from ojs.services.middleware import Middleware
from ojs.services.queues import Queues
from ojs.services.quotas import Quotas
from ojs.services.sweep import Sweep
from ojs.services.turns import Courses
from ojs.services.workers import Workers
from ojs.settings import Settings
from ojs.store import clients
from ojs.store import copies as copy_store
from ojs.store import jobs as job_store
from ojs.store import pools as pool_store
from ojs.store import queues as queue_store
from ojs.store import workers as worker_store
from ojs.store.blobs import Blobs, S3Blobs
from ojs.store.edges import Edges
from ojs.store.gates import Gates
from ojs.store.ledger import Ledgers
from ojs.store.limits import Limits
from ojs.store.locks import Locks
from ojs.store.table import Table
from ojs.store.tenants import Tenants
from ojs.store.texts import Texts

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from ojs.services.access_keys import AccessKeys
    from ojs.services.bulk import Bulk
    from ojs.services.dead_letter_stats import DeadLetterStatistics
    from ojs.services.events import Events
    from ojs.services.gauges import Gauges
    from ojs.services.holding import Holding
    from ojs.services.pools import Pools
    from ojs.services.prune import Prune
    from ojs.services.reconcile import Reconcile
    from ojs.services.redrive import Redrive
    from ojs.services.replay import Replay
    from ojs.services.scheduling import Scheduling
    from ojs.services.seating import Seating
    from ojs.services.slots import Slots
    from ojs.services.stats import Stats
    from ojs.services.tagging import Tagging
    from ojs.services.watch import PoolWatch


@dataclass(eq=False)
class Runtime:
    """Everything a handler may need."""

    settings: Settings
    clock: Clock
    ids: IdSource
    table: Table
    blobs: Blobs
    gates: Gates
    enqueue: Enqueue
    fetch: Fetch
    finish: Finish
    jobs: Jobs
    workers: Workers
    dead_letter: DeadLetter
    queues: Queues
    ending: EndOfQueues
    copies: Copies
    sweep: Sweep
    limits: RateLimits
    lines: Lines
    # Takes seconds.
    sleep: Callable[[float], None] = time.sleep

    @cached_property
    def heads(self) -> job_store.Jobs:
        """The store of jobs."""
        return job_store.Jobs(self.table, Texts(self.table, self.blobs), self.ids, self.gates)

    # What only some functions need is loaded when it is first asked for: a cold start pays for
    # every module.

    @cached_property
    def stats(self) -> Stats:
        """Statistics."""
        from ojs.services.stats import Stats
        from ojs.store import stats as stats_store
        from ojs.store.standings import Standings

        return Stats(
            stats_store.Stats(self.table),
            queue_store.Queues(self.table),
            Limits(self.table, self.ids),
            Edges(self.table),
            pool_store.Pools(self.table),
            Standings(self.table),
            self.clock,
        )

    @cached_property
    def scheduling(self) -> Scheduling:
        """Statistics of scheduling."""
        from ojs.services.scheduling import Scheduling
        from ojs.store import stats as stats_store
        from ojs.store.standings import Standings

        return Scheduling(
            Standings(self.table),
            pool_store.Pools(self.table),
            queue_store.Queues(self.table),
            stats_store.Stats(self.table),
            worker_store.Workers(self.table),
            self.clock,
        )

    @cached_property
    def pool_watch(self) -> PoolWatch:
        """The sweep over worker pools."""
        from ojs.services.watch import PoolWatch
        from ojs.store import stats as stats_store
        from ojs.store.standings import Standings

        return PoolWatch(
            pool_store.Pools(self.table),
            Standings(self.table),
            stats_store.Stats(self.table),
            Edges(self.table),
        )

    @cached_property
    def redrive(self) -> Redrive:
        """The way back from dead letter."""
        from ojs.services.redrive import Redrive
        from ojs.store.contents import Contents

        texts = Texts(self.table, self.blobs)
        jobs = self.heads
        return Redrive(
            jobs,
            Contents(self.table, texts, jobs),
            queue_store.Queues(self.table),
            Locks(self.table),
            due=Due(jobs, self.copies, self.lines, self.clock, self.ids),
            bounds=Bounds(self.gates, jobs, self.clock),
            limits=self.limits,
            lines=self.lines,
            clock=self.clock,
            ids=self.ids,
            strict=self.settings.strict_queues,
        )

    @cached_property
    def bulk(self) -> Bulk:
        """Bulk operations on dead letters."""
        from ojs.services.bulk import Bulk
        from ojs.store.bulk import BulkOperations

        return Bulk(
            BulkOperations(self.table, self.ids),
            self.heads,
            queue_store.Queues(self.table),
            self.dead_letter,
            self.redrive,
            clock=self.clock,
            ids=self.ids,
        )

    @cached_property
    def dead_letter_stats(self) -> DeadLetterStatistics:
        """Statistics of dead letters."""
        from ojs.services.dead_letter_stats import DeadLetterStatistics
        from ojs.store.dead_letters import DeadLetters

        return DeadLetterStatistics(DeadLetters(self.table), self.clock)

    @cached_property
    def prune(self) -> Prune:
        """The pruning of dead letters."""
        from ojs.services.archive import Archive
        from ojs.services.prune import Prune
        from ojs.store.pruning import Pruning

        queues = queue_store.Queues(self.table)
        pruning = Pruning(self.table, queues, self.ids)
        return Prune(self.heads, pruning, self.copies, Archive(self.heads, self.blobs))

    @cached_property
    def replay(self) -> Replay:
        """The replay of dead letters by rule."""
        from ojs.services.replay import Replay
        from ojs.store.replay import Replays

        queues = queue_store.Queues(self.table)
        return Replay(self.heads, queues, Replays(self.table), self.redrive)

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
        from ojs.store.dead_letters import DeadLetters
        from ojs.store.standings import Standings

        return Gauges(
            stats_store.Stats(self.table),
            queue_store.Queues(self.table),
            worker_store.Workers(self.table),
            DeadLetters(self.table),
            Standings(self.table),
        )

    @cached_property
    def reconcile(self) -> Reconcile:
        """The reconcile sweep."""
        return _reconcile(self.table, self.gates, self.heads)

    @cached_property
    def pools(self) -> Pools:
        """Worker pools."""
        from ojs.services.pools import Pools

        return Pools(
            pool_store.Pools(self.table),
            queue_store.Queues(self.table),
            self.gates,
            _slots(self.table, self.gates, self.heads, self.sleep),
            self.tagging,
            self.clock,
            strict=self.settings.strict_queues,
        )

    @cached_property
    def seating(self) -> Seating:
        """The sweep over places in worker pools."""
        from ojs.services.seating import Seating

        return Seating(
            pool_store.Pools(self.table),
            queue_store.Queues(self.table),
            worker_store.Workers(self.table),
            _slots(self.table, self.gates, self.heads, self.sleep),
        )

    @cached_property
    def access_keys(self) -> AccessKeys:
        """Access keys, for operators."""
        from ojs.services.access_keys import AccessKeys
        from ojs.store.access_keys import AccessKeys as KeyStore

        return AccessKeys(KeyStore(self.table), self.clock)

    @cached_property
    def tagging(self) -> Tagging:
        """The tags of jobs that came before their queue was fair."""
        return _tagging(self.table, self.heads, self.lines)

    @cached_property
    def holding(self) -> Holding:
        """The sweep over limits that hold jobs back."""
        from ojs.services.holding import Holding

        return Holding(
            Edges(self.table),
            Limits(self.table, self.ids),
            self.gates,
            queue_store.Queues(self.table),
            self.heads,
            self.limits,
        )


def build(
    settings: Settings,
    *,
    client: DynamoDBClient | None = None,
    once: DynamoDBClient | None = None,
    blobs: Blobs | None = None,
    clock: Clock | None = None,
    ids: IdSource | None = None,
    middleware: Sequence[Middleware] = (),
    measure: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> Runtime:
    """Wire the services together. What is not given is the real thing; `sleep` takes seconds."""
    clock = clock or SystemClock()
    ids = ids or IdSource(clock)
    table = Table(client or clients.dynamodb(), settings.table, measure=measure)
    if blobs is None:
        blobs = S3Blobs(clients.s3, settings.bucket or "")
    # A gate must not be charged twice for a lost answer: its client asks once.
    once = once or client or clients.dynamodb(config=clients.ONCE)
    gate_table = Table(once, settings.table, measure=measure, meter=table.meter)
    gates = Gates(gate_table)
    jobs = job_store.Jobs(table, Texts(table, blobs), ids, gates)
    bounds = Bounds(gates, jobs, clock)
    queues = queue_store.Queues(table)
    lines = Lines(jobs, queues, Tenants(table), clock)
    waiting = copy_store.Copies(table, jobs)
    copies = Copies(jobs, queues, bounds, waiting, clock, ids, lines=lines)
    due = Due(jobs, copies, lines, clock, ids)
    limiters = Limits(table, ids)
    edges = Edges(table)
    limits = RateLimits(limiters, jobs, _lanes(queues), clock)
    ending = EndOfQueues(
        queues,
        jobs,
        due,
        bounds,
        gates,
        clock,
        ids,
        lines=lines,
        depth=lambda name: _depth(table, name),
        strict=settings.strict_queues,
    )
    return Runtime(
        settings=settings,
        clock=clock,
        ids=ids,
        table=table,
        blobs=blobs,
        gates=gates,
        enqueue=Enqueue(
            jobs,
            queues,
            Locks(table),
            due,
            bounds,
            clock,
            ids,
            limits=limits,
            lines=lines,
            chain=middleware,
            strict=settings.strict_queues,
        ),
        fetch=Fetch(
            jobs,
            Membership(queues, worker_store.Workers(table), clock),
            Courses(Ledgers(gate_table), gates, clock, depths=lambda names: _depths(table, names)),
            due,
            Quotas(gates, edges, clock),
            FetchLimits(limiters, edges, jobs, clock),
            clock=clock,
        ),
        finish=Finish(jobs, due, copies, limits, clock, ids, lines=lines),
        jobs=Jobs(jobs, due, lines, clock, ids),
        workers=Workers(worker_store.Workers(table), jobs, clock),
        dead_letter=DeadLetter(jobs),
        queues=Queues(
            queues,
            gates,
            clock,
            settle=lambda name: _reconcile(table, gates, jobs).settle(name),
            slots=lambda: _slots(table, gates, jobs, sleep),
            tagging=lambda: _tagging(table, jobs, lines),
            sleep=sleep,
        ),
        ending=ending,
        copies=copies,
        sweep=Sweep(jobs, queues, due, ending),
        limits=limits,
        sleep=sleep,
        lines=lines,
    )


def _reconcile(table: Table, gates: Gates, jobs: job_store.Jobs) -> Reconcile:
    # Imported here: only the sweep and whoever sets a bound should pay for it.
    from ojs.services.reconcile import Reconcile
    from ojs.store.census import Census

    slots = _slots(table, gates, jobs)
    return Reconcile(queue_store.Queues(table), gates, Census(table), slots)


def _slots(
    table: Table,
    gates: Gates,
    jobs: job_store.Jobs,
    sleep: Callable[[float], None] = time.sleep,
) -> Slots:
    from ojs.services.slots import Slots  # as above
    from ojs.store.census import Census

    return Slots(gates, Census(table), jobs, sleep=sleep)


def _tagging(table: Table, jobs: job_store.Jobs, lines: Lines) -> Tagging:
    from ojs.services.tagging import Tagging  # as above
    from ojs.store.tenants import Passes

    return Tagging(queue_store.Queues(table), jobs, lines, Passes(table))


def _depth(table: Table, name: str) -> int:
    from ojs.store.census import Census  # as above

    return sum(known.projected.jobs for known in Census(table).known([name]))


def _depths(table: Table, names: Sequence[str]) -> Mapping[str, int]:
    from ojs.store.stats import Stats  # as above

    return Stats(table).available(names)


def _lanes(queues: queue_store.Queues) -> Callable[[str], int]:
    def lanes(name: str) -> int:
        queue = queues.get(name)
        return 1 if queue is None else queue.lanes

    return lanes


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
