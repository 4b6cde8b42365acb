"""Parses requests to create a workflow, in both dialects (ojs-workflows; ojs-http-binding, 14).

    typed     `type` is chain, group, or batch. A chain has `steps`; a group and a batch have `jobs`
    graph     no `type`, or `dag`. Each step has an `id` and can list other IDs in `depends_on`

The builder of the admin UI sends `tasks` instead of `jobs`, and the callbacks of a batch next to
them. Both are accepted.

A step with `steps`, `jobs`, or `callbacks` is a workflow itself, of either dialect. Any other step
is a job in the format of an enqueue request. In a graph, `options.callback_type` marks a callback.
The Go SDK marks it by ID instead: a step with the ID `on-complete`, `on-success`, or `on-failure`
is a callback if it depends on all other steps and no step depends on it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar, TypeVar

from ojs.domain import ids, tenants
from ojs.domain.errors import InvalidRequest, OjsError, any_of, shorten
from ojs.domain.fair_queue.tags import get_tenant
from ojs.domain.job import envelope
from ojs.domain.job.envelope import MAX_META_BYTES, MAX_NAME_BYTES, OnConflict
from ojs.domain.requests import MAX_SHOWN, not_known
from ojs.domain.workflow.graph import Callback, Graph, Step, StepKind, StepTrigger
from ojs.domain.workflow.places import Dependency, PlacedSteps, StepSpec, arrange
from ojs.records import record

# Maximum jobs of a workflow, including callbacks.
MAX_STEPS = 10_000
# Maximum nesting depth, including the outermost workflow.
MAX_DEPTH = 10
# Maximum dependencies in total, without those of callbacks. Each is a mark when the workflow runs.
MAX_EDGES = 50_000
# Maximum dependencies including those of callbacks. Limits the time to read a request.
MAX_NAMED_EDGES = 3 * MAX_EDGES
# Maximum errors in one response.
MAX_ERRORS = 100

# The kind of a workflow → its fields in addition to `_COMMON`. The first one contains its steps.
_FORMS = {
    StepKind.CHAIN: ("steps",),
    StepKind.GROUP: ("jobs",),
    StepKind.BATCH: ("jobs", "callbacks"),
    StepKind.DAG: ("steps",),
}
_COMMON = ("type", "id", "name", "options")
# Fields that define the place of a step in a graph.
_PLACE = ("depends_on", "trigger")
_CALLBACK = "callback_type"
# Names of other products for a dependency or a condition of a step, and the field here. These names
# are rejected: if they were ignored, the step would start immediately.
_ELSEWHERE = {
    **dict.fromkeys(
        ("needs", "dependsOn", "depends", "dependencies", "requires", "after", "run_after"),
        "depends_on",
    ),
    **dict.fromkeys(("when", "if", "condition", "conditions", "run_if"), "trigger"),
}
# Fields that make a step a workflow.
_COMPOSITE = frozenset({"steps", "jobs", "callbacks"})
# An option of a step overrides the same option of its workflow, and also the options listed here.
_SAME = {
    "timeout": ("timeout_ms",),
    "timeout_ms": ("timeout",),
    "scheduled_at": ("delay_until",),
    "delay_until": ("scheduled_at",),
    "retry": ("max_attempts",),
}


class InvalidWorkflow(InvalidRequest):
    """The definition of a workflow is invalid; `details.validation_errors` lists all errors."""

    code: ClassVar[str] = "invalid_workflow"

    def __init__(self, errors: Sequence[Mapping[str, str]]) -> None:
        first = errors[0]
        details = {"validation_errors": list(errors)}
        super().__init__(first["path"], first["message"], details=details)


@record(frozen=True)
class WorkflowDefinition:
    """A valid request.

    `templates` are the enqueue requests of its jobs, in the order of `graph.jobs`. They include the
    options of their workflows, and `envelope.parse` accepts them. `queues` are the queues of its
    jobs. `id` is the workflow ID that the client chose.
    """

    graph: Graph
    templates: tuple[Mapping[str, Any], ...]
    queues: frozenset[str]
    id: str | None = None


def parse(body: object, *, now_ms: int) -> WorkflowDefinition:
    """Parse a workflow from decoded JSON.

    Each job is validated like an enqueue request at the time `now_ms`, with the system defaults.
    The defaults of its queue are applied when the job starts.

    Raises InvalidWorkflow with all errors, at most `MAX_ERRORS`.
    """
    reading = _Reading(now_ms)
    read: _Read | None = None
    with suppress(_TooManyErrors):
        read = reading.workflow(body)
    if reading.errors or read is None or not isinstance(body, dict):
        raise InvalidWorkflow(reading.errors)
    templates = tuple(read.templates)
    return WorkflowDefinition(
        Graph(read.step), templates, frozenset(reading.queues), body.get("id")
    )


@record(frozen=True, slots=True)
class _Read:
    """A step, and the templates of its jobs, in the order of the tree."""

    step: Step
    templates: Sequence[dict[str, Any]] = ()


@record(frozen=True, slots=True)
class _Steps:
    """Context of the steps of a workflow: path of the list, inherited options, nesting depth."""

    path: str
    options: Mapping[str, Any]
    depth: int


# Placeholder for a step with errors. The other steps are still read, to find all errors.
_NOTHING = _Read(Step(StepKind.JOB))
_Member = TypeVar("_Member", StepKind, StepTrigger, Callback)


class _TooManyErrors(Exception):
    """The request has MAX_ERRORS errors. The rest of it is not read."""


class _Reading:
    """State of reading one request."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self.errors: list[dict[str, str]] = []
        self.queues = set[str]()
        self._edges = self._named_edges = 0
        # Path and template of each job.
        self._jobs: list[tuple[str, dict[str, Any]]] = []
        # Valid enqueue requests without args and meta → their queues.
        self._valid = dict[str, str]()

    def _note(self, path: str, rule: str) -> None:
        self.errors.append({"path": path, "message": rule})
        if len(self.errors) >= MAX_ERRORS:
            raise _TooManyErrors

    def _note_unknown(self, raw: Mapping[str, Any], path: str, known: Sequence[str]) -> None:
        for key in islice((key for key in raw if key not in known), MAX_ERRORS):
            self._note(f"{path}.{key[:MAX_SHOWN]}", not_known(key, known))

    # --- workflows --------------------------------------------------------------------------------

    def workflow(self, body: object) -> _Read:
        """Read the whole request."""
        body = _usual(body)
        if isinstance(body, dict):
            self._unplaced(body, "$")
            if "id" in body and not ids.is_uuid7(body["id"]):
                self._note("$.id", "must be a lowercase UUIDv7")
        read = self._composite(body, "$", {}, 1)
        self._share_tenant()
        if len({tenants.get_tenant(queue) for queue in self.queues}) > 1:
            self._note("$", "must have only queues of one tenant")
        return read

    def _composite(self, raw: object, path: str, options: Mapping[str, Any], depth: int) -> _Read:
        """Read a workflow, at the top or as a step. `options` come from the enclosing workflow."""
        if not isinstance(raw, dict):
            self._note(path, "must be an object")
            return _NOTHING
        if depth > MAX_DEPTH:
            self._note(path, f"must have at most {MAX_DEPTH} levels of nested workflows")
            return _NOTHING
        kind = self._member(raw.get("type", StepKind.DAG), f"{path}.type", _FORMS)
        if kind is None:
            return _NOTHING
        fields = _FORMS[kind]
        self._note_unknown(raw, path, (*_COMMON, *fields, *_PLACE))
        name = raw.get("name")
        if name is not None and not (isinstance(name, str) and len(name) <= MAX_NAME_BYTES):
            self._note(f"{path}.name", f"must be a string of at most {MAX_NAME_BYTES} characters")
        inner = _Steps(f"{path}.{fields[0]}", self._options(raw, path, options), depth + 1)
        steps = raw.get(fields[0])
        if not isinstance(steps, list) or not steps:
            self._note(inner.path, "must be an array with at least one entry")
            return _NOTHING
        if kind is StepKind.DAG:
            read = self._graph(steps, inner, inferred="type" not in raw)
        elif kind is StepKind.BATCH:
            jobs = self._row(StepKind.GROUP, steps, inner)
            read = self._batch(jobs, raw.get("callbacks"), f"{path}.callbacks", inner)
        else:
            read = self._row(kind, steps, inner)
        return replace(read, step=replace(read.step, name=name))

    def _options(
        self, raw: Mapping[str, Any], path: str, outer: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Return the options of a workflow, merged with those of the enclosing workflow."""
        options = raw.get("options")
        if options is None:
            return outer
        # Report invalid options once, not for each step.
        if self._queue({"type": "a", "args": [], "options": options}, path) is None:
            return {}
        merged: Mapping[str, Any] = _with_options({"options": options}, outer)["options"]
        return merged

    def _row(self, kind: StepKind, steps: Sequence[object], inner: _Steps) -> _Read:
        """Read the steps of a chain or a group."""
        seen, found = dict[str, str](), []
        for at, raw in enumerate(steps):
            path = f"{inner.path}[{at}]"
            found.append(self._step(raw, path, inner, self._id(raw, path, seen)))
            self._unplaced(raw, path)
        return _holding(kind, found)

    def _batch(self, jobs: _Read, callbacks: object, path: str, inner: _Steps) -> _Read:
        """Read the callbacks of a batch of these jobs."""
        if not isinstance(callbacks, dict) or not callbacks:
            self._note(path, f"must have at least one of {any_of(Callback)}")
            return _NOTHING
        self._note_unknown(callbacks, path, list(Callback))
        found = [jobs]
        for callback in (each for each in Callback if each in callbacks):
            raw, place = callbacks[callback], f"{path}.{callback}"
            self._unplaced(raw, place)
            if _is_composite(raw):
                self._note(place, "must be a job")
            else:
                step_id = self._id(raw, place, {})
                found.append(_as_callback(self._step(raw, place, inner, step_id), callback))
        return _holding(StepKind.BATCH, found)

    def _unplaced(self, raw: object, path: str) -> None:
        """Reject fields that only steps of a graph can have."""
        if not isinstance(raw, dict):
            return
        options = raw.get("options")
        named = [f"{path}.{field}" for field in _PLACE if field in raw]
        if isinstance(options, dict) and _CALLBACK in options and not _is_composite(raw):
            named.append(f"{path}.options.{_CALLBACK}")
        for place in named:
            self._note(
                place,
                "is allowed only in the steps of a workflow without type, or with the type dag",
            )

    def _graph(self, steps: Sequence[object], inner: _Steps, *, inferred: bool) -> _Read:
        """Read a graph. If `inferred`, store it as a chain, group, or batch if it is equivalent."""
        seen, places, found = dict[str, str](), [], []
        for at, raw in enumerate(steps):
            path = f"{inner.path}[{at}]"
            place = self._place(raw, path, self._id(raw, path, seen, required=True))
            places.append(place)
            found.append(self._step(raw, path, inner, place.id))
        arranged = arrange(places, inner.path, self._note)
        self._edges += arranged.edges
        if self._edges > MAX_EDGES:
            self._note(inner.path, f"must have at most {MAX_EDGES} dependencies in total")
            raise _TooManyErrors
        return _arranged(arranged, places, found, inferred=inferred)

    # --- steps ------------------------------------------------------------------------------------

    def _id(
        self, raw: object, path: str, seen: dict[str, str], *, required: bool = False
    ) -> str | None:
        """Read the ID of a step and check that it is unique among `seen` (ID → path)."""
        if not isinstance(raw, dict) or ("id" not in raw and not required):
            return None
        name = raw.get("id")
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_BYTES:
            self._note(f"{path}.id", f"must be a string of 1 to {MAX_NAME_BYTES} characters")
            return None
        if name in seen:
            self._note(
                f"{path}.id",
                f"must be unique, but '{shorten(name)}' is also the id of {seen[name]}",
            )
        return seen.setdefault(name, path) and name

    def _place(self, raw: object, path: str, step_id: str | None) -> StepSpec:
        """Read the place of a step in a graph: its dependencies, trigger, and callback type."""
        if not isinstance(raw, dict):
            return StepSpec(path, step_id or path)
        job = not _is_composite(raw)
        options = raw.get("options")
        told = options.get(_CALLBACK) if job and isinstance(options, dict) else None
        trigger = callback = None
        if raw.get("trigger") is not None:
            trigger = self._member(raw["trigger"], f"{path}.trigger", StepTrigger)
        if told is not None:
            callback = self._member(told, f"{path}.options.{_CALLBACK}", Callback)
        needs = self._needs(raw.get("depends_on"), f"{path}.depends_on")
        if trigger is not None and callback is not None:
            self._note(f"{path}.trigger", "can't be combined with callback_type. Omit it")
        if trigger is not None and not needs:
            self._note(f"{path}.trigger", "requires depends_on, which is empty")
        if callback is not None or trigger not in (None, StepTrigger.ALL_SUCCEEDED):
            for at in (at for at, need in enumerate(needs) if need.ignored):
                rule = "requires the trigger all_succeeded"
                self._note(f"{path}.depends_on[{at}].ignore_failed", rule)
        return StepSpec(path, step_id or path, needs, trigger, callback, job)

    def _needs(self, raw: object, path: str) -> tuple[Dependency, ...]:
        """Read the dependencies of a step."""
        if raw is None:
            return ()
        if not isinstance(raw, list):
            self._note(path, "must be an array of step IDs")
            return ()
        self._named_edges += len(raw)
        if self._named_edges > MAX_NAMED_EDGES:
            self._note(
                path,
                f"must have at most {MAX_NAMED_EDGES} dependencies in total, callbacks included",
            )
            raise _TooManyErrors
        return tuple(self._need(each, path, at) for at, each in enumerate(raw))

    def _need(self, raw: object, path: str, at: int) -> Dependency:
        ignored: object = False
        name = raw
        if isinstance(raw, dict) and raw.keys() <= {"id", "ignore_failed"}:
            name, ignored = raw.get("id"), raw.get("ignore_failed", False)
        if isinstance(name, str) and name and isinstance(ignored, bool):
            return Dependency(name, ignored)
        self._note(f"{path}[{at}]", "must be a step ID, or {id, ignore_failed}")
        return Dependency("")

    def _member(self, raw: object, path: str, members: Iterable[_Member]) -> _Member | None:
        """Return the member of `members` that equals `raw`, or None after recording an error."""
        for member in members:
            if raw == member:
                return member
        self._note(path, f"must be {any_of(repr(str(each)) for each in members)}")
        return None

    def _step(self, raw: object, path: str, inner: _Steps, step_id: str | None) -> _Read:
        """Read a step of a workflow: a job, or a workflow itself."""
        if _is_composite(raw):
            read = self._composite(raw, path, inner.options, inner.depth)
            return replace(read, step=replace(read.step, id=step_id))
        if not isinstance(raw, dict):
            self._note(path, "must be an object")
            return _NOTHING
        for key in islice((key for key in raw if key in _ELSEWHERE), MAX_ERRORS):
            self._note(f"{path}.{key}", f"is not a field of a step. Use {_ELSEWHERE[key]}")
        template = {key: value for key, value in raw.items() if key not in ("id", *_PLACE)}
        options = template.get("options")
        if isinstance(options, dict) and _CALLBACK in options:
            rest = {key: value for key, value in options.items() if key != _CALLBACK}
            template["options"] = rest
        if isinstance(options, dict) and "meta" not in raw:
            # The Go SDK sends the meta of a step in the options, but its worker reads the job's
            # field `meta`.
            given = options.get("metadata")
            template |= {"meta": given} if isinstance(given, dict) else {}
        template = _with_options(template, inner.options)
        self._jobs.append((path, template))
        if len(self._jobs) > MAX_STEPS:
            self._note(inner.path, f"must have at most {MAX_STEPS} jobs in total")
            raise _TooManyErrors
        queue = self._queue(template, path)
        if queue is None:
            return _NOTHING
        self.queues.add(queue)
        return _Read(Step(StepKind.JOB, step_id, template["type"]), (template,))

    def _queue(self, template: Mapping[str, Any], path: str) -> str | None:
        """Return the queue of a job, or None after recording errors if it could not be enqueued."""
        args, meta = template.get("args"), template.get("meta", {})
        # The jobs of a group often differ only in args and meta. The rest is validated once.
        like = repr([each for each in template.items() if each[0] not in ("args", "meta")])
        # Each character of the text is at most 4 bytes of JSON.
        small = 4 * len(like + repr(args) + repr(meta)) <= MAX_META_BYTES
        if small and like in self._valid and isinstance(args, list) and isinstance(meta, dict):
            return self._valid[like]
        try:
            request = envelope.parse(template, f"{path}.")
            resolved = envelope.resolve(request, now_ms=self._now_ms, prefix=f"{path}.")
        except OjsError as error:
            # If there are several errors, `errors` also contains the first one.
            one = {"field": path, "reason": error.message} | error.details
            for each in error.details.get("errors", [one]):
                self._note(each["field"], each["reason"])
            return None
        unique, place = request.choose("unique")
        if unique is not None and unique.on_conflict not in (None, OnConflict.REJECT):
            rule = "must be reject for a workflow step"
            self._note(f"{path}.{place}.on_conflict", rule)
            return None
        return self._valid.setdefault(like, resolved.queue)

    def _share_tenant(self) -> None:
        """Check that all jobs have the same tenant (ojs-multi-tenancy, 15.2).

        Jobs without a tenant get the tenant of the others.
        """
        if self.errors:
            return
        named = [(path, job) for path, job in self._jobs if get_tenant(job)]
        if not named:
            return
        first, one = named[0]
        tenant = one["meta"]["tenant_id"]
        for path, job in self._jobs:
            if not get_tenant(job):
                job["meta"] = {**(job.get("meta") or {}), "tenant_id": tenant}
                self._queue(job, path)
            elif get_tenant(job) != get_tenant(one):
                rule = f"must be '{shorten(get_tenant(one))}', which is the tenant of {first}"
                self._note(f"{path}.meta.tenant_id", rule)


def _usual(body: object) -> object:
    """Return the request, with the field names of the admin UI's builder replaced
    by the API names.
    """
    if not isinstance(body, dict) or "tasks" not in body or "jobs" in body:
        return body
    kind = body.get("type")
    if kind not in (StepKind.GROUP, StepKind.BATCH):
        return body
    usual = {key: value for key, value in body.items() if key != "tasks"}
    usual["jobs"] = body["tasks"]
    if kind == StepKind.BATCH and "callbacks" not in body:
        usual["callbacks"] = {
            each.value: usual.pop(each.value) for each in Callback if each.value in body
        }
    return usual


def _is_composite(raw: object) -> bool:
    return isinstance(raw, dict) and not _COMPOSITE.isdisjoint(raw)


def _with_options(job: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job, with the options of its workflow that it doesn't set itself."""
    given = job.get("options") or {}
    if not options or not isinstance(given, dict):
        return job
    own = {key for holder in (given, job) for key, value in holder.items() if value is not None}
    hidden = own.union(*(_SAME.get(key, ()) for key in own))
    added = {key: value for key, value in options.items() if key not in hidden}
    if "max_attempts" in own and isinstance(retry := added.get("retry"), dict):
        added["retry"] = {key: value for key, value in retry.items() if key != "max_attempts"}
    return {**job, "options": {**given, **added}}


# --- building the tree ----------------------------------------------------------------------------


def _holding(kind: StepKind, steps: Sequence[_Read]) -> _Read:
    """Combine steps into a workflow."""
    templates = [template for read in steps for template in read.templates]
    return _Read(Step(kind, steps=tuple(read.step for read in steps)), templates)


def _as_callback(read: _Read, callback: Callback) -> _Read:
    """Return the step as a callback of a batch. Step 0 of the batch contains its jobs."""
    step = replace(read.step, needs=(0,), trigger=callback.trigger, callback=callback)
    return replace(read, step=step)


def _arranged(
    arranged: PlacedSteps, places: Sequence[StepSpec], steps: Sequence[_Read], *, inferred: bool
) -> _Read:
    """Build the graph. If it has callbacks, the result is a batch."""
    # Positions among the steps without the callbacks.
    inner = {at: position for position, at in enumerate(arranged.body)}
    placed = []
    for at in arranged.body:
        place, read = places[at], steps[at]
        if needs := arranged.needs[at]:
            ignored = {need.id for need in place.needs if need.ignored}
            step = replace(
                read.step,
                needs=tuple(inner[need] for need in needs if need in inner),
                ignores=tuple(inner[each] for each in needs if places[each].id in ignored),
                trigger=place.trigger or StepTrigger.ALL_SUCCEEDED,
            )
            read = replace(read, step=step)
        placed.append(read)
    body = _holding(StepKind.DAG, placed)
    if inferred:
        body = replace(body, step=_inferred(body.step))
    if not arranged.callbacks:
        return body
    callbacks = [_as_callback(steps[at], each) for at, each in sorted(arranged.callbacks.items())]
    return _holding(StepKind.BATCH, [body, *callbacks])


def _inferred(graph: Step) -> Step:
    """Return the graph as a group or chain if it is equivalent to one, else unchanged."""
    if not any(step.needs for step in graph.steps):
        return replace(graph, kind=StepKind.GROUP)
    for position, step in enumerate(graph.steps):
        if step.needs != tuple(range(position)[-1:]) or step.ignores:
            return graph
        if step.trigger is not StepTrigger.ALL_SUCCEEDED:
            return graph
    # The dependencies of a chain follow from its order.
    return replace(
        graph, kind=StepKind.CHAIN, steps=tuple(replace(each, needs=()) for each in graph.steps)
    )
