"""The audit log: actions of operators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, cast
from urllib.parse import quote

from ojs import runtime
from ojs.domain.access import Scope
from ojs.domain.edits import merge_patch
from ojs.domain.requests import Field
from ojs.http.answer import Answer, AsIs, absent, made, moment, shown, source, unless_empty
from ojs.http.answers import Moment
from ojs.http.binding import paging
from ojs.http.binding.paging import Listed, Pagination
from ojs.http.binding.request import Request
from ojs.http.endpoint import BASE, Permission, QueueScope, Reply, Resource
from ojs.http.parameters import PAGING
from ojs.records import record

if TYPE_CHECKING:
    from ojs.domain import actions as domain

_a: domain.OperatorAction = source()
_l: Listed[domain.OperatorAction] = source()


class UndoRequest(AsIs):
    """The request that restores the configuration before an action. Send it as any other."""

    method: str
    path: str
    body: dict[str, Any] = absent()
    headers: Annotated[
        dict[str, str],
        Field(description="the precondition: 412 if it has changed since the action"),
    ]


@record(frozen=True)
class _Undo:
    """How a kind of configuration is restored. `path` has its name in place of `{}`."""

    method: str
    path: str
    # Path of the request that deletes it again, or None if it can't be deleted.
    delete: str | None = None
    # Whether it can be created again after its deletion. A secret would be lost.
    again: bool = False
    # Whether a request merges its fields into the configuration.
    merges: bool = False


_UNDO = {
    "queue": _Undo("PUT", "queues/{}/config", merges=True),
    "queue policy": _Undo("PUT", "queues/{}/config", merges=True),
    "pool": _Undo("PUT", "admin/pools/{}", "admin/pools/{}", again=True),
    "tenant": _Undo("PUT", "admin/tenants/{}", "admin/tenants/{}", again=True),
    "delivery": _Undo("PUT", "admin/deliveries/{}", "admin/deliveries/{}"),
    "cron": _Undo("POST", "cron", "cron/{}", again=True),
    "rate limit": _Undo("PUT", "rate-limits/{}", "rate-limits/{}"),
    "webhook": _Undo("PATCH", "webhooks/subscriptions/{}"),
}
_STATES = {"active": "resume", "paused": "pause"}


def build_undo(action: domain.OperatorAction) -> UndoRequest | None:
    """Return the request that undoes an action, or None if that isn't safe or not possible."""
    before, after = action.before, action.after
    if action.omitted or before == after or action.status >= 500:
        return None
    name = quote(action.name, safe="")
    if action.kind == "queue state":
        verb = _STATES.get((before or {}).get("state", ""))
        return _request("POST", f"queues/{name}/{verb}", {}, {}) if verb else None
    how = _UNDO.get(action.kind)
    if how is None:
        return None
    match = {"If-Match": f'"{action.etag}"'}
    if not before and not how.merges:
        return _request("DELETE", how.delete.format(name), None, match) if how.delete else None
    if before is None or (after is None and not how.again):
        return None
    if after is None:
        match = {"If-None-Match": "*"}
    body = merge_patch(after or {}, before) if how.merges else before
    return _request(how.method, how.path.format(name), body, match)


def _request(
    method: str, path: str, body: Mapping[str, Any] | None, headers: dict[str, str]
) -> UndoRequest:
    sent = {"method": method, "path": f"{BASE}/{path}", "headers": headers}
    return cast("UndoRequest", sent if body is None else {**sent, "body": {**body}})


def _copy(configuration: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if configuration is None else {**configuration}


class OperatorAction(Answer["domain.OperatorAction"]):
    """What an operator did."""

    id: str = _a.id
    at: Moment = moment(_a.at_ms)
    actor: str = shown(_a.actor, absent=True, says="the name on the key; absent if open")
    key: str = shown(_a.key, absent=True, says="id of the key")
    operation: str = shown(_a.operation, says="as in the OpenAPI document")
    method: str = _a.method
    path: str = _a.path
    status: int = shown(
        _a.status, says="HTTP status of the response; rejected requests are not listed"
    )
    resource: str = shown(
        unless_empty(_a.kind), absent=True, says="kind of the configuration that it changed"
    )
    name: str = shown(unless_empty(_a.name), absent=True, says="name of the configuration")
    before: dict[str, Any] = shown(
        made(_copy, _a.before), absent=True, says="absent if there was none"
    )
    after: dict[str, Any] = shown(
        made(_copy, _a.after), absent=True, says="absent if there is none"
    )
    omitted: bool = shown(
        unless_empty(_a.omitted), absent=True, says="before and after are too large for the log"
    )
    undo: UndoRequest = shown(made(build_undo, _a), absent=True, says="absent where it isn't safe")


class OperatorActionAnswer(Answer["domain.OperatorAction"]):
    """What an operator did, at the top level and wrapped."""

    action: OperatorAction = OperatorAction.of(_a)
    _top: OperatorAction = action


class ActionsAnswer(Answer["Listed[domain.OperatorAction]"]):
    """A page of operators' actions."""

    items: list[OperatorAction] = OperatorAction.each(_l.items)
    actions: list[OperatorAction] = items
    pagination: Pagination = Pagination.of(_l)


actions = Resource("admin/actions", "system")


@actions.endpoint("GET", Permission(Scope.ADMIN_READ, QueueScope.ALL), ActionsAnswer, query=PAGING)
def list_actions(request: Request) -> Reply:
    """List the actions of operators.

    One page of actions, latest first.
    """
    listing = runtime.current().actions.list
    return Reply(ActionsAnswer.of(paging.asked(request.query, listing)))


@actions.endpoint(
    "GET /{id}",
    Permission(Scope.ADMIN_READ, QueueScope.ALL),
    OperatorActionAnswer,
    errors=(404,),
)
def get_action(request: Request) -> Reply:
    """Read an action of an operator.

    The action, at the top level and wrapped, and the request that undoes it.
    """
    return Reply(OperatorActionAnswer.of(runtime.current().actions.get(request.named)))
