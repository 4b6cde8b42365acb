"""Random graphs: whatever the order in which steps end, and however often they are told."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ojs.domain.errors import Conflict
from ojs.domain.workflow import advance as advancing
from ojs.domain.workflow import stored
from ojs.domain.workflow.advance import (
    Decision,
    GraphState,
    RetryMode,
    WorkflowState,
    advance,
    cancel,
    retry,
)
from ojs.domain.workflow.graph import Graph, StepSignal, StepState
from tests.spread import examples
from tests.unit.domain.workflow.oracle import (
    FINAL,
    Oracle,
    Path,
    paths_of,
    random_outcomes,
    random_tree,
)

SEEDS = st.integers(0, 2**32)
S = StepState


@dataclass
class Run:
    """A workflow that is run with `advance`, in random order, each end told once or more."""

    rng: random.Random
    graph: Graph
    outcomes: Mapping[Path, StepState]
    decision: Decision = field(init=False)
    # Jobs that were started, each as often as it was; and the ends that were told.
    started: list[int] = field(default_factory=list)
    told: list[tuple[int, StepState, int]] = field(default_factory=list)
    finals: list[WorkflowState] = field(default_factory=list)
    settled: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.paths = {node: path for path, node in paths_of(self.graph).items()}
        self.take(advancing.start(self.graph))

    @property
    def state(self) -> GraphState:
        return self.decision.state

    def take(self, decision: Decision) -> None:
        self.decision = decision
        self.started += decision.starts
        self.settled += decision.settled
        if decision.final:
            self.finals.append(decision.workflow)

    def to_end(self, most: int | None = None) -> None:
        """End jobs until none runs, or as many as `most`."""
        while (running := list(self.state.running(self.graph))) and most != 0:
            most = None if most is None else most - 1
            node = self.rng.choice(running)
            end = (node, self.outcomes[self.paths[node]], self.state.generation_of(node))
            self.told.append(end)
            self.take(advance(self.graph, self.state, *end))
            if self.rng.random() < 0.3:
                before = self.decision
                self.take(advance(self.graph, self.state, *self.rng.choice(self.told)))
                assert self.decision.state == before.state
                changes = (self.decision.starts, self.decision.settled, self.decision.final)
                assert not any(changes)

    def states(self) -> dict[Path, StepState]:
        return {path: self.state.state_of(self.graph, node) for node, path in self.paths.items()}


def made(seed: int, most: int = 60) -> tuple[random.Random, Run, Oracle]:
    rng = random.Random(seed)
    root = random_tree(rng, rng.randint(1, most))
    outcomes = random_outcomes(rng, root)
    return rng, Run(rng, Graph(root), outcomes), Oracle(root, outcomes)


def agree(run: Run, oracle: Oracle) -> None:
    assert run.states() == oracle.states
    assert len(run.started) == len(set(run.started))
    assert {run.paths[node] for node in run.started} == oracle.started
    assert run.finals == [WorkflowState(oracle.states[()])]
    # Each composite ends once.
    composites = {path for path, step in oracle.steps.items() if step.steps}
    assert sorted(run.paths[node] for node in run.settled) == sorted(composites)


def check_run(seed: int, most: int = 60) -> None:
    rng, run, oracle = made(seed, most)
    run.to_end()
    agree(run, oracle)
    # The same marks in any order, also before those that started what they tell of.
    rng.shuffle(run.told)
    state = advancing.start(run.graph).state
    for end in run.told:
        state = advance(run.graph, state, *end).state
    assert state == run.state


@given(SEEDS)
def test_a_run_ends_as_the_oracle_says(seed: int) -> None:
    check_run(seed)


@pytest.mark.exhaustive
@settings(max_examples=examples(300))
@given(SEEDS)
def test_a_long_run_ends_as_the_oracle_says(seed: int) -> None:
    check_run(seed, 200)


class Items:
    """A workflow as a table has it: an item for each node that waits, with the marks that came.

    Nobody has the whole: a mark is taken by its target alone, and whoever brings the last one does
    what follows from the verdict. Marks wait in a pool, come out in any order, and may come again.
    """

    def __init__(self, rng: random.Random, graph: Graph) -> None:
        self.rng, self.graph = rng, graph
        self.marked: dict[int, dict[int, StepSignal]] = {}
        self.verdicts: dict[int, StepState] = {}
        self.ends: dict[int, StepState] = {}
        self.pool: list[StepSignal] = []
        self.running: list[int] = []

    def end(self, node: int, state: StepState) -> None:
        self.ends[node] = state
        self.pool += self.graph.marks(node, state) * self.rng.choice((1, 1, 2))

    def mark(self, mark: StepSignal) -> None:
        marks = self.marked.setdefault(mark.target, {})
        marks.setdefault(mark.slot, mark)
        if len(marks) == len(self.graph.sources[mark.target]):
            self.decide(mark.target)

    def decide(self, node: int) -> None:
        if node in self.verdicts:
            return
        marks = self.marked.get(node, {}).values()
        bad, skipped = any(each.bad for each in marks), any(each.skipped for each in marks)
        verdict = self.verdicts[node] = self.graph.verdict(node, bad=bad, skipped=skipped)
        if verdict is not S.STARTED:
            for inner in self.graph.span(node):
                self.ends[inner] = verdict
            self.end(node, verdict)
        elif self.graph.is_job(node):
            self.running.append(node)
        else:
            for child in self.graph.children[node]:
                if not self.graph.sources[child]:
                    self.decide(child)

    def run(self, outcomes: Mapping[int, StepState]) -> None:
        self.decide(0)
        while self.pool or self.running:
            chosen = self.rng.choice((self.pool, self.running))
            if not chosen:
                continue
            at = self.rng.randrange(len(chosen))
            if chosen is self.running:
                node = self.running.pop(at)
                self.end(node, outcomes[node])
            else:
                mark = self.pool[at] if self.rng.random() < 0.2 else self.pool.pop(at)
                self.mark(mark)


@given(SEEDS)
def test_items_that_are_marked_one_by_one_come_to_the_same(seed: int) -> None:
    check_items(seed)


@pytest.mark.exhaustive
@settings(max_examples=examples(1_000))
@given(SEEDS)
def test_many_items_that_are_marked_one_by_one_come_to_the_same(seed: int) -> None:
    check_items(seed)


def check_items(seed: int) -> None:
    rng, run, oracle = made(seed)
    items = Items(rng, run.graph)
    items.run(
        {node: run.outcomes[path] for node, path in run.paths.items() if path in run.outcomes}
    )
    ends = {path: items.ends[run.graph.exits[node]] for node, path in run.paths.items()}
    assert ends == oracle.states


@given(SEEDS)
def test_what_another_counted_can_be_told_at_the_settle_node(seed: int) -> None:
    """Of a composite whose marks are counted elsewhere only the end is told."""
    rng, run, oracle = made(seed)
    run.to_end()
    graph = run.graph
    counted = [node for node in graph.children[0] if graph.children[node]]
    if not counted or run.state.state_of(graph, chosen := rng.choice(counted)) not in (
        S.COMPLETED,
        S.FAILED,
    ):
        return
    state = advancing.start(graph).state
    inner = graph.span(chosen)
    for end in run.told:
        if end[0] not in inner:
            state = advance(graph, state, *end).state
    decision = advance(graph, state, graph.exits[chosen], run.state.state_of(graph, chosen))
    assert decision.workflow is WorkflowState(oracle.states[()])


@given(SEEDS, st.sampled_from(RetryMode))
def test_retries_end_as_the_oracle_says(seed: int, mode: RetryMode) -> None:
    check_retries(seed, mode)


@pytest.mark.exhaustive
@settings(max_examples=examples(1_000))
@given(SEEDS, st.sampled_from(RetryMode))
def test_many_retries_end_as_the_oracle_says(seed: int, mode: RetryMode) -> None:
    check_retries(seed, mode)


def check_retries(seed: int, mode: RetryMode) -> None:
    rng, run, oracle = made(seed, 40)
    run.to_end()
    for generation in (1, 2):
        outcomes = random_outcomes(rng, run.graph.root)
        late = list(run.told)
        if mode is not RetryMode.ALL and not any(
            state in (S.FAILED, S.CANCELLED) for state in oracle.states.values()
        ):
            with pytest.raises(Conflict, match="No step failed"):
                retry(run.graph, run.state, mode)
            return
        back = oracle.retry(mode, outcomes)
        run.outcomes, run.started, run.finals, run.settled = outcomes, [], [], []
        run.take(retry(run.graph, run.state, mode))
        again = run.state.reruns[-1]
        assert {run.paths[node] for node in run.graph.jobs if again >> node & 1} == back
        assert run.state.generation == generation
        # Marks of jobs that ran before count nowhere.
        for end in late:
            assert advance(run.graph, run.state, *end).state == run.state
        run.to_end()
        assert run.states() == oracle.states
        assert {run.paths[node] for node in run.started} == oracle.started
        assert len(run.started) == len(set(run.started))
        assert run.finals == [WorkflowState(oracle.states[()])]


@given(SEEDS, st.sampled_from(RetryMode))
def test_a_cancelled_workflow_starts_nothing_and_can_be_retried(seed: int, mode: RetryMode) -> None:
    rng, run, _ = made(seed, 40)
    run.to_end(rng.randint(0, 5))
    if run.decision.workflow.final:
        with pytest.raises(Conflict, match="Can't cancel a workflow in state"):
            cancel(run.graph, run.state)
        return
    before, started = run.states(), list(run.started)
    running = list(run.state.running(run.graph))
    run.take(cancel(run.graph, run.state))
    assert run.decision.workflow is WorkflowState.CANCELLED
    assert run.finals == [WorkflowState.CANCELLED]
    assert list(run.state.running(run.graph)) == running
    cancelled = {run.paths[node] for node in run.decision.cancelled}
    waiting = {run.paths[node] for node in run.graph.jobs} & {
        path for path, state in before.items() if state is S.WAITING
    }
    assert cancelled == waiting
    if running:
        with pytest.raises(Conflict, match="with active jobs"):
            retry(run.graph, run.state, mode)
    run.to_end()
    assert run.started == started
    assert run.finals == [WorkflowState.CANCELLED]
    assert run.decision.workflow is WorkflowState.CANCELLED
    kept = {path: state for path, state in run.states().items() if path in run.outcomes}
    # Retried, everything that did not succeed gets its turn, and the workflow ends.
    run.outcomes = dict.fromkeys(run.outcomes, S.COMPLETED)
    if mode is not RetryMode.ALL and not any(
        state in (S.FAILED, S.CANCELLED) for state in run.states().values()
    ):
        return
    run.started = []
    run.take(retry(run.graph, run.state, mode))
    run.to_end()
    assert run.finals[1:] == [WorkflowState.COMPLETED]
    assert set(run.states().values()) <= FINAL
    if mode is RetryMode.FAILED:
        assert not {run.paths[node] for node in run.started} & {
            path for path, state in kept.items() if state is S.COMPLETED
        }


@given(SEEDS)
def test_graphs_and_states_are_stored_and_read_back(seed: int) -> None:
    rng, run, _ = made(seed)
    run.to_end(rng.randint(0, 30))
    graph = stored.graph_of(stored.graph_text(run.graph))
    assert graph.root == run.graph.root
    assert graph.followers == run.graph.followers
    state = run.state
    if not list(state.running(graph)) and rng.random() < 0.5:
        state = retry(graph, state, RetryMode.ALL).state
    elif not state.workflow(graph).final:
        state = cancel(graph, state).state
    assert stored.state_of(stored.state_text(state)) == state
