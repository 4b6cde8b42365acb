"""The place of a job in a workflow, as stored in the job record. Pure."""

from __future__ import annotations

from ojs.records import record

_KEPT = "k"


@record(frozen=True, slots=True)
class WorkflowStep:
    """The place of a job in a workflow.

    `node` is its number in the graph and `generation` the generation in which it runs. If `kept`,
    its result or error is stored for later steps. `name` is the ID that the client chose, or the
    number of the step. If its only mark goes to a fan-in, `fan_in` is the token of that fan-in, and
    `slot` is the slot of the mark.
    """

    workflow_id: str
    node: int
    generation: int = 0
    kept: bool = False
    name: str = ""
    fan_in: str | None = None
    slot: int = 0

    def compact(self) -> str:
        """Return the stored form in a job record. A name can contain any characters."""
        fan_in = "" if self.fan_in is None else f"{self.fan_in}.{self.slot}"
        kept = _KEPT if self.kept else ""
        return f"{self.workflow_id}|{self.node}|{self.generation}|{kept}|{fan_in}|{self.name}"

    @classmethod
    def of(cls, text: str) -> WorkflowStep:
        """Read the result of `compact`. Raises ValueError."""
        workflow_id, node, generation, kept, fan_in, name = text.split("|", 5)
        token, _, slot = fan_in.rpartition(".")
        return cls(
            workflow_id,
            int(node),
            int(generation),
            kept == _KEPT,
            name,
            token or None,
            int(slot or 0),
        )
