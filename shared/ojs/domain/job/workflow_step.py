"""Which step of a workflow a job is, as its record says. Pure."""

from __future__ import annotations

from ojs.records import record

_KEPT = "k"


@record(frozen=True, slots=True)
class WorkflowStep:
    """The place of a job in a workflow.

    `node` is its number in the graph, `generation` that in which it runs, `kept` whether its result
    or error is kept for steps that come later. `name` is what the client calls the step, else its
    number. If its one mark goes to a fan-in, that has the token `fan_in`, and its own mark there is
    that of `slot`.
    """

    workflow_id: str
    node: int
    generation: int = 0
    kept: bool = False
    name: str = ""
    fan_in: str | None = None
    slot: int = 0

    def compact(self) -> str:
        """The form in which a job record has it; a name may have any characters."""
        fan_in = "" if self.fan_in is None else f"{self.fan_in}.{self.slot}"
        kept = _KEPT if self.kept else ""
        return f"{self.workflow_id}|{self.node}|{self.generation}|{kept}|{fan_in}|{self.name}"

    @classmethod
    def of(cls, text: str) -> WorkflowStep:
        """Read back what `compact` wrote. Raises ValueError."""
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
