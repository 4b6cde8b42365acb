"""The rules of each form of workflow, one by one; random graphs are in test_random_graphs.py."""

from __future__ import annotations

from typing import Any

import pytest

from ojs.domain.errors import Conflict
from ojs.domain.ids import is_uuid7
from ojs.domain.workflow import advance as advancing
from ojs.domain.workflow.advance import (
    Decision,
    GraphState,
    RetryMode,
    WorkflowState,
    advance,
    cancel,
    retry,
    start,
)
from ojs.domain.workflow.graph import Graph, StepState, job_id
from ojs.domain.workflow.request import parse
from tests.unit.domain.arbitrary import NOW_MS

S = StepState
JOB = {"type": "a.job", "args": []}
Json = dict[str, Any]


class Flow:
    """A workflow whose jobs are named by letters, in the order of the tree."""

    def __init__(self, body: Json) -> None:
        self.graph = parse(body, now_ms=NOW_MS).graph
        self.nodes = {chr(ord("a") + at): node for at, node in enumerate(self.graph.jobs)}
        self.last = start(self.graph)

    def take(self, decision: Decision) -> Flow:
        self.last = decision
        return self

    def end(self, letter: str, ended: StepState = S.COMPLETED, generation: int = 0) -> Flow:
        node, state = self.nodes[letter], self.last.state
        return self.take(advance(self.graph, state, node, ended, generation))

    def fail(self, letter: str) -> Flow:
        return self.end(letter, S.FAILED)

    def named(self, nodes: tuple[int, ...]) -> str:
        return "".join(letter for letter, node in self.nodes.items() if node in nodes)

    @property
    def starts(self) -> str:
        return self.named(self.last.starts)

    @property
    def cancelled(self) -> str:
        return self.named(self.last.cancelled)

    @property
    def skipped(self) -> str:
        return self.named(self.last.skipped)

    @property
    def workflow(self) -> str:
        return self.last.workflow.value


def chain(count: int = 3) -> Json:
    return {"type": "chain", "steps": [JOB] * count}


def group(count: int = 3) -> Json:
    return {"type": "group", "jobs": [JOB] * count}


def batch(*callbacks: str, jobs: int = 2) -> Json:
    """Jobs `a` and `b`, then the callbacks in the order of the specification."""
    return {"type": "batch", "jobs": [JOB] * jobs, "callbacks": dict.fromkeys(callbacks, JOB)}


def dag(**needs: str) -> Json:
    return {
        "type": "dag",
        "steps": [{**JOB, "id": name, "depends_on": list(each)} for name, each in needs.items()],
    }


def test_a_chain_starts_one_step_at_a_time() -> None:
    flow = Flow(chain())
    assert (flow.starts, flow.workflow, flow.last.final) == ("a", "running", False)
    assert flow.end("a").starts == "b"
    assert flow.end("b").starts == "c"
    assert not flow.end("c").starts
    assert (flow.workflow, flow.last.final, flow.last.settled) == ("completed", True, (0,))


def test_a_chain_stops_at_a_failure() -> None:
    flow = Flow(chain()).end("a").fail("b")
    assert (flow.starts, flow.cancelled, flow.workflow) == ("", "c", "failed")
    assert flow.last.final
    counts = {each: flow.last.state.count(flow.graph, each) for each in S if each not in "waiting"}
    assert counts == {S.STARTED: 2, S.COMPLETED: 1, S.FAILED: 1, S.CANCELLED: 1, S.SKIPPED: 0}


def test_a_group_starts_all_and_fails_when_all_have_ended() -> None:
    flow = Flow(group())
    assert flow.starts == "abc"
    assert (flow.fail("b").workflow, flow.cancelled) == ("running", "")
    assert flow.end("a").workflow == "running"
    assert flow.end("c").workflow == "failed"
    assert Flow(group(1)).end("a").workflow == "completed"


ALL = ("on_complete", "on_success", "on_failure")


