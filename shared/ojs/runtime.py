"""The composition root: one set of stores and services for each container."""

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
from ojs.services.for_each import ForEach, in_threads
from ojs.settings import Settings
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
    from ojs.middleware import Middleware
    from ojs.services.bulk.acts import JobActs
    from ojs.services.bulk.of_jobs import JobSlices
    from ojs.services.bulk.runner import BulkRunner
    from ojs.services.crons.firing import CronFiring
    from ojs.services.crons.manage import CronJobs
    from ojs.services.crons.zone_sweep import ZoneSweep
    from ojs.services.dead_letter.archive import Archive
    from ojs.services.dead_letter.prune import PruneSweep
    from ojs.services.dead_letter.redrive import Redrive
    from ojs.services.dead_letter.replay import ReplaySweep
    from ojs.services.dead_letter.statistics import DeadLetterStatistics
    from ojs.services.deliveries.dispatch import Dispatch
    from ojs.services.deliveries.manage import Deliveries
    from ojs.services.deliveries.parts import PushParts
    from ojs.services.deliveries.settle import Settle
    from ojs.services.deliveries.sweep import DeliverySweep
    from ojs.services.deliveries.wake import DeliveryWake
    from ojs.services.jobs.batch_finish import BatchFinish
    from ojs.services.jobs.bulk_push import BulkPush
    from ojs.services.jobs.dead_letter_copies import DeadLetterCopies
    from ojs.services.jobs.empty_lines import EmptyLines
    from ojs.services.jobs.enqueue import Enqueue
    from ojs.services.jobs.fetch import Fetch
    from ojs.services.jobs.finish import Finish
    from ojs.services.jobs.idempotent_push import IdempotentPush, KeyTurn
    from ojs.services.jobs.lost_leases import LostLeases
    from ojs.services.jobs.manage import JobManagement
    from ojs.services.jobs.middleware import MiddlewareChain
    from ojs.services.jobs.moving import JobMove
    from ojs.services.jobs.new_queues import NewQueues
    from ojs.services.jobs.placement import FairQueuePlacement
    from ojs.services.jobs.time_transitions import TimeTransitions
    from ojs.services.jobs.transitions import JobChanges
    from ojs.services.listing.dead_letters import DeadLetterSearch
    from ojs.services.listing.jobs import JobListing
    from ojs.services.listing.unique_locks import UniqueListing
    from ojs.services.operations.access_keys import AccessKeys
    from ojs.services.operations.actions import Actions
    from ojs.services.operations.authentication import Authentication, PrincipalLookup
    from ojs.services.operations.events import Events
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
    from ojs.services.sweeping.jobs import JobSweep
    from ojs.services.sweeps import Sweep, SweepQueues
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
    from ojs.store.jobs.fair_queue import BackfillCursors
    from ojs.store.jobs.idempotency_keys import IdempotencyKeys
    from ojs.store.jobs.payload_change import PayloadChange
    from ojs.store.workflows.workflows import WorkflowStore
    from ojs.targets.queues import SqsOutcomeQueue

_building = threading.RLock()


class _Row:
    """An attribute whose class is imported, and built once, on first use."""

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
        # The attribute of the instance takes its place.
        with _building:
            if self._name not in vars(root):
                wanted = self._when is None or self._when(root)
                vars(root)[self._name] = self.build(root) if wanted else None
            return vars(root)[self._name]

    def build(self, root: Any) -> object:
        """A new instance. Raises TypeError if a parameter without a default is not provided."""
        module, _, name = self._path.partition(":")
        made = getattr(import_module(module), name)
        return made(**self.arguments(root, made.__init__.__code__))

    def arguments(self, root: Any, code: CodeType) -> dict[str, object]:
        """What the sources and the places provide for the parameters of a constructor."""
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
    """A row: `path` names a module and its class, the annotation its type.

    An argument comes from its source, or else from the first of the root's `places` that has an
    attribute with the name of the parameter, or else it is the default. The attribute is None
    unless `when` holds.
    """
    return _Row(path, when, sources)


