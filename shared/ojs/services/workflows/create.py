"""Creates workflows."""

from __future__ import annotations

from contextlib import suppress

from ojs.clock import Clock
from ojs.domain.access import Reaches, everything
from ojs.domain.errors import (
    BackendContended,
    BackendError,
    Duplicate,
    OjsError,
    QueueNotFound,
    forbidden,
)
from ojs.domain.ids import IdSource
from ojs.domain.workflow import advance as rules
from ojs.domain.workflow.request import WorkflowDefinition
from ojs.services.workflows.advance import WorkflowAdvance
from ojs.store.queues.queues import QueueStore
from ojs.store.table.errors import WriteNotApplied
from ojs.store.table.races import losing_as
from ojs.store.workflows.workflows import StoredDefinition, WorkflowRecord, WorkflowStore


class WorkflowCreation:
    """Creates workflows."""

    def __init__(
        self,
        *,
        workflows: WorkflowStore,
        workflow_advance: WorkflowAdvance,
        queues: QueueStore,
        clock: Clock,
        ids: IdSource,
        strict_queues: bool = False,
    ) -> None:
        self._workflows = workflows
        self._advance = workflow_advance
        self._queues = queues
        self._clock = clock
        self._ids = ids
        self._strict = strict_queues

    def create(
        self,
        definition: WorkflowDefinition,
        *,
        producer: str | None = None,
        reaches: Reaches = everything,
        trace: str | None = None,
    ) -> WorkflowRecord:
        """Store a workflow, and start the steps without dependencies.

        Up to 1,000 jobs are stored with the workflow. More jobs follow in slices. If the request
        is rejected, nothing is stored.

        Args:
            definition: The validated definition.
            producer: Name of the producer.
            reaches: Returns whether a queue is in the caller's scope.
            trace: Trace context of the request.

        Returns:
            The workflow as stored.

        Raises:
            PermissionDenied: A queue is not in the caller's scope.
            QueueNotFound: A queue does not exist, and queues must be created explicitly.
            Duplicate: The ID is in use.
            OjsError: The first jobs were rejected.
        """
        if not all(map(reaches, definition.queues)):
            raise forbidden()
        if self._strict:
            names = sorted(definition.queues)
            found, _ = self._queues.get_many(names)
            for name in names:
                if name not in found:
                    raise QueueNotFound(name)
        if definition.id is not None and self._workflows.get(definition.id) is not None:
            raise _taken(definition.id)
        now_ms = self._clock.now_ms()
        graph = definition.graph
        new = WorkflowRecord(
            id=definition.id or self._ids.uuid7(),
            kind=graph.root.kind,
            jobs=len(graph.jobs),
            created_ms=now_ms,
            updated_ms=now_ms,
            name=graph.root.name,
            producer=producer,
            trace=trace,
            definition=self._ids.token(),
            chosen_id=definition.id is not None,
        )
        self._workflows.define(new, graph, definition.templates, definition.queues)
        stored = StoredDefinition(graph, definition.queues, definition.templates)
        first = self._advance.decided(stored, new, rules.start(graph))
        with losing_as(lambda _: self._overtaken(new)):
            try:
                return self._advance.resume(stored, None, first)
            except OjsError as error:
                if isinstance(error, WriteNotApplied) or not isinstance(error, BackendError):
                    self._forget(new)
                raise

    def _overtaken(self, new: WorkflowRecord) -> Duplicate | BackendContended:
        self._forget(new)
        if self._workflows.get(new.id) is None:
            return BackendContended("The workflow was not stored, because of concurrent requests.")
        return _taken(new.id)

    def _forget(self, record: WorkflowRecord) -> None:
        """Remove the definition of a workflow that was not stored."""
        with suppress(OjsError):
            self._workflows.remove_definition(record)


def _taken(workflow_id: str) -> Duplicate:
    return Duplicate(
        f"A workflow with the id '{workflow_id}' already exists.",
        details={"existing_workflow_id": workflow_id},
    )
