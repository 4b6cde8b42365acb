"""A job as the server returns it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FINAL_STATES = frozenset({"completed", "cancelled", "discarded"})


@dataclass(frozen=True)
class Job:
    """A job as the server returned it.

    Times are RFC 3339 strings in UTC. `raw` is the complete JSON object of the response.
    """

    id: str
    type: str
    queue: str = "default"
    args: list[Any] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    # State of the job. `unknown`: the job is stored, but the response with its state was lost.
    state: str = "unknown"
    priority: int = 0
    attempt: int = 0
    max_attempts: int = 0
    tags: list[str] = field(default_factory=list)
    created_at: str | None = None
    scheduled_at: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    timeout_ms: int | None = None
    lease_token: str | None = None
    progress: float | None = None
    result: Any = None
    error: dict[str, Any] | None = None
    raw: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def final(self) -> bool:
        """Whether the job is in a final state: completed, cancelled, or discarded."""
        return self.state in FINAL_STATES

    @property
    def traceparent(self) -> str | None:
        """W3C trace context of the job, or None."""
        found = self.meta.get("traceparent")
        return found if isinstance(found, str) else None

    @classmethod
    def of(cls, shown: object) -> Job:
        """Parse a job in a response.

        Args:
            shown: The JSON object of the job.

        Returns:
            The job.

        Raises:
            ValueError: The value isn't a JSON object, or a field is missing or has the wrong type.
        """
        if not isinstance(shown, Mapping):
            raise ValueError("a job in the response is not a JSON object")  # noqa: TRY004
        known = {name: shown[name] for name in _SHOWN if shown.get(name) is not None}
        for name, kind in _KINDS.items():
            if (name in _NEEDED or name in known) and not isinstance(known.get(name), kind):
                raise ValueError(f"a job in the response has no valid field {name!r}")
        return cls(**known, raw=dict(shown))


_NEEDED = frozenset({"id", "type", "args"})
_KINDS: Mapping[str, type] = {
    "id": str, "type": str, "args": list, "queue": str, "meta": dict, "state": str,
    "attempt": int, "lease_token": str, "timeout_ms": int,
}  # fmt: skip
_SHOWN = tuple(name for name in Job.__dataclass_fields__ if name != "raw")
