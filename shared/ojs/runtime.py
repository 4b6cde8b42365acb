"""The composition root: one set of stores and services for each container."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from ojs.clock import Clock, SystemClock
from ojs.domain.errors import Unsupported
from ojs.domain.ids import IdSource
from ojs.services.dead_letter.copies import DeadLetterCopies
from ojs.services.dead_letter.search import DeadLetterSearch
from ojs.services.for_each import ForEach, in_threads
from ojs.services.jobs.batch_finish import BatchFinish
from ojs.services.jobs.empty_lines import EmptyLines
from ojs.services.jobs.enqueue import Enqueue
from ojs.services.jobs.fetch import Fetch
from ojs.services.jobs.finish import Finish
from ojs.services.jobs.lost_leases import LostLeases
from ojs.services.jobs.manage import JobManagement
from ojs.services.jobs.moving import JobMove
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.services.jobs.sweep import JobSweep
from ojs.services.jobs.time_transitions import TimeTransitions
from ojs.services.jobs.transitions import JobChanges
from ojs.services.permits.backpressure import QueueBounds
from ojs.services.permits.key_permits import KeyPermits
from ojs.services.permits.lifecycle import Permits
from ojs.services.permits.pool_permits import PoolPermits
from ojs.services.permits.queue_permits import QueuePermits
from ojs.services.permits.rate_limits import RateLimits
from ojs.services.permits.semaphore_permits import SemaphorePermits
from ojs.services.pools.dispatch import DispatchPlanner
from ojs.services.pools.membership import Membership
from ojs.services.pools.workers import WorkerRegistry
from ojs.services.queues.configure import QueueConfiguration
from ojs.services.queues.deletion import QueueDeletion
from ojs.services.queues.new_queues import NewQueues
from ojs.services.sweeps import SweepQueues
from ojs.settings import Settings
from ojs.store.dead_letter.copies import WaitingCopies
from ojs.store.deployment.maintenance import MaintenanceStore
from ojs.store.jobs.blobs import Blobs, S3Blobs
from ojs.store.jobs.fair_queue import TenantFinishTags
from ojs.store.jobs.payloads import PayloadStore
from ojs.store.jobs.records import JobStore
from ojs.store.jobs.unique_locks import UniqueLocks
from ojs.store.permits.depth_counter import DepthCounter
from ojs.store.permits.key_limits import KeyLimits
from ojs.store.permits.rate_window import RateWindowStore
from ojs.store.permits.semaphore import ConcurrencySemaphore
from ojs.store.permits.sequencer import Sequencer
from ojs.store.permits.throttle_state import ThrottleStates
from ojs.store.queues.pools import PoolStore
from ojs.store.queues.queues import QueueStore
from ojs.store.queues.registry import QueueRegistry
from ojs.store.queues.workers import WorkerStore
from ojs.store.table import clients
from ojs.store.table.table import Table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

    from ojs.domain.delivery.delivery import Delivery
    from ojs.domain.delivery.push import Target
    from ojs.domain.job.job import Job
    from ojs.domain.queue.queue import Queue
    from ojs.middleware import Middleware
    from ojs.services.crons.firing import CronFiring
    from ojs.services.crons.manage import CronJobs
    from ojs.services.crons.zone_sweep import ZoneSweep
    from ojs.services.dead_letter.archive import Archive
    from ojs.services.dead_letter.bulk import BulkRunner
    from ojs.services.dead_letter.prune import PruneSweep
    from ojs.services.dead_letter.redrive import Redrive
    from ojs.services.dead_letter.replay import ReplaySweep
    from ojs.services.dead_letter.statistics import DeadLetterStatistics
    from ojs.services.deliveries.dispatch import Dispatch
    from ojs.services.deliveries.manage import Deliveries
    from ojs.services.deliveries.parts import PushParts
    from ojs.services.deliveries.sweep import DeliverySweep
    from ojs.services.deliveries.wake import DeliveryWake
    from ojs.services.jobs.acts import JobActs
    from ojs.services.jobs.bulk_push import BulkPush
    from ojs.services.jobs.fairness_backfill import FairnessBackfill
    from ojs.services.jobs.idempotent_push import IdempotentPush, KeyTurn
    from ojs.services.jobs.listing import JobListing
    from ojs.services.jobs.middleware import MiddlewareChain
    from ojs.services.jobs.unique_listing import UniqueListing
    from ojs.services.operations.access_keys import AccessKeys
    from ojs.services.operations.actions import Actions
    from ojs.services.operations.authentication import PrincipalLookup
    from ojs.services.operations.events import Events
    from ojs.services.operations.key_states import KeyStates
    from ojs.services.operations.metrics_sweep import MetricsSweep
    from ojs.services.operations.origin import OriginGuard
    from ojs.services.operations.roles import Roles
    from ojs.services.operations.statistics import Statistics
    from ojs.services.permits.reconcile import PoolPermitSweep, ReconcileSweep
    from ojs.services.permits.repair import PermitRepair
    from ojs.services.permits.throttle_sweep import ThrottleSweep
    from ojs.services.pools.configure import PoolConfiguration
    from ojs.services.pools.health_sweep import PoolHealthSweep
    from ojs.services.pools.statistics import PoolStatistics
    from ojs.services.queues.rest import RestSweep
    from ojs.services.sweeps import Sweep
    from ojs.services.workflows.advance import WorkflowAdvance
    from ojs.services.workflows.control import WorkflowControl
    from ojs.services.workflows.create import WorkflowCreation
    from ojs.services.workflows.reading import WorkflowReading
    from ojs.services.workflows.results import StepResults
    from ojs.services.workflows.sweep import WorkflowSweep
    from ojs.store.crons.crons import CronStore
    from ojs.store.dead_letter.counters import DeadLetterCounters
    from ojs.store.deliveries.deliveries import DeliveryStore
    from ojs.store.deployment.access_keys import AccessKeyStore
    from ojs.store.derived.event_log import EventLog
    from ojs.store.derived.statistics import StatisticsStore
    from ojs.store.jobs.idempotency_keys import IdempotencyKeys
    from ojs.store.permits.recount import Recount
    from ojs.store.queues.pool_health import PoolHealthStore
    from ojs.store.workflows.workflows import WorkflowStore
    from ojs.targets.queues import SqsOutcomeQueue

# What only some functions need is a cached property, and is imported on first use: a cold start
# pays for every module.


class Stores:
    """The stores that several services share."""

    def __init__(self, table: Table, blobs: Blobs, ids: IdSource, clock: Clock) -> None:
        self.table = table
        self.registry = QueueRegistry(table, clock)
        counter_table = table.without_repeats()
        self.blobs = blobs
        self.depth = DepthCounter(table, ids)
        self.semaphore = ConcurrencySemaphore(table)
        self.rate_windows = RateWindowStore(counter_table)
        self.sequencer = Sequencer(counter_table)
        self.payloads = PayloadStore(table, blobs)
        self.jobs = JobStore(table, self.payloads, ids, depth=self.depth, registry=self.registry)
        self.waiting_copies = WaitingCopies(table, self.jobs)
        self.unique_locks = UniqueLocks(table)
        self.finish_tags = TenantFinishTags(table)
        self.key_limits = KeyLimits(table, ids)
        self.throttle_states = ThrottleStates(table)
        self.queues = QueueStore(table, self.registry)
        self.pools = PoolStore(table, self.registry)
        self.workers = WorkerStore(table)
        self.maintenance = MaintenanceStore(table, clock)
        self._ids = ids

    @cached_property
    def crons(self) -> CronStore:
        from ojs.store.crons.crons import CronStore

        return CronStore(self.table, self.payloads, self._ids, self.registry)

    @cached_property
    def deliveries(self) -> DeliveryStore:
        from ojs.store.deliveries.deliveries import DeliveryStore

        return DeliveryStore(self.table)

    @cached_property
    def workflows(self) -> WorkflowStore:
        from ojs.store.workflows.workflows import WorkflowStore

        return WorkflowStore(self.table, self.blobs, self._ids)

    @cached_property
    def statistics(self) -> StatisticsStore:
        from ojs.store.derived.statistics import StatisticsStore

        return StatisticsStore(self.table)

    @cached_property
    def pool_health(self) -> PoolHealthStore:
        from ojs.store.queues.pool_health import PoolHealthStore

        return PoolHealthStore(self.table)

    @cached_property
    def dead_letters(self) -> DeadLetterCounters:
        from ojs.store.dead_letter.counters import DeadLetterCounters

        return DeadLetterCounters(self.table)

    @cached_property
    def recount(self) -> Recount:
        from ojs.store.permits.recount import Recount

        return Recount(self.table, self.jobs.notes)

    def deployed_ms(self) -> int:
        """When the latest deployment began (ms); 0 if that is not stored."""
        from ojs.store.deployment.notes import DeploymentStore

        notes = DeploymentStore(self.table).read()
        return 0 if notes is None else notes.at_ms

    def lanes(self, queue: str) -> int:
        """How many lanes a queue has."""
        found = self.queues.get(queue)
        return 1 if found is None else found.lanes

    def projected_depth(self, queue: str) -> int:
        """How many jobs of a queue are not done, as the stream's projection has counted them."""
        return sum(known.projected.jobs for known in self.recount.known([queue]))

    def available(self, queues: Sequence[str]) -> Mapping[str, int]:
        """How many jobs of each queue are available, as the projection has counted them."""
        return self.statistics.available(queues)


