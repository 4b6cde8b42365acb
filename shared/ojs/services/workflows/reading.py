"""Reads workflows: lists of them, and one with the states of its steps."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import field
from itertools import islice
from typing import Any

from ojs.clock import Clock
from ojs.domain.access import Principal
from ojs.domain.errors import BAD_CURSOR, InvalidRequest, forbidden
from ojs.domain.ids import UUID7
from ojs.domain.job.job import Job
from ojs.domain.page import Page
from ojs.domain.workflow.advance import WorkflowState
from ojs.domain.workflow.graph import Graph, numbers
from ojs.records import record
from ojs.services.workflows.advance import WorkflowAdvance
from ojs.store.jobs.records import JobStore
from ojs.store.workflows.workflows import StoredDefinition, WorkflowRecord, WorkflowStore

# The key of a workflow in the list of all.
_LISTED = re.compile(rf"\d{{15}}\|{UUID7.pattern}")
# Failed jobs that are read to tell why a workflow failed.
MAX_FAILED = 20
# Bytes of errors of steps without a job that are read.
_MOST = 1_000_000


@record(frozen=True)
class WorkflowPart:
    """A workflow and some of its steps: those in which the jobs from node `first` on are, up to
    the job `after_last`, which is not among them; None stands for the end.

    `jobs` are the records of jobs that were started, by node; `failed` are the first jobs that
    failed, wherever they stand; `refused` are the errors of failed steps without a job.
    """

    record: WorkflowRecord
    graph: Graph
    first: int = 0
    after_last: int | None = None
    jobs: Mapping[int, Job] = field(default_factory=dict)
    failed: tuple[int, ...] = ()
    refused: Mapping[int, Any] = field(default_factory=dict)

    def job_id(self, node: int) -> str | None:
        """The id of the job of a node; None if it was not started, and for a composite."""
        if not self.graph.is_job(node) or not _stored(self.record) >> node & 1:
            return None
        return self.record.job_id(node)


def _stored(record: WorkflowRecord) -> int:
    """The nodes whose jobs were stored, as bits; of those that started some are still to be."""
    return record.graph_state.started & ~record.starting


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
        """Raise PermissionDenied unless the caller may touch all queues of a workflow. Reads it
        for limited callers alone: for these it raises NotFound, too.
        """
        if not caller.limited:
            return
        if not self._reaches(self._workflows.definition(workflow_id), caller):
            raise forbidden()

    def _reaches(self, definition: StoredDefinition, caller: Principal) -> bool:
        return all(map(caller.reaches, definition.queues))

    def listing(
        self, caller: Principal, *, state: WorkflowState | None = None, name: str | None = None
    ) -> Callable[..., Page[WorkflowRecord]]:
        """A listing of the workflows within reach, latest first. A page of it may be short."""

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
                # A limited key pays for looking at the queues of those that it is shown.
                shown = [
                    record
                    for record in shown
                    if self._reaches(self._workflows.definition(record), caller)
                ]
            return Page(shown, found.next_cursor)

        return page

    def outline(self, record: WorkflowRecord, *, limit: int) -> WorkflowPart:
        """A workflow that was just written, with `limit` of its jobs, of which none is read."""
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
        """A workflow with `limit` of its jobs. With `progress` only those of them are read that
        run, and what they have reported.

        Raises NotFound, PermissionDenied, InvalidRequest for a cursor that is none.
        """
        definition, record = self._advance.current(workflow_id)
        if caller.limited and not self._reaches(definition, caller):
            raise forbidden()
        graph = definition.graph
        first = _node(cursor)
        begin = bisect_left(graph.jobs, first)
        shown = graph.jobs[begin : begin + limit]
        state = record.graph_state
        failed = tuple(islice(numbers(state.failed & graph.job_bits), MAX_FAILED))
        wanted = _stored(record) & ~(state.ended if progress else 0)
        ids = {node: record.job_id(node) for node in (*shown, *failed) if wanted >> node & 1}
        # How far a job is may be a moment old; how a step ended is not.
        read = self._jobs.read_records(ids.values(), consistent=not progress, progress=progress)
        jobs = {node: read[found] for node, found in ids.items() if found in read}
        without = (node for node in (*shown, *failed) if state.failed >> node & 1)
        gone = {node: state.generation_of(node) for node in without if node not in jobs}
        kept = {} if progress or not gone else self._workflows.kept(record.id, gone, most=_MOST)
        refused = {node: told["error"] for node, told in (kept or {}).items() if "error" in told}
        after = _after(graph, begin + limit)
        return WorkflowPart(record, graph, first, after, jobs, failed, refused)

    def position(self, workflow_id: str, node: int, cursor: str | None) -> int:
        """The place in the results of a step that a cursor stands for. Raises NotFound, and
        InvalidRequest for a cursor that is none, and where there is no such step.
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
