"""What a workflow should do, worked out naively from its tree of steps; and random trees.

The oracle knows no nodes, marks or bits: it looks at all steps again and again, until nothing
changes any more. Steps are named by their paths: positions from the root, which is `()`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from ojs.domain.workflow.advance import RetryMode
from ojs.domain.workflow.graph import (
    Callback,
    Graph,
    Step,
    StepKind,
    StepState,
    StepTrigger,
)

S, T = StepState, StepTrigger
Path = tuple[int, ...]
FINAL = frozenset({S.COMPLETED, S.FAILED, S.CANCELLED, S.SKIPPED})
BAD = frozenset({S.FAILED, S.CANCELLED})


def all_steps(step: Step, path: Path = ()) -> Iterator[tuple[Path, Step]]:
    yield path, step
    for at, inner in enumerate(step.steps):
        yield from all_steps(inner, (*path, at))


def paths_of(graph: Graph) -> dict[Path, int]:
    """The node of each step: jobs and openings stand in the order of the tree."""
    nodes = (node for node, step in enumerate(graph.steps) if step is not None)
    return dict(zip((path for path, _ in all_steps(graph.root)), nodes, strict=True))


@dataclass
class Oracle:
    """The states of all steps when each job that starts ends as `outcomes` says."""

    root: Step
    outcomes: Mapping[Path, StepState]
    states: dict[Path, StepState] = field(default_factory=dict)
    started: set[Path] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.steps = dict(all_steps(self.root))
        self.run({})

    def run(self, kept: Mapping[Path, StepState]) -> None:
        """Run to the end, with jobs that have ended before."""
        self.states = dict.fromkeys(self.steps, S.WAITING) | dict(kept)
        self.started = set()
        while sum(self.look_at(path) for path in self.steps):
            pass

    def needs(self, path: Path) -> list[Path]:
        if not path:
            return []
        holder, at = self.steps[path[:-1]], path[-1]
        if holder.kind is StepKind.CHAIN:
            return [(*path[:-1], at - 1)] if at else []
        return [(*path[:-1], need) for need in self.steps[path].needs]

    def look_at(self, path: Path) -> bool:
        """Change one step, if anything is to change."""
        step, state = self.steps[path], self.states[path]
        if state is S.WAITING and (not path or self.states[path[:-1]] is S.STARTED):
            if any(self.states[need] not in FINAL for need in self.needs(path)):
                return False
            became = self.judged(path)
            if became is S.STARTED:
                self.states[path] = became
                if step.kind is StepKind.JOB:
                    self.started.add(path)
            else:
                for inner in self.inside(path):
                    if self.states[inner] not in FINAL:
                        self.states[inner] = became
            return True
        if state is S.STARTED and step.kind is StepKind.JOB and path in self.outcomes:
            self.states[path] = self.outcomes[path]
            return True
        if state is S.STARTED and step.kind is not StepKind.JOB:
            inner_states = [self.states[(*path, at)] for at in range(len(step.steps))]
            if all(each in FINAL for each in inner_states):
                failed = any(
                    each is S.FAILED and self.counts(step, at)
                    for at, each in enumerate(inner_states)
                )
                self.states[path] = S.FAILED if failed else S.COMPLETED
                return True
        return False

    def counts(self, holder: Step, at: int) -> bool:
        """Whether the failure of a step makes its composite fail."""
        if holder.kind is StepKind.BATCH:
            return at > 0
        waiting = [step for step in holder.steps if at in step.needs]
        return not waiting or not all(at in step.ignores for step in waiting)

    def judged(self, path: Path) -> StepState:
        step = self.steps[path]
        mattering = [self.states[need] for need in self.needs(path) if need[-1] not in step.ignores]
        bad, skipped = any(each in BAD for each in mattering), S.SKIPPED in mattering
        match step.trigger:
            case T.ALL_DONE:
                return S.STARTED
            case T.ANY_FAILED:
                return S.STARTED if bad else S.SKIPPED
            case T.ALL_SUCCEEDED if bad:
                return S.CANCELLED if step.callback is None else S.SKIPPED
            case T.ALL_SUCCEEDED:
                return S.SKIPPED if skipped else S.STARTED

    def inside(self, path: Path) -> list[Path]:
        return [each for each in self.steps if each[: len(path)] == path]

    def retry(self, mode: RetryMode, outcomes: Mapping[Path, StepState]) -> set[Path]:
        """Run again with other outcomes. Returns the jobs that went back."""
        affected = {path for path, state in self.states.items() if state in BAD}
        changed = True
        while changed:
            before = len(affected)
            for path in list(affected):
                if not path:
                    continue
                affected.add(path[:-1])
                for at in range(len(self.steps[path[:-1]].steps)):
                    beside = (*path[:-1], at)
                    if path in self.needs(beside):
                        affected.update(self.inside(beside))
            changed = len(affected) > before
        jobs = {path for path, step in self.steps.items() if step.kind is StepKind.JOB}
        back = jobs if mode is RetryMode.ALL else jobs & affected
        if mode is RetryMode.FAILED:
            back = {path for path in back if self.states[path] is not S.COMPLETED}
        self.outcomes = outcomes
        self.run({path: self.states[path] for path in jobs - back})
        return back


def random_tree(rng: random.Random, jobs: int, depth: int = 4) -> Step:
    """A workflow of about so many jobs."""
    return replace(_composite(rng, jobs, depth), name=rng.choice((None, "nightly")))


def _composite(rng: random.Random, jobs: int, depth: int) -> Step:
    kind = rng.choice([each for each in StepKind if each is not StepKind.JOB])
    if kind is StepKind.BATCH:
        body = _row(rng, rng.choice((StepKind.GROUP, StepKind.DAG)), jobs, depth)
        chosen = sorted(rng.sample(list(Callback), rng.randint(1, 3)), key=list(Callback).index)
        callbacks = (
            Step(
                StepKind.JOB,
                type=f"callback.{each}",
                id=each if body.kind is StepKind.DAG else None,
                needs=(0,),
                trigger=each.trigger,
                callback=each,
            )
            for each in chosen
        )
        return Step(kind, steps=(body, *callbacks))
    return _row(rng, kind, jobs, depth)


def _row(rng: random.Random, kind: StepKind, jobs: int, depth: int) -> Step:
    """A chain, group or graph. In a graph, a step may depend on ones after it in the list."""
    count = rng.randint(1, max(1, min(jobs, rng.choice((3, 12, 200)))))
    order = rng.sample(range(count), count)
    rank = {at: place for place, at in enumerate(order)}
    steps = []
    for at in range(count):
        part = jobs // count
        nested = depth > 0 and part > 1 and rng.random() < 0.5
        inner = _composite(rng, part, depth - 1) if nested else Step(StepKind.JOB, type="a.job")
        if kind is StepKind.DAG:
            inner = replace(inner, id=f"s{at}")
            before = [each for each in range(count) if rank[each] < rank[at]]
            needs = tuple(rng.sample(before, rng.randint(0, min(3, len(before)))))
            if needs:
                trigger = rng.choice((T.ALL_SUCCEEDED, T.ALL_SUCCEEDED, T.ALL_DONE, T.ANY_FAILED))
                ignores = tuple(
                    each for each in needs if trigger is T.ALL_SUCCEEDED and rng.random() < 0.25
                )
                inner = replace(inner, needs=needs, trigger=trigger, ignores=ignores)
        steps.append(inner)
    return Step(kind, steps=tuple(steps))


def random_outcomes(rng: random.Random, root: Step) -> dict[Path, StepState]:
    """How each job would end."""
    failing = rng.choice((0.0, 0.1, 0.3, 0.7))
    return {
        path: S.FAILED if rng.random() < failing else S.COMPLETED
        for path, step in all_steps(root)
        if step.kind is StepKind.JOB
    }
