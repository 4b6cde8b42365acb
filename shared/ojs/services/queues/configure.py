"""Queues: creation, configuration, pause, and resume (ojs-queue-config)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ojs.clock import Clock
from ojs.domain.errors import Conflict, NotFound, QueueNotFound, naming_field
from ojs.domain.job import envelope
from ojs.domain.queue import config as queue_config
from ojs.domain.queue.config import DEFAULT_QUEUE_POLICY, Layers
from ojs.domain.queue.queue import Queue, QueueState
from ojs.domain.rate_limit.window import RateWindow
from ojs.domain.tenants import qualified
from ojs.records import record
from ojs.store.permits.rate_window import RateWindowStore
from ojs.store.permits.semaphore import ConcurrencySemaphore
from ojs.store.queues import queues as store
from ojs.store.table.errors import LostRace
from ojs.store.table.races import losing_as, retry_on_race

if TYPE_CHECKING:
    from ojs.domain.edits import Edit
    from ojs.services.permits.repair import PermitRepair
    from ojs.services.queues.fairness_backfill import FairnessBackfill

# Time to wait for requests that started before a new limit was visible, in seconds.
GRACE_S = 1.0
T = TypeVar("T")


@record(frozen=True)
class QueueUsage:
    """The usage of a queue's own limits: `active` permits, and starts in the rate period."""

    queue: Queue
    active: int
    passed: RateWindow
    now_ms: int


