"""Find wording that the style guide excludes: `python -m tests.unit.docs.prose [path ...]`.

`prose_rules.tsv` has a row for each pattern: its scopes and what to write instead. Scopes: D pages,
A architecture decision records, C comments, docstrings and strings of Python code, U dashboard
sources, E error messages.
"""

from __future__ import annotations

import ast
import csv
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
RULES = Path(__file__).with_name("prose_rules.tsv")
CODE = ("shared", "package", "functions", "events", "infra", "local", "cli")
# Decision records up to this one are frozen: only their titles are checked.
LAST_FROZEN_ADR = 55
LONG_WORDS, TOO_LONG_WORDS = 25, 35
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2`*[ ]*$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`[^`\n]*(?:\n[^`\n]+)?`")
_LINK = re.compile(r"\]\([^)]*\)")
_QUOTED_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)
_BRACES = re.compile(r"\{[^{}]*\}")


class Rule(NamedTuple):
    """A pattern that texts of its scopes do not contain, and what to write instead."""

    name: str
    pattern: re.Pattern[str]
    scopes: str
    instead: str


@dataclass(frozen=True)
class Text:
    """A piece of a file: its first line, and the characters that count as prose."""

    path: Path
    line: int
    scope: str
    text: str


@dataclass(frozen=True)
class Hit:
    """A match of a rule at a place."""

    path: str
    line: int
    scope: str
    rule: Rule
    match: str

    def __str__(self) -> str:
        return (
            f"{self.path}:{self.line}: {self.scope} {self.rule.name} {self.match!r}:"
            f" write {self.rule.instead}"
        )


def rules() -> list[Rule]:
    """All rows of the table."""
    with RULES.open(encoding="utf-8") as lines:
        rows = csv.reader(
            (line for line in lines if not line.startswith("#")),
            delimiter="\t",
            quoting=csv.QUOTE_NONE,
        )
        return [
            Rule(name, re.compile(pattern, re.IGNORECASE | re.MULTILINE), scopes, instead)
            for name, pattern, scopes, instead in rows
        ]


def _blank(match: re.Match[str]) -> str:
    """As many lines as the match has, without its text. A line with inline code keeps a word"""
    return "x" + "\n" * match[0].count("\n")


def prose_of_markdown(text: str) -> str:
    """A page without code blocks, inline code and link targets; lines keep their numbers."""
    return _LINK.sub("]", _INLINE.sub(_blank, _FENCE.sub(_blank, text)))


def _page(path: Path, text: str) -> Iterator[Text]:
    prose = prose_of_markdown(text)
    if path.name == "CHANGELOG.md":
        # Entries of released versions are frozen.
        prose = prose.split("\n## [0", 1)[0]
    if path == ROOT / "docs" / "requirements.md":
        # Its tables quote the specification.
        prose = _QUOTED_ROW.sub("", prose)
    if path.parent.name == "adr":
        if path.name[:4].isdigit() and int(path.name[:4]) <= LAST_FROZEN_ADR:
            prose = prose.split("\n", 1)[0]
        yield Text(path, 1, "A", prose)
    else:
        yield Text(path, 1, "D", prose)


_ERRORS = re.compile(
    r"(Error|Request|Refused|Full|NotFound|Conflict|Invalid\w*|Duplicate|TooLarge)$"
)


def error_strings(tree: ast.AST) -> Iterator[ast.Constant]:
    """The string constants within calls of error types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if _ERRORS.search(name):
                for part in ast.walk(node):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield part


def _python(path: Path, text: str) -> Iterator[Text]:
    tree = ast.parse(text)
    for part in error_strings(tree):
        yield Text(path, part.lineno, "E", str(part.value))
    # Strings that are concatenated, and comments below each other, are one text.
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield Text(path, node.lineno, "C", node.value)
    comment: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if comment and token.start[0] != last + 1:
            yield Text(path, first, "C", "\n".join(comment))
            comment = []
        if not comment:
            first = token.start[0]
        last = token.start[0]
        comment.append(token.string.lstrip("# "))
    if comment:
        yield Text(path, first, "C", "\n".join(comment))


def texts(path: Path) -> Iterator[Text]:
    """The prose of a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield from _page(path, text)
    elif path.suffix == ".py":
        yield from _python(path, text)
    else:
        yield Text(path, 1, "U", text)


def files() -> Iterator[Path]:
    """All files that are checked."""
    yield from sorted(ROOT.glob("*.md"))
    for folder in ("docs", "examples"):
        yield from sorted((ROOT / folder).rglob("*.md"))
    for folder in (*CODE, "examples"):
        yield from sorted((ROOT / folder).rglob("*.py"))
    for kind in ("*.ts", "*.tsx", "*.css", "*.html"):
        yield from sorted((ROOT / "dashboard" / "src").rglob(kind))


def hits(paths: Iterator[Path] | list[Path]) -> Iterator[Hit]:
    """All matches in these files."""
    table = rules()
    for path in paths:
        if "node_modules" in path.parts:
            continue
        for text in texts(path):
            for rule in table:
                if text.scope not in rule.scopes:
                    continue
                for match in rule.pattern.finditer(text.text):
                    line = text.line + text.text.count("\n", 0, match.start())
                    shown = str(path.relative_to(ROOT))
                    yield Hit(shown, line, text.scope, rule, match[0])


def sentences(text: str) -> Iterator[str]:
    """The sentences of a page's prose: paragraphs and list items, without tables and headings."""
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)", prose_of_markdown(text)):
        lines = [line for line in block.splitlines() if not line.lstrip().startswith(("|", "#"))]
        yield from (s for s in re.split(r"(?<=[.!?:])\s+", " ".join(lines).strip()) if s)


def main(arguments: list[str]) -> int:
    """Print the hits of these files and folders, or of all files, and their number by scope."""
    chosen: list[Path] = []
    for argument in arguments:
        path = Path(argument).resolve()
        chosen += [f for f in files() if f == path or path in f.parents]
    found = list(hits(chosen if arguments else files()))
    if arguments:
        for hit in found:
            print(hit)
        for path in chosen:
            if path.suffix == ".md":
                long = [s for s in sentences(path.read_text()) if len(s.split()) > TOO_LONG_WORDS]
                for sentence in long:
                    print(f"{path.relative_to(ROOT)}: {len(sentence.split())} words: {sentence}")
    print(dict(Counter(hit.scope for hit in found)), len(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
