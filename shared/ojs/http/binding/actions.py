"""Records the actions of operators in the audit log, each after it has run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ojs.domain.access import Scope
from ojs.domain.errors import OjsError
from ojs.http.binding import errors
from ojs.http.endpoint import QueueScope

if TYPE_CHECKING:
    from ojs.http.binding.request import Request
    from ojs.http.endpoint import Implementation, Operation, Reply
    from ojs.runtime import Runtime


def audited(operation: Operation) -> bool:
    """Return whether the audit log records an operation.

    It records each operation that requires `admin:write`. With `jobs:write`, it records the
    operations on existing cron jobs and workflows.
    """
    needed = operation.permission
    if needed.scope is Scope.JOBS_WRITE:
        return (
            needed.reach in {QueueScope.CRON, QueueScope.WORKFLOW}
            and operation.id != "create_workflow"
        )
    return needed.scope is Scope.ADMIN_WRITE


class ActionLog:
    """Runs operations and records those of operators."""

    def __init__(self, current: Callable[[], Runtime]) -> None:
        """Store `current`, which is called only when there is an action to record."""
        self._current = current

    def run(self, request: Request, path: str, implementation: Implementation) -> Reply:
        """Run an operation and record it, unless it was rejected with a 4xx status.

        Args:
            request: The request to process.
            path: Path of the request, for the record.
            implementation: The function that processes the request. Its errors are passed on.

        Returns:
            The response of `implementation`.
        """
        operation = request.operation
        if not audited(operation) or _counts_only(request):
            return implementation(request)
        # A request with an unexpected error may have changed something, so it is recorded.
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
                actions.add(
                    request.principal, operation.id, operation.method, path, status, request.edit
                )
        return answer


def _counts_only(request: Request) -> bool:
    """Return whether the request is a dry run, which changes nothing."""
    if request.operation.request is None or "dry_run" not in (request.raw_body or ""):
        return False
    try:
        return request.object().get("dry_run") is True
    except OjsError:
        return False
