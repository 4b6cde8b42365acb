"""The composition root: creates the stores and services of a container."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ojs.clock import Clock, SystemClock
from ojs.domain.errors import Unsupported
from ojs.domain.ids import IdSource
from ojs.domain.job.durable import NOT_DURABLE
from ojs.services.for_each import ForEach, in_threads
from ojs.settings import Outbox, Settings
from ojs.store.bounds.depth_counter import DepthCounter
from ojs.store.dead_letter.copies import WaitingCopies
from ojs.store.deployment.maintenance import MaintenanceStore
from ojs.store.jobs.blobs import Blobs, S3Blobs
from ojs.store.jobs.fair_queue import TenantFinishTags
from ojs.store.jobs.payloads import PayloadStore
from ojs.store.jobs.records import JobStore
from ojs.store.jobs.unique_locks import UniqueLocks
from ojs.store.permits.key_limits import KeyLimits
from ojs.store.permits.rate_window import RateWindowStore
from ojs.store.permits.semaphore import ConcurrencySemaphore
from ojs.store.permits.sequencer import Sequencer
from ojs.store.permits.throttle_state import ThrottleStates
from ojs.store.queues.due_notes import DueNotes
from ojs.store.queues.pools import PoolStore
from ojs.store.queues.queues import QueueStore
from ojs.store.queues.registry import QueueRegistry
from ojs.store.queues.workers import WorkerStore
from ojs.store.table import clients
from ojs.store.table.table import Table

if TYPE_CHECKING:
    from types import CodeType

    from mypy_boto3_dynamodb import DynamoDBClient

    from ojs.domain.delivery.delivery import Delivery
    from ojs.domain.delivery.push import Target
    from ojs.domain.job.job import Job
    from ojs.domain.queue.queue import Queue
    from ojs.domain.realtime import Connections
    from ojs.middleware import Middleware
    from ojs.services.bulk.acts import JobActs
    from ojs.services.bulk.of_jobs import JobSlices
    from ojs.services.bulk.runner import BulkRunner
    from ojs.services.crons.firing import CronFiring
    from ojs.services.crons.manage import CronJobs
    from ojs.services.crons.zone_sweep import ZoneSweep
    from ojs.services.dead_letter.archive import Archive
    from ojs.services.dead_letter.prune import PruneSweep
    from ojs.services.dead_letter.redrive import DeadLetterRetrier
    from ojs.services.dead_letter.replay import ReplaySweep
    from ojs.services.dead_letter.statistics import DeadLetterStatistics
    from ojs.services.deliveries.dispatch import DeliveryDispatcher
    from ojs.services.deliveries.manage import Deliveries
    from ojs.services.deliveries.parts import DeliveryDependencies
    from ojs.services.deliveries.settle import OutcomeProcessor
    from ojs.services.deliveries.sweep import DeliverySweep
    from ojs.services.deliveries.wake import DeliveryWake
    from ojs.services.jobs.batch_finish import BatchFinish
    from ojs.services.jobs.bulk_push import BulkPush
    from ojs.services.jobs.checkpoints import Checkpoints
    from ojs.services.jobs.children import Children
    from ojs.services.jobs.dead_letter_copies import DeadLetterCopies
    from ojs.services.jobs.durable_ends import DurableEnds
    from ojs.services.jobs.empty_lines import EmptyIndexCache
    from ojs.services.jobs.enqueue import JobEnqueuer
    from ojs.services.jobs.fetch import JobFetcher
    from ojs.services.jobs.finish import JobFinisher
    from ojs.services.jobs.idempotent_push import IdempotentPush, KeyTurn
    from ojs.services.jobs.leased_write import LeasedWrite
    from ojs.services.jobs.lost_leases import LostLeases
    from ojs.services.jobs.manage import JobManagement
    from ojs.services.jobs.middleware import MiddlewareChain
    from ojs.services.jobs.moving import JobMover
    from ojs.services.jobs.new_queues import NewQueues
    from ojs.services.jobs.placement import FairQueuePlacement
    from ojs.services.jobs.signals import Signals
    from ojs.services.jobs.steps import Steps
    from ojs.services.jobs.suspensions import Suspensions
    from ojs.services.jobs.time_transitions import TimeTransitions
    from ojs.services.jobs.transitions import JobChanges
    from ojs.services.listing.dead_letters import DeadLetterSearch
    from ojs.services.listing.jobs import JobListing
    from ojs.services.listing.unique_locks import UniqueListing
    from ojs.services.operations.access_keys import AccessKeys
    from ojs.services.operations.actions import Actions
    from ojs.services.operations.authentication import Authentication, PrincipalLookup
    from ojs.services.operations.events import Events
    from ojs.services.operations.key_rates import KeyRates
    from ojs.services.operations.key_states import KeyStates
    from ojs.services.operations.metrics_sweep import MetricsSweep
    from ojs.services.operations.origin import OriginGuard
    from ojs.services.operations.roles import Roles
    from ojs.services.operations.statistics import Statistics
    from ojs.services.permits.backpressure import QueueBounds
    from ojs.services.permits.key_permits import KeyPermits
    from ojs.services.permits.lifecycle import Permits
    from ojs.services.permits.rate_limits import RateLimits
    from ojs.services.permits.reconcile import PoolPermitSweep, ReconcileSweep
    from ojs.services.permits.repair import PermitRepair
    from ojs.services.permits.semaphore_permits import SemaphorePermits
    from ojs.services.permits.throttle_sweep import ThrottleSweep
    from ojs.services.pools.configure import PoolConfiguration
    from ojs.services.pools.dispatch import DispatchPlanner
    from ojs.services.pools.health_sweep import PoolHealthSweep
    from ojs.services.pools.membership import Membership
    from ojs.services.pools.statistics import PoolStatistics
    from ojs.services.queues.configure import QueueConfiguration
    from ojs.services.queues.deletion import QueueDeletion
    from ojs.services.queues.fairness_backfill import FairnessBackfill
    from ojs.services.queues.rest import RestSweep
    from ojs.services.realtime.beats import Beats
    from ojs.services.realtime.event_replay import EventReplay
    from ojs.services.realtime.event_sender import EventSender
    from ojs.services.realtime.event_streams import EventStreams
    from ojs.services.realtime.listening import Listening
    from ojs.services.realtime.posts import Posts
    from ojs.services.realtime.rings import Rings
    from ojs.services.realtime.sockets import Sockets
    from ojs.services.schemas.manage import Schemas
    from ojs.services.schemas.validate import SchemaValidation
    from ojs.services.sweeping.jobs import JobSweep
    from ojs.services.sweeps import Sweep, SweepQueues
    from ojs.services.tenants.manage import Tenants
    from ojs.services.tenants.quotas import TenantLimiter
    from ojs.services.webhooks.manage import Webhooks
    from ojs.services.webhooks.match import WebhookMatcher
    from ojs.services.webhooks.parts import WebhookDependencies
    from ojs.services.webhooks.send import WebhookSender
    from ojs.services.webhooks.sweep import WebhookSweep
    from ojs.services.workers.workers import WorkerRegistry
    from ojs.services.workflows.advance import WorkflowAdvance
    from ojs.services.workflows.control import WorkflowControl
    from ojs.services.workflows.create import WorkflowCreation
    from ojs.services.workflows.reading import WorkflowReading
    from ojs.services.workflows.results import StepResults
    from ojs.services.workflows.starts import StepStarts
    from ojs.services.workflows.sweep import WorkflowSweep
    from ojs.store.bulk.operations import BulkOperationStore
    from ojs.store.crons.crons import CronStore
    from ojs.store.dead_letter.counters import DeadLetterCounters
    from ojs.store.dead_letter.pruning import Pruning
    from ojs.store.dead_letter.replay import ReplayCursors
    from ojs.store.deliveries.deliveries import DeliveryDirectory, DeliveryStore
    from ojs.store.deployment.access_keys import AccessKeyStore
    from ojs.store.deployment.actions import ActionStore
    from ojs.store.derived.event_log import EventLog
    from ojs.store.derived.pool_health import PoolHealthStore
    from ojs.store.derived.recount import Recount
    from ojs.store.derived.statistics import StatisticsStore
    from ojs.store.jobs.bulk_pushes import BulkPushStore
    from ojs.store.jobs.checkpoints import CheckpointStore
    from ojs.store.jobs.fair_queue import BackfillCursors
    from ojs.store.jobs.idempotency_keys import IdempotencyKeys
    from ojs.store.jobs.payload_change import PayloadChange
    from ojs.store.jobs.steps import StepStore
    from ojs.store.queues.tenants import TenantStore
    from ojs.store.realtime.connections import ConnectionStore
    from ojs.store.realtime.directory import RealtimeDirectory
    from ojs.store.realtime.listeners import ListenerStore
    from ojs.store.realtime.subscribers import SubscriberStore
    from ojs.store.realtime.tickets import TicketStore
    from ojs.store.schemas.schemas import SchemaStore
    from ojs.store.table.outbox import OutboxTable
    from ojs.store.webhooks.webhooks import WebhookDirectory, WebhookStore
    from ojs.store.workflows.workflows import WorkflowStore
    from ojs.targets.queues import SqsRecordQueue

_building = threading.RLock()


class _Row:
    """Descriptor of an attribute whose class is imported and instantiated on first use."""

    def __init__(
        self,
        path: str,
        when: Callable[[Runtime], object] | None,
        sources: Mapping[str, Callable[[Runtime], object]],
    ) -> None:
        self._path = path
        self._when = when
        self._sources = sources

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, root: Any, _owner: type) -> Any:
        if root is None:
            return self
        # The attribute of the instance has precedence over this descriptor.
        with _building:
            if self._name not in vars(root):
                wanted = self._when is None or self._when(root)
                vars(root)[self._name] = self.build(root) if wanted else None
            return vars(root)[self._name]

    def build(self, root: Any) -> object:
        """Create an instance of the class.

        Raises TypeError if a required parameter has no value.
        """
        module, _, name = self._path.partition(":")
        made = getattr(import_module(module), name)
        return made(**self.arguments(root, made.__init__.__code__))

    def arguments(self, root: Any, code: CodeType) -> dict[str, object]:
        """Return the arguments of a constructor.

        They come from the sources and from the root's `places`.
        """
        found = {name: source(root) for name, source in self._sources.items()}
        for name in code.co_varnames[1 : code.co_argcount + code.co_kwonlyargcount]:
            for place in root.places:
                if name not in found and (name in vars(place) or hasattr(type(place), name)):
                    found[name] = getattr(place, name)
        return found


def provided(
    path: str,
    *,
    when: Callable[[Runtime], object] | None = None,
    **sources: Callable[[Runtime], object],
) -> Any:
    """Declare an attribute that is built on first use. The annotation of the attribute is its type.

    A parameter of the constructor has the value that its source returns. Without a source, it has
    the value of the attribute with the same name, in the first of the root's `places` that has one.
    Otherwise, it has its default value.

    Args:
        path: Module and class, separated by a colon.
        when: Whether the attribute exists. If it returns false, the attribute is None. Default:
            always.
        sources: By parameter name: functions that return the value of the parameter.
    """
    return _Row(path, when, sources)


class Stores:
    """The stores of a container that several services share."""

    def __init__(self, table: Table, blobs: Blobs, ids: IdSource, clock: Clock) -> None:
        self.places = (self,)
        self.table = table
        self.blobs = blobs
        self.ids = ids
        self.clock = clock
        self.registry = QueueRegistry(table, clock)
        self.due_notes = DueNotes(table, clock)
        counter_table = table.without_repeats()
        self.depth = DepthCounter(table, ids)
        self.semaphore = ConcurrencySemaphore(table)
        self.rate_windows = RateWindowStore(counter_table)
        self.sequencer = Sequencer(counter_table)
        self.payloads = PayloadStore(table, blobs)
        self.jobs = JobStore(table, self.payloads, ids, depth=self.depth, due_notes=self.due_notes)
        self.index = self.jobs.index
        self.notes = self.jobs.notes
        self.waiting_copies = WaitingCopies(table, self.jobs)
        self.unique_locks = UniqueLocks(table)
        self.finish_tags = TenantFinishTags(table)
        self.key_limits = KeyLimits(table, ids)
        self.throttle_states = ThrottleStates(table)
        self.queues = QueueStore(table, self.registry, lambda: self.tenants)
        self.pools = PoolStore(table, self.registry)
        self.workers = WorkerStore(table)
        self.maintenance = MaintenanceStore(table, clock)

    tenants: TenantStore = provided("ojs.store.queues.tenants:TenantStore")
    crons: CronStore = provided("ojs.store.crons.crons:CronStore")
    deliveries: DeliveryStore = provided("ojs.store.deliveries.deliveries:DeliveryStore")
    directory: DeliveryDirectory = provided("ojs.store.deliveries.deliveries:DeliveryDirectory")
    webhooks: WebhookStore = provided("ojs.store.webhooks.webhooks:WebhookStore")
    webhook_directory: WebhookDirectory = provided("ojs.store.webhooks.webhooks:WebhookDirectory")
    schemas: SchemaStore = provided("ojs.store.schemas.schemas:SchemaStore")
    workflows: WorkflowStore = provided("ojs.store.workflows.workflows:WorkflowStore")
    statistics: StatisticsStore = provided("ojs.store.derived.statistics:StatisticsStore")
    event_log: EventLog = provided("ojs.store.derived.event_log:EventLog")
    pool_health: PoolHealthStore = provided("ojs.store.derived.pool_health:PoolHealthStore")
    dead_letters: DeadLetterCounters = provided("ojs.store.dead_letter.counters:DeadLetterCounters")
    replays: ReplayCursors = provided("ojs.store.dead_letter.replay:ReplayCursors")
    pruning: Pruning = provided("ojs.store.dead_letter.pruning:Pruning")
    bulk_operations: BulkOperationStore = provided("ojs.store.bulk.operations:BulkOperationStore")
    recount: Recount = provided("ojs.store.derived.recount:Recount")
    idempotency_keys: IdempotencyKeys = provided("ojs.store.jobs.idempotency_keys:IdempotencyKeys")
    bulk_pushes: BulkPushStore = provided("ojs.store.jobs.bulk_pushes:BulkPushStore")
    payload_change: PayloadChange = provided("ojs.store.jobs.payload_change:PayloadChange")
    steps: StepStore = provided("ojs.store.jobs.steps:StepStore")
    checkpoints: CheckpointStore = provided("ojs.store.jobs.checkpoints:CheckpointStore")
    backfill_cursors: BackfillCursors = provided("ojs.store.jobs.fair_queue:BackfillCursors")
    actions: ActionStore = provided("ojs.store.deployment.actions:ActionStore")
    tickets: TicketStore = provided("ojs.store.realtime.tickets:TicketStore")
    connections: ConnectionStore = provided("ojs.store.realtime.connections:ConnectionStore")
    listeners: ListenerStore = provided("ojs.store.realtime.listeners:ListenerStore")
    subscribers: SubscriberStore = provided("ojs.store.realtime.subscribers:SubscriberStore")
    realtime_directory: RealtimeDirectory = provided(
        "ojs.store.realtime.directory:RealtimeDirectory"
    )

    def deployed_ms(self) -> int:
        """Return the start (ms) of the most recent deployment, or 0 if it isn't stored."""
        from ojs.store.deployment.notes import DeploymentStore

        notes = DeploymentStore(self.table).read()
        return 0 if notes is None else notes.at_ms

    def lanes(self, queue: str) -> int:
        """Return the number of lanes of a queue."""
        found = self.queues.get(queue)
        return 1 if found is None else found.lanes

    def projected_depth(self, queue: str) -> int:
        """Return the number of unfinished jobs of a queue, as counted by the projection."""
        return sum(known.projected.jobs for known in self.recount.known([queue]))

    def stored(self, queue: Queue, most: int) -> int:
        """Count the stored, unfinished jobs of a queue, up to `most`."""
        return len(self.recount.listed(queue, most)[0])

    def available(self, queues: Sequence[str]) -> Mapping[str, int]:
        """Return the number of available jobs of each queue, from the projection."""
        return self.statistics.available(queues)


