"""The graph of a workflow: its nodes and their dependencies (ojs-workflows). Pure.

A workflow is a tree of steps: jobs, and composites (chains, groups, batches, graphs) that contain
other steps. The tree is flattened into nodes, numbered in the order of the tree:

    job      one job
    opening  start of a composite: when it starts, the steps in it without dependencies can start
    settle   end of a composite: steps that depend on the composite depend on this node

The nodes of a composite have consecutive numbers, from its opening to its settle node. A node that
ends makes a mark at each node that waits for it. When a node has all its marks, the verdict decides
whether the node starts or never starts. A repeated mark changes nothing, and the order of marks
doesn't matter. Therefore each mark can be a separate idempotent write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import StrEnum

from ojs.domain import ids
from ojs.records import record


class StepKind(StrEnum):
    """The kind of a step: a job or a composite."""

    JOB = "job"
    CHAIN = "chain"
    GROUP = "group"
    # The first step contains the jobs. The other steps are the callbacks.
    BATCH = "batch"
    DAG = "dag"


class StepTrigger(StrEnum):
    """Condition on the final states of a step's dependencies. All of them must end first."""

    ALL_SUCCEEDED = "all_succeeded"
    ALL_DONE = "all_done"
    ANY_FAILED = "any_failed"


class Callback(StrEnum):
    """The condition under which a callback runs, after all jobs of its batch have ended."""

    ON_COMPLETE = "on_complete"
    ON_SUCCESS = "on_success"
    ON_FAILURE = "on_failure"

    @property
    def trigger(self) -> StepTrigger:
        """The equivalent trigger."""
        return _TRIGGERS[self]


_TRIGGERS = {
    Callback.ON_COMPLETE: StepTrigger.ALL_DONE,
    Callback.ON_SUCCESS: StepTrigger.ALL_SUCCEEDED,
    Callback.ON_FAILURE: StepTrigger.ANY_FAILED,
}


class StepState(StrEnum):
    """State of a step. The job of a started step has its own, more detailed state."""

    WAITING = "waiting"
    STARTED = "started"
    COMPLETED = "completed"
    # A discarded, cancelled, or expired job, or a composite that contains one.
    FAILED = "failed"
    # Never runs, because a step that it needs failed, or because the workflow was cancelled.
    CANCELLED = "cancelled"
    # Never runs, because it is not needed: for example an `on_failure` callback without a failure.
    SKIPPED = "skipped"


@record(frozen=True, slots=True)
class Step:
    """A step of a workflow, with its inner steps.

    `needs` are the positions of the steps of the same composite that it waits for. `ignores` are
    those of them that can fail without an effect on this step. Only steps of a graph and callbacks
    have them. In a chain, the dependencies follow from the order.
    """

    kind: StepKind
    # ID that the client chose, unique within the composite.
    id: str | None = None
    # Job type, if the step is a job.
    type: str = ""
    # Name, if the step is a composite.
    name: str | None = None
    needs: tuple[int, ...] = ()
    ignores: tuple[int, ...] = ()
    trigger: StepTrigger = StepTrigger.ALL_SUCCEEDED
    callback: Callback | None = None
    steps: tuple[Step, ...] = ()


@record(frozen=True, slots=True)
class StepSignal:
    """The signal of an ended node to the node `target`, which waits for it.

    `slot` is the number of the mark at the target, from 0. If `bad`, the step failed or was
    cancelled. If `skipped`, the step was not needed.
    """

    target: int
    slot: int
    bad: bool = False
    skipped: bool = False


BAD = frozenset({StepState.FAILED, StepState.CANCELLED})


