"""The kinds of permits that active jobs have, and the permits that one fetch has acquired.

`KINDS` has one row for each concurrency limit: of the job's queue, its worker pool, its worker in
this pool, its rate limit key, its push delivery, and its tenant. To add a limit, add a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ojs.domain.delivery.delivery import delivery_of, delivery_semaphore
from ojs.domain.job.permits import (
    DELIVERY_PERMIT,
    KEY_PERMIT,
    POOL_PERMIT,
    QUEUE_PERMIT,
    TENANT_PERMIT,
    WORKER_PERMIT,
)
from ojs.domain.pool.pool import Pool, pool_semaphore, worker_semaphore
from ojs.domain.rate_limit.limiter import RATE, LimitDecision, LimiterState, limiter_name
from ojs.domain.tenants import get_tenant
from ojs.records import record
from ojs.store.permits.key_limits import KEPT_S, StartGrant
from ojs.store.table import keys
from ojs.store.table.keys import Position

if TYPE_CHECKING:
    from ojs.domain.delivery.delivery import Delivery
    from ojs.domain.job.job import Job
    from ojs.domain.pool.worker import Worker
    from ojs.domain.queue.queue import Queue
    from ojs.store.permits.counter_items import PermitGrant

# Time (s) without a job after which the semaphore of a worker or delivery is deleted.
WORKER_KEPT_S = 30 * 86_400
# Delay (ms) before a retry if a concurrency key is at its limit and its release time is unknown.
KEY_AGAIN_MS = 5_000


@record
class SemaphoreUse:
    """The permits that a fetch has acquired from one semaphore, by job.

    Attributes:
        kind: Kind of the semaphore (`ojs.domain.job.permits`).
        name: Name of the semaphore.
        limit: Number of permits. None if unlimited.
        version: Version of the configuration that sets the limit.
        run: Token of the fetch.
        exact: Whether an acquisition fails only if no shard has a free permit.
        only: The shards to use. Empty: all.
        full: Whether each of these shards was found without a free permit.
        short: Whether the last acquisition returned fewer permits than requested.
        freed: Whether the fetch released permits of a shard that had no free permit.
        permits: Shard of each acquired permit, by job ID.
        used: IDs of the jobs that were claimed.
    """

    kind: str
    name: str
    limit: int | None
    version: int
    run: str
    exact: bool = False
    only: Sequence[int] = ()
    full: bool = False
    short: bool = False
    freed: bool = False
    permits: dict[str, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)

    @property
    def unused(self) -> list[str]:
        """The jobs that have a permit and are not claimed."""
        return [job_id for job_id in self.permits if job_id not in self.used]


class Candidate(NamedTuple):
    """A job that a fetch might claim, with its position in the ready index and the stored `key`."""

    job_id: str
    position: Position
    key: str

    @property
    def entry(self) -> str:
        """A value that identifies the job at this position.

        It differs for the same job elsewhere.
        """
        return self.job_id + self.key


@record(frozen=True)
class KeyGrant:
    """Permits and counted starts to claim jobs with one rate limit.

    `semaphore` is None if the jobs take no permits. `starts` is None if starts are not counted.
    """

    limiter: str
    semaphore: SemaphoreUse | None
    starts: StartGrant | None


@record
class QueueGrant:
    """The number of jobs of a queue that a fetch can claim, and the number that it claimed.

    If `closed` is true, the queue granted fewer jobs than requested. The fetch then doesn't request
    more.
    """

    queue: Queue
    granted: int = 0
    used: int = 0
    closed: bool = False
    # By strategy: the last grant, and a job that had to wait, or None.
    grants: dict[str, tuple[PermitGrant, str | None]] = field(default_factory=dict)
    # Candidates for which the fetch got no grant.
    waiting: int = 0
    started: str | None = None


@record
class FetchPermits:
    """The permits that one fetch has acquired, and the limits that it knows to be reached.

    The fetch claims jobs for a worker of a pool, or for a delivery. If `shards` is set, it uses
    only these shards of the delivery's semaphore.
    """

    new_run: Callable[[], str]
    pool: Pool | None = None
    worker: Worker | None = None
    delivery: Delivery | None = None
    shards: Sequence[int] = ()
    # By kind of limit, and by queue or key limit if the kind has several.
    uses: dict[tuple[str, str], SemaphoreUse | None] = field(default_factory=dict)
    queues: dict[str, QueueGrant] = field(default_factory=dict)
    # Limiters as read, by key.
    limiters: dict[str, LimiterState] = field(default_factory=dict)
    # Limits of keys that are reached. This fetch claims no more jobs with these limits.
    blocked: dict[str, LimitDecision] = field(default_factory=dict)
    # Grants, by job that can be claimed.
    open: dict[str, KeyGrant] = field(default_factory=dict)
    # Jobs that must be postponed or dropped, because their limit is reached.
    overdue: dict[str, LimitDecision] = field(default_factory=dict)
    # By key: why a job of the key had to wait, and that job. Then a job that can start after all.
    waiting: dict[str, tuple[LimitDecision, str]] = field(default_factory=dict)
    cleared: dict[str, str] = field(default_factory=dict)

    @cached_property
    def run(self) -> str:
        """The token of the fetch."""
        return self.new_run()

    @cached_property
    def held(self) -> dict[str, SemaphoreUse]:
        """The uses of the limits that apply to all jobs of this fetch, regardless of the queue.

        The most specific limit comes first: the permits of a worker or delivery might be used by
        its other fetches.
        """
        kinds = (DELIVERY_PERMIT, WORKER_PERMIT, POOL_PERMIT)
        return {kind: use for kind in kinds if (use := self.use(kind)) is not None}

    def use(self, kind: str, queue: Queue | None = None) -> SemaphoreUse | None:
        """Return the use of the semaphore of a kind. None if no limit applies."""
        at = kind, "" if queue is None else queue.name
        if at not in self.uses:
            self.uses[at] = KINDS[kind].use(self, queue)
        return self.uses[at]

    def list_uses(self, queue: Queue) -> list[SemaphoreUse]:
        """Return the uses of the limits that apply to the jobs of a queue: its own, its tenant's.

        Their order is that of the acquisition.
        """
        kinds = (QUEUE_PERMIT, TENANT_PERMIT)
        return [use for kind in kinds if (use := self.use(kind, queue)) is not None]

    @property
    def held_back(self) -> list[Queue]:
        """The queues whose rate limit has rejected a start."""
        grants = ((each.queue, each.grants.get(RATE)) for each in self.queues.values())
        return [queue for queue, found in grants if found is not None and found[1] is not None]

    @property
    def keys_wait(self) -> list[int | None]:
        """For each key whose limit rejected a start, the time of the next possible start.

        None if a running job of the key must finish first, in any queue.
        """
        return [decision.free_ms for decision in self.blocked.values()]

    @property
    def freed(self) -> bool:
        """Whether the fetch released unused permits of a limit that had no free permit."""
        return any(use is not None and use.freed for use in self.uses.values())

    def exhausted(self, queue: Queue) -> bool:
        """Return whether the queue rejected more permits, and all granted ones are used."""
        grant = self.queues.get(queue.name)
        return grant is not None and grant.closed and grant.used >= grant.granted


# --- the kinds ----------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A concurrency limit.

    `name_of` returns the semaphore that a job has a permit of, based on the job record. `use`
    returns the use by a fetch for the jobs of a queue, or None if no limit applies. The semaphore
    is kept for `kept_s` seconds after its last use. None: permanently.
    """

    name_of: Callable[[Job], str | None]
    use: Callable[[FetchPermits, Queue | None], SemaphoreUse | None]
    kept_s: int | None = None


