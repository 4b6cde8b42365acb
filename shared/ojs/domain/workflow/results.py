"""What a step is told of the steps before it: `parent_results` and `parent_errors`. Pure.

A step of a chain wants what all steps before it in the chain gave, by their index; a step of a
graph what those gave that it depends on, in the order in which it names them; a callback what the
jobs of its batch gave. A step that waits for no other wants what the composite wants that it is in.
What a composite gives is a list of what the steps in it give, without callbacks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ojs.domain.workflow.graph import Graph, StepKind, needs_of


def wanted(graph: Graph, node: int) -> Sequence[int]:
    """The steps whose results a step wants, in order: jobs, and openings of composites."""
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
    # A callback waits for all jobs of its batch together.
    return graph.children[found[0]] if composite.kind is StepKind.BATCH else found


def wanted_jobs(graph: Graph, node: int) -> Iterator[int]:
    """The jobs whose results a step wants, in order."""
    for step in wanted(graph, node):
        yield from _jobs(graph, step)


def _jobs(graph: Graph, step: int) -> Iterator[int]:
    if graph.is_job(step):
        yield step
    for each in _members(graph, step):
        yield from _jobs(graph, each)


def _members(graph: Graph, opening: int) -> Sequence[int]:
    """The steps of a composite that are no callbacks."""
    children = graph.children[opening]
    return graph.children[children[0]] if graph.step(opening).kind is StepKind.BATCH else children


def kept(graph: Graph) -> frozenset[int]:
    """The jobs whose results some step wants: those of others need not be kept for the workflow."""
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
    """The fields of a step's job that tell of the steps before it, from the results and errors of
    jobs by their nodes. None are there if it wants nothing.

    A step without a result has null in `parent_results`; `parent_errors`, which is there if a step
    has an error, has it at the same place. Those that the client named are also there by name.
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
    """What a step gives: a job's value or null, a composite's list of them."""
    if graph.is_job(step):
        return values.get(step)
    return [_provided(graph, each, values) for each in _members(graph, step)]
