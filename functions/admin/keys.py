"""Access keys, and what IAM roles may do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from functions.admin.app import app
from ojs import runtime
from ojs.domain import times
from ojs.domain.access import AccessKey
from ojs.domain.errors import InvalidRequest, Unsupported
from ojs.http.binding import paging, query
from ojs.http.binding.application import Answer
from ojs.http.binding.request import Request
from ojs.http.contract import models
from ojs.http.contract.operations import MADE
from ojs.http.endpoint import BASE
from ojs.http.views import access_keys as key_views

if TYPE_CHECKING:
    from ojs.http.contract import answers

# Less time than this is not enough for one more key.
_SPARE_MS = 3_000


@app.operation("create_key", strict_query=True)
def create_key(request: Request) -> Answer:
    """Create a key. Only this answer shows its secret."""
    body = request.parsed(models.CreateKeyRequest)
    current = _with("keys", "none")
    now_ms = current.clock.now_ms()
    key, credential = current.access_keys.create(
        request.principal,
        body.name,
        body.scopes,
        queues=body.queues,
        expires_ms=_end_ms(body, now_ms),
    )
    return Answer(key_views.made(key, credential, now_ms), 201, _location(key))


@app.operation("create_role", strict_query=True)
def create_role(request: Request) -> Answer:
    """Say what an IAM role may do."""
    body = request.parsed(models.CreateRoleRequest)
    current = _with("iam")
    now_ms = current.clock.now_ms()
    if current.roles.operates(body.role):
        raise InvalidRequest(
            "role", "may do everything: the deployment names it in iam_operators", value=body.role
        )
    key = current.access_keys.name_role(
        request.principal,
        body.role,
        body.name,
        body.scopes,
        queues=body.queues,
        expires_ms=_end_ms(body, now_ms),
    )
    return Answer(key_views.wrapped(key, now_ms), 201, _location(key))


@app.operation("list_keys", strict_query=True)
def list_keys(request: Request) -> Answer:
    """A page of keys."""
    current = _with("keys", "iam", "none")
    page, pagination = paging.read(request.query, current.access_keys.list)
    return Answer(key_views.page(page, pagination, current.clock.now_ms()))


@app.operation("get_key", strict_query=True)
def get_key(request: Request) -> Answer:
    """One key."""
    current = _with("keys", "iam", "none")
    key = current.access_keys.get(request.named)
    return Answer(key_views.wrapped(key, current.clock.now_ms()))


@app.operation("revoke_key", strict_query=True)
def revoke_key(request: Request) -> Answer:
    """Revoke a key, or with it all that it made."""
    current = _with("keys", "iam", "none")
    made = query.choice(request.query, "made", MADE, default=MADE[0])
    if made == "keep":
        key = current.access_keys.revoke(request.principal, request.named)
        return Answer(key_views.wrapped(key, current.clock.now_ms()))

    def go_on() -> bool:
        return request.remaining_ms() > _SPARE_MS

    key, also = current.access_keys.revoke_with_made(request.principal, request.named, go_on)
    # After the keys: none of them can set any more then.
    paused: answers.KeyCounts = {
        "crons": current.crons.pause_made(key.id, go_on),
        "deliveries": current.deliveries.pause_made(key.id, go_on),
    }
    return Answer(key_views.revoked(key, also, paused, current.clock.now_ms()))


def _with(*authorizers: str) -> runtime.Runtime:
    current = runtime.current()
    if current.settings.authorizer not in authorizers:
        # What is asked for would be useless here.
        what = "roles" if authorizers == ("iam",) else "keys"
        raise Unsupported(f"This deployment does not know callers by {what}.")
    return current


def _end_ms(body: models.CreateKeyRequest, now_ms: int) -> int | None:
    if body.expires_at is None:
        return None
    return times.timestamp_ms(body.expires_at, now_ms=now_ms)


def _location(key: AccessKey) -> dict[str, str]:
    return {"Location": f"{BASE}/admin/keys/{key.id}"}
