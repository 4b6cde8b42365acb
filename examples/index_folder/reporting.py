"""Writes one report about a folder from the results of its files. This module doesn't use jobs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

_SHOWN_WORDS = 20


def report(
    title: str,
    paths: Sequence[str],
    results: Sequence[Mapping[str, Any] | None],
    errors: Sequence[Mapping[str, Any] | None],
) -> str:
    """Return the report in Markdown.

    Args:
        title: Name of the folder.
        paths: Paths of the files.
        results: The result of each file, or None if it failed.
        errors: The error of each file, or None if it succeeded.
    """
    done = {path: found for path, found in zip(paths, results, strict=True) if found is not None}
    words: Counter[str] = Counter()
    same: defaultdict[str, list[str]] = defaultdict(list)
    for path, found in done.items():
        words.update(dict(found["top_words"]))
        same[found["sha256"]].append(path)
    size = sum(found["size"] for found in done.values())
    count = sum(found["words"] for found in done.values())
    lines = [f"# {title}", "", f"{len(done)} of {len(paths)} files: {size} bytes, {count} words."]
    if words:
        ranked = sorted(words.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN_WORDS]
        lines += ["", "## Most frequent words", "", "| Word | |", "|---|--:|"]
        lines += [f"| {word} | {number} |" for word, number in ranked]
    if groups := [sorted(each) for each in same.values() if len(each) > 1]:
        lines += ["", "## Identical files", "", *(f"- {' = '.join(group)}" for group in groups)]
    failed = [
        (path, error or {})
        for path, found, error in zip(paths, results, errors, strict=True)
        if found is None
    ]
    if failed:
        lines += ["", "## Not read", ""]
        lines += [f"- {path}: {error.get('message', 'unknown')}" for path, error in failed]
    return "\n".join(lines) + "\n"
