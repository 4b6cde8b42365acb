"""Operators' actions, and callers, as answers show them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ojs.domain import times
from ojs.domain.access import Principal
from ojs.domain.actions import OperatorAction
from ojs.domain.page import Page

if TYPE_CHECKING:
    from typing import Literal

    from ojs.http.contract import answers


def shown(action: OperatorAction) -> answers.OperatorAction:
    """One action."""
    answer: answers.OperatorAction = {
        "id": action.id,
        "at": times.format_ms(action.at_ms),
        "operation": action.operation,
        "method": action.method,
        "path": action.path,
        "status": action.status,
    }
    if action.actor is not None:
        answer["actor"] = action.actor
    if action.key is not None:
        answer["key"] = action.key
    return answer


def page(found: Page[OperatorAction], pagination: answers.Pagination) -> answers.ActionsAnswer:
    """A page of actions."""
    items = [shown(action) for action in found.items]
    return {"items": items, "actions": items, "pagination": pagination}


def caller(
    who: Principal,
    *,
    authorizer: Literal["keys", "jwt", "iam", "none"],
    version: str,
    service: str,
) -> answers.PrincipalAnswer:
    """Who asks, and what they may do."""
    answer: answers.PrincipalAnswer = {
        "scopes": sorted(who.scopes),
        "authorizer": authorizer,
        "version": version,
        "service": service,
    }
    if who.name is not None:
        answer["name"] = who.name
    if who.key is not None:
        answer["key"] = who.key
    if who.queues is not None:
        answer["queues"] = list(who.queues)
    return answer