def _of_queue(fetch: FetchPermits, queue: Queue | None) -> SemaphoreUse | None:
    if queue is None or not queue.limits_concurrency:
        return None
    limit = queue.config.concurrency
    return SemaphoreUse(QUEUE_PERMIT, queue.name, limit, queue.version, fetch.run)


def _of_pool(fetch: FetchPermits, _queue: Queue | None) -> SemaphoreUse | None:
    pool = fetch.pool
    if pool is None or not pool.limits_concurrency:
        return None
    return SemaphoreUse(POOL_PERMIT, pool.semaphore, pool.concurrency, pool.version, fetch.run)


def _of_worker(fetch: FetchPermits, _queue: Queue | None) -> SemaphoreUse | None:
    pool, worker = fetch.pool, fetch.worker
    if pool is None or not pool.by_load or worker is None or worker.concurrency is None:
        return None
    name, limit = worker_semaphore(pool.name, worker.id), worker.concurrency
    return SemaphoreUse(WORKER_PERMIT, name, limit, worker.first_seen_ms, fetch.run)


def _of_delivery(fetch: FetchPermits, _queue: Queue | None) -> SemaphoreUse | None:
    delivery = fetch.delivery
    if delivery is None:
        return None
    # If no permit is free, a fetch stops. The release of a permit of a full shard starts the next
    # fetch.
    return SemaphoreUse(
        DELIVERY_PERMIT,
        delivery.semaphore,
        delivery.concurrency,
        delivery.version,
        fetch.run,
        exact=True,
        only=fetch.shards,
    )


def _of_tenant(fetch: FetchPermits, queue: Queue | None) -> SemaphoreUse | None:
    tenant = None if queue is None else queue.tenant
    if tenant is None or tenant.max_concurrency is None:
        return None
    name, limit = keys.tenant_name(tenant.id), tenant.max_concurrency
    return SemaphoreUse(TENANT_PERMIT, name, limit, tenant.version, fetch.run)


def _by_position(_fetch: FetchPermits, _queue: Queue | None) -> None:
    """Return None, because each job has its own limit (`ojs.services.permits.key_permits`)."""


def _name_of_worker(job: Job) -> str | None:
    if job.pool is None or job.worker_id is None:
        return None
    return worker_semaphore(job.pool, job.worker_id)


def _name_of_key(job: Job) -> str | None:
    if job.limit is None:
        return None
    return keys.limiter(limiter_name(job.limit.key_in(job.queue)))


def _name_of_tenant(job: Job) -> str | None:
    tenant = get_tenant(job.queue)
    return tenant and keys.tenant_name(tenant)


def _name_of_delivery(job: Job) -> str | None:
    name = delivery_of(job.worker_id)
    return name and delivery_semaphore(name)


# By the letter of the kind in job records.
KINDS = {
    QUEUE_PERMIT: Kind(lambda job: job.queue, _of_queue),
    POOL_PERMIT: Kind(lambda job: job.pool and pool_semaphore(job.pool), _of_pool),
    WORKER_PERMIT: Kind(_name_of_worker, _of_worker, WORKER_KEPT_S),
    DELIVERY_PERMIT: Kind(_name_of_delivery, _of_delivery, WORKER_KEPT_S),
    KEY_PERMIT: Kind(_name_of_key, _by_position, KEPT_S),
    TENANT_PERMIT: Kind(_name_of_tenant, _of_tenant),
}


def semaphore_of(job: Job, kind: str) -> str | None:
    """Return the name of the semaphore of one of a job's permits. None for an unknown kind."""
    return KINDS[kind].name_of(job) if kind in KINDS else None