class Graph:
    """The nodes of a workflow by number, and their dependencies."""

    def __init__(self, root: Step) -> None:
        self.root = root
        # The step of a job or an opening; None for a settle node.
        self.steps: list[Step | None] = []
        # The opening of the composite that contains a node. For a settle node: its own opening.
        self.parents: list[int] = []
        # The position of a step in its composite.
        self.positions: list[int] = []
        # The node that ends a step: the settle node of an opening, or the job itself.
        self.exits: list[int] = []
        # For an opening: the first node of each inner step.
        self.children: list[Sequence[int]] = []
        # The nodes that a node waits for, by slot; and the nodes that wait for it, each with the
        # slot of the mark.
        self.sources: list[Sequence[int]] = []
        self.followers: list[list[tuple[int, int]]] = []
        # Node → the slots in which a bad mark counts as a success.
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
        """Add a step and its inner steps. Returns its first node."""
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
        # Wait for all steps, not only for the last ones: a retry might not reset the last ones.
        self._link(settle, ends)
        self._ignored[settle] = _forgiven(step)
        return number

    def _link(self, target: int, sources: Sequence[int]) -> None:
        self.sources[target] = tuple(sources)
        for slot, source in enumerate(sources):
            self.followers[source].append((target, slot))

    def step(self, node: int) -> Step:
        """Return the step of a job or an opening."""
        found = self.steps[node]
        assert found is not None
        return found

    def is_job(self, node: int) -> bool:
        """Return whether a node is a job."""
        return _is_job(self.steps[node])

    def list_followers(self, node: int) -> list[int]:
        """Return the jobs that start after a job, without those that wait for its followers."""
        found: set[int] = set()
        ends, begins = [node], list[int]()
        while ends or begins:
            if ends:
                targets = [target for target, _ in self.followers[ends.pop()]]
                inner = [each for each in targets if self.steps[each] is not None]
                # The end of a composite waits for all its steps, also for those with followers.
                begins += inner
                ends += [] if inner else targets
            elif self.is_job(begun := begins.pop()):
                found.add(begun)
            else:
                begins += [each for each in self.children[begun] if not self.sources[each]]
        return sorted(found)

    def marks(self, node: int, state: StepState) -> list[StepSignal]:
        """Return the marks that an ended node makes.

        `node` is a job, a settle node, or the opening of a composite that never starts. For an
        opening, the marks are those of its settle node.
        """
        found = []
        for target, slot in self.followers[self.exits[node]]:
            ignored = slot in self._ignored.get(target, ())
            bad, skipped = state in BAD, state is StepState.SKIPPED
            found.append(StepSignal(target, slot, bad and not ignored, skipped and not ignored))
        return found

    def verdict(self, node: int, *, bad: bool, skipped: bool) -> StepState:
        """Decide the next state of a node that has all its marks.

        Args:
            node: Number of the node.
            bad: Whether a mark came from a failed or cancelled step.
            skipped: Whether a mark came from a skipped step.

        Returns:
            `STARTED` if the job or the composite starts. Otherwise the state in which the node
            ends. A composite ends with all its steps.
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
        """Bits of all sources of a node, and bits of the sources whose failure it doesn't ignore.

        Cached by node.
        """
        if node not in self._masks:
            sources = self.sources[node]
            ignored = self._ignored.get(node, frozenset())
            judged = (source for slot, source in enumerate(sources) if slot not in ignored)
            self._masks[node] = (bits(sources), bits(judged))
        return self._masks[node]

    def span(self, node: int) -> range:
        """Return the nodes of a step: all nodes of a composite, or only the job."""
        return range(node, self.exits[node] + 1)


def _is_job(step: Step | None) -> bool:
    return step is not None and step.kind is StepKind.JOB


def needs_of(composite: Step, position: int) -> tuple[int, ...]:
    """Return the positions of the steps that the step at `position` of a composite waits for."""
    if composite.kind is StepKind.CHAIN:
        return (position - 1,) if position else ()
    return composite.steps[position].needs


def _forgiven(composite: Step) -> frozenset[int]:
    """Return the positions of the steps whose failure doesn't fail their composite."""
    if composite.kind is StepKind.BATCH:
        # The jobs: their failures are handled by the callbacks.
        return frozenset({0})
    ignored, counted = set[int](), set[int]()
    for step in composite.steps:
        ignored.update(step.ignores)
        counted.update(need for need in step.needs if need not in step.ignores)
    # Steps whose failure each of their followers ignores.
    return frozenset(ignored - counted)


def bits(numbers: Sequence[int] | Iterator[int]) -> int:
    """Convert a set of numbers to a bit set."""
    listed = list(numbers)
    filled = bytearray(max(listed, default=0) // 8 + 1)
    for number in listed:
        filled[number >> 3] |= 1 << (number & 7)
    return int.from_bytes(filled, "little")


def numbers(found: int) -> Iterator[int]:
    """Yield the numbers in a bit set, in ascending order."""
    data = found.to_bytes((found.bit_length() + 7) // 8, "little")
    for at, byte in enumerate(data):
        for bit in range(8) if byte else ():
            if byte >> bit & 1:
                yield at * 8 + bit


def job_id(workflow_id: str, created_ms: int, node: int, generation: int) -> str:
    """Derive the job ID of a node. The same arguments give the same ID, so no job starts twice.

    Args:
        workflow_id: ID of the workflow.
        created_ms: Creation time of the workflow in milliseconds since the epoch.
        node: Number of the node.
        generation: Generation in which the job runs.

    Returns:
        A UUIDv7.
    """
    return ids.derived_uuid7(created_ms, f"{workflow_id}/{node}/{generation}")
