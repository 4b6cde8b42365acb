"""A worker process: what it reports, and the directive it gets (ojs-core, "Worker states")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from ojs.domain import times
from ojs.records import record

HEARTBEAT_INTERVAL_S = 5
DEAD_AFTER_MS = 30_000
# Maximum time (ms) to the next heartbeat of an idle worker that listens.
MAX_NEXT_MS = 600_000
MAX_ID_BYTES = 255
# The most jobs that one FETCH may request.
MAX_FETCH = 100
MAX_FETCH_QUEUES = 50


def check_worker_id(value: str) -> str:
    """A worker's id, of at most MAX_ID_BYTES. Raises ValueError with the rule."""
    # Check this first: an unpaired surrogate is not printable and cannot be encoded.
    if "|" in value or not value.isprintable():
        raise ValueError("must hold printable characters only, and no '|'")
    if not 0 < len(value.encode("utf-8")) <= MAX_ID_BYTES:
        raise ValueError(f"must have 1 to {MAX_ID_BYTES} bytes")
    return value


def check_new_worker_id(value: str) -> str:
    """The id of a worker that introduces itself. Raises ValueError with the rule."""
    if "/" in value or "%" in value:
        # In a path, servers in front of this one decode them or not.
        raise ValueError("must hold no '/' and no '%': paths name workers by their ids")
    return check_worker_id(value)


class Directive(StrEnum):
    """What the answer to a heartbeat tells a worker to do."""

    RUNNING = "running"
    QUIET = "quiet"
    TERMINATE = "terminate"


# States that a worker reports when it is about to stop: it gets no more jobs.
STOPPING = frozenset({"drain", "draining", "quiet", "shutting_down", "terminate", "terminating"})


@record(frozen=True)
class Worker:
    """A worker's record. Times in ms since the epoch."""

    id: str
    state: str = "running"
    directive: Directive = Directive.RUNNING
    active_jobs: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)
    first_seen_ms: int = 0
    last_seen_ms: int = 0
    # The pool that it declared; None stands for the pool `default`.
    pool: str | None = None
    # The name on the key that last wrote its record; None without keys, and before version 0.3.
    holder: str | None = None
    # The connection that it last listened with, and when its next heartbeat is due, if it is idle
    # and reported that.
    connection: str | None = None
    next_ms: int | None = None

    def is_alive(self, now_ms: int, silent_ms: int = DEAD_AFTER_MS) -> bool:
        """Whether it was heard in the last `silent_ms`, or is not expected yet."""
        return now_ms - max(self.last_seen_ms, self.next_ms or 0) <= silent_ms

    @property
    def concurrency(self) -> int | None:
        """How many jobs it runs at most, as it registered; None if it did not say."""
        registered = self.info.get("concurrency")
        return registered if isinstance(registered, int) and registered > 0 else None

    @property
    def may_fetch(self) -> bool:
        """Whether a fetch may give it jobs."""
        return self.directive is Directive.RUNNING and self.state not in STOPPING

    def to_dict(self, now_ms: int) -> dict[str, Any]:
        """The worker as listings show it."""
        state = self.state if self.state in STOPPING else self.directive.value
        return {
            **self.info,
            "queues": self.info.get("queues", []),
            **({} if self.pool is None else {"pool": self.pool}),
            "id": self.id,
            "worker_id": self.id,
            "state": state if self.is_alive(now_ms) else "stale",
            "directive": self.directive.value,
            "active_jobs": self.active_jobs,
            "first_seen_at": times.format_ms(self.first_seen_ms),
            "last_heartbeat": times.format_ms(self.last_seen_ms),
            "last_heartbeat_at": times.format_ms(self.last_seen_ms),
        }
