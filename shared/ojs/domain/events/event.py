"""Lifecycle events and their envelope (ojs-events sections 2 to 4)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from ojs.domain import times
from ojs.domain.ids import uuid7
from ojs.records import record

SPECVERSION = "1.0"


@record(frozen=True)
class Event:
    """An event. `time_ms` since the epoch; `subject` is the job, queue, worker or other thing
    affected.
    """

    id: str
    type: str
    source: str
    time_ms: int
    subject: str
    data: Mapping[str, Any]

    @classmethod
    def of(cls, envelope: Mapping[str, Any]) -> Event:
        """The event of an envelope that `to_dict` made."""
        at = datetime.fromisoformat(envelope["time"])
        return cls(
            id=envelope["id"],
            type=envelope["type"],
            source=envelope["source"],
            time_ms=round(at.timestamp() * 1_000),
            subject=envelope["subject"],
            data=envelope["data"],
        )

    def to_dict(self) -> dict[str, Any]:
        """The envelope as consumers get it."""
        return {
            "specversion": SPECVERSION,
            "id": self.id,
            "type": self.type,
            "source": self.source,
            "time": times.format_ms(self.time_ms),
            "subject": self.subject,
            "data": dict(self.data),
        }


def event_id(time_ms: int, *what: str) -> str:
    """The id of an event, which depends on nothing but the arguments.

    It has the form of a UUIDv7: the event's time, and a hash instead of the random part. So an
    event that is recorded again has the same id, and consumers recognize the repetition.
    """
    digest = hashlib.sha256("\0".join(what).encode("utf-8")).digest()
    random = int.from_bytes(digest[:10], "big")
    return f"evt_{uuid7(time_ms, random >> 62 & 0xFFF, random & (1 << 62) - 1)}"


def source(service: str, component: str, instance: str | None = None) -> str:
    """`ojs://{service}/{component}/{instance}`; the name of the instance is quoted."""
    end = "" if instance is None else f"/{quote(instance, safe='')}"
    return f"ojs://{service}/{component}{end}"


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name matches one of `patterns`, which may end in `*` (`job.*`, `*`)."""
    return any(
        name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))
        for pattern in patterns
    )
