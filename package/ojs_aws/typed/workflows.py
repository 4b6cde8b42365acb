"""Workflows of typed jobs: chains, groups, batches, and graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Union

from ojs_aws.client import operations
from ojs_aws.client.call import Answer, Call
from ojs_aws.typed.clients import Clients
from ojs_aws.typed.job_type import JobCall
from ojs_aws.typed.parents import PARENTS

_MOST_PARENTS = 100


@dataclass(frozen=True)
class Workflow:
    """A workflow that doesn't exist yet. `chain`, `group`, `batch`, and `dag` return it."""

    kind: str
    clients: Clients
    fields: Mapping[str, Any]

    def wire(self) -> Answer:
        """Return the workflow as the API expects it."""
        return {"type": self.kind, **self.fields}

    def enqueue(self, *, name: str | None = None) -> WorkflowHandle:
        """Create and start the workflow.

        Args:
            name: Name that the dashboard shows. Default: none.

        Returns:
            The workflow with its ID.

        Raises:
            BadRequest: A step is invalid. Nothing was stored.
        """
        return _handle(self.clients.run(self._call(name)))

    async def aenqueue(self, *, name: str | None = None) -> WorkflowHandle:
        """Create and start the workflow without blocking the event loop, as `enqueue`."""
        return _handle(await self.clients.arun(self._call(name)))

    def _call(self, name: str | None) -> Call[Answer]:
        return operations.create_workflow(**self.wire(), **({"name": name} if name else {}))


@dataclass(frozen=True)
class WorkflowHandle:
    """A workflow that was created. `raw` is the JSON object of the response."""

    id: str
    raw: Mapping[str, Any]


Step = Union[JobCall[Any], Workflow]


def _handle(answer: Answer) -> WorkflowHandle:
    return WorkflowHandle(answer["id"], answer)


def _checked(called: str, steps: Iterable[Any]) -> Clients:
    """Return the clients of the first step. Raises TypeError for what isn't a step."""
    found: list[Step] = list(steps)
    for each in found:
        if not isinstance(each, (JobCall, Workflow)):
            raise TypeError(f"{called} takes calls such as send.job(…), but got {each!r}")
        if isinstance(each, JobCall) and (each.needs or each.trigger) and called != "dag()":
            raise TypeError(f"{called}: only a step of dag() can have after()")
    if not found:
        raise TypeError(f"{called} needs at least one step")
    return found[0].clients


def _named(steps: Iterable[Step]) -> list[Answer]:
    """Return steps with the job type as ID. The second of a type has the ID `type#2`."""
    count: dict[str, int] = {}
    wire = []
    for each in steps:
        count[each.kind] = number = count.get(each.kind, 0) + 1
        step_id = each.kind if number == 1 else f"{each.kind}#{number}"
        wire.append({"id": step_id, **each.wire()})
    return wire


def chain(*steps: Step) -> Workflow:
    """Return a workflow whose steps run one after the other.

    Args:
        *steps: Jobs (`send.job(…)`) or workflows.

    Returns:
        The workflow. Call its `enqueue`.

    Raises:
        TypeError: No step is given, or one isn't a job of a workflow.
    """
    return Workflow("chain", _checked("chain()", steps), {"steps": _named(steps)})


def group(*steps: Step) -> Workflow:
    """Return a workflow whose steps run in parallel, as `chain`."""
    return Workflow("group", _checked("group()", steps), {"jobs": _named(steps)})


def batch(
    *steps: Step,
    on_complete: Step | None = None,
    on_success: Step | None = None,
    on_failure: Step | None = None,
) -> Workflow:
    """Return a group with callbacks, which run after all steps have finished.

    Args:
        *steps: Jobs (`send.job(…)`) or workflows.
        on_complete: Step that runs always. Default: none.
        on_success: Step that runs if all steps succeeded. Default: none.
        on_failure: Step that runs if one failed. Default: none.

    Returns:
        The workflow. Call its `enqueue`.

    Raises:
        TypeError: No step is given, or one isn't a job of a workflow.
    """
    named = {"on_complete": on_complete, "on_success": on_success, "on_failure": on_failure}
    callbacks = {name: each for name, each in named.items() if each is not None}
    clients = _checked("batch()", [*steps, *callbacks.values()])
    wire = {name: each.wire() for name, each in callbacks.items()}
    return Workflow("batch", clients, {"jobs": _named(steps), "callbacks": wire})


def dag(steps: Mapping[str, Step]) -> Workflow:
    """Return a graph: `dag({"charge": charge.job(order), "ship": ship.job().after("charge")})`.

    Args:
        steps: Steps by name.

    Returns:
        The workflow. Call its `enqueue`.

    Raises:
        TypeError: No step is given, or one isn't a job of a workflow.
        ValueError: A step comes after an unknown one.
    """
    clients, wire = _checked("dag()", steps.values()), []
    for name, each in steps.items():
        step = {"id": name, **each.wire()}
        for need in getattr(each, "needs", ()):
            if need not in steps:
                raise ValueError(f"dag(): {name!r} is after {need!r}. Steps are {', '.join(steps)}")
        kinds = {steps[need].kind: need for need in reversed(getattr(each, "needs", ()))}
        if kinds and len(kinds) <= _MOST_PARENTS:
            step["meta"] = {**step.get("meta", {}), PARENTS: kinds}
        wire.append(step)
    return Workflow("dag", clients, {"steps": wire})
