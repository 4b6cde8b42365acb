"""`record` builds a class on first use. The result must equal what `dataclass` builds on import."""

from __future__ import annotations

import ast
import importlib
import inspect
import types
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

from ojs.records import record

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in (ROOT / "shared" / "ojs", ROOT / "functions")
    for path in sorted(folder.rglob("*.py"))
    if "@record" in path.read_text("utf-8") and path.name != "records.py"
]


def classes(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.ClassDef, str]]:
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            for decorator in node.decorator_list:
                made = decorator.func if isinstance(decorator, ast.Call) else decorator
                if isinstance(made, ast.Name) and made.id == "record":
                    yield node, ast.unparse(decorator)


def declared() -> list[tuple[str, str, str]]:
    found = []
    for path in SOURCES:
        relative = path.relative_to(ROOT / "shared" if "shared" in path.parts else ROOT)
        module = ".".join(relative.with_suffix("").parts)
        tree = ast.parse(path.read_text("utf-8"))
        found += [(module, node.name, text) for node, text in classes(tree.body)]
    return found


def eager(cls: type, options: dict[str, Any]) -> type:
    """The same declaration, built by `dataclass` immediately."""
    own = {name: cls.__dict__[name] for name in cls.__annotations__ if name in cls.__dict__}
    for each in fields(cls):
        if each.name in cls.__annotations__:
            own[each.name] = field(
                **{
                    name: getattr(each, name)
                    for name in ("default", "default_factory", "init", "repr", "compare", "kw_only")
                }
            )
    body = {**own, "__annotations__": dict(cls.__annotations__), "__module__": cls.__module__}
    body["__qualname__"] = cls.__qualname__
    bases = cls.__dict__.get("__orig_bases__", cls.__bases__)
    return dataclass(**options)(
        types.new_class(cls.__name__, bases, {}, lambda own: own.update(body))
    )


def shape(parameters: inspect.Signature) -> list[tuple[str, Any, bool]]:
    return [
        (each.name, each.kind, each.default is inspect.Parameter.empty)
        for each in parameters.parameters.values()
    ]


@pytest.mark.parametrize(("module", "name", "decorator"), declared())
def test_a_built_record_equals_a_dataclass(module: str, name: str, decorator: str) -> None:
    cls = getattr(importlib.import_module(module), name)
    options: dict[str, Any] = (
        eval(decorator.replace("record(", "dict(")) if "(" in decorator else {}
    )
    expected = eager(cls, {name: value for name, value in options.items() if name != "slots"})
    assert [each.name for each in fields(cls)] == [each.name for each in fields(expected)]
    assert shape(inspect.signature(cls)) == shape(inspect.signature(expected))
    assert (cls.__hash__ is None) == (expected.__hash__ is None)
    assert ("__eq__" in cls.__dict__) == ("__eq__" in expected.__dict__)
    assert vars(cls)["__dataclass_params__"].frozen == vars(expected)["__dataclass_params__"].frozen


def test_every_record_of_the_server_is_compared() -> None:
    trees = [ast.parse(path.read_text("utf-8")) for path in SOURCES]
    nested = sum(1 for tree in trees for _ in classes(ast.walk(tree)))
    assert len(declared()) == nested > 200


@record(frozen=True)
class Point:
    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list)
    note: str = field(default="", compare=False)


@record(frozen=True)
class Named(Point):
    name: str = "n"


@record
class Total:
    parts: list[int]
    sum: int = field(init=False)

    def __post_init__(self) -> None:
        self.sum = sum(self.parts)


def test_an_instance_is_that_of_a_dataclass() -> None:
    assert Point(1) == Point(1, 2, [], note="other")
    assert Point(1).tags is not Point(1).tags
    assert repr(Point(1, y=3)) == "Point(x=1, y=3, tags=[], note='')"
    assert replace(Named(1), name="m") == Named(1, 2, [], "", "m")
    assert Total([1, 2]).sum == 3
    with pytest.raises(FrozenInstanceError):
        Point(1).x = 3  # type: ignore[misc]
    with pytest.raises(TypeError, match="x"):
        Point()  # type: ignore[call-arg]


def test_fields_build_a_class_without_an_instance() -> None:
    @record
    class Fresh:
        a: int
        b: int = 0

    assert [each.name for each in fields(Fresh)] == ["a", "b"]


def test_first_instances_in_many_threads() -> None:
    for _ in range(50):

        @record(frozen=True)
        class Raced:
            a: int
            b: int = 1

        barrier = Barrier(8)

        def build(number: int, cls: type[Any] = Raced, wait: Barrier = barrier) -> Any:
            wait.wait()
            return cls(number)

        with ThreadPoolExecutor(8) as pool:
            assert [each.a for each in pool.map(build, range(8))] == list(range(8))
