"""Access keys over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ojs.domain import times
from ojs.domain.access import AccessKey, Credential
from ojs.domain.page import Page


def shown(key: AccessKey, now_ms: int) -> dict[str, Any]:
    """A key: all but what its holder alone knows."""
    answer: dict[str, Any] = {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "state": key.state(now_ms),
        "created_at": times.format_ms(key.created_ms),
    }
    if key.queues is not None:
        answer["queues"] = list(key.queues)
    for name, ms in (
        ("expires_at", key.expires_ms),
        ("revoked_at", key.revoked_ms),
        ("last_used_at", key.used_ms),
    ):
        if ms is not None:
            answer[name] = times.format_ms(ms)
    if key.made_by is not None:
        answer["made_by"] = key.made_by
    return answer


def made(key: AccessKey, credential: Credential, now_ms: int) -> dict[str, Any]:
    """A new key, with what nobody can read again."""
    return {"key": shown(key, now_ms), "secret": credential.text}


def wrapped(key: AccessKey, now_ms: int) -> dict[str, Any]:
    """One key."""
    return {"key": shown(key, now_ms)}


def page(found: Page[AccessKey], pagination: Mapping[str, Any], now_ms: int) -> dict[str, Any]:
    """A page of keys."""
    items = [shown(key, now_ms) for key in found.items]
    return {"items": items, "keys": items, "pagination": dict(pagination)}