class QueueConfiguration:
    """Creates, configures, pauses, and resumes queues."""

    def __init__(
        self,
        *,
        queues: store.QueueStore,
        clock: Clock,
        semaphore: ConcurrencySemaphore,
        rate_windows: RateWindowStore,
        count_untracked: Callable[[str], None],
        repair: Callable[[], PermitRepair],
        backfill: Callable[[], FairnessBackfill],
        sleep: Callable[[float], None],
        strict_queues: bool = False,
        opened: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Create the service.

        Args:
            queues: Store of the queues.
            clock: Source of the current time.
            semaphore: Store of the concurrency permits.
            rate_windows: Store of the counted starts.
            count_untracked: Counts the jobs of a queue into its depth counter.
            repair: Returns the service that gives permits to running jobs.
            backfill: Returns the service that assigns fairness tags.
            sleep: Waits for a time in seconds.
            strict_queues: Whether queues must be created explicitly.
            opened: Called with the name of a queue that can now dispatch more jobs.
        """
        self._opened = opened
        self._queues = queues
        self._clock = clock
        self._count_untracked = count_untracked
        self._semaphore = semaphore
        self._rate_windows = rate_windows
        self._repair = repair
        self._backfill = backfill
        self._sleep = sleep
        self._strict = strict_queues

    def create(self, name: str, config: object, *, prefix: str = "config.") -> Queue:
        """Create a queue.

        Args:
            name: Name of the queue.
            config: The configuration, as received.
            prefix: Prefix for the names of invalid fields in errors.

        Returns:
            The queue.

        Raises:
            InvalidRequest: The name or the configuration is invalid.
            Unsupported: The configuration has a field that is not supported.
            Conflict: The queue exists.
        """
        _check_name(name)
        own = queue_config.merge({}, queue_config.parse(config, prefix=prefix), prefix=prefix)
        queue_config.check_name(name, own, prefix=prefix)
        queue_config.whole(Layers(own, self._queues.policy().own), prefix=prefix)
        with losing_as(
            lambda lost: Conflict(
                f"Queue '{name}' already exists. To change it, send PUT "
                f"/ojs/v1/queues/{name}/config.",
                current_state=store.from_item(name, lost.item or {}).state,
                details={"queue": name},
            )
        ):
            return self._queues.create(name, own, now_ms=self._clock.now_ms(), explicit=True)

    def get(self, name: str) -> Queue:
        """Return a queue. Raises NotFound."""
        queue = self._queues.get(name)
        if queue is None:
            raise NotFound("queue", name)
        return queue

    def configure(self, name: str, config: object, edit: Edit | None = None) -> Queue:
        """Change the fields that `config` contains. Creates the queue if it does not exist.

        Existing jobs keep the settings that they were enqueued with (ojs-queue-config, section
        4.4). They count towards a new size limit, and running jobs count towards a new concurrency
        limit. If the queue becomes fair, available jobs are reordered by tenant.

        Raises InvalidRequest, and BackendUnavailable if too many jobs run and the request must be
        repeated. Raises PreconditionFailed for the precondition of `edit`.
        """
        _check_name(name)
        changes = queue_config.parse(config)
        queue_config.check_name(name, changes)

        def change() -> Queue:
            now_ms = self._clock.now_ms()
            there = self._queues.get(name)
            seen = {} if there is None else there.layers.own
            own = queue_config.merge(seen, changes)
            if edit is not None:
                edit.change("queue", name, None if there is None else seen, own)
            queue = there or self._created(name, now_ms, edit)
            queue_config.check(queue.layers, own)
            after = Layers(own, queue.layers.inherited).in_force()
            bounds = after.bounded and not queue.config.bounded
            limits = after.concurrency is not None and queue.config.concurrency is None
            if bounds or limits:
                # Three steps, so that the limit holds when the request returns. First make new
                # jobs count, or make dispatched jobs acquire permits. Then count the existing
                # jobs. Then apply the limit.
                self._queues.count(queue, depth=bounds, permits=limits)
            if bounds:
                self._count_untracked(name)
            if limits:
                repair = self._repair()
                counted = repair.of_queue(queue, after.concurrency)
                repair.count_running(counted, now_ms=now_ms)
            configured = self._queues.configure(queue, own, now_ms=now_ms)
            if after.concurrency is not None:
                self._semaphore.set_limit(
                    name, limit=after.concurrency, version=configured.version, now_ms=now_ms
                )
                before = queue.config.concurrency
                # No job was fetched from a queue that did not exist.
                if there is not None and (before is None or after.concurrency < before):
                    repair = self._repair()
                    repair.wait(repair.of_queue(configured), now_ms=now_ms, again=limits)
            if bounds and there is not None:
                # Enqueue requests that started before the limit was visible have stored their jobs
                # by now. Count these jobs here. The sweep finds jobs of slower requests.
                self._sleep(GRACE_S)
                self._count_untracked(name)
            if configured.backfill_since_ms is not None and queue.fairness is None:
                self._backfill().begin(configured, now_ms=now_ms)
            return configured

        configured = until_won(change)
        self._opened(name)
        return configured

    def _created(self, name: str, now_ms: int, edit: Edit | None) -> Queue:
        """Create a queue to configure. Raises LostRace if it exists by now."""
        queue, created = self._queues.create_or_find(name, now_ms=now_ms, explicit=True)
        if not created:
            raise LostRace([])
        if edit is not None:
            edit.note_state(queue.layers.own)
        return queue

    def usage(self, queue: Queue) -> QueueUsage:
        """Return the usage of the queue's own limits."""
        now_ms = self._clock.now_ms()
        permits, starts = self._rate_windows.usage(queue.name, queue.config.concurrency)
        window = starts.window(queue.config.rate_period_ms or 1, now_ms)
        return QueueUsage(queue, permits, window, now_ms)

    def policy(self, tenant: str | None = None) -> Layers:
        """Return the policy for new queues (`_default`), or a tenant's. Empty if none is set."""
        return self._queues.policy(tenant)

    def set_policy(
        self, config: object, edit: Edit | None = None, tenant: str | None = None
    ) -> Layers:
        """Change the policy for queues that are created later.

        Raises InvalidRequest, and PreconditionFailed for the precondition of `edit`.
        """
        changes = queue_config.parse(config, policy=True)

        def change() -> Layers:
            seen = self._queues.policy(tenant).own
            own = queue_config.merge(seen, changes)
            queue_config.whole(Layers(own))
            if edit is not None:
                edit.change("queue policy", qualified(tenant, DEFAULT_QUEUE_POLICY), seen, own)
            now_ms = self._clock.now_ms()
            return self._queues.set_policy(seen, own, now_ms=now_ms, tenant=tenant)

        return until_won(change)

    def pause(self, name: str) -> Queue:
        """Stop dispatching jobs. Running jobs continue, and clients can enqueue.

        See `set_state`.
        """
        return self.set_state(name, QueueState.PAUSED)[0]

    def resume(self, name: str) -> Queue:
        """Dispatch jobs again. See `set_state`."""
        return self.set_state(name, QueueState.ACTIVE)[0]

    def set_state(
        self, name: str, state: QueueState, edit: Edit | None = None
    ) -> tuple[Queue, bool]:
        """Pause or resume a queue. Return it, and whether it is new.

        A missing queue is created, so that it can be paused before its first job. Raises
        QueueNotFound if queues must be created explicitly, and Conflict if the queue is being
        deleted.
        """
        _check_name(name)
        now_ms = self._clock.now_ms()
        created = False
        there = self._queues.get(name)
        if edit is not None:
            seen = None if there is None else {"state": there.state}
            edit.change("queue state", name, seen, {"state": state})
        if there is None:
            if self._strict:
                raise QueueNotFound(name)
            _, created = self._queues.create_or_find(name, now_ms=now_ms, explicit=True)
        with losing_as(
            lambda _: Conflict(
                f"Can't pause or resume queue '{name}', because it is being deleted (state "
                "'draining'). The state must be 'active' or 'paused'.",
                current_state=QueueState.DRAINING,
                expected_states=[QueueState.ACTIVE, QueueState.PAUSED],
                details={"queue": name},
            )
        ):
            queue = self._queues.set_state(name, state, now_ms=now_ms)
        if state is QueueState.ACTIVE:
            self._opened(name)
        return queue, created


def _check_name(name: str) -> None:
    with naming_field("name", name):
        envelope.check_queue(name)


def until_won(change: Callable[[], T]) -> T:
    """Repeat a change that lost a race. Raises BackendUnavailable."""
    return retry_on_race(change, busy="Concurrent requests changed this queue.")
