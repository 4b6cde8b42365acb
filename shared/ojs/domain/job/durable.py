"""The part of a job record for durable code: counts of steps and checkpoints. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ojs.records import record

# A larger state is shown once in a job, so that the largest job and state fit into a response.
MAX_REPEATED_BYTES = 262_144


@record(frozen=True)
class Checkpoint:
    """A stored checkpoint of a job.

    `more` has the other fields that an SDK stored with the state. `bytes` is the size of all of it.
    """

    state: Any
    sequence: int
    created_ms: int
    more: Mapping[str, Any]
    bytes: int

    @property
    def repeated(self) -> bool:
        """Whether a job shows the state a second time, in `last_checkpoint`."""
        return self.bytes <= MAX_REPEATED_BYTES

    @property
    def shown_bytes(self) -> int:
        """The size of the fields that a job has for it, in bytes."""
        return self.bytes * (2 if self.repeated else 1)


@record(frozen=True)
class Durable:
    """What the job record stores about durable code.

    Attributes:
        checkpoints: Number of the latest checkpoint.
        cleared: Number of the latest checkpoint that was cleared when the job was retried.
    """

    checkpoints: int = 0
    cleared: int = 0

    @property
    def resumable(self) -> bool:
        """Whether a checkpoint can be stored that was not cleared."""
        return self.checkpoints > self.cleared


NOT_DURABLE = Durable()
