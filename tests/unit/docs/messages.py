"""List the error texts of the server: `python -m tests.unit.docs.messages [path ...]`.

A reason is a predicate of a field; a message is full sentences. A value in braces is shown as {}.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
VALUE = "{}"
FOLDERS = ("shared", "functions")
# Error types: the position and the name of the argument that has the text.
REASONS = {"InvalidRequest": (1, "reason"), "ValidationFailed": (1, "reason")}
REASONS |= {"naming_field": (2, "rule"), "ValueError": (0, "")}
# Functions that note a reason for a field.
REASONS |= {"_note": (1, "rule"), "note": (1, "rule")}
# In other folders, these have other texts.
DOMAIN_ONLY = {"ValueError", "_note", "note"}
DOMAIN = Path("shared/ojs/domain")
WAITS = {"BackendUnavailable", "BackendContended", "Contended", "WriteNotApplied", "UnknownOutcome"}
MESSAGES = {
    **dict.fromkeys(
        {"OjsError", "InvalidPayload", "Unsupported", "PermissionDenied", "Conflict", "Duplicate"}
        | {"MiddlewareRefusal", "BackendError", "BackendTimeout"}
        | WAITS,
        (0, "message"),
    ),
    **dict.fromkeys(("LimitReached", "QueueDraining"), (1, "message")),
    "QueueFull": (99, "message"),
}


class Message(NamedTuple):
    """A text of an error, the type that it is given to, and its place."""

    path: Path
    line: int
    error: str
    text: str

    @property
    def is_reason(self) -> bool:
        """Whether the text is a predicate of a field."""
        return self.error in REASONS

    @property
    def fault(self) -> str | None:
        """The rule that the text breaks."""
        if not self.is_reason:
            if self.text[:1].islower():
                return "must begin with a capital letter"
            return None if self.text.endswith((".", VALUE)) else "must end with a period"
        if self.text[:1].isupper():
            return "must begin in lower case"
        if self.text.endswith(".") and not re.search(r"[.?!] ", self.text):
            return "must not end with a period"
        return None

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.error}: {self.text!r}"


def _texts(node: ast.AST | None, constants: dict[str, list[ast.AST]]) -> Iterator[str]:
    """The texts that an argument can be. One that is computed elsewhere has none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(v.value) if isinstance(v, ast.Constant) else VALUE for v in node.values)
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body, constants)
        yield from _texts(node.orelse, constants)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for left in _texts(node.left, constants):
            yield from (left + right for right in _texts(node.right, constants))
    elif isinstance(node, ast.Name) and node.id in constants:
        for value in constants[node.id]:
            yield from _texts(value, {})


def _called(call: ast.Call) -> str:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def of_file(path: Path, text: str) -> Iterator[Message]:
    """The texts that a file gives to error types, also by a constant of the same file."""
    tree = ast.parse(text)
    constants: dict[str, list[ast.AST]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    constants.setdefault(target.id, []).append(node.value)
    places = REASONS | MESSAGES
    if not path.is_relative_to(DOMAIN):
        places = {name: at for name, at in places.items() if name not in DOMAIN_ONLY}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or (name := _called(node)) not in places:
            continue
        at, keyword = places[name]
        given = node.args[at] if at < len(node.args) else None
        given = next((k.value for k in node.keywords if k.arg == keyword), given)
        yield from (Message(path, node.lineno, name, each) for each in _texts(given, constants))


def all_messages(paths: list[str] | None = None) -> Iterator[Message]:
    """The texts of these files and folders, or of the server."""
    for each in paths or FOLDERS:
        start = ROOT / each
        for path in [start] if start.is_file() else sorted(start.rglob("*.py")):
            yield from of_file(path.relative_to(ROOT), path.read_text("utf-8"))


if __name__ == "__main__":
    found = list(all_messages(sys.argv[1:]))
    for message in found:
        print(message, f"[{message.fault}]" if message.fault else "")  # noqa: T201
    print(dict(Counter(message.fault or "ok" for message in found)), len(found))  # noqa: T201
