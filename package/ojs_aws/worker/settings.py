"""Settings of a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_FETCHED = 100
MOST_AT_ONCE = 1_000
_LONGEST_BEAT_S = 20.0


@dataclass(frozen=True)
class Settings:
    """Settings of a worker. All durations are in seconds."""

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
    realtime: bool = True
    # Interval of the heartbeats (s) of a worker without jobs. The server lists a worker as lost
    # after 30 s.
    idle_heartbeat_s: float = 25.0
    # Pause after the first fetch that returned no job.
    first_poll_s: float = 0.2
    # gather_s: time for which free slots are collected, so that one fetch fills several of them.
    # report_s: maximum time that a report waits for a fetch that includes it.
    gather_s: float = 0.1
    report_s: float = 0.5
    # stop_s: time that a handler has to stop after it was notified. settle_s: time for the last
    # reports after that.
    stop_s: float = 2.0
    settle_s: float = 5.0
    request_s: float = 30.0

    def __post_init__(self) -> None:
        """Raise ValueError for invalid settings."""
        if isinstance(self.queues, str):
            raise ValueError("queues must be a list of names")  # noqa: TRY004
        if not self.queues and not self.pool:
            raise ValueError("a worker requires queues or pool")
        if not 1 <= self.concurrency <= MOST_AT_ONCE:
            raise ValueError(f"concurrency must be 1 to {MOST_AT_ONCE}, but is {self.concurrency}")
        if self.lease_s < 1:
            raise ValueError(f"lease_s must be at least 1, but is {self.lease_s:g}")
        if self.heartbeat_s is not None and not 0 < self.heartbeat_s <= self.lease_s / 3:
            raise ValueError(
                f"heartbeat_s must be at most a third of lease_s ({self.lease_s / 3:g}), but is"
                f" {self.heartbeat_s:g}: the lease must survive a lost heartbeat"
            )
        if self.poll_s <= 0 or self.grace_s < 0:
            raise ValueError("poll_s must be more than 0, and grace_s must be 0 or more")
        if self.timeout_s is not None and self.timeout_s <= 0:
            raise ValueError("timeout_s must be more than 0, or None for no limit")

    @property
    def longest_end_s(self) -> float:
        """Maximum time in seconds that the worker needs to stop, in addition to `grace_s`.

        The last heartbeat and the deregistration take 2 seconds of it.
        """
        return self.stop_s + self.settle_s + 2.0

    @property
    def longest_beat_s(self) -> float:
        """Longest interval of heartbeats in seconds while jobs run.

        It is `heartbeat_s`, or a third of the lease and at most 20. The server can request a
        shorter interval.
        """
        return self.heartbeat_s or min(self.lease_s / 3, _LONGEST_BEAT_S)

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds."""
        return round(self.lease_s * 1_000)

    def membership(self) -> dict[str, Any]:
        """Return the field `pool` of a request, if the worker has a pool."""
        return {} if self.pool is None else {"pool": self.pool}

    def order(self) -> dict[str, Any]:
        """Return the fields of a fetch that select and order jobs."""
        named = {
            "queues": None if self.queues is None else list(self.queues),
            "strategy": self.strategy,
            "weights": None if self.weights is None else dict(self.weights),
        }
        return {name: value for name, value in named.items() if value} | self.membership()
