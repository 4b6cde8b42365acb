"""Each answer of `ojs.api`, made from a record in which every field has a value."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from ojs.api import job_answers as jobs
from ojs.api import workflows
from ojs.api.operations import OPERATIONS
from ojs.domain.filters.jobs import JobFilter
from ojs.domain.job.job import Job
from ojs.domain.workflow.advance import GraphState, WorkflowState
from ojs.domain.workflow.graph import Callback, Graph, Step, StepKind
from ojs.http import answers
from ojs.http.answer import Answer
from ojs.http.binding import paging
from ojs.services.workflows.control import CancelledWorkflow
from ojs.services.workflows.reading import WorkflowPart
from ojs.settings import Settings
from ojs.store.workflows.workflows import WorkflowRecord
from tests.golden.filled import filled

EVENT = {
    "specversion": "1.0", "id": "evt_1", "type": "job.completed", "source": "ojs", "time": "now",
    "subject": "j", "data": {}, "other": 1,
}  # fmt: skip
# Values that a record needs, by the names of fields.
GIVEN: dict[str, Any] = {
    "template": {"type": "email.send", "args": [1], "meta": {"a": "b"}, "options": {"queue": "q"}},
    "content": {"args": [1]},
    "replayed": None,
    "info": {
        "hostname": "h",
        "pid": 1,
        "queues": ["q"],
        "concurrency": 2,
        "labels": ["a"],
        "started_at": "now",
        "version": "1",
        "strategy": "strict",
        "weights": {"q": 1},
    },
    "own": {"max_size": 9, "concurrency": 5, "rate_limit": {"limit": 10, "period": "PT1M"}},
    "named": frozenset(["concurrency", "rate", "throttle"]),
    "now_ms": 0,
    "events": [EVENT],
    "wanted": JobFilter("q", type="email.send"),
    "settings": Settings(table="jobs", authorizer="keys", version="1.2.3", bus="bus"),
}
_GRAPH = Graph(
    Step(StepKind.CHAIN, steps=(Step(StepKind.JOB, type="t", callback=Callback.ON_SUCCESS),))
)
_WORKFLOW = replace(
    filled(WorkflowRecord, fault='{"step": "a", "type": "t", "message": "m"}', told=None),
    state=WorkflowState.CANCELLED,
    graph_state=GraphState(started=2, failed=6),
    starting=0,
)
_PART = WorkflowPart(_WORKFLOW, _GRAPH, after_last=2, jobs={1: filled(Job, **GIVEN)}, failed=(1,))
_SEEN = workflows._Stage(_WORKFLOW, _PART, CancelledWorkflow(_WORKFLOW, 1, 2, 3))
# Records of answers, and of kinds, that are not made in this way.
RECORDS: dict[str, Any] = {
    "Event": EVENT,
    "CronTemplate": GIVEN["template"],
    "Settings": GIVEN["settings"],
    "Place": workflows.Place(_PART, 0, 1),
    "_Stage": _SEEN,
    "WorkflowPart": _PART,
    "WorkersAnswer": paging.Listed([], paging.PageWindow(), "cursor", 1, unknown=True),
    "JobsListAnswer": paging.Listed(
        [filled(Job, **GIVEN)], paging.PageWindow(), "cursor", 1, unknown=True
    ),
    "WorkflowsAnswer": paging.Listed([_SEEN], paging.PageWindow(), "cursor", 1, unknown=True),
}


def modules() -> list[ModuleType]:
    """The modules that declare answers."""
    serve = {each.implementation.__module__ for each in OPERATIONS if each.implementation}
    shared = {answers.__name__, paging.__name__, jobs.__name__}
    return [sys.modules[name] for name in sorted(serve | shared)]


def kinds() -> set[type[Answer[Any]]]:
    """The answers that these modules declare, whatever they are made from."""
    return {
        kind
        for module in modules()
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Answer) and kind.__name__.endswith("Answer")
    }


def rendered() -> Iterator[tuple[type[Answer[Any]], Any]]:
    """Answers, and what they are at run time."""
    for module in modules():
        tree = ast.parse(inspect.getsource(module))
        known = dict(vars(module))
        for node in tree.body:
            if isinstance(node, ast.If):  # what is imported for the type checker alone
                exec(compile(ast.Module(node.body, []), module.__name__, "exec"), known)
        about = dict(_about(tree))
        for name in about:
            kind = known[name]
            if isinstance(kind, type) and issubclass(kind, Answer) and not kind._as_is:
                text = _record(name, about)
                made = RECORDS.get(name) or RECORDS.get(text)
                yield kind, kind.of(made or filled(eval(text, known), known, **GIVEN))


def _about(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """The names of classes, and their bases."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.bases:
            yield node.name, node.bases[0]


def _record(name: str, about: Mapping[str, ast.expr]) -> str:
    """The kind of record that an answer is about."""
    if name not in about:  # of a page, in `paging`
        return "Listed[Any]"
    base = about[name]
    if not isinstance(base, ast.Subscript):
        return _record(ast.unparse(base), about)
    kind = base.slice
    text = str(kind.value) if isinstance(kind, ast.Constant) else ast.unparse(kind)
    return f"Listed[{text}]" if ast.unparse(base.value) == "Paged" else text.replace("[T]", "[Any]")
