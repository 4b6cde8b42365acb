"""Defects put into the code on purpose: of workflows, and of who advances them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from ojs.domain.workflow import advance as rules
from ojs.domain.workflow.advance import Decision, Ending, GraphState
from ojs.domain.workflow.graph import Graph, StepState
from ojs.services.jobs.fetch import JobFetcher
from ojs.services.workflows.advance import WorkflowAdvance
from ojs.store.table.table import Put, Update
from ojs.store.workflows.workflows import WorkflowStore
from tests.simulation.mutations_late import Mutation


def root_is_swapped_blindly() -> AbstractContextManager[Any]:
    """A workflow that was read is replaced, whatever became of it since."""
    replacing = WorkflowStore.replacing

    def blind(self: Any, before: Any, after: Any) -> tuple[Any, Put | Update]:
        made, write = replacing(self, before, after)
        if isinstance(write, Update):
            write = replace(write, condition="attribute_exists(pk)", values={})
        return made, write

    return mock.patch.object(WorkflowStore, "replacing", blind)


@contextmanager
def nobody_repeats() -> Iterator[None]:
    """What a request that died has left undone is left undone."""
    with (
        mock.patch.object(WorkflowAdvance, "repeat", return_value=None),
        mock.patch.object(WorkflowAdvance, "_missed", return_value=[]),
    ):
        yield


def cancelled_goes_on() -> AbstractContextManager[Any]:
    """A cancellation is noted, and what waits goes on waiting."""
    cancel = rules.cancel

    def noted(graph: Graph, state: GraphState) -> Decision:
        decision = cancel(graph, state)
        return replace(decision, state=replace(decision.state, cancelled=state.cancelled))

    return mock.patch.object(rules, "cancel", noted)


def any_generation_counts() -> AbstractContextManager[Any]:
    """What ended in an earlier generation counts in the present one."""
    advance_all = rules.advance_all

    def all_count(graph: Graph, state: GraphState, endings: Iterable[Ending]) -> Decision:
        told = [(node, ended, state.generation_of(node)) for node, ended, _ in endings]
        return advance_all(graph, state, told)

    return mock.patch.object(rules, "advance_all", all_count)


def failures_are_forgotten() -> AbstractContextManager[Any]:
    """A job that failed is taken for one that completed."""
    return mock.patch.dict("ojs.store.workflows.fan_ins._ENDS", {2: StepState.COMPLETED})


def fetches_ignore_cancellations() -> AbstractContextManager[Any]:
    """As it was: what a cancellation has not reached yet is handed out."""
    return mock.patch.object(JobFetcher, "_drop_stopped", return_value=False)


WORKFLOWS: dict[str, tuple[Mutation, str]] = {
    "a workflow is swapped blindly": (root_is_swapped_blindly, "workflows"),
    "nobody repeats what follows from an end": (nobody_repeats, "workflows"),
    "a cancelled workflow goes on": (cancelled_goes_on, "workflows"),
    "a mark of another generation counts": (any_generation_counts, "workflows"),
    "a fan-in forgets failures": (failures_are_forgotten, "workflows"),
    "a fetch ignores cancellations": (fetches_ignore_cancellations, "large-workflows"),
}
