"""Build the documentation site: `make docs`, `make docs-serve`.

Pages are copied to `build/site-src` with their paths, so that links are the same on GitHub. Files
that pages link to, such as pictures and programs, are copied with them.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from docs.site import api

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "site"
SOURCE, TARGET = ROOT / "build" / "site-src", ROOT / "build" / "site"
TOOLS = ROOT / "build" / "docs"
# The README has the quick start. The first page of the site is another one.
MOVED = {"README.md": "quickstart.md", "docs/site/home.md": "index.md"}
# The history of versions, each item and its attributes, where each requirement is tested, and the
# reasons for decisions would fill the results of the search.
NOT_SEARCHED = (
    "CHANGELOG.md", "docs/requirements.md", "docs/adr/",
    "docs/table.md", "docs/numbers/attributes.md",
)  # fmt: skip
_LINK = re.compile(r"(?<=\]\()(?!https?:)([^)\s#]+)")
_LOGO = re.compile(r"https://cdn\.redoc\.ly/redoc/[\w-]+\.svg")
SCRIPTS = ("@mermaid-js/tiny/dist/mermaid.tiny.js", "redoc/bundles/redoc.standalone.js")


def pages() -> Iterator[Path]:
    """All pages of the site, as files of the repository."""
    yield from ROOT.glob("*.md")
    yield from (ROOT / "docs").rglob("*.md")
    yield from (ROOT / "examples").rglob("*.md")


def copy() -> None:
    """Copy the pages, and what they link to, to the folder that the site is built from."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    for page in pages():
        name = str(page.relative_to(ROOT))
        target = SOURCE / MOVED.get(name, name)

        def link(match: re.Match[str], page: Path = page, target: Path = target) -> str:
            found = (page.parent / match[1]).resolve()
            if not found.is_file() or not found.is_relative_to(ROOT):
                return match[1]
            path = str(found.relative_to(ROOT))
            linked = SOURCE / MOVED.get(path, path)
            if found.suffix != ".md":
                linked.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(found, linked)
            return os.path.relpath(linked, target.parent)

        target.parent.mkdir(parents=True, exist_ok=True)
        text = _LINK.sub(link, page.read_text("utf-8"))
        about = "---\nsearch:\n  exclude: true\n---\n" if name.startswith(NOT_SEARCHED) else ""
        target.write_text(f"{about}{text}", "utf-8")


def add_assets() -> None:
    """Add the OpenAPI document, and the scripts of its interactive page and of diagrams."""
    assets = SOURCE / SITE.relative_to(ROOT)
    for script in SCRIPTS:
        text = (TOOLS / "node_modules" / script).read_text("utf-8")
        # Redoc loads its logo from elsewhere, and hides an image that can't be loaded.
        (assets / Path(script).name).write_text(_LOGO.sub("data:,", text), "utf-8")
    (assets / "openapi.json").write_text(json.dumps(api.document()), "utf-8")


def run(*arguments: str) -> int:
    """Run Zensical. Returns its exit status."""
    command = [str(TOOLS / "bin" / "zensical"), *arguments]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def main(arguments: list[str]) -> int:
    """Build the site, or serve it at the address that is given."""
    copy()
    add_assets()
    if arguments:
        return run("serve", "--dev-addr", arguments[0])
    shutil.rmtree(TARGET, ignore_errors=True)
    return run("build", "--clean", "--strict")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
