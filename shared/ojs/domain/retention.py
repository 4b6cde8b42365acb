"""How long jobs are kept once they are done (queue-config seed, 6.3; dead-letter seed, 5)."""

from __future__ import annotations

from dataclasses import dataclass

_DAY_S = 86_400


@dataclass(frozen=True)
class Retention:
    """Seconds from the end of a job to its removal, by how it ended. Defaults are the system's."""

    completed_s: int = 7 * _DAY_S
    cancelled_s: int = 7 * _DAY_S
    discarded_s: int = 30 * _DAY_S
    dead_letter_s: int = 180 * _DAY_S


RETENTION = Retention()
