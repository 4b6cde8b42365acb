"""A queue's state and configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from functools import cached_property
from typing import Any, assert_never

from ojs.domain import times
from ojs.domain.errors import JobTypeNotAllowed, PermissionDenied, QueueDraining, QueueMayStay
from ojs.domain.fair_queue.tags import Fairness
from ojs.domain.queue.config import Layers, QueueConfig
from ojs.records import record


class QueueState(StrEnum):
    """The state of a queue (ojs-queue-config, section 5.1)."""

    ACTIVE = "active"
    PAUSED = "paused"
    # It is being deleted and takes no jobs. The strategy decides whether it hands out jobs.
    DRAINING = "draining"


class DeletionStrategy(StrEnum):
    """What happens to the jobs of a queue that is deleted. With `reject` a queue that has jobs is
    not deleted; with `drain` it is deleted when its jobs are done.
    """

    REJECT = "reject"
    DISCARD = "discard"
    MOVE = "move"
    DRAIN = "drain"


@record(frozen=True)
class Deletion:
    """The deletion of a queue: its strategy, the target of its jobs, when it began (ms), how many
    jobs it has dealt with, and whether the queue was paused before.
    """

    strategy: DeletionStrategy
    target: str | None = None
    began_ms: int = 0
    affected: int = 0
    paused: bool = False
    # Jobs that the target refuses, as far as the request has tried them. Not stored.
    refused: int = 0

    @property
    def before(self) -> QueueState:
        """The state of the queue again if it is not deleted after all."""
        return QueueState.PAUSED if self.paused else QueueState.ACTIVE


@record(frozen=True)
class PoolMark:
    """A pool's settings that are copied to its queues: whether only the pool's workers are served
    from them, and how tenants share them, if the pool sets that.
    """

    isolated: bool = False
    fairness: Fairness | None = None

    def compact(self) -> list[Any]:
        """For storing."""
        fairness = [] if self.fairness is None else [self.fairness.compact()]
        return [int(self.isolated), *fairness]

    @classmethod
    def of(cls, stored: Sequence[Any]) -> PoolMark:
        """Read back what `compact` wrote."""
        isolated, *fairness = stored
        return cls(bool(isolated), Fairness.of(fairness[0]) if fairness else None)


@record(frozen=True)
class Queue:
    """A queue's state and configuration."""

    name: str
    state: QueueState = QueueState.ACTIVE
    created_ms: int = 0
    # When it was last paused or resumed, and when its configuration was last changed.
    changed_ms: int | None = None
    configured_ms: int | None = None
    layers: Layers = field(default_factory=Layers)
    deletion: Deletion | None = None
    # Its jobs are counted at the depth counter, though its bound may not be in force yet.
    tracking: bool = False
    # The same for running jobs and the concurrency limit.
    limiting: bool = False
    # The worker pools it is in.
    pools: Mapping[str, PoolMark] = field(default_factory=dict)
    # How often its configuration has changed.
    changes: int = 0
    # Since when jobs from before it was fair are being given tags; None when that is done.
    backfill_since_ms: int | None = None
    # How many replicas its record has.
    replicas: int = 0

    @cached_property
    def config(self) -> QueueConfig:
        """The configuration in force."""
        return self.layers.in_force()

    @property
    def tracks_depth(self) -> bool:
        """Whether new jobs are counted at the queue's depth counter."""
        return self.tracking or self.config.bounded

    @property
    def limits_concurrency(self) -> bool:
        """Whether running jobs need concurrency permits of the queue."""
        return self.limiting or self.config.concurrency is not None

    @property
    def fairness(self) -> Fairness | None:
        """How its tenants share it: set by the queue itself, by its pool, or by the policy for new
        queues, in this order; None if they do not.
        """
        if "tenant_fairness" not in self.layers.own:
            by_pool = (mark.fairness for mark in self.pools.values() if mark.fairness is not None)
            if (fairness := next(by_pool, None)) is not None:
                return fairness
        return self.config.tenant_fairness

    @property
    def version(self) -> int:
        """A number that grows with each change of the configuration, also across deletions."""
        return self.created_ms + self.changes

    @property
    def isolated_by(self) -> str | None:
        """The pool whose workers alone are served from it (ojs-fair-scheduling, section 6.3)."""
        return next((name for name, mark in self.pools.items() if mark.isolated), None)

    def check_job(self, job_type: str, producer: str | None) -> None:
        """Raise QueueDraining, JobTypeNotAllowed or PermissionDenied if it refuses a new job.

        `producer` is the caller's name, if known. Raises QueueMayStay for a queue whose deletion
        may still be refused: the caller may try again.
        """
        self.check_type(job_type)
        self.check_producer(producer)

    def check_producer(self, producer: str | None) -> None:
        """Raise PermissionDenied if it admits no jobs of this producer."""
        if not self.config.allows_producer(producer):
            raise PermissionDenied(
                f"Queue '{self.name}' doesn't accept jobs of this producer.",
                details={"queue": self.name, "producer": producer},
            )

    def check_type(self, job_type: str) -> None:
        """The same without a producer: for dead letters that an operator retries."""
        if self.state is QueueState.DRAINING:
            raise QueueMayStay(self.name) if self.may_stay else QueueDraining(self.name)
        self.check_allowed(job_type)

    def check_allowed(self, job_type: str) -> None:
        """Raise JobTypeNotAllowed for another type than those that it allows."""
        if not self.config.allows_type(job_type):
            raise JobTypeNotAllowed(self.name, job_type, self.config.allowed_job_types)

    @property
    def lanes(self) -> int:
        """Number of parallel ready lines."""
        return self.config.lanes

    def choose_lane(self, choose: Callable[[int], int]) -> int:
        """A random lane for a new job; `choose` returns a number below the one given."""
        return choose(self.lanes) if self.lanes > 1 else 0

    @property
    def paused(self) -> bool:
        """Whether an operator paused it. FETCH uses `hands_out`."""
        return self.state is QueueState.PAUSED

    @property
    def hands_out(self) -> bool:
        """Whether FETCH gives jobs from it.

        Not while it is paused, nor while its jobs are being discarded or moved. A queue that is
        being deleted with `reject` continues as before; with `drain` it hands out its jobs even if
        it was paused.
        """
        if self.deletion is None:
            return not self.paused and self.state is not QueueState.DRAINING
        match self.deletion.strategy:
            case DeletionStrategy.REJECT:
                return not self.deletion.paused
            case DeletionStrategy.DRAIN:
                return True
            case DeletionStrategy.DISCARD | DeletionStrategy.MOVE:
                return False
            case _:
                assert_never(self.deletion.strategy)

    @property
    def may_stay(self) -> bool:
        """Whether it is being deleted only if it is empty, which is being decided."""
        return self.deletion is not None and self.deletion.strategy is DeletionStrategy.REJECT


def to_dict(queue: Queue) -> dict[str, Any]:
    """The JSON object of a queue."""
    shown: dict[str, Any] = {
        "name": queue.name,
        "state": queue.state.value,
        "status": queue.state.value,
        "paused": queue.paused,
        "created_at": times.format_ms(queue.created_ms),
    }
    if queue.configured_ms is not None:
        shown["configured_at"] = times.format_ms(queue.configured_ms)
    if queue.deletion is not None:
        shown["deletion"] = deletion_to_dict(queue.deletion)
    elif queue.changed_ms is not None:
        shown["paused_at" if queue.paused else "resumed_at"] = times.format_ms(queue.changed_ms)
    return shown


def deletion_to_dict(deletion: Deletion) -> dict[str, Any]:
    """The JSON object of a deletion."""
    shown: dict[str, Any] = {"strategy": deletion.strategy.value}
    if deletion.target is not None:
        shown["target_queue"] = deletion.target
    return {**shown, "started_at": times.format_ms(deletion.began_ms)}