class Stores:
    """The stores that several services share."""

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
        self.queues = QueueStore(table, self.registry)
        self.pools = PoolStore(table, self.registry)
        self.workers = WorkerStore(table)
        self.maintenance = MaintenanceStore(table, clock)

    crons: CronStore = provided("ojs.store.crons.crons:CronStore")
    deliveries: DeliveryStore = provided("ojs.store.deliveries.deliveries:DeliveryStore")
    directory: DeliveryDirectory = provided("ojs.store.deliveries.deliveries:DeliveryDirectory")
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
    backfill_cursors: BackfillCursors = provided("ojs.store.jobs.fair_queue:BackfillCursors")
    actions: ActionStore = provided("ojs.store.deployment.actions:ActionStore")

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

    def stored(self, queue: Queue, most: int) -> int:
        """How many jobs of a queue are stored and not done, counted up to `most`."""
        return len(self.recount.listed(queue, most)[0])

    def available(self, queues: Sequence[str]) -> Mapping[str, int]:
        """How many jobs of each queue are available, as the projection has counted them."""
        return self.statistics.available(queues)


def _pushes(runtime: Runtime) -> bool:
    return runtime.push_parts is not None


def _remembered_ms(runtime: Runtime) -> int:
    return 1_000 * runtime.settings.authorizer_cache_s


