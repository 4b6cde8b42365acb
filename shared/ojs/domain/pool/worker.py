"""A worker process: its reports, and its directive (ojs-core, "Worker states")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from ojs.domain import times
from ojs.records import record

HEARTBEAT_INTERVAL_S = 5
DEAD_AFTER_MS = 30_000
MAX_ID_BYTES = 255
# Maximum number of jobs of one FETCH request.
MAX_FETCH = 100
MAX_FETCH_QUEUES = 50


def check_worker_id(value: str) -> str:
    """Return `value` if it is a valid worker ID.

    Raises ValueError with the violated rule if it is invalid.
    """
    # Must be first: an unpaired surrogate is not printable and can't be encoded.
    if "|" in value or not value.isprintable():
        raise ValueError("must contain only printable characters, except '|'")
    if not 0 < len(value.encode("utf-8")) <= MAX_ID_BYTES:
        raise ValueError(f"must have 1 to {MAX_ID_BYTES} bytes")
    return value


def check_new_worker_id(value: str) -> str:
    """Check a worker ID as `check_worker_id`, with the additional rules for new workers."""
    if "/" in value or "%" in value:
        # Proxies in front of this server may or may not decode these characters in a path.
        raise ValueError("must not contain '/' or '%', because paths contain worker IDs")
    return check_worker_id(value)


class Directive(StrEnum):
    """Instruction to a worker in the response to a heartbeat."""

    RUNNING = "running"
    QUIET = "quiet"
    TERMINATE = "terminate"


# States that a worker reports before it stops. It gets no more jobs.
STOPPING = frozenset({"drain", "draining", "quiet", "shutting_down", "terminate", "terminating"})


@record(frozen=True)
class Worker:
    """A stored worker. Times in milliseconds since the epoch."""

    id: str
    state: str = "running"
    directive: Directive = Directive.RUNNING
    active_jobs: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)
    first_seen_ms: int = 0
    last_seen_ms: int = 0
    # The pool that the worker registered for. None means the pool `default`.
    pool: str | None = None
    # Name of the access key that most recently wrote the record. None without keys, and in records
    # of versions before 0.3.
    holder: str | None = None

    @property
    def concurrency(self) -> int | None:
        """The concurrency that the worker registered, or None."""
        registered = self.info.get("concurrency")
        return registered if isinstance(registered, int) and registered > 0 else None

    @property
    def may_fetch(self) -> bool:
        """Whether the worker can fetch jobs."""
        return self.directive is Directive.RUNNING and self.state not in STOPPING

    def to_dict(self, now_ms: int) -> dict[str, Any]:
        """Return the JSON object of the worker in listings."""
        state = self.state if self.state in STOPPING else self.directive.value
        stale = now_ms - self.last_seen_ms > DEAD_AFTER_MS
        return {
            **self.info,
            "queues": self.info.get("queues", []),
            **({} if self.pool is None else {"pool": self.pool}),
            "id": self.id,
            "worker_id": self.id,
            "state": "stale" if stale else state,
            "directive": self.directive.value,
            "active_jobs": self.active_jobs,
            "first_seen_at": times.format_ms(self.first_seen_ms),
            "last_heartbeat": times.format_ms(self.last_seen_ms),
            "last_heartbeat_at": times.format_ms(self.last_seen_ms),
        }
