"""Lifecycle events and their envelope (ojs-events sections 2 to 4)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from ojs.domain import times

SPECVERSION = "1.0"


@dataclass(frozen=True)
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
    # 48 bits of time, version 7, 12 bits of the hash, variant 10, 62 bits of the hash.
    value = time_ms << 80 | 0x7 << 76 | (random >> 62 & 0xFFF) << 64
    value |= 0b10 << 62 | random & 0x3FFF_FFFF_FFFF_FFFF
    text = f"{value:032x}"
    return f"evt_{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


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
