"""Lifecycle events and their envelope (ojs-events sections 2 to 4)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from ojs.domain import times
from ojs.domain.ids import uuid7
from ojs.domain.tenants import get_tenant
from ojs.records import record

SPECVERSION = "1.0"


@record(frozen=True)
class Event:
    """An event. `time_ms` is in milliseconds since the epoch.

    `subject` names the affected resource, for example a job, a queue, or a worker.
    """

    id: str
    type: str
    source: str
    time_ms: int
    subject: str
    data: Mapping[str, Any]

    @classmethod
    def of(cls, envelope: Mapping[str, Any]) -> Event:
        """Read an envelope that `to_dict` created."""
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
        """Return the envelope that consumers receive."""
        data = dict(self.data)
        if (
            tenant := get_tenant(str(data.get("queue") or data.get("cron_name") or ""))
        ) is not None:
            data["tenant_id"] = tenant
        return {
            "specversion": SPECVERSION,
            "id": self.id,
            "type": self.type,
            "source": self.source,
            "time": times.format_ms(self.time_ms),
            "subject": self.subject,
            "data": data,
        }


def event_id(time_ms: int, *what: str) -> str:
    """Derive the ID of an event. The same arguments give the same ID.

    The ID has the format of a UUIDv7: the time of the event, and a hash instead of random bits. If
    an event is recorded again, it has the same ID, so consumers can detect the duplicate.
    """
    digest = hashlib.sha256("\0".join(what).encode("utf-8")).digest()
    random = int.from_bytes(digest[:10], "big")
    return f"evt_{uuid7(time_ms, random >> 62 & 0xFFF, random & (1 << 62) - 1)}"


def source(service: str, component: str, instance: str | None = None) -> str:
    """Build the source of an event: `ojs://{service}/{component}/{instance}`.

    Args:
        service: Name of the service.
        component: Name of the component.
        instance: Name of the instance, or None. It is percent-encoded.
    """
    end = "" if instance is None else f"/{quote(instance, safe='')}"
    return f"ojs://{service}/{component}{end}"


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches one of `patterns`. A pattern can end in `*` (`job.*`, `*`)."""
    return any(
        name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1]))
        for pattern in patterns
    )
