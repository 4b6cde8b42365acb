"""Access keys as answers show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

from ojs.domain import times
from ojs.domain.access import AccessKey, Credential
from ojs.domain.page import Page

if TYPE_CHECKING:
    from ojs.http.contract import answers


def shown(key: AccessKey, now_ms: int) -> answers.AccessKey:
    """A key without its secret."""
    answer: answers.AccessKey = {
        "id": key.id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "state": cast("Literal['active', 'expired', 'revoked']", key.state(now_ms)),
        "created_at": times.format_ms(key.created_ms),
    }
    if key.role is not None:
        answer["role"] = key.role
    if key.queues is not None:
        answer["queues"] = list(key.queues)
    if key.expires_ms is not None:
        answer["expires_at"] = times.format_ms(key.expires_ms)
    if key.revoked_ms is not None:
        answer["revoked_at"] = times.format_ms(key.revoked_ms)
    if key.used_ms is not None:
        answer["last_used_at"] = times.format_ms(key.used_ms)
    if key.made_by is not None:
        answer["made_by"] = key.made_by
    if key.ancestors:
        answer["ancestors"] = list(key.ancestors)
    return answer


def made(key: AccessKey, credential: Credential, now_ms: int) -> answers.KeyMadeAnswer:
    """A new key with its secret, which cannot be read again."""
    return {"key": shown(key, now_ms), "secret": credential.text}


def wrapped(key: AccessKey, now_ms: int) -> answers.KeyAnswer:
    """One key."""
    return {"key": shown(key, now_ms)}


def revoked(
    key: AccessKey, descendants: Sequence[str], paused: answers.KeyCounts, now_ms: int
) -> answers.KeyRevokedAnswer:
    """A key that was revoked, and what was revoked and paused with it."""
    return {"key": shown(key, now_ms), "also_revoked": list(descendants), "paused": paused}


def page(found: Page[AccessKey], pagination: answers.Pagination, now_ms: int) -> answers.KeysAnswer:
    """A page of keys."""
    items = [shown(key, now_ms) for key in found.items]
    return {"items": items, "keys": items, "pagination": pagination}
