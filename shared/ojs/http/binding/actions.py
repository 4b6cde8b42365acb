"""Operators' actions: each is written down once it is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ojs.domain.access import Scope
from ojs.domain.errors import OjsError
from ojs.http.binding import errors
from ojs.http.endpoint import Reach

if TYPE_CHECKING:
    from ojs.http.binding.request import Request
    from ojs.http.endpoint import Implementation, Operation, Reply
    from ojs.runtime import Runtime


def audited(operation: Operation) -> bool:
    """Whether an operation is an operator's: what needs `admin:write`, and what is done to cron
    jobs and workflows that are there, which `jobs:write` allows.
    """
    needed = operation.permission
    if needed.scope is Scope.JOBS_WRITE:
        return needed.reach in {Reach.CRON, Reach.WORKFLOW} and operation.id != "create_workflow"
    return needed.scope is Scope.ADMIN_WRITE


class ActionLog:
    """Runs operations, and writes down what operators did."""

    def __init__(self, current: Callable[[], Runtime]) -> None:
        """`current` is called only when an operator has done something."""
        self._current = current

    def run(self, request: Request, path: str, implementation: Implementation) -> Reply:
        """Do what is asked for, and write it down, unless it was refused. Raises what it raises."""
        operation = request.operation
        if not audited(operation) or _counts_only(request):
            return implementation(request)
        # Of what fails nobody knows how much was done.
        status = 500
        try:
            answer = implementation(request)
            status = answer.status
        except OjsError as error:
            status = errors.kind_of(error).status
            raise
        finally:
            if not 400 <= status < 500:
                actions = self._current().actions
                actions.add(request.principal, operation.id, operation.method, path, status)
        return answer


def _counts_only(request: Request) -> bool:
    """Whether it asks what would be done, and does nothing."""
    if request.operation.request is None or "dry_run" not in (request.raw_body or ""):
        return False
    try:
        return request.object().get("dry_run") is True
    except OjsError:
        return False
