"""Writes a report of `ojs-aws prove` into its page: `python -m docs.numbers.prove FOLDER`.

The report of the emulated cloud comes from its test:
`PROVE_REPORT=FOLDER pytest tests/e2e/test_prove.py`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from docs.numbers import ROOT

PAGE = ROOT / "docs" / "prove.md"
_EXAMPLE = re.compile(r"(<!-- report -->\n).*(<!-- end of report -->)", re.DOTALL)


def main(folder: str) -> None:
    """Put the report of this folder between the marks of the page."""
    report = (Path(folder) / "report.txt").read_text("utf-8").rstrip()
    # Addresses of the emulator's machine say nothing.
    shown = re.sub(r"(http|ws)://\S+?(?=[\"/])", r"\1://example", report)
    text = f"\n```console\n$ ./ojs-aws prove --stage local --yes --rate 2\n{shown}\n```\n\n"
    page = PAGE.read_text("utf-8")
    PAGE.write_text(_EXAMPLE.sub(lambda found: found[1] + text + found[2], page), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
