"""Stores the jobs of steps that start, in one transaction with the root of the workflow."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.access import everything
from ojs.domain.errors import BackendError, OjsError
from ojs.domain.ids import IdSource
from ojs.domain.job import envelope
from ojs.domain.job.envelope import MAX_BATCH, MAX_JOB_BYTES, MAX_META_BYTES, JobRequest
from ojs.domain.job.job import DEFAULT_QUEUE
from ojs.domain.job.workflow_step import WorkflowStep
from ojs.domain.workflow import results
from ojs.domain.workflow.graph import Graph, bits, numbers
from ojs.services.jobs.enqueue import JobEnqueuer, StaleRead, TransactionExtras
from ojs.services.workflows.results import StepResults, step_name
from ojs.store.table.errors import LostRace, WriteNotApplied
from ojs.store.table.table import Put, Update
from ojs.store.workflows.fan_ins import MIN_SLOTS, FanIn
from ojs.store.workflows.workflows import StoredDefinition, WorkflowRecord, WorkflowStore

# In the metadata of each job: the trace context in which its workflow was created
# (ojs-observability, section 5.3).
TRACE_ORIGIN = "ojs.workflow.trace_origin"
# Space for the parts of a job's content other than its args and results.
_SPARE_BYTES = 4_096


class StepStarts:
    """Starts steps: enqueues their jobs."""

    def __init__(
        self,
        *,
        workflows: WorkflowStore,
        workflow_results: StepResults,
        enqueue: JobEnqueuer,
        clock: Clock,
        ids: IdSource,
    ) -> None:
        self._workflows = workflows
        self._results = workflow_results
        self._enqueue = enqueue
        self._clock = clock
        self._ids = ids

    def next_slice(
        self, record: WorkflowRecord, passed_over: int, full: Container[str], *, singly: bool
    ) -> dict[int, Mapping[str, Any]]:
        """Return the templates of the next jobs to start, up to the maximum size of a batch.

        A job with a unique key is the only one of its slice, because it can be rejected
        separately.

        Args:
            record: The workflow.
            passed_over: Bits of the jobs to skip.
            full: Queues to skip.
            singly: Whether to return only one job.

        Returns:
            The templates, by node. Empty if no job is left.
        """
        waiting = list(numbers(record.starting & ~passed_over))
        for start in range(0, len(waiting), MAX_BATCH):
            part = self._workflows.templates(record, waiting[start : start + MAX_BATCH])
            found = {node: each for node, each in part.items() if queue_of(each) not in full}
            together = {node: each for node, each in found.items() if not _is_unique(each)}
            if found:
                chosen = together if together and not singly else dict(list(found.items())[:1])
                return dict(chosen)
        return {}

    def push(
        self,
        definition: StoredDefinition,
        before: WorkflowRecord | None,
        after: WorkflowRecord,
        starting: Mapping[int, Mapping[str, Any]],
    ) -> WorkflowRecord:
        """Store the jobs of these nodes together with the root, in one transaction.

        Args:
            definition: Definition of the workflow.
            before: The root as stored. None for a new workflow.
            after: The root to write, with these jobs started.
            starting: Templates of the jobs, by node.

        Returns:
            The root as stored.

        Raises:
            LostRace: The root has changed since `before`.
            OjsError: The enqueue request failed.
        """
        nodes = list(starting)
        fan_ins = self._fan_ins(definition.graph, nodes)
        after = replace(after, fan_ins=(*after.fan_ins, *fan_ins))
        # Before the jobs are stored, because they can finish immediately afterwards.
        self._workflows.fan_ins.create(after.id, fan_ins, now_ms=self._clock.now_ms())
        try:
            return self._store(definition, before, after, starting, fan_ins)
        except (LostRace, OjsError) as error:
            if isinstance(error, WriteNotApplied | LostRace) or not isinstance(error, BackendError):
                with suppress(OjsError):
                    self._workflows.fan_ins.remove(after.id, fan_ins)
            raise

    def _store(
        self,
        definition: StoredDefinition,
        before: WorkflowRecord | None,
        after: WorkflowRecord,
        starting: Mapping[int, Mapping[str, Any]],
        fan_ins: Sequence[FanIn],
    ) -> WorkflowRecord:
        # No other process knows the job IDs of a workflow that is not stored yet, unless the
        # client chose the workflow's ID. Without a chosen ID, the batch is written without
        # conditions (ADR 3).
        sure = before is None and not after.chosen_id
        told: dict[tuple[int, ...], dict[str, Any]] = {}
        requests = []
        for node, template in starting.items():
            raw = dict(template) if sure else {**template, "id": after.job_id(node)}
            requests.append(self._request(definition.graph, after, node, raw, told))
        push = self._enqueue.prepare(requests, after.producer, everything, batch=len(requests) > 1)
        stored, write = self._workflows.replacing(before, after)
        steps = _steps(definition, after, list(starting), fan_ins)
        ids = [after.job_id(node) for node in starting]

        def again() -> list[Put | Update] | None:
            nonlocal stored
            found = None if before is None else self._workflows.get(after.id)
            current = found and _started(found, starting, ids, fan_ins)
            if found is None or current is None:
                return None
            stored, write = self._workflows.replacing(found, current)
            return [write]

        templates = definition.templates if before is None else ()
        alongside = TransactionExtras([write], steps=steps, templates=templates, again=again)
        try:
            self._enqueue.store(replace(push, ids=ids, alongside=alongside), 0)
        except StaleRead:
            raise LostRace([]) from None
        return stored

    def _request(
        self,
        graph: Graph,
        record: WorkflowRecord,
        node: int,
        raw: dict[str, Any],
        told: dict[tuple[int, ...], dict[str, Any]],
    ) -> JobRequest:
        """Return the request of a step's job.

        Results that several jobs use are read once, into `told`.
        """
        meta = raw.get("meta") or {}
        if record.trace is not None and jsontext.size_of(meta) + _SPARE_BYTES <= MAX_META_BYTES:
            raw["meta"] = {**meta, TRACE_ORIGIN: record.trace}
        request = envelope.parse(raw)
        wanted = tuple(results.wanted(graph, node))
        if wanted:
            room = MAX_JOB_BYTES - jsontext.size_of(raw) - _SPARE_BYTES
            if wanted not in told or jsontext.size_of(told[wanted]) > room:
                told[wanted] = self._results.fields(record, graph, node, room=room)
            request.model_extra = {**request.model_extra, **told[wanted]}
        return request

    def _fan_ins(self, graph: Graph, nodes: Sequence[int]) -> list[FanIn]:
        """Return fan-ins for the jobs whose ends have only a common effect."""
        by_target: defaultdict[int, list[int]] = defaultdict(list)
        for node in nodes:
            followers = graph.followers[node]
            if len(followers) == 1 and graph.steps[followers[0][0]] is None:
                by_target[followers[0][0]].append(node)
        return [
            FanIn(self._ids.token(), bits(together))
            for together in by_target.values()
            if len(together) >= MIN_SLOTS
        ]


def _started(
    record: WorkflowRecord, nodes: Iterable[int], ids: Sequence[str], fan_ins: Sequence[FanIn]
) -> WorkflowRecord | None:
    """Return a workflow after these jobs have started; None if they must not start.

    They have started, the workflow is cancelled, or it was retried and they have other IDs.
    """
    part = bits(list(nodes))
    if record.starting & part != part or ids != [record.job_id(node) for node in nodes]:
        return None
    left = record.starting & ~part
    return replace(
        record,
        starting=left,
        starter_ms=record.starter_ms if left else None,
        fan_ins=(*record.fan_ins, *fan_ins),
        told=None,
    )


def queue_of(template: Mapping[str, Any]) -> str:
    """Return the queue of a job's request."""
    options = template.get("options") or {}
    return str(options.get("queue") or template.get("queue") or DEFAULT_QUEUE)


def _is_unique(template: Mapping[str, Any]) -> bool:
    options = template.get("options") or {}
    return template.get("unique") is not None or options.get("unique") is not None


def _steps(
    definition: StoredDefinition,
    record: WorkflowRecord,
    nodes: Sequence[int],
    fan_ins: Sequence[FanIn],
) -> list[WorkflowStep]:
    slots = {
        node: (each.token, slot)
        for each in fan_ins
        for slot, node in enumerate(numbers(each.nodes))
    }
    return [
        WorkflowStep(
            record.id,
            node,
            record.graph_state.generation_of(node),
            node in definition.kept,
            step_name(definition.graph, node),
            *slots.get(node, (None, 0)),
        )
        for node in nodes
    ]
