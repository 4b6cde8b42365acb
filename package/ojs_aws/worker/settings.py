"""What a worker is told when it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_FETCHED = 100
MOST_AT_ONCE = 1_000
_LONGEST_BEAT_S = 20.0


@dataclass(frozen=True)
class Settings:
    """How a worker works. Seconds everywhere."""

    queues: Sequence[str] | None = None
    pool: str | None = None
    strategy: str | None = None
    weights: Mapping[str, int] | None = None
    concurrency: int = 10
    processes: bool = False
    lease_s: float = 60.0
    heartbeat_s: float | None = None
    timeout_s: float | None = 1_800.0
    grace_s: float = 25.0
    poll_s: float = 4.0
    labels: Sequence[str] = ()
    # Between the heartbeats of a worker without jobs: it is taken for dead after 30 s.
    idle_heartbeat_s: float = 25.0
    # The first pause after a fetch that found nothing.
    first_poll_s: float = 0.2
    # For how long slots that become free are gathered, so that one fetch fills several; and for
    # how long a report may wait for a fetch that carries it.
    gather_s: float = 0.1
    report_s: float = 0.5
    # For how long a handler that was told to stop may go on; and for how long the last reports may
    # take after that.
    stop_s: float = 2.0
    settle_s: float = 5.0
    request_s: float = 30.0

    def __post_init__(self) -> None:
        """Raise ValueError for what cannot work."""
        if isinstance(self.queues, str):
            raise ValueError("queues is a list of names")  # noqa: TRY004
        if not self.queues and not self.pool:
            raise ValueError("a worker needs queues, or a pool")
        if not 1 <= self.concurrency <= MOST_AT_ONCE:
            raise ValueError(f"concurrency must be 1 to {MOST_AT_ONCE}")
        if self.lease_s < 1:
            raise ValueError("lease_s must be at least 1")
        if self.heartbeat_s is not None and not 0 < self.heartbeat_s <= self.lease_s / 3:
            raise ValueError("heartbeat_s must be at most a third of lease_s: a beat may get lost")
        if self.poll_s <= 0 or self.grace_s < 0:
            raise ValueError("poll_s must be above 0, grace_s not below")
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise ValueError("timeout_s must be above 0, or None")

    @property
    def longest_end_s(self) -> float:
        """How long a worker takes to end after `grace_s`, at most: its last heartbeat and its
        signing off take two seconds.
        """
        return self.stop_s + self.settle_s + 2.0

    @property
    def longest_beat_s(self) -> float:
        """The longest time between two heartbeats of a worker with jobs: `heartbeat_s`, or a third
        of the lease, at most 20 s. The server can ask for shorter ones.
        """
        return self.heartbeat_s or min(self.lease_s / 3, _LONGEST_BEAT_S)

    @property
    def lease_ms(self) -> int:
        """The lease as the server reads it."""
        return round(self.lease_s * 1_000)

    def membership(self) -> dict[str, Any]:
        """The pool, in every request that may name it."""
        return {} if self.pool is None else {"pool": self.pool}

    def order(self) -> dict[str, Any]:
        """Which jobs a fetch wants, and in which order."""
        named = {
            "queues": None if self.queues is None else list(self.queues),
            "strategy": self.strategy,
            "weights": None if self.weights is None else dict(self.weights),
        }
        return {name: value for name, value in named.items() if value} | self.membership()
