"""Compare the numbers of each page with an earlier commit: `... numbers_kept BASE [page ...]`.

A number that a page no longer has is printed with the pages that have it now, so that a fact that
was lost is told apart from one that moved.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[3]
_NUMBER = re.compile(r"(?<![\w.])\d+(?:[,  ]\d{3})*(?:\.\d+)?(?![\w])")


def numbers(text: str) -> Counter[str]:
    """How often a text has each number; thousands separators do not count."""
    return Counter(re.sub(r"[,  ]", "", n) for n in _NUMBER.findall(text))


def pages() -> dict[str, str]:
    """All pages of the working tree, by path."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    return {str(p.relative_to(ROOT)): p.read_text(encoding="utf-8") for p in found}


def before(base: str) -> dict[str, str]:
    """The same of a commit."""

    def git(*args: str) -> str:
        command = ["git", *args]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    listed = git("ls-tree", "-r", "--name-only", base, "--", ".").splitlines()
    wanted = [
        path
        for path in listed
        if path.endswith(".md") and ("/" not in path or path.startswith(("docs/", "examples/")))
    ]
    return {path: git("show", f"{base}:{path}") for path in wanted}


def main(arguments: list[str]) -> int:
    """Print what each page lost."""
    base, *chosen = arguments
    now = {path: numbers(text) for path, text in pages().items()}
    lost = 0
    for path, text in before(base).items():
        if chosen and path not in chosen:
            continue
        for number, count in (numbers(text) - now.get(path, Counter())).items():
            if count and number not in now.get(path, {}):
                where = [p for p in now if number in now[p]][:4]
                lost += not where
                print(f"{path}: {number}{': ' + ', '.join(where) if where else ' is on no page'}")
    print(f"{lost} numbers are on no page now")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
