"""Access keys."""

from __future__ import annotations

from functions.admin.app import app
from ojs import runtime
from ojs.domain import times
from ojs.domain.errors import Unsupported
from ojs.http.binding import paging, query
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.contract import models
from ojs.http.contract.operations import BASE, MADE
from ojs.http.views import access_keys as key_views

# Less time than this is not enough for one more key.
_SPARE_MS = 3_000


@app.operation("create_key", strict_query=True)
def create_key(request: Request) -> Answer:
    """Create a key. Only this answer shows its secret."""
    body = request.parsed(models.CreateKeyRequest)
    current = _with_keys()
    now_ms = current.clock.now_ms()
    expires_ms = None
    if body.expires_at is not None:
        expires_ms = times.timestamp_ms(body.expires_at, now_ms=now_ms)
    key, credential = current.access_keys.create(
        request.principal, body.name, body.scopes, queues=body.queues, expires_ms=expires_ms
    )
    headers = {"Location": f"{BASE}/admin/keys/{key.id}"}
    return Answer(key_views.made(key, credential, now_ms), 201, headers)


@app.operation("list_keys", strict_query=True)
def list_keys(request: Request) -> Answer:
    """A page of keys."""
    current = _with_keys()
    page, pagination = paging.read(request.query, current.access_keys.list)
    return Answer(key_views.page(page, pagination, current.clock.now_ms()))


@app.operation("get_key", strict_query=True)
def get_key(request: Request) -> Answer:
    """One key."""
    current = _with_keys()
    key = current.access_keys.get(request.named)
    return Answer(key_views.wrapped(key, current.clock.now_ms()))


@app.operation("revoke_key", strict_query=True)
def revoke_key(request: Request) -> Answer:
    """Revoke a key, or with it all that it made."""
    current = _with_keys()
    made = query.choice(request.query, "made", MADE, default=MADE[0])
    if made == "keep":
        key = current.access_keys.revoke(request.principal, request.named)
        return Answer(key_views.wrapped(key, current.clock.now_ms()))
    key, also = current.access_keys.revoke_with_made(
        request.principal, request.named, go_on=lambda: request.remaining_ms() > _SPARE_MS
    )
    return Answer(key_views.revoked(key, also, current.clock.now_ms()))


def _with_keys() -> runtime.Runtime:
    current = runtime.current()
    if current.settings.authorizer not in ("keys", "none"):
        # Keys would be useless here.
        raise Unsupported("This deployment does not authenticate callers by keys.")
    return current
