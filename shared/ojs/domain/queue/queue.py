"""The state and the configuration of a queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, assert_never

from ojs.domain import times
from ojs.domain.errors import (
    Conflict,
    JobTypeNotAllowed,
    PermissionDenied,
    QueueDraining,
    QueueMayStay,
)
from ojs.domain.fair_queue.tags import Fairness
from ojs.domain.queue.config import Layers, QueueConfig
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain.tenant_limits import Tenant


class QueueState(StrEnum):
    """The state of a queue (ojs-queue-config, section 5.1)."""

    ACTIVE = "active"
    PAUSED = "paused"
    # The queue is being deleted and rejects new jobs. The strategy decides whether its jobs are
    # dispatched.
    DRAINING = "draining"


class DeletionStrategy(StrEnum):
    """The action on the jobs of a queue that is deleted.

    With `reject`, a queue with jobs is not deleted. With `drain`, the queue is deleted after its
    jobs have finished.
    """

    REJECT = "reject"
    DISCARD = "discard"
    MOVE = "move"
    DRAIN = "drain"


@record(frozen=True)
class Deletion:
    """The deletion of a queue.

    `target` is the queue to which its jobs are moved. `began_ms` is the start time in ms.
    `affected` is the number of processed jobs. `paused` is whether the queue was paused before.
    """

    strategy: DeletionStrategy
    target: str | None = None
    began_ms: int = 0
    affected: int = 0
    paused: bool = False
    # Jobs that the target queue has rejected so far. Not stored.
    refused: int = 0

    @property
    def before(self) -> QueueState:
        """The state to restore if the queue is not deleted."""
        return QueueState.PAUSED if self.paused else QueueState.ACTIVE


@record(frozen=True)
class PoolMark:
    """Settings of a pool that are copied to its queues.

    If `isolated` is true, only workers of the pool get jobs of the queue. `fairness` is the pool's
    tenant fairness, or None if the pool doesn't set it.
    """

    isolated: bool = False
    fairness: Fairness | None = None

    def compact(self) -> list[Any]:
        """Return the stored form."""
        fairness = [] if self.fairness is None else [self.fairness.compact()]
        return [int(self.isolated), *fairness]

    @classmethod
    def of(cls, stored: Sequence[Any]) -> PoolMark:
        """Read the result of `compact`."""
        isolated, *fairness = stored
        return cls(bool(isolated), Fairness.of(fairness[0]) if fairness else None)


@record(frozen=True)
class Queue:
    """A queue: its state and its configuration."""

    name: str
    state: QueueState = QueueState.ACTIVE
    created_ms: int = 0
    # When the queue was most recently paused or resumed, and when its configuration changed.
    changed_ms: int | None = None
    configured_ms: int | None = None
    layers: Layers = field(default_factory=Layers)
    deletion: Deletion | None = None
    # Whether the depth counter counts the queue's jobs, even if its size limit does not apply yet.
    tracking: bool = False
    # Whether active jobs acquire permits, even if the queue's concurrency limit does not apply yet.
    limiting: bool = False
    # Entries of the worker pools that contain the queue.
    pools: Mapping[str, PoolMark] = field(default_factory=dict)
    # Number of configuration changes.
    changes: int = 0
    # Time (ms) when the fairness backfill started, which adds tags to existing jobs. None when it
    # has finished.
    backfill_since_ms: int | None = None
    # Number of replicas of the queue's record.
    replicas: int = 0
    # The record of its tenant, if it has one and the queue was read for a push or a fetch. Not
    # stored with the queue.
    tenant: Tenant | None = None

    @cached_property
    def config(self) -> QueueConfig:
        """The configuration in force."""
        return self.layers.in_force()

    @property
    def tracks_depth(self) -> bool:
        """Whether the depth counter of the queue counts new jobs."""
        return self.tracking or self.config.bounded

    @property
    def limits_concurrency(self) -> bool:
        """Whether active jobs need concurrency permits of the queue."""
        return self.limiting or self.config.concurrency is not None

    @property
    def fairness(self) -> Fairness | None:
        """The tenant fairness in force, or None if it is not enabled.

        In order of precedence, it is set by the queue, by its pool, or by the policy for new
        queues.
        """
        if "tenant_fairness" not in self.layers.own:
            by_pool = (mark.fairness for mark in self.pools.values() if mark.fairness is not None)
            if (fairness := next(by_pool, None)) is not None:
                return fairness
        return self.config.tenant_fairness

    @property
    def version(self) -> int:
        """A number that increases with each configuration change, even if the queue is created
        again.
        """
        return self.created_ms + self.changes

    @property
    def isolated_by(self) -> str | None:
        """The pool that isolates the queue, or None (ojs-fair-scheduling, section 6.3)."""
        return next((name for name, mark in self.pools.items() if mark.isolated), None)

    def check_job(self, job_type: str, producer: str | None) -> None:
        """Check whether the queue accepts a new job. `producer` is the caller's name, if known.

        Raises QueueDraining, JobTypeNotAllowed, or PermissionDenied. Raises QueueMayStay if the
        deletion of the queue might not be carried out. The caller can retry.
        """
        self.check_type(job_type)
        self.check_producer(producer)

    def check_producer(self, producer: str | None) -> None:
        """Raise PermissionDenied if the queue doesn't accept jobs of this producer."""
        if not self.config.allows_producer(producer):
            raise PermissionDenied(
                f"Queue '{self.name}' doesn't accept jobs of this producer.",
                details={"queue": self.name, "producer": producer},
            )

    def check_kept(self, kept_s: int) -> None:
        """Raise Conflict if the queue keeps finished jobs for less than `kept_s` seconds."""
        kept = self.config.retention
        if min(kept.completed_s, kept.cancelled_s, kept.discarded_s) < kept_s:
            raise Conflict(
                f"Queue '{self.name}' must keep finished jobs for at least {kept_s // 3600} hours. "
                "Increase its retention.",
                details={"queue": self.name, "field": "retention"},
            )

    def check_type(self, job_type: str) -> None:
        """Check a job as `check_job`, but without a producer, for dead letters that an operator
        retries.
        """
        if self.state is QueueState.DRAINING:
            raise QueueMayStay(self.name) if self.may_stay else QueueDraining(self.name)
        self.check_allowed(job_type)

    def check_allowed(self, job_type: str) -> None:
        """Raise JobTypeNotAllowed if the queue doesn't accept jobs of this type."""
        if not self.config.allows_type(job_type):
            raise JobTypeNotAllowed(self.name, job_type, self.config.allowed_job_types)

    @property
    def lanes(self) -> int:
        """The number of lanes, which are parallel partitions of the ready index."""
        return self.config.lanes

    def choose_lane(self, choose: Callable[[int], int]) -> int:
        """Return a random lane for a new job. `choose` returns a number below its argument."""
        return choose(self.lanes) if self.lanes > 1 else 0

    @property
    def paused(self) -> bool:
        """Whether an operator paused the queue. FETCH checks `hands_out` instead."""
        return self.state is QueueState.PAUSED

    @property
    def hands_out(self) -> bool:
        """Whether FETCH dispatches jobs of the queue.

        False while the queue is paused, and while its jobs are being discarded or moved. A deletion
        with `reject` doesn't change the result. A deletion with `drain` dispatches jobs even if the
        queue was paused.
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
        """Whether a deletion with `reject` is in progress, which keeps a queue with jobs."""
        return self.deletion is not None and self.deletion.strategy is DeletionStrategy.REJECT


def to_dict(queue: Queue) -> dict[str, Any]:
    """Return the JSON object of a queue."""
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
    """Return the JSON object of a deletion."""
    shown: dict[str, Any] = {"strategy": deletion.strategy.value}
    if deletion.target is not None:
        shown["target_queue"] = deletion.target
    return {**shown, "started_at": times.format_ms(deletion.began_ms)}