class Runtime:
    """The services that handlers call."""

    def __init__(
        self,
        settings: Settings,
        stores: Stores,
        *,
        clock: Clock,
        ids: IdSource,
        middleware: MiddlewareChain | None,
        sleep: Callable[[float], None],
        for_each: ForEach,
        push: Callable[[], PushParts] | None,
    ) -> None:
        self.settings = settings
        self._push = push
        self.stores = stores
        self.clock = clock
        self.ids = ids
        self.sleep = sleep
        self.middleware = middleware
        self._for_each = for_each
        self.semaphores = SemaphorePermits(store=stores.semaphore, clock=clock, ids=ids)
        pool_permits = PoolPermits(self.semaphores)
        self.key_permits = KeyPermits(
            store=stores.key_limits,
            semaphores=self.semaphores,
            states=stores.throttle_states,
            jobs=stores.jobs,
            clock=clock,
        )
        self.permits = Permits(
            queues=QueuePermits(
                semaphores=self.semaphores,
                rate_windows=stores.rate_windows,
                states=stores.throttle_states,
                clock=clock,
            ),
            keys=self.key_permits,
            pools=pool_permits,
            semaphores=self.semaphores,
            depth=stores.depth,
            queue_store=stores.queues,
            pool_store=stores.pools,
        )
        empty_lines = EmptyLines(clock, self._job_placed)
        self.changes = JobChanges(
            jobs=stores.jobs,
            permits=self.permits,
            empty_lines=empty_lines,
            ended=self._job_ended,
            freed=self._permits_freed,
        )
        self.bounds = QueueBounds(
            jobs=stores.jobs,
            depth=stores.depth,
            stored=lambda queue, most: len(stores.recount.listed(queue, most)[0]),
            clock=clock,
            sleep=sleep,
            ended=self._job_ended,
        )
        self.placement = FairQueuePlacement(
            jobs=stores.jobs, queues=stores.queues, tenants=stores.finish_tags, clock=clock
        )
        self.copies = DeadLetterCopies(
            jobs=stores.jobs,
            permits=self.permits,
            queues=stores.queues,
            bounds=self.bounds,
            waiting=stores.waiting_copies,
            placement=self.placement,
            clock=clock,
            ids=ids,
        )
        self.transitions = TimeTransitions(
            jobs=stores.jobs,
            changes=self.changes,
            copies=self.copies,
            placement=self.placement,
            maintenance=stores.maintenance,
            clock=clock,
            ids=ids,
        )
        self.limits = RateLimits(
            store=stores.key_limits, jobs=stores.jobs, lanes=stores.lanes, clock=clock
        )
        self.new_queues = NewQueues(
            stores.queues,
            stores.registry,
            clock,
            strict=settings.strict_queues,
            most=settings.max_queues,
        )
        self.enqueue = Enqueue(
            jobs=stores.jobs,
            permits=self.permits,
            locks=stores.unique_locks,
            transitions=self.transitions,
            bounds=self.bounds,
            limits=self.limits,
            placement=self.placement,
            empty_lines=empty_lines,
            clock=clock,
            ids=ids,
            new_queues=self.new_queues,
            chain=middleware,
            ended=self._job_ended,
        )
        self.fetch = Fetch(
            jobs=stores.jobs,
            membership=Membership(
                queues=stores.queues,
                workers=stores.workers,
                maintenance=stores.maintenance,
                clock=clock,
            ),
            planner=DispatchPlanner(
                permits=pool_permits,
                sequencer=stores.sequencer,
                depths=stores.available,
                clock=clock,
            ),
            transitions=self.transitions,
            changes=self.changes,
            permits=self.permits,
            empty_lines=empty_lines,
            maintenance=stores.maintenance,
            fire=self._fire,
            clock=clock,
            for_each=for_each,
            held_back=self._held_back,
            opened=self._queue_opened,
            # Loaded with the first job of a workflow.
            stopped=lambda jobs: stores.workflows.stopped(jobs),  # noqa: PLW0108
        )
        self.finish = Finish(
            jobs=stores.jobs,
            changes=self.changes,
            transitions=self.transitions,
            copies=self.copies,
            limits=self.limits,
            placement=self.placement,
            clock=clock,
            ids=ids,
        )
        self.batch_finish = BatchFinish(jobs=stores.jobs, finish=self.finish, for_each=for_each)
        self.jobs = JobManagement(
            jobs=stores.jobs,
            changes=self.changes,
            transitions=self.transitions,
            placement=self.placement,
            clock=clock,
            ids=ids,
        )
        self.workers = WorkerRegistry(
            workers=stores.workers, jobs=stores.jobs, changes=self.changes, clock=clock
        )
        self.dead_letter = DeadLetterSearch(stores.jobs)
        self.queues = QueueConfiguration(
            queues=stores.queues,
            semaphore=stores.semaphore,
            rate_windows=stores.rate_windows,
            # A lambda, as the two below: loaded when it is called.
            count_untracked=lambda queue: self.reconcile.count_untracked(queue),  # noqa: PLW0108
            repair=lambda: self.permit_repair,
            backfill=lambda: self.backfill,
            clock=clock,
            sleep=sleep,
            strict=settings.strict_queues,
            opened=self._queue_opened,
        )
        self.moves = JobMove(
            changes=self.changes,
            permits=self.permits,
            bounds=self.bounds,
            placement=self.placement,
            clock=clock,
            ids=ids,
        )
        self.deletion = QueueDeletion(
            queues=stores.queues,
            jobs=stores.jobs,
            changes=self.changes,
            transitions=self.transitions,
            moves=self.moves,
            counter=stores.depth,
            semaphore=stores.semaphore,
            depth=stores.projected_depth,
            fire=self._fire,
            clock=clock,
            strict=settings.strict_queues,
            for_each=for_each,
        )
        self.sweep_queues = SweepQueues(
            stores.queues, stores.registry, clock=clock, deployed_ms=stores.deployed_ms
        )
        self.sweep = JobSweep(
            jobs=stores.jobs,
            queues=self.sweep_queues,
            transitions=self.transitions,
            leases=LostLeases(
                jobs=stores.jobs,
                transitions=self.transitions,
                clock=clock,
                log=self._event_log,
                for_each=for_each,
            ),
            deletion=self.deletion,
            maintenance=stores.maintenance,
            fire=self._fire,
            for_each=for_each,
            store=stores.queues,
        )

    def _event_log(self) -> EventLog:
        from ojs.store.derived.event_log import EventLog

        return EventLog(self.table)

    def _fire(self, name: str) -> Job | None:
        """Fire a cron job that is due. Loaded when there is one."""
        return self.cron_firing.fire(name)

    def _job_ended(self, job: Job) -> None:
        """Do what follows from the end of a job. Loaded when one of a workflow has changed."""
        if job.workflow is not None:
            self.workflow_advance.job_ended(job)

    def _permits_freed(self, job: Job) -> None:
        """Wake who may push another job, after one that stopped otherwise than by its outcome."""
        if self.wake is not None:
            self.wake.permits_released(job)

    def _job_placed(self, job: Job) -> None:
        """Wake who pushes a job."""
        if self.wake is not None:
            self.wake.job_placed(job)

    def _queue_opened(self, queue: str) -> None:
        """Wake who pushes the jobs of a queue that may hand out more than before."""
        if self.wake is not None:
            self.wake.queue_opened(queue)

    def _held_back(self, queue: Queue) -> None:
        """Have who pushes the jobs of a queue woken when its rate limit lets the next one start."""
        if self.wake is not None:
            self.wake.held_back(queue)

    # --- deliveries -----------------------------------------------------------------------------

    @cached_property
    def push_parts(self) -> PushParts | None:
        """Queues and targets of deliveries; None where nothing is pushed."""
        return None if self._push is None else self._push()

    @cached_property
    def wake(self) -> DeliveryWake | None:
        """Wakes deliveries; None where nothing is pushed, which then loads nothing either."""
        if self.push_parts is None:
            return None
        from ojs.services.deliveries.wake import DeliveryWake
        from ojs.store.deliveries.deliveries import DeliveryDirectory

        stores = self.stores
        directory = DeliveryDirectory(stores.deliveries, stores.pools, self.clock)
        return DeliveryWake(directory, self.push_parts.wakes, stores.jobs, self.clock)

    @cached_property
    def dispatch(self) -> Dispatch:
        """Pushes jobs. Raises Unsupported where nothing is pushed."""
        from ojs.services.deliveries.dispatch import Dispatch
        from ojs.services.deliveries.settle import Settle

        parts = self.push_parts
        if parts is None or self.wake is None:
            raise Unsupported("This deployment pushes no jobs.")
        return Dispatch(
            deliveries=self.stores.deliveries,
            jobs=self.stores.jobs,
            fetch=self.fetch,
            target=parts.target,
            sends=parts.sends,
            settle=Settle(
                deliveries=self.stores.deliveries,
                finish=self.finish,
                permits=self.permits,
                clock=self.clock,
            ),
            transitions=self.transitions,
            wake=self.wake,
            allowed=parts.allowed,
            makers=self.key_states,
            clock=self.clock,
        )

    @cached_property
    def outcome_queue(self) -> SqsOutcomeQueue | None:
        """Where outcomes wait that cannot be settled when they are told; None: there is none."""
        from ojs.targets.queues import SqsOutcomeQueue

        url = self.settings.outcome_queue
        return None if url is None else SqsOutcomeQueue(url)

    @cached_property
    def deliveries(self) -> Deliveries:
        from ojs.services.deliveries.manage import Deliveries

        return Deliveries(
            deliveries=self.stores.deliveries,
            queues=self.stores.queues,
            pools=self.stores.pools,
            statistics=self.stores.statistics,
            semaphore=self.stores.semaphore,
            parts=self.push_parts,
            wake=self.wake,
            makers=self.key_states,
            clock=self.clock,
            ids=self.ids,
            strict=self.settings.strict_queues,
        )

    @cached_property
    def delivery_sweep(self) -> DeliverySweep | None:
        """None where nothing is pushed."""
        if self.wake is None:
            return None
        from ojs.services.deliveries.sweep import DeliverySweep

        return DeliverySweep(
            deliveries=self.stores.deliveries,
            pools=self.stores.pools,
            queues=self.stores.queues,
            every=self.sweep_queues,
            index=self.stores.jobs.index,
            wake=self.wake,
        )

    @property
    def maintenance(self) -> MaintenanceStore:
        return self.stores.maintenance

    @property
    def table(self) -> Table:
        return self.stores.table

    @property
    def blobs(self) -> Blobs:
        return self.stores.blobs

    @cached_property
    def idempotent_push(self) -> IdempotentPush:
        from ojs.services.jobs.idempotent_push import IdempotentPush

        return IdempotentPush(
            enqueue=self.enqueue,
            management=self.jobs,
            jobs=self.stores.jobs,
            keys=self._idempotency_keys,
            turn=self._key_turn,
        )

    @cached_property
    def bulk_push(self) -> BulkPush:
        from ojs.services.jobs.bulk_push import BulkPush
        from ojs.store.jobs.bulk_pushes import BulkPushStore

        return BulkPush(
            enqueue=self.enqueue,
            jobs=self.stores.jobs,
            keys=self._idempotency_keys,
            turn=self._key_turn,
            bulk_pushes=BulkPushStore(self.table, self.ids),
            for_each=self._for_each,
            clock=self.clock,
            middleware_ms=None if self.middleware is None else self.middleware.timeout_ms,
        )

    @cached_property
    def _key_turn(self) -> KeyTurn:
        from ojs.services.jobs.idempotent_push import KeyTurn

        return KeyTurn(self._idempotency_keys, sleep=self.sleep)

    @cached_property
    def _idempotency_keys(self) -> IdempotencyKeys:
        from ojs.store.jobs.idempotency_keys import IdempotencyKeys

        return IdempotencyKeys(self.table, self.ids)

    # --- for operators --------------------------------------------------------------------------

    @cached_property
    def pools(self) -> PoolConfiguration:
        from ojs.services.pools.configure import PoolConfiguration

        return PoolConfiguration(
            pools=self.stores.pools,
            queues=self.stores.queues,
            semaphore=self.stores.semaphore,
            repair=self.permit_repair,
            backfill=self.backfill,
            clock=self.clock,
            strict=self.settings.strict_queues,
            opened=self._queue_opened,
        )

    @cached_property
    def redrive(self) -> Redrive:
        from ojs.services.dead_letter.redrive import Redrive
        from ojs.store.jobs.payload_change import PayloadChange

        stores = self.stores
        return Redrive(
            jobs=stores.jobs,
            changes=self.changes,
            contents=PayloadChange(stores.table, stores.payloads, stores.jobs),
            queues=stores.queues,
            locks=stores.unique_locks,
            transitions=self.transitions,
            bounds=self.bounds,
            limits=self.limits,
            placement=self.placement,
            clock=self.clock,
            ids=self.ids,
            chain=self.middleware,
            new_queues=self.new_queues,
        )

    @cached_property
    def acts(self) -> JobActs:
        from ojs.services.jobs.acts import JobActs

        return JobActs(
            jobs=self.stores.jobs,
            changes=self.changes,
            transitions=self.transitions,
            placement=self.placement,
            moves=self.moves,
            redrive=self.redrive,
            dead_letter=self.dead_letter,
            limits=self.limits,
            clock=self.clock,
            ids=self.ids,
        )

    @cached_property
    def actions(self) -> Actions:
        from ojs.services.operations.actions import Actions
        from ojs.store.deployment.actions import ActionStore

        return Actions(ActionStore(self.table), self.clock, self.ids)

    @cached_property
    def key_states(self) -> KeyStates:
        from ojs.services.operations.key_states import KeyStates

        return KeyStates(self._keys, self.clock)

    @cached_property
    def _keys(self) -> AccessKeyStore:
        from ojs.store.deployment.access_keys import AccessKeyStore

        return AccessKeyStore(self.table, self.settings.old_keys_until_ms)

    @cached_property
    def access_keys(self) -> AccessKeys:
        from ojs.services.operations.access_keys import AccessKeys

        return AccessKeys(self._keys, self.clock)

    @cached_property
    def origin(self) -> OriginGuard | None:
        """What lets requests in by where they came from; None: they may come from anywhere."""
        if self.settings.origin_secret is None:
            return None
        from ojs.services.operations.origin import OriginGuard
        from ojs.store.deployment.secrets import Secret

        client = clients.secrets_manager(clients.FIRST_CONFIG)
        return OriginGuard(Secret(client, self.settings.origin_secret), self.clock)

    @cached_property
    def callers(self) -> PrincipalLookup:
        from ojs.services.operations.authentication import Authentication, PrincipalLookup

        return PrincipalLookup(
            Authentication(self._keys, self.clock),
            self.clock,
            remembered_ms=1_000 * self.settings.authorizer_cache_s,
        )

    @cached_property
    def roles(self) -> Roles:
        from ojs.services.operations.roles import Roles

        return Roles(
            self._keys,
            self.clock,
            operators=self.settings.iam_operators,
            remembered_ms=1_000 * self.settings.authorizer_cache_s,
        )

    @cached_property
    def cron_firing(self) -> CronFiring:
        from ojs.services.crons.firing import CronFiring

        return CronFiring(
            crons=self.stores.crons,
            jobs=self.stores.jobs,
            enqueue=self.enqueue,
            transitions=self.transitions,
            makers=self.key_states,
            clock=self.clock,
        )

    @cached_property
    def zone_sweep(self) -> ZoneSweep:
        from ojs.services.crons.zone_sweep import ZoneSweep

        return ZoneSweep(self.stores.crons)

    @cached_property
    def crons(self) -> CronJobs:
        from ojs.services.crons.manage import CronJobs

        return CronJobs(
            crons=self.stores.crons,
            jobs=self.stores.jobs,
            enqueue=self.enqueue,
            workers=self.stores.workers,
            makers=self.key_states,
            clock=self.clock,
            ids=self.ids,
            most=self.settings.max_crons,
            least_s=self.settings.min_cron_interval_s,
        )

    @cached_property
    def workflow_results(self) -> StepResults:
        from ojs.services.workflows.results import StepResults

        return StepResults(self.stores.workflows, self.stores.jobs)

    @cached_property
    def workflow_advance(self) -> WorkflowAdvance:
        from ojs.services.workflows.advance import WorkflowAdvance
        from ojs.services.workflows.starts import StepStarts

        workflows = self.stores.workflows
        starts = StepStarts(
            workflows=workflows,
            results=self.workflow_results,
            enqueue=self.enqueue,
            clock=self.clock,
            ids=self.ids,
        )
        return WorkflowAdvance(
            workflows=workflows,
            jobs=self.stores.jobs,
            starts=starts,
            results=self.workflow_results,
            clock=self.clock,
            pause=self.bounds.pause,
        )

    @cached_property
    def workflow_creation(self) -> WorkflowCreation:
        from ojs.services.workflows.create import WorkflowCreation

        return WorkflowCreation(
            workflows=self.stores.workflows,
            advance=self.workflow_advance,
            queues=self.stores.queues,
            clock=self.clock,
            ids=self.ids,
            strict=self.settings.strict_queues,
        )

    @cached_property
    def workflow_control(self) -> WorkflowControl:
        from ojs.services.workflows.control import WorkflowControl

        return WorkflowControl(
            workflows=self.stores.workflows,
            advance=self.workflow_advance,
            jobs=self.stores.jobs,
            changes=self.changes,
            clock=self.clock,
            for_each=self._for_each,
        )

    @cached_property
    def workflow_sweep(self) -> WorkflowSweep:
        from ojs.services.workflows.sweep import WorkflowSweep

        return WorkflowSweep(
            workflows=self.stores.workflows,
            advance=self.workflow_advance,
            control=self.workflow_control,
        )

    # --- what is read ---------------------------------------------------------------------------

    @cached_property
    def stats(self) -> Statistics:
        from ojs.services.operations.statistics import Statistics

        return Statistics(
            stats=self.stores.statistics,
            notes=self.stores.jobs.notes,
            queues=self.stores.queues,
            limits=self.stores.key_limits,
            throttle_states=self.stores.throttle_states,
            pools=self.stores.pools,
            health=self.stores.pool_health,
            clock=self.clock,
        )

    @cached_property
    def scheduling(self) -> PoolStatistics:
        from ojs.services.pools.statistics import PoolStatistics

        return PoolStatistics(
            health=self.stores.pool_health,
            pools=self.stores.pools,
            queues=self.stores.queues,
            stats=self.stores.statistics,
            workers=self.stores.workers,
            clock=self.clock,
        )

    @cached_property
    def dead_letter_stats(self) -> DeadLetterStatistics:
        from ojs.services.dead_letter.statistics import DeadLetterStatistics

        return DeadLetterStatistics(self.stores.dead_letters, self.clock)

    @cached_property
    def listing(self) -> JobListing:
        from ojs.services.jobs.listing import JobListing

        return JobListing(
            jobs=self.stores.jobs,
            registry=self.stores.registry,
            stats=self.stores.statistics,
            log=self._event_log(),
            for_each=self._for_each,
            clock=self.clock,
        )

    @cached_property
    def workflow_reading(self) -> WorkflowReading:
        from ojs.services.workflows.reading import WorkflowReading

        return WorkflowReading(
            workflows=self.stores.workflows,
            advance=self.workflow_advance,
            jobs=self.stores.jobs,
            clock=self.clock,
        )

    @cached_property
    def unique_locks(self) -> UniqueListing:
        from ojs.services.jobs.unique_listing import UniqueListing

        return UniqueListing(
            jobs=self.stores.jobs,
            locks=self.stores.unique_locks,
            listing=self.listing,
            clock=self.clock,
        )

    @cached_property
    def events(self) -> Events:
        from ojs.services.operations.events import Events

        return Events(self._event_log(), self.clock)

    # --- sweeps ---------------------------------------------------------------------------------

    def sweeps(self) -> Iterator[Sweep]:
        """Every sweep, in the order in which they run each minute: what may come back is replayed
        before the rest is pruned, and metrics come last. Each is loaded when it is its turn.
        """
        yield self.sweep
        yield self.workflow_sweep
        if self.delivery_sweep is not None:
            yield self.delivery_sweep
        yield self.bulk
        yield self.backfill
        yield self.reconcile
        yield self.pool_permit_sweep
        yield self.throttle_sweep
        yield self.zone_sweep
        yield self.replay
        yield self.prune
        yield self.pool_health_sweep
        yield self.rest
        yield self.metrics_sweep

    @cached_property
    def bulk(self) -> BulkRunner:
        from ojs.services.dead_letter.bulk import BulkRunner
        from ojs.services.jobs.bulk import JobSlices
        from ojs.store.dead_letter.bulk import BulkOperationStore

        return BulkRunner(
            store=BulkOperationStore(self.table, self.ids),
            jobs=self.stores.jobs,
            queues=self.stores.queues,
            dead_letter=self.dead_letter,
            redrive=self.redrive,
            of_jobs=JobSlices(
                jobs=self.stores.jobs,
                queues=self.stores.queues,
                listing=self.listing,
                acts=self.acts,
                archive=self.archive,
                # Loaded when a job of one is erased.
                forget_workflow=lambda name: self.workflow_control.forget(name),  # noqa: PLW0108
            ),
            clock=self.clock,
            ids=self.ids,
        )

    @cached_property
    def backfill(self) -> FairnessBackfill:
        from ojs.services.jobs.fairness_backfill import FairnessBackfill
        from ojs.store.jobs.fair_queue import BackfillCursors

        return FairnessBackfill(
            queues=self.stores.queues,
            every=self.sweep_queues,
            jobs=self.stores.jobs,
            placement=self.placement,
            cursors=BackfillCursors(self.table),
        )

    @cached_property
    def permit_repair(self) -> PermitRepair:
        from ojs.services.permits.repair import PermitRepair

        return PermitRepair(
            jobs=self.stores.jobs,
            semaphores=self.semaphores,
            recount=self.stores.recount,
            sleep=self.sleep,
        )

    @cached_property
    def reconcile(self) -> ReconcileSweep:
        from ojs.services.permits.reconcile import ReconcileSweep

        return ReconcileSweep(
            every=self.sweep_queues,
            depth=self.stores.depth,
            recount=self.stores.recount,
            repair=self.permit_repair,
            clock=self.clock,
        )

    @cached_property
    def pool_permit_sweep(self) -> PoolPermitSweep:
        from ojs.services.permits.reconcile import PoolPermitSweep

        return PoolPermitSweep(
            pools=self.stores.pools,
            queues=self.stores.queues,
            workers=self.stores.workers,
            repair=self.permit_repair,
        )

    @cached_property
    def throttle_sweep(self) -> ThrottleSweep:
        from ojs.services.permits.throttle_sweep import ThrottleSweep

        return ThrottleSweep(
            states=self.stores.throttle_states,
            key_limits=self.stores.key_limits,
            key_permits=self.key_permits,
            rate_windows=self.stores.rate_windows,
            queues=self.stores.queues,
            index=self.stores.jobs.index,
            rate_limits=self.limits,
        )

    @cached_property
    def replay(self) -> ReplaySweep:
        from ojs.services.dead_letter.replay import ReplaySweep
        from ojs.store.dead_letter.replay import ReplayCursors

        return ReplaySweep(
            jobs=self.stores.jobs,
            queues=self.stores.queues,
            every=self.sweep_queues,
            replays=ReplayCursors(self.table),
            redrive=self.redrive,
            maintenance=self.maintenance,
        )

    @cached_property
    def prune(self) -> PruneSweep:
        from ojs.services.dead_letter.prune import PruneSweep
        from ojs.store.dead_letter.pruning import Pruning

        return PruneSweep(
            jobs=self.stores.jobs,
            pruning=Pruning(self.table, self.stores.queues, self.ids),
            copies=self.copies,
            archive=self.archive,
        )

    @cached_property
    def archive(self) -> Archive:
        from ojs.services.dead_letter.archive import Archive

        return Archive(self.stores.jobs, self.blobs)

    @cached_property
    def pool_health_sweep(self) -> PoolHealthSweep:
        from ojs.services.pools.health_sweep import PoolHealthSweep

        return PoolHealthSweep(
            pools=self.stores.pools,
            health=self.stores.pool_health,
            stats=self.stores.statistics,
            throttle_states=self.stores.throttle_states,
            maintenance=self.maintenance,
        )

    @cached_property
    def rest(self) -> RestSweep:
        from ojs.services.queues.rest import RestSweep

        return RestSweep(
            every=self.sweep_queues,
            registry=self.stores.registry,
            index=self.stores.jobs.index,
            stats=self.stores.statistics,
        )

    @cached_property
    def metrics_sweep(self) -> MetricsSweep:
        from ojs.services.operations.metrics_sweep import MetricsSweep

        return MetricsSweep(
            stats=self.stores.statistics,
            every=self.sweep_queues,
            queues=self.stores.queues,
            workers=self.stores.workers,
            dead_letters=self.stores.dead_letters,
            health=self.stores.pool_health,
            maintenance=self.maintenance,
            groups=self.settings.worker_groups,
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
    sleep: Callable[[float], None] = time.sleep,
    for_each: ForEach = in_threads,
    push: PushParts | None = None,
) -> Runtime:
    """Wire the services together; the default of each part is that of AWS.

    `middleware` comes after that of the settings. `sleep` takes seconds. `for_each` may make calls
    at the same time. `push` has what deliveries need, in place of what the settings name.
    """
    clock = clock or SystemClock()
    ids = ids or IdSource(clock)
    table = Table(client or clients.dynamodb(), settings.table, measure=measure, sleep=sleep)
    if blobs is None:
        blobs = S3Blobs(clients.s3, settings.bucket or "")
    stores = Stores(table, blobs, ids, clock)
    return Runtime(
        settings,
        stores,
        clock=clock,
        ids=ids,
        middleware=_chain(settings, middleware),
        sleep=sleep,
        for_each=for_each,
        push=_pushing(settings, clock, for_each, push),
    )


