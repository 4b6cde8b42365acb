"""The audit log: operator actions with the name of the caller."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from aws_lambda_powertools import Logger

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.access import Principal
from ojs.domain.actions import MAX_CONFIGURATION_BYTES, MAX_PATH, OperatorAction
from ojs.domain.errors import BAD_CURSOR, NotFound, OjsError, naming_field
from ojs.domain.ids import IdSource
from ojs.domain.job import envelope
from ojs.domain.page import Page
from ojs.store.deployment.actions import ActionStore

if TYPE_CHECKING:
    from ojs.domain.edits import Edit

logger = Logger()


class Actions:
    """Records and lists operator actions."""

    def __init__(self, actions: ActionStore, clock: Clock, ids: IdSource) -> None:
        self._store = actions
        self._clock = clock
        self._ids = ids

    def add(
        self,
        who: Principal,
        operation: str,
        method: str,
        path: str,
        status: int,
        edit: Edit | None = None,
    ) -> None:
        """Record an action. Makes one call.

        If the write fails, the action isn't affected, and only the API's log contains it.

        Args:
            who: The caller.
            operation: Name of the operation.
            method: HTTP method.
            path: Path of the request. Cut to MAX_PATH characters.
            status: HTTP status of the response.
            edit: Change of a configuration. Default: none.
        """
        now_ms = self._clock.now_ms()
        action = OperatorAction(
            self._ids.uuid7(), now_ms, operation, method, path[:MAX_PATH], status, who.name, who.key
        )
        if edit is not None and edit.kind:
            sizes = (jsontext.size_of(it) for it in (edit.before, edit.after) if it is not None)
            large = max(sizes, default=0) > MAX_CONFIGURATION_BYTES
            action = replace(
                action,
                kind=edit.kind,
                name=edit.name,
                before=None if large else edit.before,
                after=None if large else edit.after,
                etag=edit.tag,
                omitted=large,
            )
        try:
            self._store.add(action)
        except OjsError:
            logger.exception("Recording an operator action failed", operation=operation)

    def get(self, action_id: str) -> OperatorAction:
        """Return an action. Raises NotFound."""
        found = self._store.get(action_id, now_ms=self._clock.now_ms())
        if found is None:
            raise NotFound("action", action_id)
        return found

    def list(self, *, limit: int, cursor: str | None = None) -> Page[OperatorAction]:
        """Return a page of actions, most recent first. Raises InvalidRequest."""
        if cursor is not None:
            with naming_field("cursor", cursor, BAD_CURSOR):
                envelope.check_job_id(cursor)
        return self._store.list(limit=limit, before=cursor, now_ms=self._clock.now_ms())
