"""Stored forms: what they hold, and forms that are not known."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain.errors import UnknownForm
from ojs.domain.workflow import stored
from ojs.domain.workflow.advance import GraphState, start
from ojs.domain.workflow.graph import Graph, Step, StepKind
from tests.unit.domain.arbitrary import json_objects
from tests.unit.domain.workflow.oracle import random_tree

SETS = st.integers(0, 2**200)
GRAPH = "01789c8b8e564ad44b52d2514a568ad589564ace48cccc53d28936d08936d451aa508a050200ab1b09b5"


@given(st.integers(0, 2**32))
def test_any_graph_is_read_back(seed: int) -> None:
    rng = random.Random(seed)
    root = random_tree(rng, rng.randint(1, 60))
    assert stored.graph_of(stored.graph_text(Graph(root))).root == root


@pytest.mark.parametrize("count", [0, 1, stored.PAGE, stored.PAGE + 1, 2 * stored.PAGE + 3])
def test_templates_are_read_back_page_by_page(count: int) -> None:
    templates = [{"type": "a.b", "args": [number]} for number in range(count)]
    pages = [stored.templates_of(page) for page in stored.template_pages(templates)]
    assert all(len(page) == stored.PAGE for page in pages[:-1])
    assert [each for page in pages for each in page] == templates


@given(st.lists(json_objects, max_size=3))
def test_any_templates_are_read_back(templates: list[dict[str, object]]) -> None:
    assert [stored.templates_of(page) for page in stored.template_pages(templates)] == (
        [templates] if templates else []
    )


def test_numbers_in_templates_are_kept_as_written() -> None:
    (page,) = stored.template_pages([{"args": [Decimal("3.10")]}])
    assert str(stored.templates_of(page)[0]["args"][0]) == "3.10"


@given(st.builds(GraphState, *[SETS] * 5, st.booleans(), st.lists(SETS, max_size=3).map(tuple)))
def test_any_state_is_read_back(state: GraphState) -> None:
    assert stored.state_of(stored.state_text(state)) == state


def test_the_first_form_stays_as_it_is() -> None:
    """What this version wrote must be read by all that come."""
    root = Step(
        StepKind.CHAIN, steps=(Step(StepKind.JOB, type="a.b"), Step(StepKind.JOB, "x", "c"))
    )
    graph = bytes.fromhex(GRAPH)
    assert stored.graph_of(graph).root == root
    state = bytes.fromhex("0101000300000000000000000000")
    assert stored.state_of(state) == start(Graph(root)).state


def test_the_state_of_a_long_chain_is_small() -> None:
    """It is written with each step."""
    half = GraphState(started=(1 << 5_000) - 1, completed=(1 << 4_999) - 2)
    assert len(stored.state_text(half)) < 60
    assert stored.state_of(stored.state_text(half)) == half


@pytest.mark.parametrize("read", [stored.graph_of, stored.templates_of, stored.state_of])
def test_an_unknown_form_needs_a_newer_version(read: object) -> None:
    assert callable(read)
    with pytest.raises(UnknownForm, match="requires a newer server version"):
        read(b"\x07anything")
