"""The graph of a workflow: what waits for what (ojs-workflows). Pure.

A workflow is a tree of steps: jobs, and composites (chains, groups, batches, graphs) that hold
other steps. It is flattened into nodes, numbered in the order of the tree:

    job      one job
    opening  begins a composite: when it starts, the steps in it that wait for no other may start
    settle   ends a composite: what waits for the composite waits for this node

The numbers of a composite's nodes run from its opening to its settle node without a gap. A node
that ends makes a mark at each node that waits for it. When all marks of a node are there, the
verdict says whether it starts, or that it never will. A repeated mark changes nothing, and the
order of marks does not matter, so that each can be an idempotent write of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from ojs.domain import ids
from ojs.records import record


class StepKind(StrEnum):
    """What a step is: a job, or a composite."""

    JOB = "job"
    CHAIN = "chain"
    GROUP = "group"
    # Its first step holds the jobs, the others are its callbacks.
    BATCH = "batch"
    DAG = "dag"


class StepTrigger(StrEnum):
    """How the steps that a step waits for must have ended. All of them have to end first."""

    ALL_SUCCEEDED = "all_succeeded"
    ALL_DONE = "all_done"
    ANY_FAILED = "any_failed"


class Callback(StrEnum):
    """When a callback runs, after all jobs of its batch have ended."""

    ON_COMPLETE = "on_complete"
    ON_SUCCESS = "on_success"
    ON_FAILURE = "on_failure"

    @property
    def trigger(self) -> StepTrigger:
        """The same as a trigger."""
        return _TRIGGERS[self]


_TRIGGERS = {
    Callback.ON_COMPLETE: StepTrigger.ALL_DONE,
    Callback.ON_SUCCESS: StepTrigger.ALL_SUCCEEDED,
    Callback.ON_FAILURE: StepTrigger.ANY_FAILED,
}


class StepState(StrEnum):
    """The state of a step. A job that was started has a state of its own, which says more."""

    WAITING = "waiting"
    STARTED = "started"
    COMPLETED = "completed"
    # A job that was discarded, cancelled or expired; a composite with such a job.
    FAILED = "failed"
    # It never runs, as a step failed that it needs, or as the workflow was cancelled.
    CANCELLED = "cancelled"
    # It never runs, as it is not needed: a callback for failures where nothing failed.
    SKIPPED = "skipped"


@record(frozen=True, slots=True)
class Step:
    """A step of a workflow, and the steps in it.

    `needs` are the positions of the steps beside it that it waits for; it does not care how those
    in `ignores` end. Only steps of a graph and callbacks have them: those of a chain follow from
    its order.
    """

    kind: StepKind
    # What the client calls it, unique among the steps beside it.
    id: str | None = None
    # The type of its job.
    type: str = ""
    # The name of a composite.
    name: str | None = None
    needs: tuple[int, ...] = ()
    ignores: tuple[int, ...] = ()
    trigger: StepTrigger = StepTrigger.ALL_SUCCEEDED
    callback: Callback | None = None
    steps: tuple[Step, ...] = ()


@record(frozen=True, slots=True)
class StepSignal:
    """What the end of a node says to the node `target`, which waits for it.

    `slot` tells it from the other marks of the target: they are numbered from 0. `bad` is that of a
    step that failed or was cancelled, `skipped` that of one that was not needed.
    """

    target: int
    slot: int
    bad: bool = False
    skipped: bool = False


BAD = frozenset({StepState.FAILED, StepState.CANCELLED})


class Graph:
    """The nodes of a workflow by their numbers, and what waits for what."""

    def __init__(self, root: Step) -> None:
        self.root = root
        # The step of a job or an opening; None for a settle node.
        self.steps: list[Step | None] = []
        # The opening of the composite that a node is in; of a settle node its own opening.
        self.parents: list[int] = []
        # The position of a step in its composite.
        self.positions: list[int] = []
        # The node whose end is that of a step: the settle node of an opening, or the job itself.
        self.exits: list[int] = []
        # Of an opening: the first nodes of the steps in it.
        self.children: list[Sequence[int]] = []
        # The nodes that a node waits for, by their slots; and the nodes that wait for it, each with
        # the slot of its mark there.
        self.sources: list[Sequence[int]] = []
        self.followers: list[list[tuple[int, int]]] = []
        # Node → the slots in which a bad mark counts as a good one.
        self._ignored: dict[int, frozenset[int]] = {}
        self._masks: dict[int, tuple[int, int]] = {}
        self._add(root, -1, 0)
        self.jobs = tuple(number for number, step in enumerate(self.steps) if _is_job(step))
        self.job_bits = bits(self.jobs)
        self.all_bits = (1 << len(self.steps)) - 1

    def _node(self, step: Step | None, parent: int, position: int) -> int:
        number = len(self.steps)
        self.steps.append(step)
        self.parents.append(parent)
        self.positions.append(position)
        self.exits.append(number)
        self.children.append(())
        self.sources.append(())
        self.followers.append([])
        return number

    def _add(self, step: Step, parent: int, position: int) -> int:
        """Add a step and those in it. Returns its first node."""
        number = self._node(step, parent, position)
        if step.kind is StepKind.JOB:
            return number
        children = tuple(self._add(child, number, at) for at, child in enumerate(step.steps))
        self.children[number] = children
        settle = self._node(None, number, len(children))
        self.exits[number] = settle
        ends = [self.exits[child] for child in children]
        for child, inner in zip(children, step.steps, strict=True):
            needs = needs_of(step, self.positions[child])
            self._link(child, [ends[at] for at in needs])
            if inner.ignores:
                slots = (slot for slot, at in enumerate(needs) if at in inner.ignores)
                self._ignored[child] = frozenset(slots)
        # It waits for all, not only for the last ones: these may stay as they are in a retry.
        self._link(settle, ends)
        self._ignored[settle] = _forgiven(step)
        return number

    def _link(self, target: int, sources: Sequence[int]) -> None:
        self.sources[target] = tuple(sources)
        for slot, source in enumerate(sources):
            self.followers[source].append((target, slot))

    def step(self, node: int) -> Step:
        """The step of a job or an opening."""
        found = self.steps[node]
        assert found is not None
        return found

    def is_job(self, node: int) -> bool:
        """Whether a node is a job."""
        return _is_job(self.steps[node])

    def marks(self, node: int, state: StepState) -> list[StepSignal]:
        """The marks that the end of a node makes: of a job, of a settle node, or of an opening that
        never starts, for which its settle node stands.
        """
        found = []
        for target, slot in self.followers[self.exits[node]]:
            ignored = slot in self._ignored.get(target, ())
            bad, skipped = state in BAD, state is StepState.SKIPPED
            found.append(StepSignal(target, slot, bad and not ignored, skipped and not ignored))
        return found

    def verdict(self, node: int, *, bad: bool, skipped: bool) -> StepState:
        """What becomes of a node when all its marks are there, of which some were `bad` or
        `skipped`.

        STARTED: the job or the composite starts. Otherwise the node ends with this state, and the
        whole of a composite with it.
        """
        step = self.steps[node]
        if step is None:
            return StepState.FAILED if bad else StepState.COMPLETED
        if step.trigger is StepTrigger.ALL_DONE:
            return StepState.STARTED
        if step.trigger is StepTrigger.ANY_FAILED:
            return StepState.STARTED if bad else StepState.SKIPPED
        if bad and step.callback is None:
            return StepState.CANCELLED
        return StepState.SKIPPED if bad or skipped else StepState.STARTED

    def masks(self, node: int) -> tuple[int, int]:
        """The bits of the nodes that a node waits for: of all, and of those that it does not
        ignore. Computed once for each node that is asked for.
        """
        if node not in self._masks:
            sources = self.sources[node]
            ignored = self._ignored.get(node, frozenset())
            judged = (source for slot, source in enumerate(sources) if slot not in ignored)
            self._masks[node] = (bits(sources), bits(judged))
        return self._masks[node]

    def span(self, node: int) -> range:
        """The nodes of a step: those of a composite, or the job alone."""
        return range(node, self.exits[node] + 1)


def _is_job(step: Step | None) -> bool:
    return step is not None and step.kind is StepKind.JOB


def needs_of(composite: Step, position: int) -> tuple[int, ...]:
    """The positions of the steps of a composite for which the one at `position` waits."""
    if composite.kind is StepKind.CHAIN:
        return (position - 1,) if position else ()
    return composite.steps[position].needs


def _forgiven(composite: Step) -> frozenset[int]:
    """The positions of the steps whose failure does not make their composite fail."""
    if composite.kind is StepKind.BATCH:
        # Its jobs: what became of them is for the callbacks to deal with.
        return frozenset({0})
    ignored, counted = set[int](), set[int]()
    for step in composite.steps:
        ignored.update(step.ignores)
        counted.update(need for need in step.needs if need not in step.ignores)
    # All who wait for it ignore how it ends.
    return frozenset(ignored - counted)


def bits(numbers: Sequence[int] | Iterator[int]) -> int:
    """A set of numbers as the bits of an integer."""
    listed = list(numbers)
    filled = bytearray(max(listed, default=0) // 8 + 1)
    for number in listed:
        filled[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(filled, "little")


def numbers(found: int) -> Iterator[int]:
    """The numbers in a set of bits, from the smallest."""
    data = found.to_bytes((found.bit_length() + 7) // 8, "little")
    for at, byte in enumerate(data):
        for bit in range(8) if byte else ():
            if byte >> bit & 1:
                yield at * 8 + bit


def job_id(workflow_id: str, created_ms: int, node: int, generation: int) -> str:
    """The id of the job of a node, a UUIDv7: the same each time, so that nothing starts twice.

    `created_ms` is when the workflow was created, `generation` that in which the job runs.
    """
    return ids.derived_uuid7(created_ms, f"{workflow_id}/{node}/{generation}")