@pytest.mark.parametrize(("failing", "starts", "skipped"), [("", "cd", "e"), ("b", "ce", "d")])
def test_callbacks_run_once_when_all_jobs_have_ended(
    failing: str, starts: str, skipped: str
) -> None:
    flow = Flow(batch(*ALL))
    assert flow.starts == "ab"
    for letter in "ba":
        assert not flow.last.final
        flow.end(letter, S.FAILED if letter == failing else S.COMPLETED)
    assert (flow.starts, flow.skipped, flow.cancelled) == (starts, skipped, "")
    assert not flow.end("a").starts
    assert flow.end(starts[0]).workflow == "running"
    # Failures of jobs are for the callbacks to deal with.
    assert flow.end(starts[1]).workflow == "completed"


def test_a_batch_fails_if_a_callback_does() -> None:
    flow = Flow(batch(*ALL)).end("a").end("b").fail("c")
    assert flow.workflow == "running"
    assert flow.end("d").workflow == "failed"


def test_a_batch_whose_callbacks_are_not_needed_is_over_with_its_jobs() -> None:
    assert Flow(batch("on_failure")).end("a").end("b").workflow == "completed"
    assert Flow(batch("on_success")).end("a").fail("b").workflow == "completed"


def test_a_failed_step_of_a_graph_cancels_what_comes_after_it_alone() -> None:
    flow = Flow(dag(a="", b="a", c="b", x="", y="x"))
    assert flow.starts == "ad"
    assert flow.fail("a").cancelled == "bc"
    assert flow.workflow == "running"
    assert flow.end("d").starts == "e"
    assert flow.end("e").workflow == "failed"


def placed(trigger: str | None = None, *, ignore: bool = False) -> Json:
    """`a` and `b`, then `c` after both, then `d` after `c`."""
    needs = [{"id": "a", "ignore_failed": ignore}, "b"]
    c = {**JOB, "id": "c", "depends_on": needs} | ({"trigger": trigger} if trigger else {})
    return {"type": "dag", "steps": [*dag(a="", b="")["steps"], c, *dag(d="c")["steps"]]}


@pytest.mark.parametrize(
    ("body", "failing", "starts", "skipped", "state"),
    [
        (placed(), "", "c", "", "completed"),
        (placed(), "a", "", "", "failed"),
        (placed("all_done"), "a", "c", "", "failed"),
        (placed("all_done"), "ab", "c", "", "failed"),
        (placed("any_failed"), "", "", "cd", "completed"),
        (placed("any_failed"), "b", "c", "", "failed"),
        # A failure that all ignore who wait for the step does not count.
        (placed(ignore=True), "a", "c", "", "completed"),
        (placed(ignore=True), "b", "", "", "failed"),
    ],
)
def test_triggers(body: Json, failing: str, starts: str, skipped: str, state: str) -> None:
    flow = Flow(body)
    for letter in "ab":
        flow.end(letter, S.FAILED if letter in failing else S.COMPLETED)
    assert (flow.starts, flow.skipped) == (starts, skipped)
    if starts:
        flow.end("c").end("d")
    assert flow.workflow == state


def test_a_failure_that_only_some_ignore_counts() -> None:
    steps = [
        *dag(a="")["steps"],
        {**JOB, "id": "b", "depends_on": [{"id": "a", "ignore_failed": True}]},
        {**JOB, "id": "c", "depends_on": ["a"], "trigger": "all_done"},
    ]
    flow = Flow({"type": "dag", "steps": steps}).fail("a")
    assert flow.starts == "bc"
    assert flow.end("b").end("c").workflow == "failed"


def handled(handler: Json, then: Json) -> Json:
    """`a`, a handler of its failure, and what comes after that."""
    steps = [
        *dag(a="")["steps"],
        {**handler, "id": "handler", "depends_on": ["a"], "trigger": "any_failed"},
        {**then, "id": "then", "depends_on": [{"id": "handler", "ignore_failed": True}]},
    ]
    return {"type": "dag", "steps": steps}


