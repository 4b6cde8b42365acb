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
from ojs.services.dead_letter.copies import DeadLetterCopies
from ojs.services.dead_letter.search import DeadLetterSearch
from ojs.services.jobs.enqueue import Enqueue
from ojs.services.jobs.fetch import Fetch
from ojs.services.jobs.finish import Finish
from ojs.services.jobs.manage import JobManagement
from ojs.services.jobs.middleware import Middleware
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.services.jobs.sweep import JobSweep
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.permits.backpressure import QueueBounds
from ojs.services.permits.queue_limits import QueueLimits
from ojs.services.permits.rate_limits import FetchRateLimits, RateLimits
from ojs.services.pools.dispatch import DispatchPlanner
from ojs.services.pools.membership import Membership
from ojs.services.pools.workers import WorkerRegistry
from ojs.services.queues.configure import QueueConfiguration
from ojs.services.queues.deletion import QueueDeletion
from ojs.settings import Settings
from ojs.store.dead_letter import copies as copy_store
from ojs.store.jobs import records as job_store
from ojs.store.jobs.blobs import Blobs, S3Blobs
from ojs.store.jobs.fair_queue import TenantFinishTags
from ojs.store.jobs.payloads import PayloadStore
from ojs.store.jobs.unique_locks import UniqueLocks
from ojs.store.permits.counters import Gates
from ojs.store.permits.key_limits import KeyLimits
from ojs.store.permits.sequencer import Sequencer
from ojs.store.permits.throttle_state import ThrottleStates
from ojs.store.queues import pools as pool_store
from ojs.store.queues import queues as queue_store
from ojs.store.queues import workers as worker_store
from ojs.store.table import clients
from ojs.store.table.table import Table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from ojs.services.dead_letter.bulk import BulkRunner
    from ojs.services.dead_letter.prune import PruneSweep
    from ojs.services.dead_letter.redrive import Redrive
    from ojs.services.dead_letter.replay import ReplaySweep
    from ojs.services.dead_letter.statistics import DeadLetterStatistics
    from ojs.services.jobs.fairness_backfill import FairnessBackfill
    from ojs.services.operations.access_keys import AccessKeys
    from ojs.services.operations.events import Events
    from ojs.services.operations.metrics_sweep import MetricsSweep
    from ojs.services.operations.statistics import Statistics
    from ojs.services.permits.pool_repair import PoolPermitSweep
    from ojs.services.permits.reconcile import ReconcileSweep
    from ojs.services.permits.repair import PermitRepair
    from ojs.services.permits.throttle_sweep import ThrottleSweep
    from ojs.services.pools.configure import PoolConfiguration
    from ojs.services.pools.health_sweep import PoolHealthSweep
    from ojs.services.pools.statistics import PoolStatistics


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
    jobs: JobManagement
    workers: WorkerRegistry
    dead_letter: DeadLetterSearch
    queues: QueueConfiguration
    ending: QueueDeletion
    copies: DeadLetterCopies
    sweep: JobSweep
    limits: RateLimits
    lines: FairQueuePlacement
    # Takes seconds.
    sleep: Callable[[float], None] = time.sleep

    @cached_property
    def heads(self) -> job_store.JobStore:
        """The store of jobs."""
        return job_store.JobStore(
            self.table, PayloadStore(self.table, self.blobs), self.ids, self.gates
        )

    # What only some functions need is loaded when it is first asked for: a cold start pays for
    # every module.

    @cached_property
    def stats(self) -> Statistics:
        """Statistics."""
        from ojs.services.operations.statistics import Statistics
        from ojs.store.derived import statistics as stats_store
        from ojs.store.queues.pool_health import PoolHealthStore

        return Statistics(
            stats_store.StatisticsStore(self.table),
            queue_store.QueueStore(self.table),
            KeyLimits(self.table, self.ids),
            ThrottleStates(self.table),
            pool_store.PoolStore(self.table),
            PoolHealthStore(self.table),
            self.clock,
        )

    @cached_property
    def scheduling(self) -> PoolStatistics:
        """Statistics of scheduling."""
        from ojs.services.pools.statistics import PoolStatistics
        from ojs.store.derived import statistics as stats_store
        from ojs.store.queues.pool_health import PoolHealthStore

        return PoolStatistics(
            PoolHealthStore(self.table),
            pool_store.PoolStore(self.table),
            queue_store.QueueStore(self.table),
            stats_store.StatisticsStore(self.table),
            worker_store.WorkerStore(self.table),
            self.clock,
        )

    @cached_property
    def pool_watch(self) -> PoolHealthSweep:
        """The sweep over worker pools."""
        from ojs.services.pools.health_sweep import PoolHealthSweep
        from ojs.store.derived import statistics as stats_store
        from ojs.store.queues.pool_health import PoolHealthStore

        return PoolHealthSweep(
            pool_store.PoolStore(self.table),
            PoolHealthStore(self.table),
            stats_store.StatisticsStore(self.table),
            ThrottleStates(self.table),
        )

    @cached_property
    def redrive(self) -> Redrive:
        """The way back from dead letter."""
        from ojs.services.dead_letter.redrive import Redrive
        from ojs.store.jobs.payload_change import PayloadChange

        texts = PayloadStore(self.table, self.blobs)
        jobs = self.heads
        return Redrive(
            jobs,
            PayloadChange(self.table, texts, jobs),
            queue_store.QueueStore(self.table),
            UniqueLocks(self.table),
            due=TimeTransitions(jobs, self.copies, self.lines, self.clock, self.ids),
            bounds=QueueBounds(self.gates, jobs, self.clock),
            limits=self.limits,
            lines=self.lines,
            clock=self.clock,
            ids=self.ids,
            strict=self.settings.strict_queues,
        )

    @cached_property
    def bulk(self) -> BulkRunner:
        """Bulk operations on dead letters."""
        from ojs.services.dead_letter.bulk import BulkRunner
        from ojs.store.dead_letter.bulk import BulkOperationStore

        return BulkRunner(
            BulkOperationStore(self.table, self.ids),
            self.heads,
            queue_store.QueueStore(self.table),
            self.dead_letter,
            self.redrive,
            clock=self.clock,
            ids=self.ids,
        )

    @cached_property
    def dead_letter_stats(self) -> DeadLetterStatistics:
        """Statistics of dead letters."""
        from ojs.services.dead_letter.statistics import DeadLetterStatistics
        from ojs.store.dead_letter.counters import DeadLetterCounters

        return DeadLetterStatistics(DeadLetterCounters(self.table), self.clock)

    @cached_property
    def prune(self) -> PruneSweep:
        """The pruning of dead letters."""
        from ojs.services.dead_letter.archive import Archive
        from ojs.services.dead_letter.prune import PruneSweep
        from ojs.store.dead_letter.pruning import Pruning

        queues = queue_store.QueueStore(self.table)
        pruning = Pruning(self.table, queues, self.ids)
        return PruneSweep(self.heads, pruning, self.copies, Archive(self.heads, self.blobs))

    @cached_property
    def replay(self) -> ReplaySweep:
        """The replay of dead letters by rule."""
        from ojs.services.dead_letter.replay import ReplaySweep
        from ojs.store.dead_letter.replay import ReplayCursors

        queues = queue_store.QueueStore(self.table)
        return ReplaySweep(self.heads, queues, ReplayCursors(self.table), self.redrive)

    @cached_property
    def events(self) -> Events:
        """The event log."""
        from ojs.services.operations.events import Events
        from ojs.store.derived.event_log import EventLog

        return Events(EventLog(self.table), self.clock)

    @cached_property
    def gauges(self) -> MetricsSweep:
        """The gauges sweep."""
        from ojs.services.operations.metrics_sweep import MetricsSweep
        from ojs.store.dead_letter.counters import DeadLetterCounters
        from ojs.store.derived import statistics as stats_store
        from ojs.store.queues.pool_health import PoolHealthStore

        return MetricsSweep(
            stats_store.StatisticsStore(self.table),
            queue_store.QueueStore(self.table),
            worker_store.WorkerStore(self.table),
            DeadLetterCounters(self.table),
            PoolHealthStore(self.table),
        )

    @cached_property
    def reconcile(self) -> ReconcileSweep:
        """The reconcile sweep."""
        return _reconcile(self.table, self.gates, self.heads)

    @cached_property
    def pools(self) -> PoolConfiguration:
        """Worker pools."""
        from ojs.services.pools.configure import PoolConfiguration

        return PoolConfiguration(
            pool_store.PoolStore(self.table),
            queue_store.QueueStore(self.table),
            self.gates,
            _slots(self.table, self.gates, self.heads, self.sleep),
            self.tagging,
            self.clock,
            strict=self.settings.strict_queues,
        )

    @cached_property
    def seating(self) -> PoolPermitSweep:
        """The sweep over places in worker pools."""
        from ojs.services.permits.pool_repair import PoolPermitSweep

        return PoolPermitSweep(
            pool_store.PoolStore(self.table),
            queue_store.QueueStore(self.table),
            worker_store.WorkerStore(self.table),
            _slots(self.table, self.gates, self.heads, self.sleep),
        )

    @cached_property
    def access_keys(self) -> AccessKeys:
        """Access keys, for operators."""
        from ojs.services.operations.access_keys import AccessKeys
        from ojs.store.deployment.access_keys import AccessKeyStore as KeyStore

        return AccessKeys(KeyStore(self.table), self.clock)

    @cached_property
    def tagging(self) -> FairnessBackfill:
        """The tags of jobs that came before their queue was fair."""
        return _tagging(self.table, self.heads, self.lines)

    @cached_property
    def holding(self) -> ThrottleSweep:
        """The sweep over limits that hold jobs back."""
        from ojs.services.permits.throttle_sweep import ThrottleSweep

        return ThrottleSweep(
            ThrottleStates(self.table),
            KeyLimits(self.table, self.ids),
            self.gates,
            queue_store.QueueStore(self.table),
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
    jobs = job_store.JobStore(table, PayloadStore(table, blobs), ids, gates)
    bounds = QueueBounds(gates, jobs, clock)
    queues = queue_store.QueueStore(table)
    lines = FairQueuePlacement(jobs, queues, TenantFinishTags(table), clock)
    waiting = copy_store.WaitingCopies(table, jobs)
    copies = DeadLetterCopies(jobs, queues, bounds, waiting, clock, ids, lines=lines)
    due = TimeTransitions(jobs, copies, lines, clock, ids)
    limiters = KeyLimits(table, ids)
    edges = ThrottleStates(table)
    limits = RateLimits(limiters, jobs, _lanes(queues), clock)
    ending = QueueDeletion(
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
            UniqueLocks(table),
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
            Membership(queues, worker_store.WorkerStore(table), clock),
            DispatchPlanner(
                Sequencer(gate_table), gates, clock, depths=lambda names: _depths(table, names)
            ),
            due,
            QueueLimits(gates, edges, clock),
            FetchRateLimits(limiters, edges, jobs, clock),
            clock=clock,
        ),
        finish=Finish(jobs, due, copies, limits, clock, ids, lines=lines),
        jobs=JobManagement(jobs, due, lines, clock, ids),
        workers=WorkerRegistry(worker_store.WorkerStore(table), jobs, clock),
        dead_letter=DeadLetterSearch(jobs),
        queues=QueueConfiguration(
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
        sweep=JobSweep(jobs, queues, due, ending),
        limits=limits,
        sleep=sleep,
        lines=lines,
    )


def _reconcile(table: Table, gates: Gates, jobs: job_store.JobStore) -> ReconcileSweep:
    # Imported here: only the sweep and whoever sets a bound should pay for it.
    from ojs.services.permits.reconcile import ReconcileSweep
    from ojs.store.permits.recount import Recount

    slots = _slots(table, gates, jobs)
    return ReconcileSweep(queue_store.QueueStore(table), gates, Recount(table), slots)


def _slots(
    table: Table,
    gates: Gates,
    jobs: job_store.JobStore,
    sleep: Callable[[float], None] = time.sleep,
) -> PermitRepair:
    from ojs.services.permits.repair import PermitRepair  # as above
    from ojs.store.permits.recount import Recount

    return PermitRepair(gates, Recount(table), jobs, sleep=sleep)


def _tagging(table: Table, jobs: job_store.JobStore, lines: FairQueuePlacement) -> FairnessBackfill:
    from ojs.services.jobs.fairness_backfill import FairnessBackfill  # as above
    from ojs.store.jobs.fair_queue import BackfillCursors

    return FairnessBackfill(queue_store.QueueStore(table), jobs, lines, BackfillCursors(table))


def _depth(table: Table, name: str) -> int:
    from ojs.store.permits.recount import Recount  # as above

    return sum(known.projected.jobs for known in Recount(table).known([name]))


def _depths(table: Table, names: Sequence[str]) -> Mapping[str, int]:
    from ojs.store.derived.statistics import StatisticsStore  # as above

    return StatisticsStore(table).available(names)


def _lanes(queues: queue_store.QueueStore) -> Callable[[str], int]:
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