def _pushing(
    settings: Settings, clock: Clock, for_each: ForEach, given: PushParts | None
) -> Callable[[], PushParts] | None:
    """Makes what deliveries need, on first use; None where nothing is pushed."""
    if given is not None:
        return lambda: given
    url = settings.dispatch_queue
    if url is None:
        return None

    def make() -> PushParts:
        from ojs.services.deliveries.manage import AllowedTargets
        from ojs.services.deliveries.parts import PushParts
        from ojs.targets.queues import SqsSendQueue, SqsWakeQueue

        return PushParts(
            wakes=SqsWakeQueue(url, clock),
            target=_Targets(clock, for_each, destinations=settings.destinations).of,
            allowed=AllowedTargets(
                settings.push_functions, settings.egress_hosts, check_endpoint=_check_endpoint
            ),
            sends=None if settings.send_queue is None else SqsSendQueue(settings.send_queue),
        )

    return make


def _check_endpoint(url: str) -> None:
    from ojs.targets.guard import Blocked, place

    try:
        place(url)
    except Blocked as refusal:
        raise ValueError(str(refusal)) from None


class _Targets:
    """The targets of a container, each made on first use."""

    def __init__(self, clock: Clock, for_each: ForEach, *, destinations: bool) -> None:
        self._clock = clock
        self._for_each = for_each
        self._destinations = destinations

    def of(self, delivery: Delivery) -> Target:
        """Where the pushes of a delivery go."""
        return self._functions if delivery.function is not None else self._endpoints

    @cached_property
    def _functions(self) -> Target:
        from ojs.targets.lambda_target import LambdaTarget

        return LambdaTarget(self._clock, each=self._for_each, destinations=self._destinations)

    @cached_property
    def _endpoints(self) -> Target:
        from ojs.targets.https_target import HttpsTarget

        return HttpsTarget(self._clock, each=self._for_each)


def _chain(settings: Settings, more: Sequence[Middleware]) -> MiddlewareChain | None:
    """The middleware; None where there is none, and nothing is loaded for it."""
    if not (settings.middleware or more):
        return None
    from ojs.services.jobs.middleware import MiddlewareChain

    timeout_ms = settings.middleware_timeout_ms
    named: list[str | Middleware] = [*settings.middleware, *more]
    return MiddlewareChain(named, timeout_ms=timeout_ms, service=settings.service)


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


def prepare() -> None:
    """Build the container's runtime while its function is initialized, with all of a CPU: only
    where the environment is a function's, and names a table.
    """
    # A first request tries again, and is answered, with an error if need be.
    with suppress(Exception):
        if (chain := current().middleware) is not None:
            chain.load()
        # A client takes a while to make, too.
        _ = current().origin


def use(runtime: Runtime) -> None:
    """Put a runtime in place: the local server and tests bring their own."""
    global _current  # noqa: PLW0603 - see current()
    _current = runtime
