"""The project's source files, parsed: what each imports and which names it uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("shared/ojs", "functions")
WHOLE = (*SHIPPED, "package", "infra", "local", "cli", "examples")


@dataclass(frozen=True)
class Module:
    """One source file, parsed."""

    name: str
    path: Path
    tree: ast.Module

    def imports(self, *, typing: bool = False) -> Iterator[tuple[str, int]]:
        """Absolute names imported at run time, anywhere in the file, with their lines; with
        `typing` also those that are imported for type checkers alone.
        """
        for node in _statements(self.tree, typing=typing):
            if isinstance(node, ast.Import):
                yield from ((alias.name, node.lineno) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{self.path}: relative import"
                # `from ojs.store.table import schema` imports ojs.store.table.schema.
                yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Call):
                # A row of the composition root: `provided("module:Class")` imports the module.
                for part in node.value.args:
                    if ast.unparse(node.value.func) == "provided" and isinstance(
                        part, ast.Constant
                    ):
                        yield str(part.value).replace(":", "."), node.lineno

    def attributes(self) -> Iterator[tuple[str, int]]:
        """Dotted names used, resolved through the file's imports (`dt.now` → `datetime.now`)."""
        aliases: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    aliases[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                aliases |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute | ast.Name):
                first, *rest = _dotted(node)
                if first in aliases:
                    yield ".".join((aliases[first], *rest)), node.lineno

    def at(self, line: int) -> str:
        """A line of this file, as a failing test names it."""
        return f"{self.path.relative_to(ROOT)}:{line}"


def _dotted(node: ast.expr) -> tuple[str, ...]:
    """The parts of a dotted name; the first is empty if it is no name, but a call or the like."""
    if isinstance(node, ast.Attribute):
        return (*_dotted(node.value), node.attr)
    return (node.id if isinstance(node, ast.Name) else "",)


def _statements(block: ast.AST, *, typing: bool) -> Iterator[ast.AST]:
    """All statements of a block; those that only type checkers run with `typing`."""
    typing_only = isinstance(block, ast.If) and ast.unparse(block.test).endswith("TYPE_CHECKING")
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        if typing_only and name == "body" and not typing:
            continue
        for statement in getattr(block, name, ()):
            yield statement
            yield from _statements(statement, typing=typing)


def modules(*folders: str) -> tuple[Module, ...]:
    """Every Python file below these folders of the repository."""
    return tuple(chain.from_iterable(map(_parsed, folders)))


@cache
def _parsed(folder: str) -> tuple[Module, ...]:
    found = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        apart = folder.partition("/")[0] in {"package", "shared"}
        parts = path.relative_to(ROOT / folder.partition("/")[0] if apart else ROOT)
        name = ".".join(parts.with_suffix("").parts).removesuffix(".__init__")
        found.append(Module(name, path, ast.parse(path.read_text("utf-8"), str(path))))
    return tuple(found)


def within(name: str, packages: tuple[str, ...] | set[str]) -> bool:
    """Whether a dotted name is one of these packages or inside one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)
