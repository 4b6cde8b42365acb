"""A queue, as far as every operation needs to know it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ojs.domain import times


class QueueState(StrEnum):
    """Whether workers are served from it (queue-config seed, section 5.1)."""

    ACTIVE = "active"
    PAUSED = "paused"


@dataclass(frozen=True)
class Queue:
    """A queue's state. `lanes` is its number of parallel lines (design section 4)."""

    name: str
    state: QueueState = QueueState.ACTIVE
    lanes: int = 1
    created_ms: int = 0
    changed_ms: int | None = None

    @property
    def paused(self) -> bool:
        """Whether FETCH gives nothing from it."""
        return self.state is QueueState.PAUSED


def to_dict(queue: Queue) -> dict[str, Any]:
    """The queue as the binding shows it."""
    shown: dict[str, Any] = {
        "name": queue.name,
        "state": queue.state.value,
        "status": queue.state.value,
        "paused": queue.paused,
        "created_at": times.format_ms(queue.created_ms),
    }
    if queue.changed_ms is not None:
        shown["paused_at" if queue.paused else "resumed_at"] = times.format_ms(queue.changed_ms)
    return shown