class Runtime:
    """The services that handlers call. A service that a name of `places` stands for comes first
    from the stores.
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
        push: Callable[[], PushParts] | None,
    ) -> None:
        self.settings = settings
        self._push = push
        self.stores = stores
        self.clock = clock
        self.ids = ids
        self.sleep = sleep
        self.middleware = middleware
        self.for_each = for_each

    @property
    def places(self) -> Sequence[object]:
        """Where arguments are found by name: `jobs` is a store, and not the service `jobs`."""
        return (self.stores, self, self.settings)

    semaphores: SemaphorePermits = provided(
        "ojs.services.permits.semaphore_permits:SemaphorePermits"
    )
    key_permits: KeyPermits = provided("ojs.services.permits.key_permits:KeyPermits")
    permits: Permits = provided("ojs.services.permits.lifecycle:Permits")
    permit_repair: PermitRepair = provided("ojs.services.permits.repair:PermitRepair")
    bounds: QueueBounds = provided("ojs.services.permits.backpressure:QueueBounds")
    limits: RateLimits = provided("ojs.services.permits.rate_limits:RateLimits")
    empty_lines: EmptyLines = provided("ojs.services.jobs.empty_lines:EmptyLines")
    changes: JobChanges = provided("ojs.services.jobs.transitions:JobChanges")
    placement: FairQueuePlacement = provided("ojs.services.jobs.placement:FairQueuePlacement")
    copies: DeadLetterCopies = provided("ojs.services.jobs.dead_letter_copies:DeadLetterCopies")
    transitions: TimeTransitions = provided("ojs.services.jobs.time_transitions:TimeTransitions")
    new_queues: NewQueues = provided("ojs.services.jobs.new_queues:NewQueues")
    enqueue: Enqueue = provided("ojs.services.jobs.enqueue:Enqueue")
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
    fetch: Fetch = provided("ojs.services.jobs.fetch:Fetch")
    finish: Finish = provided("ojs.services.jobs.finish:Finish")
    batch_finish: BatchFinish = provided("ojs.services.jobs.batch_finish:BatchFinish")
    jobs: JobManagement = provided("ojs.services.jobs.manage:JobManagement")
    moves: JobMove = provided("ojs.services.jobs.moving:JobMove")
    acts: JobActs = provided("ojs.services.bulk.acts:JobActs")
    job_slices: JobSlices = provided("ojs.services.bulk.of_jobs:JobSlices")
    workers: WorkerRegistry = provided("ojs.services.workers.workers:WorkerRegistry")

    def fire(self, name: str) -> Job | None:
        """Fire a cron job that is due. Loaded when there is one."""
        return self.cron_firing.fire(name)

    def stopped(self, jobs: Sequence[Job]) -> Sequence[Job]:
        """The jobs whose workflow has stopped. Loaded with the first job of a workflow."""
        return self.stores.workflows.stopped(jobs)

    def forget_workflow(self, name: str) -> None:
        """Erase a workflow. Loaded when a job of one is erased."""
        self.workflow_control.forget(name)

    def count_untracked(self, queue: str) -> None:
        """Count the depth of a queue anew. Loaded when a queue gets its first bound."""
        self.reconcile.count_untracked(queue)

    def ended(self, job: Job) -> None:
        """Do what follows from the end of a job. Loaded when one of a workflow has changed."""
        if job.workflow is not None:
            self.workflow_advance.job_ended(job)

    def freed(self, job: Job) -> None:
        """Wake who may push another job, after one that stopped otherwise than by its outcome."""
        if self.wake is not None:
            self.wake.permits_released(job)

    def placed(self, job: Job) -> None:
        """Wake who pushes a job."""
        if self.wake is not None:
            self.wake.job_placed(job)

    def opened(self, queue: str) -> None:
        """Wake who pushes the jobs of a queue that may hand out more than before."""
        if self.wake is not None:
            self.wake.queue_opened(queue)

    def held_back(self, queue: Queue) -> None:
        """Have who pushes the jobs of a queue woken when its rate limit lets the next one start."""
        if self.wake is not None:
            self.wake.held_back(queue)

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
    def push_parts(self) -> PushParts | None:
        """Queues and targets of deliveries; None where nothing is pushed."""
        return None if self._push is None else self._push()

    @property
    def pushing(self) -> PushParts:
        """As `push_parts`. Raises Unsupported where nothing is pushed."""
        if self.push_parts is None:
            raise Unsupported("This deployment pushes no jobs.")
        return self.push_parts

    wake: DeliveryWake | None = provided(
        "ojs.services.deliveries.wake:DeliveryWake",
        when=_pushes,
        queue=lambda run: run.pushing.wakes,
    )
    settle: Settle = provided("ojs.services.deliveries.settle:Settle")
    dispatch: Dispatch = provided(
        "ojs.services.deliveries.dispatch:Dispatch",
        target=lambda run: run.pushing.target,
        sends=lambda run: run.pushing.sends,
        allowed=lambda run: run.pushing.allowed,
    )
    # Where outcomes wait that cannot be settled when they are told; None: there is none.
    outcome_queue: SqsOutcomeQueue | None = provided(
        "ojs.targets.queues:SqsOutcomeQueue",
        when=lambda run: run.settings.outcome_queue,
        url=lambda run: run.settings.outcome_queue,
    )
    deliveries: Deliveries = provided("ojs.services.deliveries.manage:Deliveries")
    delivery_sweep: DeliverySweep | None = provided(
        "ojs.services.deliveries.sweep:DeliverySweep", when=_pushes
    )

    # --- for operators --------------------------------------------------------------------------

    queues: QueueConfiguration = provided(
        "ojs.services.queues.configure:QueueConfiguration",
        repair=lambda run: lambda: run.permit_repair,
        backfill=lambda run: lambda: run.backfill,
    )
    deletion: QueueDeletion = provided("ojs.services.queues.deletion:QueueDeletion")
    pools: PoolConfiguration = provided("ojs.services.pools.configure:PoolConfiguration")
    dead_letter: DeadLetterSearch = provided("ojs.services.listing.dead_letters:DeadLetterSearch")
    redrive: Redrive = provided("ojs.services.dead_letter.redrive:Redrive")
    actions: Actions = provided("ojs.services.operations.actions:Actions")
    keys: AccessKeyStore = provided("ojs.store.deployment.access_keys:AccessKeyStore")
    makers: KeyStates = provided("ojs.services.operations.key_states:KeyStates")
    access_keys: AccessKeys = provided("ojs.services.operations.access_keys:AccessKeys")
    authentication: Authentication = provided(
        "ojs.services.operations.authentication:Authentication"
    )
    callers: PrincipalLookup = provided(
        "ojs.services.operations.authentication:PrincipalLookup", remembered_ms=_remembered_ms
    )
    roles: Roles = provided("ojs.services.operations.roles:Roles", remembered_ms=_remembered_ms)

    @cached_property
    def origin(self) -> OriginGuard | None:
        """What lets requests in by where they came from; None: they may come from anywhere."""
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

    # --- what is read ---------------------------------------------------------------------------

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
        from ojs.services.deliveries.parts import AllowedTargets, PushParts
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


def prepare(*services: str) -> None:
    """Build the container's runtime, and these services of it, while its function is initialized,
    with all of a CPU: only where the environment is a function's, and names a table. The first
    request that needs another service imports it.
    """
    # A first request tries again, and is answered, with an error if need be.
    with suppress(Exception):
        for service in services:
            getattr(current(), service)
        if (chain := current().middleware) is not None:
            chain.load()
        # A client takes a while to make, too.
        _ = current().origin


def use(runtime: Runtime) -> None:
    """Put a runtime in place: the local server and tests bring their own."""
    global _current  # noqa: PLW0603 - see current()
    _current = runtime
