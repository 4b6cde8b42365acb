"""Workflows of typed jobs: chains, groups, batches, and graphs, and the results of parents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Union, overload
from urllib.parse import parse_qsl, urlsplit

from ojs_aws.client import operations
from ojs_aws.client.call import Answer, Call, json_object
from ojs_aws.client.operations import JobRequest
from ojs_aws.errors import JobError
from ojs_aws.typed.clients import Clients
from ojs_aws.typed.job_type import JobType

if TYPE_CHECKING:
    from ojs_aws.client.job import Job

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)  # steps of different results fit into one list
Trigger = Literal["all_succeeded", "all_done", "any_failed"]
# Key of a step's `meta`: the names of its parents in a graph, by job type.
_PARENTS = "ojs_parents"
_MOST_PARENTS = 100


@dataclass(frozen=True)
class JobCall(Generic[R_co]):
    """A job of a workflow: a job type with its arguments. `JobType.job` returns it."""

    job_type: JobType[..., R_co]
    request: JobRequest
    needs: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    trigger: Trigger | None = None

    def after(
        self, *steps: str, ignore_failed: bool = False, trigger: Trigger | None = None
    ) -> JobCall[R_co]:
        """Return this step with dependencies, for `dag`.

        Args:
            *steps: Names of the steps that it needs. Several calls add up.
            ignore_failed: Whether these steps can fail. Default: false.
            trigger: When the step starts. Default: if the steps that it needs succeeded.

        Returns:
            The step with its dependencies.
        """
        ignored = (*self.ignored, *steps) if ignore_failed else self.ignored
        trigger = trigger or self.trigger
        return replace(self, needs=(*self.needs, *steps), ignored=ignored, trigger=trigger)

    @property
    def clients(self) -> Clients:
        """The clients of the job type."""
        return self.job_type.jobs.clients

    @property
    def kind(self) -> str:
        """The job type."""
        return self.job_type.name

    def wire(self) -> Answer:
        """Return the step as the API expects it."""
        step = self.request.wire("")
        del step["id"]
        if self.needs:
            ignored = [{"id": each, "ignore_failed": True} for each in self.ignored]
            step["depends_on"] = [*(n for n in self.needs if n not in self.ignored), *ignored]
        return {**step, **({"trigger": self.trigger} if self.trigger else {})}


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
            step["meta"] = {**step.get("meta", {}), _PARENTS: kinds}
        wire.append(step)
    return Workflow("dag", clients, {"steps": wire})


class Parents:
    """Results of the steps before a job of a workflow, by job type, name, or position."""

    def __init__(self, job: Job, clients: Clients) -> None:
        self._job = job
        self._clients = clients

    @cached_property
    def _found(self) -> tuple[list[Any], list[Any], list[str]]:
        """Results, errors, and names of all parents. Large results are read from the server."""
        raw = self._job.raw
        found = raw.get("parent_results", [])
        if isinstance(found, list):
            errors = raw.get("parent_errors") or [None] * len(found)
            return found, errors, list(raw.get("parent_results_by_step", {}))
        place, entries = urlsplit(found["$ref"]), list[Answer]()
        query = dict(parse_qsl(place.query))
        while query:
            page = self._clients.run(Call("GET", place.path, json_object, query=query))
            entries += page["results"]
            cursor = page["pagination"].get("next_cursor")
            query = {**query, "cursor": cursor} if cursor else {}
        results = [each.get("result") for each in entries]
        return results, [each.get("error") for each in entries], [each["step"] for each in entries]

    def __len__(self) -> int:
        return len(self._found[0])

    @overload
    def __getitem__(self, step: JobType[..., R]) -> R: ...
    @overload
    def __getitem__(self, step: str | int) -> Any: ...
    def __getitem__(self, step: JobType[..., Any] | str | int) -> Any:
        """Return the result of a parent: of the first one of a job type, or JSON.

        Raises:
            LookupError: The job has no such parent. The message names those it has.
            JobError: The parent failed.
        """
        results, errors, names = self._found
        name = step.name if isinstance(step, JobType) else step
        if isinstance(step, JobType):
            name = self._job.meta.get(_PARENTS, {}).get(name, name)
        position = name if isinstance(name, int) else names.index(name) if name in names else None
        if position is None or not -len(results) <= position < len(results):
            there = names or len(results) or "none"
            raise LookupError(f"parents[{step!r}]: the parents are {there}")
        if errors[position]:
            raise JobError(self._job.id, "discarded", errors[position])
        found = results[position]
        return step.read_result(found) if isinstance(step, JobType) else found