def test_a_step_that_ignores_how_another_ends_runs_also_if_that_never_does() -> None:
    flow = Flow(handled(JOB, JOB)).end("a")
    assert (flow.skipped, flow.starts) == ("b", "c")
    found = flow.graph.marks(flow.nodes["b"], S.SKIPPED)
    assert [(mark.bad, mark.skipped) for mark in found if mark.target == flow.nodes["c"]] == [
        (False, False)
    ]


def test_what_followed_a_failure_goes_back_with_all_that_is_in_it() -> None:
    flow = Flow(handled(group(2), JOB)).fail("a").end("b").end("c").end("d")
    assert flow.workflow == "failed"
    flow.take(retry(flow.graph, flow.last.state, RetryMode.FAILED_AND_FOLLOWING))
    assert {each for each in "abcd" if flow.last.state.reruns[0] >> flow.nodes[each] & 1} == {
        *"abcd"
    }
    assert flow.end("a", generation=1).skipped == "bc"


def test_what_succeeded_stays_so_when_it_turns_out_not_to_be_needed() -> None:
    flow = Flow(handled(group(2), JOB)).fail("a").end("b").fail("c").end("d")
    flow.take(retry(flow.graph, flow.last.state, RetryMode.FAILED)).end("a", generation=1)
    states = [flow.last.state.state_of(flow.graph, node) for node in flow.graph.jobs]
    assert states == [S.COMPLETED, S.COMPLETED, S.SKIPPED, S.COMPLETED]
    assert [flow.last.state.count(flow.graph, each) for each in (S.COMPLETED, S.SKIPPED)] == [3, 1]
    assert flow.workflow == "completed"


def test_a_handler_of_failures_runs_after_a_cancelled_step() -> None:
    steps = [*dag(a="", b="a")["steps"], {**dag(c="b")["steps"][0], "trigger": "any_failed"}]
    assert Flow({"type": "dag", "steps": steps}).fail("a").starts == "c"


def test_a_workflow_that_is_a_step_passes_its_state_on() -> None:
    body = {"type": "chain", "steps": [JOB, group(2), batch("on_complete", jobs=1), JOB]}
    flow = Flow(body)
    assert flow.end("a").starts == "bc"
    assert flow.end("b").starts == ""
    assert flow.end("c").starts == "d"
    assert [flow.graph.step(node).kind for node in flow.last.settled] == ["group"]
    assert flow.fail("d").starts == "e"
    assert flow.end("e").starts == "f"
    assert flow.end("f").workflow == "completed"
    failed = Flow(body).end("a").end("b").fail("c")
    assert (failed.cancelled, failed.workflow, failed.last.final) == ("def", "failed", True)


def test_a_cancelled_workflow_takes_marks_and_starts_nothing() -> None:
    flow = Flow({"type": "chain", "steps": [group(2), JOB]}).end("a")
    flow.take(cancel(flow.graph, flow.last.state))
    assert (flow.workflow, flow.last.final, flow.cancelled) == ("cancelled", True, "c")
    assert list(flow.last.state.running(flow.graph)) == [flow.nodes["b"]]
    flow.end("b")
    assert (flow.workflow, flow.last.final, flow.starts) == ("cancelled", False, "")
    assert flow.last.state.state_of(flow.graph, flow.nodes["b"]) is S.COMPLETED
    with pytest.raises(Conflict, match="Can't cancel a workflow in state 'cancelled'"):
        cancel(flow.graph, flow.last.state)


@pytest.mark.parametrize(
    ("mode", "starts", "then"),
    [(RetryMode.FAILED, "b", "d"), (RetryMode.FAILED_AND_FOLLOWING, "b", "cd")],
)
def test_a_batch_whose_jobs_failed_is_retried(mode: RetryMode, starts: str, then: str) -> None:
    """In the first run `c` (on_complete) ran, and `e` (on_failure); in the second nothing fails."""
    flow = Flow(batch(*ALL)).end("a").fail("b").end("c").end("e")
    assert flow.workflow == "completed"
    flow.take(retry(flow.graph, flow.last.state, mode))
    assert (flow.starts, flow.workflow) == (starts, "running")
    # The mark of the first run counts nowhere, whenever it comes again.
    assert flow.fail("b").workflow == "running"
    assert flow.end("b", generation=1).starts == then
    for letter in then:
        assert not flow.last.final
        flow.end(letter, generation=1)
    assert flow.workflow == "completed"


