"""The kinds of permits that running jobs have, and what one fetch acquires of them.

`KINDS` has a row for each concurrency limit: of a job's queue, its worker pool, its worker there,
its rate limit key, and the delivery that pushes it. A new limit is a new row.
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
    WORKER_PERMIT,
)
from ojs.domain.pool.pool import Pool, pool_semaphore, worker_semaphore
from ojs.domain.rate_limit.limiter import RATE, LimitDecision, LimiterState, limiter_name
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

# The semaphore of a worker or delivery is removed when it got no job for so long.
WORKER_KEPT_S = 30 * 86_400
# Delay (ms) before a retry if a concurrency key is at its limit and its release time is unknown.
KEY_AGAIN_MS = 5_000


@record
class SemaphoreUse:
    """What a fetch has acquired of a semaphore of one `kind`: the shard of each permit, by job; and
    which of these jobs have been claimed. `run` is its token (`ojs.domain.job.permits`). An
    `exact` use is refused only if no shard has a permit left; one of `only` some shards asks no
    others. `full` says that each shard that it may ask was seen without a permit left, `short` that
    it got fewer than it wanted, and `freed` that it released some of a shard that had none left.
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
    """A job that a fetch might claim, and its position in the ready line, with the stored `key`."""

    job_id: str
    position: Position
    key: str

    @property
    def entry(self) -> str:
        """The job at this position: it differs from the same job at another one."""
        return self.job_id + self.key


@record(frozen=True)
class KeyGrant:
    """What some jobs with one limit may be claimed with: permits of a semaphore, and starts that
    were counted; None where jobs take no permits, or starts are not counted.
    """

    limiter: str
    semaphore: SemaphoreUse | None
    starts: StartGrant | None


@record
class QueueGrant:
    """How many jobs a queue's limits let a fetch claim, and how many it did.

    `closed` says that the queue has granted less than was wanted, and will not be asked again.
    """

    queue: Queue
    granted: int = 0
    used: int = 0
    closed: bool = False
    # By strategy: the last grant, and the job that had to wait, if one had.
    grants: dict[str, tuple[PermitGrant, str | None]] = field(default_factory=dict)
    # Candidates seen by the fetch that were granted nothing.
    waiting: int = 0
    started: str | None = None


@record
class FetchPermits:
    """What one fetch has acquired of each kind, and what it knows to be refused.

    It takes jobs for a worker of a pool, or for a delivery: of its permits those of `shards`, if
    there are any.
    """

    new_run: Callable[[], str]
    pool: Pool | None = None
    worker: Worker | None = None
    delivery: Delivery | None = None
    shards: Sequence[int] = ()
    # By kind, and by queue or key limit where the kind has several.
    uses: dict[tuple[str, str], SemaphoreUse | None] = field(default_factory=dict)
    queues: dict[str, QueueGrant] = field(default_factory=dict)
    # By key.
    limiters: dict[str, LimiterState] = field(default_factory=dict)
    # By limit of a key: no more jobs of these now.
    blocked: dict[str, LimitDecision] = field(default_factory=dict)
    # By job that can be claimed.
    open: dict[str, KeyGrant] = field(default_factory=dict)
    # Jobs to postpone or drop, because their limit is reached.
    overdue: dict[str, LimitDecision] = field(default_factory=dict)
    # By key: why a job of the key had to wait, and which; a job that may run though others had to
    # wait before.
    waiting: dict[str, tuple[LimitDecision, str]] = field(default_factory=dict)
    cleared: dict[str, str] = field(default_factory=dict)

    @cached_property
    def run(self) -> str:
        """The token of the fetch."""
        return self.new_run()

    @cached_property
    def held(self) -> dict[str, SemaphoreUse]:
        """Of which limits each job needs a permit that this fetch claims, from whatever queue. The
        narrowest first: other fetches of the same worker or delivery may have some of them.
        """
        kinds = (DELIVERY_PERMIT, WORKER_PERMIT, POOL_PERMIT)
        return {kind: use for kind in kinds if (use := self.use(kind)) is not None}

    def use(self, kind: str, queue: Queue | None = None) -> SemaphoreUse | None:
        """The use of the semaphore of a kind; None where there is no limit."""
        at = kind, "" if queue is None else queue.name
        if at not in self.uses:
            self.uses[at] = KINDS[kind].use(self, queue)
        return self.uses[at]

    @property
    def held_back(self) -> list[Queue]:
        """The queues whose rate limit has refused a start."""
        grants = ((each.queue, each.grants.get(RATE)) for each in self.queues.values())
        return [queue for queue, found in grants if found is not None and found[1] is not None]

    @property
    def keys_wait(self) -> list[int | None]:
        """Of each key whose limit has refused a start: when the next one may be, if that is known;
        None where a job of the key must end first, in whatever queue.
        """
        return [decision.free_ms for decision in self.blocked.values()]

    @property
    def freed(self) -> bool:
        """Whether it has released permits that no job took, of a limit that had none left."""
        return any(use is not None and use.freed for use in self.uses.values())

    def exhausted(self, queue: Queue) -> bool:
        """Whether the queue has refused more permits than those taken."""
        grant = self.queues.get(queue.name)
        return grant is not None and grant.closed and grant.used >= grant.granted


# --- the kinds ----------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A limit: the name of the semaphore that a job has a permit of, by its record; how a fetch
    uses it for jobs of a queue, if it is limited; and for how long it is kept after that, in s.
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
    # Whoever is refused stops, until one of the shards that are full is released.
    return SemaphoreUse(
        DELIVERY_PERMIT,
        delivery.semaphore,
        delivery.concurrency,
        delivery.version,
        fetch.run,
        exact=True,
        only=fetch.shards,
    )


def _by_position(_fetch: FetchPermits, _queue: Queue | None) -> None:
    """None: each position has its own limit (`ojs.services.permits.key_permits`)."""


def _name_of_worker(job: Job) -> str | None:
    if job.pool is None or job.worker_id is None:
        return None
    return worker_semaphore(job.pool, job.worker_id)


def _name_of_key(job: Job) -> str | None:
    if job.limit is None:
        return None
    return keys.limiter(limiter_name(job.limit.key_in(job.queue)))


def _name_of_delivery(job: Job) -> str | None:
    name = delivery_of(job.worker_id)
    return name and delivery_semaphore(name)


# By the letter that job records have.
KINDS = {
    QUEUE_PERMIT: Kind(lambda job: job.queue, _of_queue),
    POOL_PERMIT: Kind(lambda job: job.pool and pool_semaphore(job.pool), _of_pool),
    WORKER_PERMIT: Kind(_name_of_worker, _of_worker, WORKER_KEPT_S),
    DELIVERY_PERMIT: Kind(_name_of_delivery, _of_delivery, WORKER_KEPT_S),
    KEY_PERMIT: Kind(_name_of_key, _by_position, KEPT_S),
}


def semaphore_of(job: Job, kind: str) -> str | None:
    """The name of the semaphore of one of a job's permits; None for a kind that is not known."""
    return KINDS[kind].name_of(job) if kind in KINDS else None
