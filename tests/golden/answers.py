"""Each answer of `ojs.api`, made from a record in which every field has a value."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from ojs.api.operations import OPERATIONS
from ojs.http.answer import Answer
from ojs.http.binding import paging
from ojs.settings import Settings
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
    "now_ms": 0,
    "events": [EVENT],
    "settings": Settings(table="jobs", authorizer="keys", version="1.2.3", bus="bus"),
}
# Records of answers, and of kinds, that are not made in this way.
RECORDS: dict[str, Any] = {
    "Event": EVENT,
    "CronTemplate": GIVEN["template"],
    "Settings": GIVEN["settings"],
}


def modules() -> list[ModuleType]:
    """The modules that declare answers."""
    serve = {each.implementation.__module__ for each in OPERATIONS if each.implementation}
    return [sys.modules[name] for name in sorted({*serve, paging.__name__})]


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