def test_a_retry_of_all_runs_all() -> None:
    flow = Flow(chain(2)).end("a").end("b")
    assert flow.take(retry(flow.graph, flow.last.state, RetryMode.ALL)).starts == "a"
    assert flow.end("a").workflow == "running"
    assert flow.end("a", generation=1).end("b", generation=1).workflow == "completed"


def test_what_was_cancelled_before_its_turn_gets_it_in_a_retry() -> None:
    """`b` is a workflow that never began; what it waits for succeeded after the cancellation."""
    flow = Flow({"type": "chain", "steps": [JOB, group(2)]})
    flow.take(cancel(flow.graph, flow.last.state)).end("a")
    flow.take(retry(flow.graph, flow.last.state, RetryMode.FAILED))
    assert flow.starts == "bc"
    assert flow.end("b", generation=1).end("c", generation=1).workflow == "completed"


def test_what_was_counted_elsewhere_is_told_before_a_retry() -> None:
    """Until then its jobs seem to run."""
    flow = Flow({"type": "chain", "steps": [group(3), JOB]})
    settle = flow.graph.exits[flow.graph.children[0][0]]
    flow.take(advance(flow.graph, flow.last.state, settle, S.FAILED))
    assert (flow.cancelled, flow.workflow) == ("d", "failed")
    with pytest.raises(Conflict, match=r"active jobs \(3\)"):
        retry(flow.graph, flow.last.state, RetryMode.FAILED)
    flow.end("a").fail("b").end("c")
    assert flow.take(retry(flow.graph, flow.last.state, RetryMode.FAILED)).starts == "b"
    assert flow.end("b", generation=1).starts == "d"
    assert flow.end("d", generation=1).workflow == "completed"


def test_retries_that_are_refused() -> None:
    flow = Flow(group(2))
    with pytest.raises(Conflict, match="The state must be completed, failed, or cancelled"):
        retry(flow.graph, flow.last.state, RetryMode.ALL)
    flow.take(cancel(flow.graph, flow.last.state))
    with pytest.raises(Conflict, match=r"active jobs \(2\)"):
        retry(flow.graph, flow.last.state, RetryMode.ALL)
    done = Flow(group(1)).end("a")
    for mode in (RetryMode.FAILED, RetryMode.FAILED_AND_FOLLOWING):
        with pytest.raises(Conflict, match="No step failed"):
            retry(done.graph, done.last.state, mode)
    for generation in range(1, advancing.MAX_RETRIES + 1):
        done.take(retry(done.graph, done.last.state, RetryMode.ALL))
        done.end("a", generation=generation)
    with pytest.raises(Conflict, match="can be retried at most 50 times"):
        retry(done.graph, done.last.state, RetryMode.ALL)


def test_ids_of_jobs_differ_by_workflow_node_and_generation() -> None:
    of = ("019539a4-b68c-7def-8000-1a2b3c4d5e6f", NOW_MS, 3, 0)
    made = [job_id(*of), job_id("019539a4-b68c-7def-8000-1a2b3c4d5e6e", *of[1:])]
    made += [job_id(*of[:2], 4, 0), job_id(*of[:3], 1), job_id(of[0], NOW_MS + 1, *of[2:])]
    assert len(set(made)) == 5
    assert all(map(is_uuid7, made))
    assert job_id(*of) == made[0]


def test_an_unknown_state_begins_waiting() -> None:
    graph = Graph(parse(chain(2), now_ms=NOW_MS).graph.root)
    state = GraphState()
    assert state.workflow(graph) is WorkflowState.RUNNING
    assert {state.state_of(graph, node) for node in (0, *graph.jobs)} == {S.WAITING}