def _pushes(runtime: Runtime) -> bool:
    return runtime.push_parts is not None


def _remembered_ms(runtime: Runtime) -> int:
    return 1_000 * runtime.settings.authorizer_cache_s


def _has_webhooks(runtime: Runtime) -> bool:
    return runtime.webhook_parts is not None


def _hook_parts(runtime: Runtime) -> WebhookDependencies:
    if runtime.webhook_parts is None:
        raise Unsupported("Webhooks are not supported by this deployment.")
    return runtime.webhook_parts


def _sends(runtime: Runtime) -> bool:
    return runtime.messages is not None


def _outbox(runtime: Runtime) -> Outbox:
    assert runtime.settings.outbox is not None
    return runtime.settings.outbox


def _subscriptions(runtime: Runtime) -> RealtimeDirectory | None:
    return runtime.stores.realtime_directory if runtime.settings.realtime == "all" else None


class Runtime:
    """The services that handlers call.

    If a store and a service have the same name, `places` finds the store first.
    """

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
        push: Callable[[], DeliveryDependencies] | None,
        realtime: Callable[[], Connections] | None,
        hooks: Callable[[], WebhookDependencies] | None = None,
    ) -> None:
        self.settings = settings
        self._hooks = hooks
        self._push = push
        self._realtime = realtime
        self.stores = stores
        self.clock = clock
        self.ids = ids
        self.sleep = sleep
        self.middleware = middleware
        self.for_each = for_each

    @property
    def places(self) -> Sequence[object]:
        """The objects that provide arguments.

        Stores come first, so `jobs` is a store, not a service.
        """
        return (self.stores, self, self.settings)

    semaphores: SemaphorePermits = provided(
        "ojs.services.permits.semaphore_permits:SemaphorePermits"
    )
    key_permits: KeyPermits = provided("ojs.services.permits.key_permits:KeyPermits")
    permits: Permits = provided("ojs.services.permits.lifecycle:Permits")
    permit_repair: PermitRepair = provided("ojs.services.permits.repair:PermitRepair")
    bounds: QueueBounds = provided("ojs.services.permits.backpressure:QueueBounds")
    limits: RateLimits = provided("ojs.services.permits.rate_limits:RateLimits")
    empty_lines: EmptyIndexCache = provided("ojs.services.jobs.empty_lines:EmptyIndexCache")
    changes: JobChanges = provided("ojs.services.jobs.transitions:JobChanges")
    placement: FairQueuePlacement = provided("ojs.services.jobs.placement:FairQueuePlacement")
    copies: DeadLetterCopies = provided("ojs.services.jobs.dead_letter_copies:DeadLetterCopies")
    transitions: TimeTransitions = provided("ojs.services.jobs.time_transitions:TimeTransitions")
    new_queues: NewQueues = provided("ojs.services.jobs.new_queues:NewQueues")
    tenant_quotas: TenantLimiter = provided("ojs.services.tenants.quotas:TenantLimiter")
    enqueue: JobEnqueuer = provided(
        "ojs.services.jobs.enqueue:JobEnqueuer",
        quotas=lambda run: lambda: run.tenant_quotas,
        directory=lambda run: lambda: run.stores.directory,
        schema_validation=lambda run: lambda: run.schema_validation,
    )
    schemas: Schemas = provided("ojs.services.schemas.manage:Schemas")
    schema_validation: SchemaValidation = provided("ojs.services.schemas.validate:SchemaValidation")
    key_turn: KeyTurn = provided("ojs.services.jobs.idempotent_push:KeyTurn")
    idempotent_push: IdempotentPush = provided(
        "ojs.services.jobs.idempotent_push:IdempotentPush", management=lambda run: run.jobs
    )
    bulk_push: BulkPush = provided(
        "ojs.services.jobs.bulk_push:BulkPush",
        middleware_ms=lambda run: run.middleware and run.middleware.timeout_ms,
    )
    membership: Membership = provided("ojs.services.pools.membership:Membership")
    planner: DispatchPlanner = provided("ojs.services.pools.dispatch:DispatchPlanner")
    fetch: JobFetcher = provided("ojs.services.jobs.fetch:JobFetcher")
    finish: JobFinisher = provided(
        "ojs.services.jobs.finish:JobFinisher",
        suspensions=lambda run: lambda: run.suspensions,
    )
    batch_finish: BatchFinish = provided("ojs.services.jobs.batch_finish:BatchFinish")
    jobs: JobManagement = provided(
        "ojs.services.jobs.manage:JobManagement", cancelled=lambda run: run.note_cancelled
    )
    leased: LeasedWrite = provided("ojs.services.jobs.leased_write:LeasedWrite")
    checkpoints: Checkpoints = provided("ojs.services.jobs.checkpoints:Checkpoints")
    steps: Steps = provided("ojs.services.jobs.steps:Steps")
    suspensions: Suspensions = provided("ojs.services.jobs.suspensions:Suspensions")
    signals: Signals = provided("ojs.services.jobs.signals:Signals")
    children: Children = provided("ojs.services.jobs.children:Children")
    durable_ends: DurableEnds = provided("ojs.services.jobs.durable_ends:DurableEnds")
    moves: JobMover = provided("ojs.services.jobs.moving:JobMover")
    acts: JobActs = provided("ojs.services.bulk.acts:JobActs")
    job_slices: JobSlices = provided("ojs.services.bulk.of_jobs:JobSlices")
    workers: WorkerRegistry = provided("ojs.services.workers.workers:WorkerRegistry")

    def fire(self, name: str) -> Job | None:
        """Fire a cron job that is due. Imports the service on first use."""
        return self.cron_firing.fire(name)

    def stopped(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """Return those of these jobs whose workflow is cancelled.

        Imports the service on first use.
        """
        return self.stores.workflows.stopped(jobs)

    def forget_workflow(self, name: str) -> None:
        """Erase a workflow. Imports the service on first use."""
        self.workflow_control.forget(name)

    def count_untracked(self, queue: str) -> None:
        """Recount a queue's jobs. Imports the service when a queue gets its first size limit."""
        self.reconcile.count_untracked(queue)

    def ended(self, job: Job) -> None:
        """Process what follows from the end of a job. Imports the services on first use."""
        if job.workflow is not None:
            self.workflow_advance.job_ended(job)
        if job.durable is not NOT_DURABLE and job.state.terminal:
            self.durable_ends.job_ended(job)

    def freed(self, job: Job) -> None:
        """Wake deliveries and workers after a job released permits without an outcome."""
        if self.wake is not None:
            self.wake.permits_released(job)
        if self.rings is not None:
            self.rings.note_released(job)

    def placed(self, job: Job) -> None:
        """Wake deliveries and workers for a job."""
        if self.wake is not None:
            self.wake.job_placed(job)
        if self.rings is not None:
            self.rings.note_job(job)

    def opened(self, queue: str) -> None:
        """Wake deliveries and workers of a queue that can dispatch more jobs than before."""
        if self.wake is not None:
            self.wake.queue_opened(queue)
        if self.rings is not None:
            self.rings.note_queue(queue)

    def held_back(self, queue: Queue) -> None:
        """Wake deliveries when the rate limit of a queue allows the next start.

        Workers receive that time with their fetch.
        """
        if self.wake is not None:
            self.wake.held_back(queue)

    def note_cancelled(self, job: Job) -> None:
        """Ask the worker of a cancelled job for a heartbeat."""
        if self.beats is not None:
            self.beats.send_to_worker_of(job)

    def flush(self) -> None:
        """Send the rings for what the request has changed. The last act before its response."""
        if self.rings is not None:
            self.rings.flush()

    @property
    def maintenance(self) -> MaintenanceStore:
        return self.stores.maintenance

    @property
    def table(self) -> Table:
        return self.stores.table

    @property
    def blobs(self) -> Blobs:
        return self.stores.blobs

    # --- deliveries -----------------------------------------------------------------------------

    @cached_property
    def push_parts(self) -> DeliveryDependencies | None:
        """The queues and targets of deliveries, or None without push delivery."""
        return None if self._push is None else self._push()

    @property
    def pushing(self) -> DeliveryDependencies:
        """Return `push_parts`. Raise Unsupported without push delivery."""
        if self.push_parts is None:
            raise Unsupported("Push delivery is not supported by this deployment.")
        return self.push_parts

    wake: DeliveryWake | None = provided(
        "ojs.services.deliveries.wake:DeliveryWake",
        when=_pushes,
        queue=lambda run: run.pushing.wakes,
    )
    settle: OutcomeProcessor = provided("ojs.services.deliveries.settle:OutcomeProcessor")
    dispatch: DeliveryDispatcher = provided(
        "ojs.services.deliveries.dispatch:DeliveryDispatcher",
        target=lambda run: run.pushing.target,
        sends=lambda run: run.pushing.sends,
        allowed=lambda run: run.pushing.allowed,
    )
    # SQS queue for outcomes that can't be processed immediately. None if the deployment has none.
    outcome_queue: SqsRecordQueue | None = provided(
        "ojs.targets.queues:SqsRecordQueue",
        when=lambda run: run.settings.outcome_queue,
        url=lambda run: run.settings.outcome_queue,
    )
    # Of the relay of an outbox: its table, and the queues for refused and for waiting jobs.
    outbox_table: OutboxTable = provided(
        "ojs.store.table.outbox:OutboxTable",
        when=lambda run: run.settings.outbox,
        name=lambda run: _outbox(run).table,
    )
    refused_queue: SqsRecordQueue = provided(
        "ojs.targets.queues:SqsRecordQueue",
        when=lambda run: run.settings.outbox,
        url=lambda run: _outbox(run).refused,
    )
    later_queue: SqsRecordQueue = provided(
        "ojs.targets.queues:SqsRecordQueue",
        when=lambda run: run.settings.outbox,
        url=lambda run: _outbox(run).later,
    )
    deliveries: Deliveries = provided("ojs.services.deliveries.manage:Deliveries")
    delivery_sweep: DeliverySweep | None = provided(
        "ojs.services.deliveries.sweep:DeliverySweep", when=_pushes
    )

    # --- webhooks -------------------------------------------------------------------------------

    @cached_property
    def webhook_parts(self) -> WebhookDependencies | None:
        """The queue and the target of webhooks, or None without webhooks."""
        return None if self._hooks is None else self._hooks()

    webhooks: Webhooks = provided("ojs.services.webhooks.manage:Webhooks")
    webhook_matcher: WebhookMatcher | None = provided(
        "ojs.services.webhooks.match:WebhookMatcher",
        when=_has_webhooks,
        queue=lambda run: _hook_parts(run).queue,
    )
    webhook_sender: WebhookSender = provided(
        "ojs.services.webhooks.send:WebhookSender", parts=_hook_parts
    )
    webhook_sweep: WebhookSweep | None = provided(
        "ojs.services.webhooks.sweep:WebhookSweep",
        when=_has_webhooks,
        queue=lambda run: _hook_parts(run).queue,
    )

    # --- realtime -------------------------------------------------------------------------------

    @cached_property
    def messages(self) -> Connections | None:
        """The sender of messages to connections, or None without a WebSocket API."""
        return None if self._realtime is None else self._realtime()

    posts: Posts | None = provided(
        "ojs.services.realtime.posts:Posts",
        when=_sends,
        connections=lambda run: run.messages,
    )
    rings: Rings | None = provided("ojs.services.realtime.rings:Rings", when=_sends)
    beats: Beats | None = provided("ojs.services.realtime.beats:Beats", when=_sends)
    listening: Listening | None = provided("ojs.services.realtime.listening:Listening", when=_sends)
    sockets: Sockets = provided("ojs.services.realtime.sockets:Sockets")
    event_sender: EventSender | None = provided(
        "ojs.services.realtime.event_sender:EventSender", when=_sends
    )
    event_streams: EventStreams = provided("ojs.services.realtime.event_streams:EventStreams")
    event_replay: EventReplay | None = provided(
        "ojs.services.realtime.event_replay:EventReplay", when=_sends
    )

    # --- services for operators -----------------------------------------------------------------

    queues: QueueConfiguration = provided(
        "ojs.services.queues.configure:QueueConfiguration",
        repair=lambda run: lambda: run.permit_repair,
        backfill=lambda run: lambda: run.backfill,
    )
    deletion: QueueDeletion = provided("ojs.services.queues.deletion:QueueDeletion")
    pools: PoolConfiguration = provided("ojs.services.pools.configure:PoolConfiguration")
    dead_letter: DeadLetterSearch = provided("ojs.services.listing.dead_letters:DeadLetterSearch")
    redrive: DeadLetterRetrier = provided("ojs.services.dead_letter.redrive:DeadLetterRetrier")
    actions: Actions = provided("ojs.services.operations.actions:Actions")
    tenants: Tenants = provided("ojs.services.tenants.manage:Tenants")
    keys: AccessKeyStore = provided("ojs.store.deployment.access_keys:AccessKeyStore")
    makers: KeyStates = provided("ojs.services.operations.key_states:KeyStates")
    access_keys: AccessKeys = provided(
        "ojs.services.operations.access_keys:AccessKeys", directory=_subscriptions
    )
    key_rates: KeyRates = provided("ojs.services.operations.key_rates:KeyRates")
    authentication: Authentication = provided(
        "ojs.services.operations.authentication:Authentication"
    )
    callers: PrincipalLookup = provided(
        "ojs.services.operations.authentication:PrincipalLookup", remembered_ms=_remembered_ms
    )
    roles: Roles = provided("ojs.services.operations.roles:Roles", remembered_ms=_remembered_ms)

    @cached_property
    def origin(self) -> OriginGuard | None:
        """The check of the header that the firewall adds to requests. None without a firewall."""
        if self.settings.origin_secret is None:
            return None
        from ojs.services.operations.origin import OriginGuard
        from ojs.store.deployment.secrets import Secret

        client = clients.secrets_manager(clients.FIRST_CONFIG)
        return OriginGuard(Secret(client, self.settings.origin_secret), self.clock)

    # --- crons and workflows --------------------------------------------------------------------

    crons: CronJobs = provided("ojs.services.crons.manage:CronJobs")
    cron_firing: CronFiring = provided("ojs.services.crons.firing:CronFiring")
    workflow_results: StepResults = provided("ojs.services.workflows.results:StepResults")
    workflow_starts: StepStarts = provided("ojs.services.workflows.starts:StepStarts")
    workflow_advance: WorkflowAdvance = provided(
        "ojs.services.workflows.advance:WorkflowAdvance", pause=lambda run: run.bounds.pause
    )
    workflow_creation: WorkflowCreation = provided("ojs.services.workflows.create:WorkflowCreation")
    workflow_control: WorkflowControl = provided("ojs.services.workflows.control:WorkflowControl")

    # --- reads ----------------------------------------------------------------------------------

    stats: Statistics = provided("ojs.services.operations.statistics:Statistics")
    scheduling: PoolStatistics = provided("ojs.services.pools.statistics:PoolStatistics")
    dead_letter_stats: DeadLetterStatistics = provided(
        "ojs.services.dead_letter.statistics:DeadLetterStatistics"
    )
    listing: JobListing = provided("ojs.services.listing.jobs:JobListing")
    unique_locks: UniqueListing = provided("ojs.services.listing.unique_locks:UniqueListing")
    workflow_reading: WorkflowReading = provided("ojs.services.workflows.reading:WorkflowReading")
    events: Events = provided("ojs.services.operations.events:Events")

    # --- sweeps ---------------------------------------------------------------------------------

    def sweeps(self) -> Iterator[Sweep]:
        """Yield all sweeps in the order in which they run. Each is imported before it runs.

        Replay runs before pruning, so that dead letters that a rule replays are not pruned. Metrics
        run last.
        """
        yield self.sweep
        yield self.workflow_sweep
        if self.delivery_sweep is not None:
            yield self.delivery_sweep
        if self.webhook_sweep is not None:
            yield self.webhook_sweep
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

    sweep_queues: SweepQueues = provided("ojs.services.sweeps:SweepQueues")
    lost_leases: LostLeases = provided(
        "ojs.services.jobs.lost_leases:LostLeases", log=lambda run: lambda: run.stores.event_log
    )
    sweep: JobSweep = provided("ojs.services.sweeping.jobs:JobSweep")
    workflow_sweep: WorkflowSweep = provided("ojs.services.workflows.sweep:WorkflowSweep")
    bulk: BulkRunner = provided("ojs.services.bulk.runner:BulkRunner")
    backfill: FairnessBackfill = provided("ojs.services.queues.fairness_backfill:FairnessBackfill")
    reconcile: ReconcileSweep = provided("ojs.services.permits.reconcile:ReconcileSweep")
    pool_permit_sweep: PoolPermitSweep = provided("ojs.services.permits.reconcile:PoolPermitSweep")
    throttle_sweep: ThrottleSweep = provided("ojs.services.permits.throttle_sweep:ThrottleSweep")
    zone_sweep: ZoneSweep = provided("ojs.services.crons.zone_sweep:ZoneSweep")
    replay: ReplaySweep = provided("ojs.services.dead_letter.replay:ReplaySweep")
    prune: PruneSweep = provided("ojs.services.dead_letter.prune:PruneSweep")
    archive: Archive = provided("ojs.services.dead_letter.archive:Archive")
    pool_health_sweep: PoolHealthSweep = provided("ojs.services.pools.health_sweep:PoolHealthSweep")
    rest: RestSweep = provided("ojs.services.queues.rest:RestSweep")
    metrics_sweep: MetricsSweep = provided("ojs.services.operations.metrics_sweep:MetricsSweep")


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
    push: DeliveryDependencies | None = None,
    realtime: Callable[[], Connections] | None = None,
    hooks: Callable[[], WebhookDependencies] | None = None,
) -> Runtime:
    """Create the stores and services. By default, all parts are those of AWS.

    Args:
        settings: Settings of the deployment.
        client: Client of DynamoDB.
        blobs: Store of large payloads. Default: the bucket of `settings`.
        clock: Current time. Default: the system's clock.
        ids: Source of IDs. Default: random IDs.
        middleware: Middleware that runs after that of `settings`.
        measure: Whether the table counts the capacity units of its calls.
        sleep: Waits for a number of seconds.
        for_each: Makes calls, possibly in parallel.
        push: Queues and targets of deliveries. Default: those of `settings`.
        realtime: Makes the sender of messages to connections. Default: that of `settings`.
        hooks: Makes the queue and the target of webhooks. Default: those of `settings`.
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
        realtime=_messages(settings, realtime),
        hooks=hooks or _webhooks(settings, clock),
    )


def _pushing(
    settings: Settings, clock: Clock, for_each: ForEach, given: DeliveryDependencies | None
) -> Callable[[], DeliveryDependencies] | None:
    """Return a function that creates the queues and targets of deliveries.

    Return None without push delivery.
    """
    if given is not None:
        return lambda: given
    url = settings.dispatch_queue
    if url is None:
        return None

    def make() -> DeliveryDependencies:
        from ojs.services.deliveries.parts import AllowedTargets, DeliveryDependencies
        from ojs.targets.queues import SqsSendQueue, SqsWakeQueue

        return DeliveryDependencies(
            wakes=SqsWakeQueue(url, clock),
            target=_Targets(clock, for_each, destinations=settings.destinations).of,
            allowed=AllowedTargets(
                settings.push_functions, settings.egress_hosts, check_endpoint=_check_endpoint
            ),
            sends=None if settings.send_queue is None else SqsSendQueue(settings.send_queue),
        )

    return make


def _webhooks(settings: Settings, clock: Clock) -> Callable[[], WebhookDependencies] | None:
    """Return a function that creates the queue and the target of webhooks, or None without them."""
    url = settings.webhook_queue
    if url is None:
        return None

    def make() -> WebhookDependencies:
        from ojs.services.deliveries.parts import AllowedTargets
        from ojs.services.webhooks.parts import WebhookDependencies
        from ojs.targets.queues import SqsHookQueue
        from ojs.targets.webhooks import WebhookTarget

        allowed = AllowedTargets(egress_hosts=settings.egress_hosts, check_endpoint=_check_endpoint)
        return WebhookDependencies(SqsHookQueue(url), WebhookTarget(clock), allowed)

    return make


def _messages(
    settings: Settings, given: Callable[[], Connections] | None
) -> Callable[[], Connections] | None:
    """Return a function that creates the sender of messages, or None without a WebSocket API."""
    endpoint = settings.socket_endpoint
    if settings.realtime == "off" or given is not None or endpoint is None:
        return None if settings.realtime == "off" else given

    def make() -> Connections:
        from ojs.targets.connections import ApiGatewayConnections

        return ApiGatewayConnections(endpoint)

    return make


def _check_endpoint(url: str) -> None:
    from ojs.targets.guard import Blocked, place

    try:
        place(url)
    except Blocked as refusal:
        raise ValueError(str(refusal)) from None


class _Targets:
    """The push delivery targets of a container. Each is created on first use."""

    def __init__(self, clock: Clock, for_each: ForEach, *, destinations: bool) -> None:
        self._clock = clock
        self._for_each = for_each
        self._destinations = destinations

    def of(self, delivery: Delivery) -> Target:
        """Return the target of a delivery."""
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
    """Return the enqueue middleware. Without middleware, return None and import no module."""
    if not (settings.middleware or more):
        return None
    from ojs.services.jobs.middleware import MiddlewareChain

    timeout_ms = settings.middleware_timeout_ms
    named: list[str | Middleware] = [*settings.middleware, *more]
    return MiddlewareChain(named, timeout_ms=timeout_ms, service=settings.service)


_lock = threading.Lock()
_current: Runtime | None = None


def current() -> Runtime:
    """Return the container's runtime. The first call creates it from the environment variables."""
    global _current  # noqa: PLW0603 - one runtime for each container is the point
    if _current is None:
        with _lock:
            if _current is None:
                _current = build(Settings.from_environment())
    return _current


def flush() -> None:
    """Call `Runtime.flush` if there is a runtime."""
    if _current is not None:
        _current.flush()


def prepare(*services: str) -> None:
    """Create the container's runtime and the named services while Lambda initializes the function.

    Lambda provides a full CPU during this time. If this fails, the error is ignored, for example if
    environment variables are missing. A service that is not named is imported by the first request
    that needs it.
    """
    # The first request tries to create the runtime again, and returns the error.
    with suppress(Exception):
        for service in services:
            getattr(current(), service)
        if (chain := current().middleware) is not None:
            chain.load()
        # Creating the DynamoDB client takes some time as well.
        _ = current().origin


def use(runtime: Runtime) -> None:
    """Set the container's runtime. The local server and tests provide their own."""
    global _current  # noqa: PLW0603 - see current()
    _current = runtime
