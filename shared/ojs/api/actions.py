"""The audit log: actions of operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ojs import runtime
from ojs.domain.access import Scope
from ojs.http.answer import Answer, moment, shown, source
from ojs.http.answers import Moment
from ojs.http.binding import paging
from ojs.http.binding.paging import Listed, Pagination
from ojs.http.binding.request import Request
from ojs.http.endpoint import Permission, QueueScope, Reply, Resource
from ojs.http.parameters import PAGING

if TYPE_CHECKING:
    from ojs.domain import actions as domain

_a: domain.OperatorAction = source()
_l: Listed[domain.OperatorAction] = source()


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
