"""Workflows under faults: created, advanced by whoever ends a job, cancelled, retried, looked at by
sweeps of several containers at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ojs.domain.errors import Duplicate
from ojs.domain.job.job import Job
from ojs.domain.job.states import State
from ojs.domain.job.workflow_step import WorkflowStep
from ojs.domain.workflow import advance as rules
from ojs.domain.workflow import request
from ojs.domain.workflow.advance import RetryMode
from ojs.domain.workflow.graph import Graph, StepState, numbers
from ojs.runtime import Runtime
from ojs.store.table import keys, values
from ojs.store.workflows import workflows as store
from ojs.store.workflows.workflows import WorkflowRecord
from tests.simulation import quiet
from tests.simulation.actors import Operator, Worker
from tests.simulation.acts import some
from tests.simulation.invariants import broken
from tests.simulation.memory import Change, Memory
from tests.simulation.world import Acts, World

# Sweeps that a workflow may need until all that was missed of it is known.
_ROUNDS = 12
_HOUR_MS = 3_600_000
_OVER = frozenset({"completed", "discarded", "cancelled"})
Json = dict[str, Any]


def _job(kind: str, *, attempts: int = 1, **fields: Any) -> Json:
    return {"type": kind, "args": [1], "options": {"retry": {"max_attempts": attempts}}, **fields}


def _at(name: str, *needs: str, **fields: Any) -> Json:
    return _job(name, id=name, depends_on=list(needs), **fields)


def _bodies() -> list[Json]:
    """A workflow of each form; groups are large enough for a fan-in, of one shard and of two."""
    callbacks = {f"on_{when}": _job(when) for when in ("complete", "success", "failure")}
    pair = [_job("x"), _job("y")]
    group = {"type": "group", "jobs": [_job(f"m{at}") for at in range(3)]}
    return [
        {"type": "chain", "steps": [_job("a"), _job("b", attempts=2), _job("c")]},
        group,
        {"type": "group", "jobs": [_job(f"n{at}") for at in range(5)]},
        {"type": "batch", "jobs": pair, "callbacks": callbacks},
        {"type": "batch", "jobs": group["jobs"], "callbacks": callbacks},
        {"type": "chain", "steps": [_job("a"), group, _job("z")]},
        {
            "steps": [
                _at("a"), _at("b"), _at("c", "a", "b"), _at("d", "b", trigger="all_done"),
                _at("e", "a", "c", trigger="any_failed"),
            ]
        },
    ]  # fmt: skip


@dataclass
class Asked:
    """A workflow as whoever asked for it knows of it."""

    id: str
    body: Json
    graph: Graph
    there: bool = False
    # Nobody knows: it may be there, as a whole or not at all.
    unknown: bool = False
    # Whether anybody has asked to cancel it, or to retry it: then its end is not told beforehand.
    disturbed: bool = False


@dataclass
class AskedWorkflows:
    """All workflows of a run."""

    world: World
    all: dict[str, Asked] = field(default_factory=dict)

    def ask(self, asked: Asked, run: Runtime) -> None:
        """Ask for a workflow, perhaps again."""
        definition = request.parse(asked.body, now_ms=run.clock.now_ms())
        asked.unknown = True
        made, refused = self.world.request(
            "create workflow", lambda: run.workflow_creation.create(definition)
        )
        if made is not None or isinstance(refused, Duplicate):
            asked.there = True
        asked.unknown = made is None and refused is None

    def ask_again(self) -> None:
        """Those of which nobody knows whether they are there."""
        for asked in [one for one in self.all.values() if one.unknown]:
            self.ask(asked, self.world.run)

    def look_after(self) -> None:
        """What runs each minute."""
        run = self.world.run
        self.world.check_swept(run.workflow_sweep.run_once(run.clock.now_ms(), 100))

    def settle(self, drain: Callable[[], None]) -> None:
        """Work everything off until nothing is left to start."""
        for _ in range(_ROUNDS):
            drain()
            if not (left := self._running()):
                return
            self.world.clock.advance(_HOUR_MS)
            self.world.project()
            self.look_after()
        raise broken("every workflow ends once its jobs have", left=left)

    def _running(self) -> list[str]:
        records = roots(self.world.memory).values()
        return [each.id for each in records if not each.state.final]


def roots(memory: Memory) -> dict[str, WorkflowRecord]:
    """All workflows by id."""
    return {
        keys.workflow_id(pk): store.WORKFLOW.of(dict(values.unpack(item)))
        for (pk, sk), item in memory.items.items()
        if pk.startswith(keys.workflow("")) and sk == keys.RECORD
    }


class WorkflowHand(Operator):
    """Creates workflows, and does what is done to them by hand."""

    def __init__(self, world: World, name: str, asked: AskedWorkflows) -> None:
        super().__init__(world, name)
        self._asked = asked

    def create(self) -> None:
        workflow_id = self.run.ids.uuid7()
        body = {"id": workflow_id, **self.chance.choice(_bodies())}
        graph = request.parse(body, now_ms=self.run.clock.now_ms()).graph
        self._asked.all[workflow_id] = asked = Asked(workflow_id, body, graph)
        self._asked.ask(asked, self.run)
        if asked.unknown and self.chance.random() < 0.5:
            self._asked.ask(asked, self.run)

    def _any(self) -> Asked | None:
        return self.chance.choice(list(self._asked.all.values())) if self._asked.all else None

    def _disturb(self, kind: str, act: Callable[[str], Any], *, stops: bool) -> None:
        """Cancel a workflow, from whose answer on none of its jobs is handed out; or retry it."""
        if (asked := self._any()) is not None:
            asked.disturbed = True
            self.world.change(
                kind,
                f"workflow {asked.id}",
                lambda: act(asked.id),
                lambda _: {("stopped", asked.id): True} if stops else {},
            )

    def cancel_workflow(self, *, reaches: bool = True) -> None:
        """With `reaches` False the time is over before the request reaches any job that waits."""
        control = self.run.workflow_control
        if not reaches:
            control.leave = lambda record: record  # type: ignore[method-assign]
        self._disturb("cancel workflow", control.cancel, stops=True)

    def retry_workflow(self) -> None:
        mode = self.chance.choice(list(RetryMode))
        retry = partial(self.run.workflow_control.retry, mode=mode)
        self._disturb("retry workflow", retry, stops=False)

    def look_at_workflow(self) -> None:
        if (asked := self._any()) is not None:
            self.ask("get workflow", lambda: self.run.workflow_advance.current(asked.id))

    def sweep_workflows(self) -> None:
        now_ms = self.run.clock.now_ms()
        self.ask("workflow sweep", lambda: self.run.workflow_sweep.run_once(now_ms, 10))

    def cancel_job(self) -> None:
        """A job of a workflow, by hand."""
        jobs = sorted(
            keys.job_id(pk)
            for (pk, sk), item in self.world.memory.items.items()
            if sk == keys.RECORD and pk.startswith(keys.job("")) and "wf" in item
        )
        if jobs:
            job_id = self.chance.choice(jobs)
            self.ask("cancel", lambda: self.run.jobs.cancel(job_id))


def workflows(world: World) -> list[Acts]:
    """Workflows of all forms; workers that ack, fail, and die; cancellations and retries."""
    world.queues.add("default")
    world.workflows = asked = AskedWorkflows(world)
    world.memory.watchers.append(Starts(world.memory, asked))
    world.run.queues.create("default", world.chance.choice(({}, {}, {}, {"max_size": 4})))
    hand, other = WorkflowHand(world, "o1", asked), WorkflowHand(world, "o2", asked)
    hand.create()
    made: list[Acts] = []
    for name in ("w1", "w2"):
        worker = Worker(world, name)
        acts: Acts = [worker.ack, worker.ack, worker.ack, worker.nack, partial(worker.fetch, 2)]
        acts += [worker.fetch, worker.fetch, worker.forget, worker.end_many]
        acts = [partial(worker.fetch, 2), *some(world.chance, acts, 11)]
        made.append([worker.does(act) for act in acts])
    acts = [hand.create, hand.wait, hand.sweep, hand.cancel_workflow, hand.retry_workflow]
    acts += [hand.cancel_job, hand.look_at_workflow]
    looking: Acts = [other.sweep_workflows, other.sweep_workflows, other.sweep]
    looking += [partial(other.wait, 21_000), other.wait, other.cancel_job]
    return [
        *made,
        [hand.does(act) for act in some(world.chance, acts, 5)],
        [other.does(act) for act in some(world.chance, looking, 4)],
    ]


def large_workflows(world: World) -> list[Acts]:
    """Groups whose cancellation is answered before it reaches their jobs: a sweep does, or a fetch
    that claims one of them.
    """
    world.queues.add("default")
    world.workflows = asked = AskedWorkflows(world)
    world.memory.watchers.append(Starts(world.memory, asked))
    world.run.queues.create("default", {})
    hand, other = WorkflowHand(world, "o1", asked), WorkflowHand(world, "o2", asked)
    hand.create()
    hand.create()
    made: list[Acts] = []
    for name in ("w1", "w2"):
        worker = Worker(world, name)
        acts: Acts = [worker.fetch, worker.ack]
        made.append([worker.does(act) for act in acts * 5])
    cancel = partial(hand.cancel_workflow, reaches=False)
    by_hand: Acts = [hand.wait, cancel, cancel, hand.retry_workflow, cancel]
    looking: Acts = [other.sweep_workflows, other.wait, partial(other.wait, 21_000)]
    return [
        *made,
        [hand.does(act) for act in by_hand],
        [other.does(act) for act in some(world.chance, looking, 2)],
    ]


class Starts:
    """Sees at each write that no step starts twice, too early, or where nothing may start."""

    def __init__(self, memory: Memory, asked: AskedWorkflows) -> None:
        self._memory = memory
        self._asked = asked
        self._started: set[tuple[str, int, int]] = set()
        # Jobs that are not there before their batch is, by batch.
        self._staged: defaultdict[str, list[str]] = defaultdict(list)

    def __call__(self, changes: list[Change]) -> None:
        for (pk, sk), before, after in changes:
            if pk.startswith(keys.batch("")) and after is None and before is not None:
                if before["state"]["S"] == "staging":
                    self._all_start(self._staged.pop(pk, []))
            elif pk.startswith(keys.job("")) and sk == keys.RECORD and before is None:
                assert after is not None
                if "wf" in after and "batch" in after:
                    self._staged[keys.batch(after["batch"]["S"])].append(after["wf"]["S"])
                elif "wf" in after:
                    self._all_start([after["wf"]["S"]])

    def _all_start(self, steps: list[str]) -> None:
        for text in steps:
            step = WorkflowStep.of(text)
            one = (step.workflow_id, step.node, step.generation)
            if one in self._started:
                raise broken("a step starts once", step=one)
            self._started.add(one)
            self._may_start(step)

    def _may_start(self, step: WorkflowStep) -> None:
        item = self._memory.items.get((keys.workflow(step.workflow_id), keys.RECORD))
        if item is None or item["state"]["S"] != "running":
            raise broken("nothing starts in a workflow that is over", step=step)
        graph = self._asked.all[step.workflow_id].graph
        record = store.WORKFLOW.of(dict(values.unpack(item)))
        if record.graph_state.generation_of(step.node) != step.generation:
            raise broken("a step starts in its own generation", step=step)
        for node in graph.sources[step.node]:
            if not graph.is_job(node):
                continue
            there = self._memory.items.get((keys.job(record.job_id(node)), keys.RECORD))
            never = (record.graph_state.cancelled | record.graph_state.skipped) >> node & 1
            if not never and (there is None or there["state"]["S"] not in _OVER):
                raise broken("a step starts when all have ended that it waits for", step=step)


def workflows_are_exact(found: Mapping[tuple[str, str], Any], world: World) -> None:
    """Every workflow is there and over, and says of each job how it has ended; where nobody has
    interfered it is as the rules have it from these ends alone.
    """
    if world.workflows is None:
        return
    records, jobs = roots(world.memory), quiet.job_records(found)
    steps = Counter(
        (job.workflow.workflow_id, job.workflow.node, job.workflow.generation)
        for job in jobs.values()
        if job.workflow is not None
    )
    for asked in world.workflows.all.values():
        record = records.get(asked.id)
        if record is None:
            if asked.there:
                raise broken("no acknowledged workflow is lost", workflow=asked.id)
            if any(step[0] == asked.id for step in steps):
                raise broken("no job is without its workflow", workflow=asked.id)
            continue
        if not record.state.final:
            raise broken("every workflow ends", workflow=asked.id)
        _check_ends(asked, record, jobs)
        for node in numbers(record.graph_state.started & asked.graph.job_bits):
            if steps[asked.id, node, record.graph_state.generation_of(node)] != 1:
                raise broken("a started step has one job", workflow=asked.id, node=node)


def _check_ends(asked: Asked, record: WorkflowRecord, jobs: Mapping[str, Job]) -> None:
    graph, state = asked.graph, record.graph_state
    expected = rules.start(graph).state
    for node in numbers(state.started & graph.job_bits):
        job = jobs[record.job_id(node)]
        ended = StepState.COMPLETED if job.state is State.COMPLETED else StepState.FAILED
        if state.state_of(graph, node) is not ended:
            raise broken(
                "a workflow says how its jobs have ended", workflow=asked.id, node=node,
                says=state.state_of(graph, node), job=job.state,
            )  # fmt: skip
        if not asked.disturbed:
            expected = rules.advance(graph, expected, node, ended).state
    if not asked.disturbed and expected != state:
        raise broken("a workflow is as its jobs have ended", workflow=asked.id, state=state)
    counted = [record.completed, record.failed, record.cancelled, record.skipped]
    names = (StepState.COMPLETED, StepState.FAILED, StepState.CANCELLED, StepState.SKIPPED)
    there = [state.count(graph, each) for each in names]
    if counted != there or sum(there) != record.jobs:
        raise broken("the counts of a workflow are exact", workflow=asked.id, counted=counted)
