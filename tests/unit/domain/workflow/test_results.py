"""What steps are told of those before them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain.workflow.graph import Graph
from ojs.domain.workflow.request import parse
from ojs.domain.workflow.results import kept, parent_fields, wanted_jobs
from tests.unit.domain.arbitrary import NOW_MS
from tests.unit.domain.workflow.oracle import random_tree

JOB = {"type": "a.job", "args": []}
Json = dict[str, Any]


def at(name: str, *needs: str) -> Json:
    return {**JOB, "id": name, "depends_on": list(needs)}


def chain(*steps: Json) -> Json:
    return {"type": "chain", "steps": list(steps)}


def group(*jobs: Json) -> Json:
    return {"type": "group", "jobs": list(jobs)}


def batch(*jobs: Json) -> Json:
    return {"type": "batch", "jobs": list(jobs), "callbacks": {"on_complete": JOB}}


DIAMOND = {"steps": [at("a"), at("b", "a"), at("c", "a"), at("d", "c", "b")]}


@pytest.mark.parametrize(
    ("body", "results"),
    [
        # The results that each job is told, in the order of the tree: its own is its number.
        (chain(JOB, JOB, JOB), [None, [0], [0, 1]]),
        (group(JOB, JOB), [None, None]),
        (batch(JOB, JOB), [None, None, [0, 1]]),
        (chain(JOB, group(JOB, JOB), JOB), [None, [0], [0], [0, [1, 2]]]),
        # The callback of a batch is no part of what it gives.
        (chain(JOB, batch(JOB, JOB), JOB), [None, [0], [0], [1, 2], [0, [1, 2]]]),
        # The first step of a chain inside of another is told what the chain is.
        (chain(JOB, chain(JOB, JOB), JOB), [None, [0], [1], [0, [1, 2]]]),
        (group(chain(JOB, JOB), JOB), [None, [0], None]),
        (batch(chain(JOB, JOB), JOB), [None, [0], None, [[0, 1], 2]]),
        (DIAMOND, [None, [0], [0], [2, 1]]),
        (chain(JOB, DIAMOND, JOB), [None, [0], [1], [1], [3, 2], [0, [1, 2, 3, 4]]]),
    ],
)
def test_results_of_the_steps_before(body: Json, results: list[Any]) -> None:
    graph = parse(body, now_ms=NOW_MS).graph
    given_results = {node: number for number, node in enumerate(graph.jobs)}
    fields = [parent_fields(graph, node, given_results, {}) for node in graph.jobs]
    assert [each.get("parent_results") for each in fields] == results
    assert not any("parent_errors" in each for each in fields)
    # What is told is what was asked for.
    for node, told in zip(graph.jobs, results, strict=True):
        assert [given_results[job] for job in wanted_jobs(graph, node)] == flat(told or [])


def flat(told: Any) -> list[int]:
    return [job for each in told for job in flat(each)] if isinstance(told, list) else [told]


def test_results_are_also_there_by_the_names_of_steps() -> None:
    graph = parse(DIAMOND, now_ms=NOW_MS).graph
    a, b, c, d = graph.jobs
    results = {a: "A", b: "B", c: "C"}
    assert parent_fields(graph, a, results, {}) == {}
    assert parent_fields(graph, d, results, {}) == {
        "parent_results": ["C", "B"],
        "parent_results_by_step": {"c": "C", "b": "B"},
    }


def test_errors_stand_where_results_would() -> None:
    graph = parse(batch(JOB, group(JOB, JOB), JOB), now_ms=NOW_MS).graph
    first, second, third, fourth, callback = graph.jobs
    error = {"code": "handler_error", "message": "no"}
    assert parent_fields(
        graph, callback, {first: 1, second: {}}, {third: error, fourth: error}
    ) == {
        "parent_results": [1, [{}, None], None],
        "parent_errors": [None, [None, error], error],
    }


@given(st.integers(0, 2**32))
def test_results_are_kept_that_some_step_wants(seed: int) -> None:
    rng = random.Random(seed)
    graph = Graph(random_tree(rng, rng.randint(1, 40)))
    assert kept(graph) == {job for node in graph.jobs for job in wanted_jobs(graph, node)}


def test_what_a_step_of_a_long_chain_wants_grows_with_its_place() -> None:
    graph = parse(chain(*[JOB] * 100), now_ms=NOW_MS).graph
    assert [len(list(wanted_jobs(graph, node))) for node in graph.jobs] == list(range(100))
    assert len(kept(graph)) == 99
