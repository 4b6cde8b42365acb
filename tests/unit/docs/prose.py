"""Find wording that the style guide excludes: `python -m tests.unit.docs.prose [path ...]`.

`prose_rules.tsv` has a row for each pattern: its scopes and what to write instead. Scopes: D pages,
A architecture decision records, C comments, docstrings and strings of Python code, U dashboard
sources, E error messages. `prose_allowed.tsv` has the lines that are allowed, with the reason.

`--record` writes the present numbers of hits and of long sentences to `prose_counts.json`.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
RULES, ALLOWED, COUNTS = (
    Path(__file__).with_name(f"prose_{name}")
    for name in ("rules.tsv", "allowed.tsv", "counts.json")
)
CODE = ("shared", "package", "functions", "events", "infra", "local", "cli")
# Decision records up to this one are frozen: only their titles are checked.
LAST_FROZEN_ADR = 55
LONG_WORDS, TOO_LONG_WORDS, MAX_LONG = 25, 35, 0.05
_GENERATED = "<!-- Written by `make facts`"
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2`*[ ]*$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`[^`\n]*(?:\n[^`\n]+)?`")
_LINK = re.compile(r"\]\([^)]*\)")
_QUOTED_ROW = re.compile(r"^\|.*\|$", re.MULTILINE)


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


def rows(path: Path) -> list[list[str]]:
    """The rows of a table, without comments."""
    lines = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
    return list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))


def rules() -> list[Rule]:
    """All rows of the table of patterns."""
    return [
        Rule(name, re.compile(pattern, re.IGNORECASE | re.MULTILINE), scopes, instead)
        for name, pattern, scopes, instead in rows(RULES)
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


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings of a tree, and their lines. A value in braces of an f-string counts as a word."""
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts.update(id(each) for each in node.values)
            texts = (str(v.value) if isinstance(v, ast.Constant) else "x" for v in node.values)
            yield node.lineno, "".join(texts)
        elif (
            isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts
        ):
            yield node.lineno, node.value


def error_strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings in calls of error types."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if _ERRORS.search(name):
                yield from strings(node)


def _python(path: Path, text: str) -> Iterator[Text]:
    tree = ast.parse(text)
    for line, part in error_strings(tree):
        yield Text(path, line, "E", part)
    # Strings that are concatenated, and comments below each other, are one text.
    for line, part in strings(tree):
        yield Text(path, line, "C", part)
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
    """The prose of a file. A generated page has none: its texts are those of the code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md" and text.startswith(_GENERATED):
        return
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
    prose = prose_of_markdown(_COMMENT.sub("", text))
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)", prose):
        lines = [line for line in block.splitlines() if not line.lstrip().startswith(("|", "#"))]
        yield from (s for s in re.split(r"(?<=[.!?:])\s+", " ".join(lines).strip()) if s)


class Lengths(NamedTuple):
    """The sentences of a page: their number, and how many are long and too long."""

    sentences: int
    long: int
    too_long: int

    @property
    def fits(self) -> bool:
        """Whether the page keeps the bounds."""
        return self.too_long == 0 and self.long <= MAX_LONG * self.sentences


def lengths(path: Path) -> Lengths:
    """Count the sentences of a page. The frozen part of a page has none."""
    words = [len(s.split()) for each in texts(path) for s in sentences(each.text)]
    return Lengths(
        len(words), sum(n > LONG_WORDS for n in words), sum(n > TOO_LONG_WORDS for n in words)
    )


def unallowed(found: list[Hit]) -> tuple[list[Hit], list[list[str]]]:
    """The hits that no row allows, and the rows that allow no hit."""
    unused = rows(ALLOWED)
    allowed = {(path, text, name) for path, text, name, _ in unused}
    left = []
    for hit in found:
        line = (ROOT / hit.path).read_text("utf-8").splitlines()[hit.line - 1].strip()
        if (key := (hit.path, line, hit.rule.name)) in allowed:
            unused = [row for row in unused if tuple(row[:3]) != key]
        else:
            left.append(hit)
    return left, unused


def counts() -> dict[str, dict[str, int | list[int]]]:
    """The hits by scope; the sentences of pages that do not keep the bounds."""
    found, _ = unallowed(list(hits(files())))
    pages = {p: lengths(p) for p in files() if p.suffix == ".md"}
    return {
        "hits": {scope: sum(hit.scope == scope for hit in found) for scope in "DACUE"},
        "sentences": {
            str(path.relative_to(ROOT)): list(each) for path, each in pages.items() if not each.fits
        },
    }


def main(arguments: list[str]) -> int:
    """Print the hits of these files and folders, or of all files, and their number by scope."""
    if arguments == ["--record"]:
        COUNTS.write_text(json.dumps(counts(), indent=1) + "\n", "utf-8")
        return 0
    chosen: list[Path] = []
    for argument in arguments:
        path = Path(argument).resolve()
        chosen += [f for f in files() if f == path or path in f.parents]
    found, _ = unallowed(list(hits(chosen if arguments else files())))
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
