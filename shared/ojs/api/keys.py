"""Access keys, and the permissions of IAM roles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast

from ojs import runtime
from ojs.domain import access, times
from ojs.domain.access import Scope
from ojs.domain.errors import InvalidRequest, Unsupported
from ojs.http import models
from ojs.http.answer import Answer, derived, made, moment, shown, source, unless_empty
from ojs.http.answers import Count, Moment, Positive
from ojs.http.binding import paging, query
from ojs.http.binding.paging import Listed, Pagination
from ojs.http.binding.request import Request
from ojs.http.endpoint import BASE, Parameter, Permission, QueueScope, Reply, Resource, Success
from ojs.http.parameters import PAGING, one_of
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain.access import Credential

# With less time than this, no further key is revoked.
_SPARE_MS = 3_000
# What a revocation does with the keys, cron jobs, and deliveries that the key created.
_MADE = ("keep", "revoke")
_State = Literal["active", "expired", "revoked"]


@record(frozen=True)
class _Known:
    """A key at a time.

    After a revocation, `also` lists the IDs of revoked descendants, and `paused` has the numbers of
    paused cron jobs, deliveries, and webhooks.
    """

    key: access.AccessKey
    now_ms: int
    also: Sequence[str] | None = None
    paused: tuple[int, int, int] | None = None


@derived
def _state(known: _Known) -> _State:
    return cast("_State", known.key.state(known.now_ms))


_s: _Known = source()
_k = _s.key
_new: tuple[_Known, Credential] = source()
_counts: tuple[int, int, int] = source()
_l: Listed[_Known] = source()


class AccessKey(Answer[_Known]):
    """An access key without its secret, or what an IAM role may do."""

    id: str = _k.id
    name: str = _k.name
    role: str = shown(_k.role, absent=True, says="ARN of the IAM role or user; absent: a key")
    scopes: list[str] = made(sorted, _k.scopes)
    queues: list[str] = shown(
        made(lambda queues: None if queues is None else [*queues], _k.queues),
        absent=True,
        says="the only queues it may touch; absent: all",
    )
    tenant: str = shown(_k.tenant, absent=True, says="its tenant; `queues` are local names then")
    max_requests_per_s: Positive = shown(_k.max_requests_per_s, absent=True)
    state: Literal["active", "expired", "revoked"] = _state(_s)
    created_at: Moment = moment(_k.created_ms)
    expires_at: Moment = shown(moment(_k.expires_ms), absent=True)
    revoked_at: Moment = shown(moment(_k.revoked_ms), absent=True)
    last_used_at: Moment = shown(
        moment(_k.used_ms),
        absent=True,
        says="to the length of time for which keys are remembered",
    )
    made_by: str = shown(_k.made_by, absent=True, says="name of the key that made it")
    ancestors: list[str] = shown(
        unless_empty(made(list, _k.ancestors)),
        absent=True,
        says="ids of the keys that it descends from; the last of them made it",
    )


class KeyAnswer(Answer[_Known]):
    """One access key."""

    key: AccessKey = AccessKey.of(_s)


class KeyMadeAnswer(Answer["tuple[_Known, Credential]"]):
    """A new access key."""

    key: AccessKey = AccessKey.of(_new[0])
    secret: str = shown(_new[1].text, says="what to send as bearer token; never shown again")


class KeyCounts(Answer[tuple[int, int, int]]):
    """How many crons, deliveries, and webhooks of a key and its descendants a request paused."""

    crons: Count = _counts[0]
    deliveries: Count = _counts[1]
    webhooks: Count = _counts[2]


class KeyRevokedAnswer(Answer[_Known]):
    """A revoked access key."""

    key: AccessKey = AccessKey.of(_s)
    also_revoked: list[str] = shown(
        made(lambda also: None if also is None else [*also], _s.also),
        absent=True,
        says="ids of its descendants that were revoked with it",
    )
    paused: KeyCounts = shown(KeyCounts.of(_s.paused), absent=True)


class KeysAnswer(Answer[Listed[_Known]]):
    """A page of access keys."""

    items: list[AccessKey] = AccessKey.each(_l.items)
    keys: list[AccessKey] = items
    pagination: Pagination = Pagination.of(_l)


# --- endpoints ------------------------------------------------------------------------------------

_LOOK = Permission(Scope.ADMIN_READ, QueueScope.ALL)
_MANAGE = Permission(Scope.ADMIN_WRITE, QueueScope.ALL)

keys = Resource("admin/keys", "keys")
_roles = Resource("admin/roles", "keys")


def _with(*authorizers: str) -> runtime.Runtime:
    current = runtime.current()
    if current.settings.authorizer not in authorizers:
        # The deployment would ignore such a key or role.
        what = "IAM roles" if authorizers == ("iam",) else "access keys"
        raise Unsupported(
            f"This deployment doesn't support {what}. They require the setting "
            f"authorizer={' or '.join(authorizers)}, but it is {current.settings.authorizer}."
        )
    return current


def _end_ms(body: models.CreateKeyRequest, now_ms: int) -> int | None:
    if body.expires_at is None:
        return None
    return times.timestamp_ms(body.expires_at, now_ms=now_ms)


def _location(key: access.AccessKey) -> dict[str, str]:
    return {"Location": f"{BASE}/admin/keys/{key.id}"}


@keys.endpoint(
    "POST",
    _MANAGE,
    {201: Success(KeyMadeAnswer, "The key, and its secret, shown once.", ("Location",))},
    errors=(403,),
    request=models.CreateKeyRequest,
    example={
        "name": "mailer",
        "scopes": ["jobs:write", "jobs:read"],
        "queues": ["mail", "mail.*"],
        "expires_at": "+P90D",
    },
)
def create_key(request: Request) -> Reply:
    """Make an access key."""
    body = request.parsed(models.CreateKeyRequest)
    current = _with("keys", "none")
    now_ms = current.clock.now_ms()
    key, credential = current.access_keys.create(
        request.principal,
        body.name,
        body.scopes,
        queues=body.queues,
        expires_ms=_end_ms(body, now_ms),
        tenant=body.tenant,
        max_requests_per_s=body.max_requests_per_s,
    )
    return Reply(KeyMadeAnswer.of((_Known(key, now_ms), credential)), 201, _location(key))


@_roles.endpoint(
    "POST",
    _MANAGE,
    {201: Success(KeyAnswer, "The role's record, listed among the keys.", ("Location",))},
    errors=(403, 409),
    request=models.CreateRoleRequest,
    example={
        "role": "arn:aws:iam::123456789012:role/mailer",
        "name": "mailer",
        "scopes": ["work"],
        "queues": ["mail", "mail.*"],
    },
)
def create_role(request: Request) -> Reply:
    """Say what an IAM role may do."""
    body = request.parsed(models.CreateRoleRequest)
    current = _with("iam")
    now_ms = current.clock.now_ms()
    if current.roles.operates(body.role):
        raise InvalidRequest(
            "role",
            "can't be restricted, because the setting iam_operators contains it",
            value=body.role,
        )
    key = current.access_keys.name_role(
        request.principal,
        body.role,
        body.name,
        body.scopes,
        queues=body.queues,
        expires_ms=_end_ms(body, now_ms),
        tenant=body.tenant,
        max_requests_per_s=body.max_requests_per_s,
    )
    return Reply(KeyAnswer.of(_Known(key, now_ms)), 201, _location(key))


@keys.endpoint("GET", _LOOK, KeysAnswer, query=PAGING)
def list_keys(request: Request) -> Reply:
    """List access keys, and roles.

    One page of keys, oldest first.
    """
    current = _with("keys", "iam", "none")
    found = paging.asked(request.query, current.access_keys.list)
    now_ms = current.clock.now_ms()
    return Reply(KeysAnswer.of(found.of([_Known(key, now_ms) for key in found.items])))


@keys.endpoint("GET /{id}", _LOOK, KeyAnswer, errors=(404,))
def get_key(request: Request) -> Reply:
    """Read an access key, or what a role may do.

    The key without its secret.
    """
    current = _with("keys", "iam", "none")
    key = current.access_keys.get(request.named)
    return Reply(KeyAnswer.of(_Known(key, current.clock.now_ms())))


@keys.endpoint(
    "DELETE /{id}",
    _MANAGE,
    KeyRevokedAnswer,
    errors=(403, 404),
    query=(
        Parameter(
            "made",
            one_of(*_MADE, default=_MADE[0]),
            "what happens to the keys that it created, directly or through other keys",
        ),
    ),
)
def revoke_key(request: Request) -> Reply:
    """Revoke an access key, or what a role may do.

    Returns the revoked key.
    """
    current = _with("keys", "iam", "none")
    if query.choice(request.query, "made", _MADE, default=_MADE[0]) == "keep":
        key = current.access_keys.revoke(request.principal, request.named)
        return Reply(KeyRevokedAnswer.of(_Known(key, current.clock.now_ms())))

    def go_on() -> bool:
        return request.remaining_ms() > _SPARE_MS

    key, also = current.access_keys.revoke_with_made(request.principal, request.named, go_on)
    # Paused after the keys are revoked, so that none of the keys can create more.
    crons = current.crons.pause_made(key.id, go_on)
    deliveries = current.deliveries.pause_made(key.id, go_on)
    webhooks = 0
    if current.webhook_parts is not None:
        webhooks = current.webhooks.pause_made(key.id, go_on)
    paused = (crons, deliveries, webhooks)
    return Reply(KeyRevokedAnswer.of(_Known(key, current.clock.now_ms(), also, paused)))
