"""The request of a workflow: dialects, options, and everything that is refused."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ojs.domain.errors import OjsError
from ojs.domain.job import envelope
from ojs.domain.workflow import request, stored
from ojs.domain.workflow.advance import WorkflowState, advance, start
from ojs.domain.workflow.graph import Callback, Step, StepKind, StepState, StepTrigger
from ojs.domain.workflow.request import (
    MAX_DEPTH,
    MAX_ERRORS,
    InvalidWorkflow,
    WorkflowDefinition,
    parse,
)
from tests.unit.domain.arbitrary import NOW_MS, json_values
from tests.unit.domain.workflow.oracle import random_tree

JOB = {"type": "a.job", "args": []}
Json = dict[str, Any]


def read(body: object) -> WorkflowDefinition:
    return parse(body, now_ms=NOW_MS)


def errors(body: object) -> dict[str, str]:
    """The rules that are broken, by their paths."""
    with pytest.raises(InvalidWorkflow) as caught:
        read(body)
    found = caught.value.details["validation_errors"]
    assert caught.value.field == found[0]["path"]
    assert caught.value.code == "invalid_workflow"
    assert len({each["path"] for each in found}) == len(found)
    return {each["path"]: each["message"] for each in found}


def job(**fields: Any) -> Json:
    return {**JOB, **fields}


def at(name: str, *needs: Any, **fields: Any) -> Json:
    """A step of a graph."""
    return job(id=name, depends_on=list(needs), **fields)


def graph(*steps: Any, **fields: Any) -> Json:
    return {"steps": list(steps), **fields}


# --- dialects -------------------------------------------------------------------------------------


def test_a_chain() -> None:
    read_chain = read({"type": "chain", "name": "orders", "steps": [job(), job(type="b.job")]})
    root = read_chain.graph.root
    assert (root.kind, root.name) == (StepKind.CHAIN, "orders")
    assert [step.type for step in root.steps] == ["a.job", "b.job"]
    assert read_chain.templates == (job(), job(type="b.job"))
    assert read_chain.queues == {"default"}


def test_a_batch_has_its_jobs_in_one_step_and_callbacks_after_it() -> None:
    callbacks = {"on_failure": job(type="c.fail"), "on_complete": job(type="c.all")}
    found = read({"type": "batch", "jobs": [job(), job()], "callbacks": callbacks})
    body, *others = found.graph.root.steps
    assert body.kind is StepKind.GROUP
    assert [(step.callback, step.type) for step in others] == [
        (Callback.ON_COMPLETE, "c.all"),
        (Callback.ON_FAILURE, "c.fail"),
    ]
    assert [each["type"] for each in found.templates] == ["a.job", "a.job", "c.all", "c.fail"]


def python_batch(jobs: int, queue: str = "mail") -> Json:
    """As the Python SDK sends it."""
    ids = [f"step-{each}" for each in range(jobs)]
    callbacks = [
        at(each, *ids, options={"callback_type": each, "queue": queue}) for each in Callback
    ]
    return graph(*map(at, ids), *callbacks, name="all")


def test_callbacks_of_the_python_sdk_are_told_by_their_options() -> None:
    found = read(python_batch(3))
    root = found.graph.root
    assert root.kind is StepKind.BATCH
    assert [step.callback for step in root.steps] == [None, *Callback]
    assert [step.id for step in root.steps[0].steps] == ["step-0", "step-1", "step-2"]
    # The option says nothing to the job.
    assert found.templates[-1]["options"] == {"queue": "mail"}
    assert found.queues == {"default", "mail"}


@pytest.mark.parametrize("between", ["-", "_"])
def test_callbacks_of_the_go_sdk_are_told_by_their_ids(between: str) -> None:
    names = [f"on{between}{each}" for each in ("complete", "success", "failure")]
    ids = ["job-0", "job-1"]
    found = read(graph(*(at(name, *ids) for name in names), *map(at, ids)))
    body, *others = found.graph.root.steps
    assert body.kind is StepKind.GROUP
    assert [step.id for step in body.steps] == ids
    assert [step.callback for step in others] == list(Callback)


@pytest.mark.parametrize(
    "steps",
    [
        # It depends on a part, on nothing, another depends on it, or more is said of it.
        [at("a"), at("b"), at("on-failure", "a")],
        [at("a"), at("on-failure")],
        [at("on-failure")],
        [at("a"), at("on-failure", "a"), at("b", "on-failure")],
        [at("a"), at("on-failure", "a", trigger="all_done")],
        [at("a"), at("on-failure", {"id": "a", "ignore_failed": True})],
        [at("a"), at("on-failures", "a")],
        [at("a"), {**graph(at("x")), "id": "on-failure", "depends_on": ["a"]}],
        # The second turns out to be a common step, so the first one lacks it.
        [at("a"), at("b"), at("on-failure", "a", "b"), at("on-complete", "a")],
    ],
)
def test_other_steps_with_such_an_id_are_steps(steps: list[Json]) -> None:
    root = read(graph(*steps, type="dag")).graph.root
    assert root.kind is StepKind.DAG
    assert not any(step.callback for step in root.steps)
    assert len(root.steps) == len(steps)


def test_a_step_that_a_callback_depends_on_is_none() -> None:
    steps = [at("a"), at("on-success", "a"), at("on-complete", "a", "on-success")]
    body, *callbacks = read(graph(*steps)).graph.root.steps
    assert [step.id for step in body.steps] == ["a", "on-success"]
    assert [step.callback for step in callbacks] == [Callback.ON_COMPLETE]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (graph(at("a"), at("b")), StepKind.GROUP),
        (graph(at("a")), StepKind.GROUP),
        (graph(at("a"), at("b", "a"), at("c", "b")), StepKind.CHAIN),
        (graph(at("b", "a"), at("a")), StepKind.DAG),
        (graph(at("a"), at("b", "a"), at("c", "a")), StepKind.DAG),
        (graph(at("a"), at("b", "a", trigger="all_done")), StepKind.DAG),
        (graph(at("a"), at("b", {"id": "a", "ignore_failed": True})), StepKind.DAG),
        (graph(at("a"), at("b", {"id": "a"})), StepKind.CHAIN),
        (graph(at("a"), at("b", "a"), type="dag"), StepKind.DAG),
        (graph(at("a"), at("on_success", "a")), StepKind.BATCH),
    ],
)
def test_the_form_of_a_graph_is_inferred(body: Json, kind: StepKind) -> None:
    assert read(body).graph.root.kind is kind


def test_a_graph() -> None:
    steps = [
        at("load", "left", {"id": "right", "ignore_failed": True}),
        at("left"),
        at("right"),
        at("clean", "load", trigger="all_done"),
    ]
    load, left, _, clean = read(graph(*steps)).graph.root.steps
    assert (load.needs, load.ignores, load.trigger) == ((1, 2), (2,), StepTrigger.ALL_SUCCEEDED)
    assert (left.id, left.needs) == ("left", ())
    assert (clean.needs, clean.trigger) == ((0,), StepTrigger.ALL_DONE)


def test_workflows_are_steps_of_others_in_either_dialect() -> None:
    inner = {"type": "group", "id": "fan", "name": "fan-out", "jobs": [job(), job()]}
    found = read({"type": "chain", "steps": [job(), inner, graph(at("x"), at("y", "x"))]})
    first, fan, nested = found.graph.root.steps
    assert (first.kind, fan.kind, nested.kind) == (StepKind.JOB, StepKind.GROUP, StepKind.CHAIN)
    assert (fan.id, fan.name) == ("fan", "fan-out")
    placed = read(graph(at("a"), {**inner, "depends_on": ["a"], "trigger": "all_done"}))
    assert placed.graph.root.steps[1].needs == (0,)
    assert placed.graph.root.steps[1].trigger is StepTrigger.ALL_DONE
    # A job's type may be the name of a form.
    assert read({"type": "group", "jobs": [job(type="chain")]}).graph.root.steps[0].type == "chain"


def nested(levels: int) -> Json:
    body: Json = {"type": "group", "jobs": [job()]}
    for _ in range(levels - 1):
        body = {"type": "chain", "steps": [body]}
    return body


def test_ten_levels_may_be_inside_of_each_other() -> None:
    assert len(read(nested(MAX_DEPTH)).templates) == 1
    (path, rule), *_ = errors(nested(MAX_DEPTH + 1)).items()
    assert path == "$" + ".steps[0]" * MAX_DEPTH
    assert rule == "must have at most 10 levels of nested workflows"


def test_the_id_may_be_chosen() -> None:
    chosen = "019539a4-b68c-7def-8000-1a2b3c4d5e6f"
    assert read({"type": "group", "jobs": [job()], "id": chosen}).id == chosen
    assert read({"type": "group", "jobs": [job()]}).id is None
    body = {"type": "group", "jobs": [job()], "id": "wf_1"}
    assert errors(body) == {"$.id": "must be a lowercase UUIDv7"}


def written(step: Step) -> Json:
    """The request that a tree is read from."""
    if step.kind is StepKind.JOB:
        return {"type": step.type, "args": []}
    named = {} if step.name is None else {"name": step.name}
    if step.kind is StepKind.BATCH:
        body, *callbacks = step.steps
        if body.kind is StepKind.GROUP:
            made = {each.callback: written(each) for each in callbacks}
            inner = [written(each) for each in body.steps]
            return {"type": "batch", "jobs": inner, "callbacks": made, **named}
        ids = [each.id for each in body.steps]
        last = [
            {
                **written(each),
                "id": each.callback,
                "depends_on": ids,
                "options": {"callback_type": each.callback},
            }
            for each in callbacks
        ]
        return {**written(body), **named, "steps": [*last, *written(body)["steps"]]}
    if step.kind is StepKind.DAG:
        return {"type": "dag", "steps": [placed(each, step) for each in step.steps], **named}
    field = "steps" if step.kind is StepKind.CHAIN else "jobs"
    return {"type": step.kind, field: [written(each) for each in step.steps], **named}


def placed(step: Step, holder: Step) -> Json:
    needs = [
        {"id": holder.steps[need].id, "ignore_failed": True}
        if need in step.ignores
        else holder.steps[need].id
        for need in step.needs
    ]
    trigger = {"trigger": step.trigger} if step.needs else {}
    return {**written(step), "id": step.id, "depends_on": needs, **trigger}


@given(st.integers(0, 2**32))
def test_any_tree_is_read_back_from_its_request(seed: int) -> None:
    rng = random.Random(seed)
    root = random_tree(rng, rng.randint(1, 60))
    assert read(written(root)).graph.root == root


# --- jobs and their options -----------------------------------------------------------------------


def test_options_of_a_workflow_are_defaults_of_its_jobs() -> None:
    inner = {"type": "group", "jobs": [job()], "options": {"queue": "inner"}}
    found = read(
        {
            "type": "chain",
            "options": {"queue": "outer", "priority": 5, "tags": ["x"]},
            "steps": [job(), job(options={"queue": "own", "tags": None}), job(queue="flat"), inner],
        }
    )
    requests = [envelope.parse(template) for template in found.templates]
    assert [each.value_of("queue") for each in requests] == ["outer", "own", "flat", "inner"]
    assert [each.value_of("priority") for each in requests] == [5, 5, 5, 5]
    assert [each.value_of("tags") for each in requests] == [["x"]] * 4
    assert found.queues == {"outer", "own", "flat", "inner"}


def test_queues_are_those_of_jobs_alone() -> None:
    jobs = [job(queue="a"), job(options={"queue": "b"})]
    for options in ({"priority": 3}, {"queue": "outer"}):
        assert read({"type": "group", "jobs": jobs, "options": options}).queues == {"a", "b"}


@pytest.mark.parametrize(
    ("options", "own", "read_as"),
    [
        # Of two names of one thing the job's own counts, wherever it stands.
        ({"timeout_ms": 5}, {"timeout": 7}, ("timeout_ms", 7_000)),
        ({"timeout": 5}, {"options": {"timeout_ms": 7}}, ("timeout_ms", 7)),
        ({"retry": {"max_attempts": 5}}, {"max_attempts": 7}, ("attempts", 7)),
        ({"max_attempts": 5}, {"retry": {"max_attempts": 7}}, ("attempts", 7)),
        ({"max_attempts": 5}, {}, ("attempts", 5)),
        (
            {"retry": {"max_attempts": 5, "initial_interval": "PT9S"}},
            {"options": {"max_attempts": 7}},
            ("initial_ms", 9_000),
        ),
        ({"delay_until": "+PT5S"}, {"scheduled_at": "+PT7S"}, ("scheduled_ms", NOW_MS + 7_000)),
        ({"scheduled_at": "+PT5S"}, {"delay_until": "+PT7S"}, ("scheduled_ms", NOW_MS + 7_000)),
    ],
)
def test_an_option_of_a_job_counts_before_those_of_its_workflow(
    options: Json, own: Json, read_as: tuple[str, int]
) -> None:
    (template,) = read({"type": "group", "options": options, "jobs": [job(**own)]}).templates
    resolved = envelope.resolve(envelope.parse(template), now_ms=NOW_MS)
    values = {
        "timeout_ms": resolved.timeout_ms,
        "attempts": resolved.policy.max_attempts,
        "initial_ms": resolved.policy.initial_ms,
        "scheduled_ms": resolved.scheduled_ms,
    }
    assert values[read_as[0]] == read_as[1]


def test_jobs_are_validated_as_pushes_are() -> None:
    wrong = [
        job(type="No"),
        {"type": "a.b"},
        job(options={"queue": "UP", "delay": 3}),
        job(retry={"max_attempts": -1}),
        job(options={"result_ttl": "PT1H"}),
        job(args={}),
        job(args=["x" * envelope.MAX_JOB_BYTES]),
        job(meta={"x": "y" * envelope.MAX_META_BYTES}),
        job(retry={"max_interval": "x"}),
        3,
    ]
    found = errors({"type": "group", "jobs": wrong})
    assert list(found) == [
        "$.jobs[0].type",
        "$.jobs[1].args",
        "$.jobs[2].options.queue",
        "$.jobs[2].options.delay",
        "$.jobs[3].retry.max_attempts",
        "$.jobs[4].options.result_ttl",
        "$.jobs[5].args",
        "$.jobs[6].args",
        "$.jobs[7].meta",
        "$.jobs[8].retry.max_interval",
        "$.jobs[9]",
    ]
    for number, given_job in enumerate(wrong[:-1]):
        with pytest.raises(OjsError) as caught:
            envelope.resolve(envelope.parse(given_job), now_ms=NOW_MS)
        details = caught.value.details
        path = next(path for path in found if path.startswith(f"$.jobs[{number}]."))
        assert found[path] == details.get("reason", found[path])


@pytest.mark.parametrize(
    "second",
    [
        {"args": {}},
        {"args": None},
        {"args": ["x" * envelope.MAX_JOB_BYTES]},
        {"meta": []},
        {"meta": {"x": "y" * envelope.MAX_META_BYTES}},
        {"options": {"queue": "Q"}},
        {"queue": "Q"},
        {"type": "A"},
    ],
)
def test_a_job_that_is_like_a_valid_one_is_still_validated(second: Json) -> None:
    found = errors({"type": "group", "jobs": [job(), job(), job(**second)]})
    assert all(path.startswith("$.jobs[2]") for path in found)


def test_what_is_wrong_with_the_options_of_a_workflow_is_told_once() -> None:
    options = {"queue": "UP", "retry": {"max_interval": "x"}, "callback_type": "on_complete"}
    body = {"type": "group", "jobs": [job(), job()], "options": options}
    assert list(errors(body)) == ["$.options.queue", "$.options.callback_type"]
    body["options"] = {"retry": {"max_interval": "x"}}
    assert list(errors(body)) == ["$.options.retry.max_interval"]
    body["options"] = []
    assert errors(body) == {"$.options": "must be an object"}


def test_a_start_time_counts_from_when_the_step_starts() -> None:
    """The template keeps a relative time: it is resolved when the job is made."""
    (template,) = read({"type": "group", "jobs": [job(delay_until="+PT5S")]}).templates
    resolved = envelope.resolve(envelope.parse(template), now_ms=NOW_MS + 60_000)
    assert resolved.scheduled_ms == NOW_MS + 65_000


@pytest.mark.parametrize("conflict", ["replace", "replace_except_schedule", "ignore"])
@pytest.mark.parametrize("where", ["options", "flat", "workflow"])
def test_a_unique_step_can_only_be_rejected(conflict: str, where: str) -> None:
    unique = {"unique": {"keys": ["args"], "on_conflict": conflict}}
    body: Json = {"type": "group", "jobs": [job()]}
    if where == "workflow":
        body["options"] = unique
    else:
        body["jobs"] = [job(options=unique) if where == "options" else job(**unique)]
    path = {"options": "$.jobs[0].options.", "flat": "$.jobs[0].", "workflow": "$.options."}[where]
    (found,) = errors(body).items()
    assert found[0] == f"{path}unique.on_conflict"
    assert found[1].startswith("must be reject for a workflow step")
    unique["unique"]["on_conflict"] = "reject"
    assert len(read(body).templates) == 1


def test_all_jobs_of_a_workflow_are_of_one_tenant() -> None:
    named = job(meta={"tenant_id": "acme", "x": 1})
    found = read({"type": "group", "jobs": [job(), named, job(meta={"y": 2})]})
    assert [each["meta"] for each in found.templates] == [
        {"tenant_id": "acme"},
        {"tenant_id": "acme", "x": 1},
        {"y": 2, "tenant_id": "acme"},
    ]
    other = job(meta={"tenant_id": "evil"})
    body = {"type": "chain", "steps": [job(), named, {"type": "group", "jobs": [other]}]}
    assert errors(body) == {
        "$.steps[2].jobs[0].meta.tenant_id": ("must be 'acme', which is the tenant of $.steps[1]")
    }
    full = job(meta={"z": "y" * (envelope.MAX_META_BYTES - 10)})
    assert read({"type": "group", "jobs": [full]}).templates == (full,)
    assert list(errors({"type": "group", "jobs": [full, named]})) == ["$.jobs[0].meta"]


# --- what is refused ------------------------------------------------------------------------------

FORMS = "must be 'chain', 'group', 'batch', or 'dag'"
OF_GRAPHS = "is allowed only in the steps of a workflow without type, or with the type dag"
CALLBACKS = "must have at least one of on_complete, on_success, or on_failure"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (None, {"$": "must be an object"}),
        ([], {"$": "must be an object"}),
        ({"type": "saga", "steps": [job()]}, {"$.type": FORMS}),
        ({"type": ["chain"], "steps": [job()]}, {"$.type": FORMS}),
        ({"type": None, "steps": [job()]}, {"$.type": FORMS}),
        ({}, {"$.steps": "must be an array with at least one entry"}),
        (
            {"type": "chain", "steps": []},
            {"$.steps": "must be an array with at least one entry"},
        ),
        ({"type": "group", "jobs": {}}, {"$.jobs": "must be an array with at least one entry"}),
        (
            {"type": "chain", "jobs": [job()]},
            {
                "$.jobs": "is not a known field. Known fields: depends_on, id, name, options, "
                "steps, trigger, type",
                "$.steps": "must be an array with at least one entry",
            },
        ),
        (
            {"type": "group", "jobs": [job()], "nmae": "x"},
            {"$.nmae": "is not a known field. Did you mean 'name'?"},
        ),
        (
            {"type": "group", "jobs": [job()], "name": "x" * 256},
            {"$.name": "must be a string of at most 255 characters"},
        ),
        ({"type": "batch", "jobs": [job()]}, {"$.callbacks": CALLBACKS}),
        ({"type": "batch", "jobs": [job()], "callbacks": {}}, {"$.callbacks": CALLBACKS}),
        ({"type": "batch", "jobs": [job()], "callbacks": []}, {"$.callbacks": CALLBACKS}),
        (
            {"type": "batch", "jobs": [job()], "callbacks": {"on_sucess": job()}},
            {"$.callbacks.on_sucess": "is not a known field. Did you mean 'on_success'?"},
        ),
        (
            {"type": "batch", "jobs": [job()], "callbacks": {"on_success": nested(1)}},
            {"$.callbacks.on_success": "must be a job"},
        ),
        (
            {"type": "batch", "jobs": [job()], "callbacks": {"on_success": None}},
            {"$.callbacks.on_success": "must be an object"},
        ),
        (
            {"type": "chain", "steps": [at("a"), at("b", "a", trigger="all_done")]},
            {
                "$.steps[0].depends_on": OF_GRAPHS,
                "$.steps[1].depends_on": OF_GRAPHS,
                "$.steps[1].trigger": OF_GRAPHS,
            },
        ),
        (
            {"type": "group", "jobs": [job(options={"callback_type": "on_complete"})]},
            {"$.jobs[0].options.callback_type": OF_GRAPHS},
        ),
        ({"type": "group", "jobs": [job()], "depends_on": []}, {"$.depends_on": OF_GRAPHS}),
        (
            {"type": "group", "jobs": [job(id="a"), job(id="a")]},
            {"$.jobs[1].id": "must be unique, but 'a' is also the id of $.jobs[0]"},
        ),
        (
            {"type": "group", "jobs": [job(id=7)]},
            {"$.jobs[0].id": "must be a string of 1 to 255 characters"},
        ),
        (graph(at("a"), job()), {"$.steps[1].id": "must be a string of 1 to 255 characters"}),
        (
            graph(at("a"), at("b", "a", "c")),
            {"$.steps[1].depends_on[1]": "refers to an unknown step: 'c'"},
        ),
        (
            graph(at("load"), at("b", "laod")),
            {
                "$.steps[1].depends_on[0]": (
                    "refers to an unknown step: 'laod'. Did you mean 'load'?"
                )
            },
        ),
        (
            graph(at("a"), at("b", "a", "a")),
            {"$.steps[1].depends_on": "must not contain duplicates"},
        ),
        (
            graph(job(id="a", depends_on="b")),
            {"$.steps[0].depends_on": "must be an array of step IDs"},
        ),
        (
            graph(at("a"), at("b", {"id": "a", "ignored": True})),
            {"$.steps[1].depends_on[0]": "must be a step ID, or {id, ignore_failed}"},
        ),
        (
            graph(at("a"), at("b", "a", trigger="always")),
            {"$.steps[1].trigger": "must be 'all_succeeded', 'all_done', or 'any_failed'"},
        ),
        (
            graph(at("a", trigger="any_failed")),
            {"$.steps[0].trigger": "requires depends_on, which is empty"},
        ),
        (
            graph(at("a"), at("b", {"id": "a", "ignore_failed": True}, trigger="any_failed")),
            {"$.steps[1].depends_on[0].ignore_failed": ("requires the trigger all_succeeded")},
        ),
        # Cycles, named in the order in which the steps would run.
        (graph(at("a", "a")), {"$.steps": "must not contain a cycle: a → a"}),
        (
            graph(at("x"), at("a", "x", "c"), at("b", "a"), at("c", "b"), at("y", "c")),
            {"$.steps": "must not contain a cycle: a → b → c → a"},
        ),
        # Callbacks.
        (
            graph(at("a"), at("b", options={"callback_type": "on_done"})),
            {
                "$.steps[1].options.callback_type": (
                    "must be 'on_complete', 'on_success', or 'on_failure'"
                )
            },
        ),
        (
            graph(at("a"), at("b", options={"callback_type": "on_success"})),
            {"$.steps[1].depends_on": ("must contain the steps of the callback, but is empty")},
        ),
        (
            graph(at("a"), at("b"), at("c", "a", options={"callback_type": "on_success"})),
            {
                "$.steps[2].depends_on": (
                    "must contain all steps that are not callbacks, but lacks 'b'"
                )
            },
        ),
        (
            graph(
                at("a"),
                at("b", "a", options={"callback_type": "on_success"}),
                at("c", "a", "b", options={"callback_type": "on_failure"}),
            ),
            {"$.steps[2].depends_on[1]": "can't be 'b', because no step can depend on a callback"},
        ),
        (
            graph(
                at("a"), at("b", "a", trigger="all_done", options={"callback_type": "on_success"})
            ),
            {"$.steps[1].trigger": "can't be combined with callback_type. Omit it"},
        ),
        (
            graph(
                at("a"),
                at(
                    "b",
                    {"id": "a", "ignore_failed": True},
                    options={"callback_type": "on_success"},
                ),
            ),
            {"$.steps[1].depends_on[0].ignore_failed": ("requires the trigger all_succeeded")},
        ),
        # Several at once, also in workflows inside of it.
        (
            {
                "type": "chain",
                "nmae": "x",
                "steps": [
                    {"type": "group", "jobs": []},
                    graph(at("a", "b"), at("b", "a")),
                    job(type="X"),
                ],
            },
            {
                "$.nmae": "is not a known field. Did you mean 'name'?",
                "$.steps[0].jobs": "must be an array with at least one entry",
                "$.steps[1].steps": "must not contain a cycle: a → b → a",
                "$.steps[2].type": (
                    "must be lowercase segments separated by dots. Each segment must start with a "
                    "letter and contain only letters, digits, '_', and '-'"
                ),
            },
        ),
    ],
)
def test_what_is_refused(body: object, expected: Mapping[str, str]) -> None:
    assert errors(body) == expected


def test_each_knot_of_steps_is_told_and_long_cycles_are_cut() -> None:
    ring = [at(f"r{each}", f"r{(each + 1) % 30}") for each in range(30)]
    pair = [at("x", "y"), at("y", "x"), at("z", "y")]
    with pytest.raises(InvalidWorkflow) as caught:
        read(graph(*ring, *pair))
    first, second = (each["message"] for each in caught.value.details["validation_errors"])
    assert first.endswith("… (30 steps)")
    assert first.count("→") == 10
    assert second == "must not contain a cycle: x → y → x"


def test_errors_are_cut_at_a_number() -> None:
    assert len(errors({"type": "group", "jobs": [3] * 1_000})) == MAX_ERRORS
    assert (
        len(errors({"type": "group", "jobs": [job()], **{f"f{n}": 1 for n in range(999)}})) == 100
    )


def test_so_many_jobs_in_all_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    assert request.MAX_STEPS == 10_000
    monkeypatch.setattr(request, "MAX_STEPS", 4)
    four = {"type": "group", "jobs": [job()] * 4}
    assert len(read(four).templates) == 4
    rule = "must have at most 4 jobs in total"
    assert errors({"type": "group", "jobs": [job()] * 5}) == {"$.jobs": rule}
    assert errors({"type": "chain", "steps": [four, job()]}) == {"$.steps": rule}
    callbacks = {"on_success": job()}
    assert rule in errors({**four, "type": "batch", "callbacks": callbacks}).values()


def test_dependencies_are_bounded_but_for_those_of_callbacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert request.MAX_EDGES == 50_000
    monkeypatch.setattr(request, "MAX_EDGES", 4)
    four = [at("a"), at("b"), at("c", "a", "b"), at("d", "a", "b")]
    assert read(graph(*four, at("on-complete", *"abcd"))).graph.root.kind is StepKind.BATCH
    rule = "must have at most 4 dependencies in total"
    assert errors(graph(*four, at("e", "d"))) == {"$.steps": rule}
    two = {"type": "chain", "steps": [graph(*four), graph(at("a"), at("b", "a"))]}
    assert errors(two) == {"$.steps[1].steps": rule}
    assert request.MAX_NAMED_EDGES == 150_000
    monkeypatch.setattr(request, "MAX_NAMED_EDGES", 7)
    named = "must have at most 7 dependencies in total, callbacks included"
    assert errors(graph(*four, at("on-complete", *"abcd"))) == {"$.steps[4].depends_on": named}


@given(
    st.recursive(
        json_values | st.just(job()),
        lambda inner: st.fixed_dictionaries(
            {},
            optional={
                "type": st.sampled_from(["chain", "group", "batch", "dag", "a.b"]) | inner,
                "id": st.sampled_from(["a", "b", "on-failure"]) | inner,
                "name": inner,
                "args": inner,
                "options": st.dictionaries(
                    st.sampled_from(["queue", "callback_type", "retry", "unique"]),
                    st.sampled_from(["on_complete", "q"]) | inner,
                    max_size=2,
                )
                | inner,
                "depends_on": st.lists(st.sampled_from(["a", "b"]) | inner, max_size=2) | inner,
                "trigger": st.sampled_from(["all_done", "any_failed"]) | inner,
                "steps": st.lists(inner, max_size=3) | inner,
                "jobs": st.lists(inner, max_size=3) | inner,
                "callbacks": st.dictionaries(st.sampled_from([*Callback]), inner, max_size=2)
                | inner,
            },
        ),
        max_leaves=12,
    )
)
def test_anything_else_is_refused_with_paths(body: object) -> None:
    try:
        found = read(body)
    except InvalidWorkflow as refused:
        paths = [each["path"] for each in refused.details["validation_errors"]]
    else:
        paths = ["$"]
        assert len(found.templates) == len(found.graph.jobs)
    assert paths
    assert all(path.startswith("$") for path in paths)


# --- size -----------------------------------------------------------------------------------------


def test_a_group_of_ten_thousand_is_quick_and_small() -> None:
    """It takes a quarter of a second, and a mark 30 µs; there is room for a slow machine."""
    options = {"queue": "mail", "retry": {"max_attempts": 3}}
    jobs = [
        job(args=[f"user{number}@example.com", "welcome"], options=options)
        for number in range(request.MAX_STEPS)
    ]
    began = time.process_time()
    found = read({"type": "group", "jobs": jobs})
    assert time.process_time() - began < 1.5
    decision = start(found.graph)
    assert len(decision.starts) == request.MAX_STEPS
    assert len(stored.graph_text(found.graph)) < 100
    assert sum(map(len, stored.template_pages(found.templates))) < 50_000
    state = decision.state
    began = time.process_time()
    for node in found.graph.jobs[:1_000]:
        state = advance(found.graph, state, node, StepState.COMPLETED).state
    assert time.process_time() - began < 0.3
    assert state.workflow(found.graph) is WorkflowState.RUNNING
    assert len(stored.state_text(state)) < 3_000


@pytest.mark.exhaustive
def test_a_batch_of_ten_thousand_in_the_form_of_a_graph_is_small() -> None:
    found = read(python_batch(request.MAX_STEPS - 3))
    assert len(found.templates) == request.MAX_STEPS
    assert len(stored.graph_text(found.graph)) < 25_000
    assert errors(python_batch(request.MAX_STEPS - 2)) == {
        "$.steps": "must have at most 10000 jobs in total"
    }


@pytest.mark.parametrize("name", ["needs", "dependsOn", "after", "when", "if", "condition"])
def test_dependencies_and_conditions_under_other_names_are_refused(name: str) -> None:
    meant = "depends_on" if name in ("needs", "dependsOn", "after") else "trigger"
    rule = f"is not a field of a step. Use {meant}"
    one, other = {"type": "a", "args": []}, {"type": "b", "args": [], name: ["a"]}
    assert errors({"type": "group", "jobs": [one, other]}) == {f"$.jobs[1].{name}": rule}
    named = [{"id": "a", **one}, {"id": "b", **other}]
    assert errors({"steps": named}) == {f"$.steps[1].{name}": rule}
    callbacks = {"on_success": other}
    body = {"type": "batch", "jobs": [one], "callbacks": callbacks}
    assert errors(body) == {f"$.callbacks.on_success.{name}": rule}
