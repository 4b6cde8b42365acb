"""Collects the results that a step receives: `parent_results` and `parent_errors`. Pure.

The parents of a step are:

    step of a chain      all steps before it in the chain, in order
    step of a graph      the steps that it depends on, in the order of `depends_on`
    callback             the jobs of its batch
    without dependency   the parents of the enclosing composite

The result of a composite is the list of the results of its steps, without callbacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ojs.domain.workflow.graph import Graph, StepKind, needs_of


def wanted(graph: Graph, node: int) -> Sequence[int]:
    """Return the parents of a step, in order: jobs, and openings of composites."""
    parent = graph.parents[node]
    if parent < 0:
        return ()
    composite, children = graph.step(parent), graph.children[parent]
    position = graph.positions[node]
    chain = composite.kind is StepKind.CHAIN
    before: Sequence[int] = range(position) if chain else needs_of(composite, position)
    if not before:
        return wanted(graph, parent)
    found = [children[at] for at in before]
    # A callback waits for step 0 of its batch, which contains all its jobs.
    return graph.children[found[0]] if composite.kind is StepKind.BATCH else found


def wanted_jobs(graph: Graph, node: int) -> Iterator[int]:
    """Yield the jobs whose results a step receives, in order."""
    for step in wanted(graph, node):
        yield from _jobs(graph, step)


def _jobs(graph: Graph, step: int) -> Iterator[int]:
    if graph.is_job(step):
        yield step
    for each in _members(graph, step):
        yield from _jobs(graph, each)


def _members(graph: Graph, opening: int) -> Sequence[int]:
    """Return the steps of a composite, without callbacks."""
    children = graph.children[opening]
    return graph.children[children[0]] if graph.step(opening).kind is StepKind.BATCH else children


def kept(graph: Graph) -> frozenset[int]:
    """Return the jobs whose results another step receives.

    The workflow must retain only these results.
    """
    found = set[int]()
    wanting = [(0, False)]
    while wanting:
        node, all_of_it = wanting.pop()
        composite, children = graph.step(node), graph.children[node]
        if composite.kind is StepKind.JOB and all_of_it:
            found.add(node)
        last = len(children) - 1
        needed = {need for step in composite.steps for need in step.needs}
        for position, child in enumerate(children):
            if composite.kind is StepKind.BATCH:
                wants = position == 0
            else:
                follows = composite.kind is StepKind.CHAIN and position < last
                wants = all_of_it or follows or position in needed
            wanting.append((child, wants))
    return frozenset(found)


def parent_fields(
    graph: Graph, node: int, results: Mapping[int, Any], errors: Mapping[int, Any]
) -> dict[str, Any]:
    """Build the fields of a step's job that contain the results of its parents.

    Args:
        graph: Graph of the workflow.
        node: Node of the step.
        results: Results of completed jobs, by node.
        errors: Errors of failed jobs, by node.

    Returns:
        Empty if the step has no parents. Otherwise `parent_results`, with null for a parent without
        a result. `parent_errors` exists if a parent has an error, at the same index.
        `parent_results_by_step` exists if the client gave a parent an ID.
    """
    steps = wanted(graph, node)
    if not steps:
        return {}
    fields: dict[str, Any] = {"parent_results": [_provided(graph, each, results) for each in steps]}
    if any(job in errors for job in wanted_jobs(graph, node)):
        fields["parent_errors"] = [_provided(graph, each, errors) for each in steps]
    named = {
        name: result
        for each, result in zip(steps, fields["parent_results"], strict=True)
        if (name := graph.step(each).id) is not None
    }
    return fields | ({"parent_results_by_step": named} if named else {})


def _provided(graph: Graph, step: int, values: Mapping[int, Any]) -> Any:
    """Return the value of a step: a job's value or null, or a composite's list of values."""
    if graph.is_job(step):
        return values.get(step)
    return [_provided(graph, each, values) for each in _members(graph, step)]
