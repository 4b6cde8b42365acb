"""A queue, as far as every operation needs to know it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

from ojs.domain import times
from ojs.domain.fair_queue.tags import Fairness
from ojs.domain.queue.config import Layers, QueueConfig


class QueueState(StrEnum):
    """Whether workers are served from it (queue-config seed, section 5.1)."""

    ACTIVE = "active"
    PAUSED = "paused"
    # It is ending: takes no jobs. Whether it hands out those it has depends on how it ends.
    DRAINING = "draining"


# What becomes of the jobs of a queue that is deleted (section 5.3): there must be none, they are
# discarded, moved, or (which is ours) worked off.
REJECT, DISCARD, MOVE, DRAIN = "reject", "discard", "move", "drain"
STRATEGIES = (REJECT, DISCARD, MOVE, DRAIN)


@dataclass(frozen=True)
class Deletion:
    """How a queue ends: the strategy, where its jobs go, since when, how many it concerned, and
    whether it was paused before.
    """

    strategy: str
    target: str | None = None
    began_ms: int = 0
    affected: int = 0
    paused: bool = False

    @property
    def before(self) -> QueueState:
        """What the queue is again when it does not end after all."""
        return QueueState.PAUSED if self.paused else QueueState.ACTIVE


@dataclass(frozen=True)
class PoolMark:
    """What a queue knows of a pool it is in: whether the pool has it for itself, and how the pool
    has tenants share it, if it says so.
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


@dataclass(frozen=True)
class Queue:
    """A queue's state and configuration."""

    name: str
    state: QueueState = QueueState.ACTIVE
    created_ms: int = 0
    # When it was paused or resumed last, and when its configuration was changed last.
    changed_ms: int | None = None
    configured_ms: int | None = None
    layers: Layers = field(default_factory=Layers)
    ending: Deletion | None = None
    # Its jobs are charged at the gate, though no bound may be in force: one is about to be.
    charging: bool = False
    # The same of running jobs and the limit on them.
    slotting: bool = False
    # The worker pools it is in.
    pools: Mapping[str, PoolMark] = field(default_factory=dict)
    # How often its configuration was changed.
    changes: int = 0
    # Since when its jobs are being given tags, which it had before its tenants shared it fairly.
    tagging_ms: int | None = None

    @cached_property
    def config(self) -> QueueConfig:
        """The configuration in force."""
        return self.layers.in_force()

    @property
    def charged(self) -> bool:
        """Whether jobs that enter are charged at the queue's gate."""
        return self.charging or self.config.bounded

    @property
    def slotted(self) -> bool:
        """Whether running jobs take places at the queue's gate."""
        return self.slotting or self.config.concurrency is not None

    @property
    def fairness(self) -> Fairness | None:
        """How its tenants share it: as it says itself, else as its pool does, else as the policy
        for new queues did; None when they do not.
        """
        if "tenant_fairness" not in self.layers.own:
            by_pool = (mark.fairness for mark in self.pools.values() if mark.fairness is not None)
            if (fairness := next(by_pool, None)) is not None:
                return fairness
        return self.config.tenant_fairness

    @property
    def version(self) -> int:
        """A number that grows with each change of the configuration, also over a deletion."""
        return self.created_ms + self.changes

    @property
    def isolated_by(self) -> str | None:
        """The pool whose workers alone are served from it (fair-scheduling seed, section 6.3)."""
        return next((name for name, mark in self.pools.items() if mark.isolated), None)

    @property
    def lanes(self) -> int:
        """Number of parallel lines (design section 4)."""
        return self.config.lanes

    @property
    def paused(self) -> bool:
        """Whether an operator paused it. What FETCH asks is `hands_out`."""
        return self.state is QueueState.PAUSED

    @property
    def hands_out(self) -> bool:
        """Whether FETCH gives jobs from it.

        Not while it is paused, nor once its jobs are being discarded or moved. One that is being
        deleted with `reject` goes on as it was before; with `drain` its jobs are worked off, also
        if it was paused.
        """
        if self.ending is None:
            return not self.paused and self.state is not QueueState.DRAINING
        if self.ending.strategy == REJECT:
            return not self.ending.paused
        return self.ending.strategy == DRAIN

    @property
    def may_stay(self) -> bool:
        """Whether it is being deleted on condition that it is empty, which is about to be seen."""
        return self.ending is not None and self.ending.strategy == REJECT


def to_dict(queue: Queue) -> dict[str, Any]:
    """The queue as the binding shows it."""
    shown: dict[str, Any] = {
        "name": queue.name,
        "state": queue.state.value,
        "status": queue.state.value,
        "paused": queue.paused,
        "created_at": times.format_ms(queue.created_ms),
    }
    if queue.configured_ms is not None:
        shown["configured_at"] = times.format_ms(queue.configured_ms)
    if queue.ending is not None:
        shown["deletion"] = ending_to_dict(queue.ending)
    elif queue.changed_ms is not None:
        shown["paused_at" if queue.paused else "resumed_at"] = times.format_ms(queue.changed_ms)
    return shown


def ending_to_dict(ending: Deletion) -> dict[str, Any]:
    """How a queue ends, as the binding shows it."""
    shown: dict[str, Any] = {"strategy": ending.strategy}
    if ending.target is not None:
        shown["target_queue"] = ending.target
    return {**shown, "started_at": times.format_ms(ending.began_ms)}
