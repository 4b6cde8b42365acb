"""Reads workflows: lists of them, and single ones with the states of their steps."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import field
from itertools import islice
from typing import Any

from ojs.clock import Clock
from ojs.domain.access import Principal
from ojs.domain.errors import BAD_CURSOR, InvalidRequest, NotFound, OjsError, forbidden
from ojs.domain.ids import UUID7
from ojs.domain.job.job import Job
from ojs.domain.job.workflow_step import WorkflowStep
from ojs.domain.page import Page
from ojs.domain.workflow.advance import WorkflowState
from ojs.domain.workflow.graph import Graph, numbers
from ojs.records import record
from ojs.services.workflows.advance import WorkflowAdvance
from ojs.store.jobs.records import JobStore
from ojs.store.workflows.workflows import StoredDefinition, WorkflowRecord, WorkflowStore

# Sort key of a workflow in the list of all workflows.
_LISTED = re.compile(rf"\d{{15}}\|{UUID7.pattern}")
# Maximum number of failed jobs that are read to show why a workflow failed.
MAX_FAILED = 20
# Maximum size in bytes of the errors of steps without a job.
_MOST = 1_000_000


@record(frozen=True)
class WorkflowPart:
    """A workflow and a page of its jobs, with the steps that contain them.

    Attributes:
        record: The workflow.
        graph: Its graph.
        first: Node of the first job.
        after_last: Node of the first job of the next page. None on the last page.
        jobs: Records of started jobs, by node.
        failed: Nodes of the first jobs that failed, in the whole workflow.
        refused: Errors of failed steps without a job, by node.
    """

    record: WorkflowRecord
    graph: Graph
    first: int = 0
    after_last: int | None = None
    jobs: Mapping[int, Job] = field(default_factory=dict)
    failed: tuple[int, ...] = ()
    refused: Mapping[int, Any] = field(default_factory=dict)

    def job_id(self, node: int) -> str | None:
        """Return the ID of the job of a node. None for a composite or a job that wasn't started."""
        if not self.graph.is_job(node) or not _stored(self.record) >> node & 1:
            return None
        return self.record.job_id(node)


def _stored(record: WorkflowRecord) -> int:
    """Return the nodes whose jobs are stored, as a bit set.

    Some started jobs are not stored yet.
    """
    return record.graph_state.started & ~record.starting


def _refusal(workflow_id: str, caller: Principal) -> OjsError:
    """Return the error for a workflow out of reach. To another tenant, it does not exist."""
    return forbidden() if caller.tenant is None else NotFound("workflow", workflow_id)


