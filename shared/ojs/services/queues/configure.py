"""Queues: creation, configuration, pause and resume (queue-config seed)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ojs.clock import Clock
from ojs.domain.errors import BackendUnavailable, Conflict, InvalidRequest, NotFound
from ojs.domain.job import envelope
from ojs.domain.queue import config as queue_config
from ojs.domain.queue.config import Layers
from ojs.domain.queue.queue import Queue, QueueState
from ojs.domain.rate_limit.window import RateWindow
from ojs.store.permits.counters import Gates
from ojs.store.queues import queues as store
from ojs.store.table.errors import LostRace

if TYPE_CHECKING:
    from ojs.services.jobs.fairness_backfill import FairnessBackfill
    from ojs.services.permits.repair import PermitRepair

_TRIES = 5
# Requests that began before they could know of a bound are waited for; seconds.
GRACE_S = 1.0
T = TypeVar("T")


@dataclass(frozen=True)
class QueueUsage:
    """How a queue's own limits stand at a time: places taken by running jobs, and what was handed
    out lately, counted in the period of its rate.
    """

    queue: Queue
    active: int
    passed: RateWindow
    now_ms: int


class QueueConfiguration:
    """Changes queues."""

    def __init__(
        self,
        queues: store.QueueStore,
        gates: Gates,
        clock: Clock,
        *,
        settle: Callable[[str], None],
        slots: Callable[[], PermitRepair],
        tagging: Callable[[], FairnessBackfill],
        sleep: Callable[[float], None],
    ) -> None:
        """`settle` counts the jobs that a queue holds into its gate; `sleep` takes seconds."""
        self._queues = queues
        self._clock = clock
        self._settle = settle
        self._gates = gates
        self._slots = slots
        self._tagging = tagging
        self._sleep = sleep

    def create(self, name: str, config: object, *, prefix: str = "config.") -> Queue:
        """Make a queue before its first job; `prefix` goes before the paths of wrong fields.

        Raises InvalidRequest, Unsupported, Conflict when there is such a queue.
        """
        _check_name(name)
        own = queue_config.merge({}, queue_config.parse(config, prefix=prefix), prefix=prefix)
        queue_config.check_name(name, own, prefix=prefix)
        queue_config.whole(Layers(own, self._queues.policy().own), prefix=prefix)
        try:
            return self._queues.create(name, own, now_ms=self._clock.now_ms(), explicit=True)
        except LostRace as lost:
            there = store.from_item(name, lost.item or {})
            raise Conflict(
                f"The queue '{name}' exists already.",
                current_state=there.state,
                details={"queue": name},
            ) from None

    def get(self, name: str) -> Queue:
        """A queue. Raises NotFound."""
        queue = self._queues.get(name)
        if queue is None:
            raise NotFound("queue", name)
        return queue

    def configure(self, name: str, config: object) -> Queue:
        """Change what is named, leave the rest; makes a queue not seen yet.

        Jobs that are there already keep what they were given (queue-config seed, section 4.4), and
        count under a new bound; those that run count under a new limit, and those that wait take
        their turns by tenant. Raises InvalidRequest, BackendUnavailable when so many run that it
        must be asked again.
        """
        _check_name(name)
        changes = queue_config.parse(config)
        queue_config.check_name(name, changes)

        def change() -> Queue:
            now_ms = self._clock.now_ms()
            there = self._queues.get(name)
            queue = there or self._queues.ensure(name, now_ms=now_ms)
            own = queue_config.merge(queue.layers.own, changes)
            queue_config.check(queue.layers, own)
            after = Layers(own, queue.layers.inherited).in_force()
            bounds = after.bounded and not queue.config.bounded
            limits = after.concurrency is not None and queue.config.concurrency is None
            if bounds or limits:
                # First everything that enters is charged (that is handed out takes a place), then
                # what is there already is counted, then the bound (the limit) is in force: it holds
                # from the answer on.
                self._queues.count(queue, charging=bounds, slotting=limits)
            if bounds:
                self._settle(name)
            if limits:
                slots = self._slots()
                slots.begin(slots.of(queue), now_ms=now_ms)
            configured = self._queues.configure(queue, own, now_ms=now_ms)
            if after.concurrency is not None:
                self._gates.limit_slots(
                    name, limit=after.concurrency, version=configured.version, now_ms=now_ms
                )
                before = queue.config.concurrency
                # Nobody fetches from a queue that was not there.
                if there is not None and (before is None or after.concurrency < before):
                    slots = self._slots()
                    slots.wait(slots.of(configured), now_ms=now_ms, again=limits)
            if bounds and there is not None:
                # Pushes that began before they could know of the bound are stored by now, and
                # count. Those that take longer are found by the sweep.
                self._sleep(GRACE_S)
                self._settle(name)
            if configured.tagging_ms is not None and queue.fairness is None:
                self._tagging().begin(configured, now_ms=now_ms)
            return configured

        return until_won(change)

    def standing(self, queue: Queue) -> QueueUsage:
        """How the queue's own limits stand."""
        now_ms = self._clock.now_ms()
        level, passed = self._gates.standing(queue.name)
        window = passed.window(queue.config.rate_period_ms or 1, now_ms)
        return QueueUsage(queue, level.count, window, now_ms)

    def policy(self) -> Layers:
        """The policy for new queues (`_default`); empty when nobody set one."""
        return self._queues.policy()

    def set_policy(self, config: object) -> Layers:
        """Change the policy for queues made from now on. Raises InvalidRequest."""
        changes = queue_config.parse(config, policy=True)

        def change() -> Layers:
            seen = self._queues.policy().own
            own = queue_config.merge(seen, changes)
            queue_config.whole(Layers(own))
            return self._queues.set_policy(seen, own, now_ms=self._clock.now_ms())

        return until_won(change)

    def pause(self, name: str) -> Queue:
        """Stop handing out jobs; enqueueing and running jobs go on. Makes a queue not seen yet."""
        return self._set(name, QueueState.PAUSED)

    def resume(self, name: str) -> Queue:
        """Hand out jobs again."""
        return self._set(name, QueueState.ACTIVE)

    def _set(self, name: str, state: QueueState) -> Queue:
        _check_name(name)
        now_ms = self._clock.now_ms()
        queue = self._queues.get(name) or self._queues.ensure(name, now_ms=now_ms)
        try:
            return self._queues.set_state(name, state, now_ms=now_ms)
        except LostRace:
            raise Conflict(
                f"The queue '{name}' is being deleted.",
                current_state=QueueState.DRAINING,
                expected_states=[QueueState.ACTIVE, QueueState.PAUSED],
                details={"queue": queue.name},
            ) from None


def _check_name(name: str) -> None:
    try:
        envelope.check_queue(name)
    except ValueError as error:
        raise InvalidRequest("name", str(error), value=name) from None


def until_won(change: Callable[[], T]) -> T:
    """Read and write again until nobody came in between. Raises BackendUnavailable."""
    for _ in range(_TRIES):
        try:
            return change()
        except LostRace:
            continue
    raise BackendUnavailable("Others are changing this queue; try again.")