class WorkflowReading:
    """Reads workflows."""

    def __init__(
        self,
        *,
        workflows: WorkflowStore,
        workflow_advance: WorkflowAdvance,
        jobs: JobStore,
        clock: Clock,
    ) -> None:
        self._workflows = workflows
        self._advance = workflow_advance
        self._jobs = jobs
        self._clock = clock

    def check_reach(self, workflow_id: str, caller: Principal) -> None:
        """Raise PermissionDenied unless the caller's scope includes all queues of a workflow.

        Reads the workflow only for callers with a limited queue scope. For these it can also raise
        NotFound.
        """
        if not caller.limited:
            return
        if not self._reaches(self._workflows.definition(workflow_id), caller):
            raise _refusal(workflow_id, caller)

    def _reaches(self, definition: StoredDefinition, caller: Principal) -> bool:
        return all(map(caller.reaches, definition.queues))

    def listing(
        self, caller: Principal, *, state: WorkflowState | None = None, name: str | None = None
    ) -> Callable[..., Page[WorkflowRecord]]:
        """Return a listing of the workflows in the caller's scope, most recent first.

        Args:
            caller: The caller.
            state: If set, only workflows in this state.
            name: If set, only workflows with this name.

        Returns:
            The function that reads a page. A page can have fewer entries than its limit.
        """

        def page(*, limit: int, cursor: str | None) -> Page[WorkflowRecord]:
            if cursor is not None and not _LISTED.fullmatch(cursor):
                raise InvalidRequest("cursor", BAD_CURSOR, value=cursor)
            found = self._workflows.page(limit=limit, after=cursor)
            now_ms = self._clock.now_ms()
            shown = [
                record
                for record in found.items
                if state in (None, record.state) and name in (None, record.name)
                if not record.gone(now_ms)
            ]
            if caller.limited:
                # Only callers with a limited queue scope cause these reads.
                shown = [
                    record
                    for record in shown
                    if self._reaches(self._workflows.definition(record), caller)
                ]
            return Page(shown, found.next_cursor)

        return page

    def outline(self, record: WorkflowRecord, *, limit: int) -> WorkflowPart:
        """Return a workflow that was just written, with `limit` of its jobs. Reads no job."""
        graph = self._workflows.definition(record).graph
        return WorkflowPart(record, graph, after_last=_after(graph, limit))

    def view(
        self,
        workflow_id: str,
        caller: Principal,
        *,
        limit: int,
        cursor: str | None = None,
        progress: bool = False,
    ) -> WorkflowPart:
        """Return a workflow with a page of its jobs.

        Args:
            workflow_id: ID of the workflow.
            caller: The caller.
            limit: Maximum number of jobs.
            cursor: Node of the first job. Default: the first job of the workflow.
            progress: Whether to read only the active jobs, with their reported progress.

        Returns:
            The workflow and the page of its jobs.

        Raises:
            NotFound: The workflow does not exist.
            PermissionDenied: The caller's scope doesn't include all queues of the workflow.
            InvalidRequest: The cursor is invalid.
        """
        definition, record = self._advance.current(workflow_id)
        if caller.limited and not self._reaches(definition, caller):
            raise _refusal(workflow_id, caller)
        graph = definition.graph
        first = _node(cursor)
        begin = bisect_left(graph.jobs, first)
        shown = graph.jobs[begin : begin + limit]
        state = record.graph_state
        failed = tuple(islice(numbers(state.failed & graph.job_bits), MAX_FAILED))
        wanted = _stored(record) & ~(state.ended if progress else 0)
        ids = {node: record.job_id(node) for node in (*shown, *failed) if wanted >> node & 1}
        # Progress is read eventually consistently. The outcome of a step is read consistently.
        read = self._jobs.read_records(ids.values(), consistent=not progress, progress=progress)
        jobs = {node: read[found] for node, found in ids.items() if found in read}
        without = (node for node in (*shown, *failed) if state.failed >> node & 1)
        gone = {node: state.generation_of(node) for node in without if node not in jobs}
        kept = {} if progress or not gone else self._workflows.kept(record.id, gone, most=_MOST)
        refused = {node: told["error"] for node, told in (kept or {}).items() if "error" in told}
        after = _after(graph, begin + limit)
        return WorkflowPart(record, graph, first, after, jobs, failed, refused)

    def list_following(self, step: WorkflowStep, caller: Principal) -> list[str]:
        """Return the IDs of the stored jobs that directly follow a job in its workflow.

        Empty if the workflow was deleted, or if the caller can't use all of its queues.
        """
        try:
            definition, record = self._advance.current(step.workflow_id)
        except NotFound:
            return []
        if caller.limited and not self._reaches(definition, caller):
            return []
        stored = _stored(record)
        followers = definition.graph.list_followers(step.node)
        return [record.job_id(node) for node in followers if stored >> node & 1]

    def position(self, workflow_id: str, node: int, cursor: str | None) -> int:
        """Return the position of a cursor in the results for a step.

        Args:
            workflow_id: ID of the workflow.
            node: Node of the step.
            cursor: The cursor. Default: the first result.

        Returns:
            The position, from 0.

        Raises:
            NotFound: The workflow does not exist.
            InvalidRequest: The cursor is invalid, or the workflow has no job with this node.
        """
        definition = self._workflows.definition(workflow_id)
        if node not in definition.graph.jobs:
            raise InvalidRequest("step", "must be the node of a job of this workflow", value=node)
        return _node(cursor)


def _after(graph: Graph, at: int) -> int | None:
    return graph.jobs[at] if at < len(graph.jobs) else None


def _node(cursor: str | None) -> int:
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 7):
        raise InvalidRequest("cursor", BAD_CURSOR, value=cursor)
    return int(cursor)
