"""Checks that a version can be released: `make release-check`.

The version is in pyproject.toml alone. `make facts` writes it into all other places.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from infra import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_VERSION = r"(\d+\.\d+\.\d+)"
_WHEEL = rf"ojs_backend_aws-{_VERSION}-py3"
# Other places of the version, and a pattern that finds it there. `make facts` writes server.json.
PLACES: Mapping[str, str] = {
    "package/ojs_aws/cdk/server.json": rf'^ "version": "{_VERSION}"',
    "dashboard/package.json": rf'^  "version": "{_VERSION}"',
    "shared/ojs/settings.py": rf'^    version: str = "{_VERSION}"',
    "docs/local.md": rf"^OJS local server {_VERSION}",
    "docs/construct.md": _WHEEL,
    "docs/releasing.md": rf"(?:git tag -s v|docs-publish ARGS=|--tag v|backend_aws-){_VERSION}",
    "examples/log_report/README.md": _WHEEL,
    "examples/mail_queue/README.md": _WHEEL,
}


def version(root: Path = ROOT) -> str:
    """Return the version of the project."""
    found: str = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    return found


def write(root: Path = ROOT) -> None:
    """Write the version into all places."""
    for name, pattern in PLACES.items():
        path = root / name
        text = path.read_text("utf-8")
        found = re.finditer(pattern, text, re.MULTILINE)
        for each in sorted(found, key=lambda each: -each.start(1)):
            text = text[: each.start(1)] + version(root) + text[each.end(1) :]
        path.write_text(text, "utf-8")


def section(name: str, root: Path = ROOT) -> str:
    """Return the changelog's section of a version, without its heading. Empty: there is none."""
    text = (root / "CHANGELOG.md").read_text("utf-8")
    found = re.search(rf"^## \[{re.escape(name)}\].*\n((?:(?!## \[).*\n?)*)", text, re.MULTILINE)
    return found[1].strip() if found else ""


def problems(root: Path = ROOT, tag: str | None = None) -> Iterator[str]:
    """Find what prevents a release. With a tag, the changelog must be complete, too."""
    expected = version(root)
    for name, pattern in PLACES.items():
        found = set(re.findall(pattern, (root / name).read_text("utf-8"), re.MULTILINE))
        if found != {expected}:
            listed = ", ".join(sorted(found)) or "no version"
            yield f"{name}: has {listed}, but pyproject.toml has {expected}. Run make facts"
    if not (notes := section(expected, root)):
        yield f"CHANGELOG.md: has no section {expected}. Add one"
    if tag is None:
        return
    if tag != f"v{expected}":
        yield f"--tag: {tag} must be v{expected}, the version in pyproject.toml"
    if section("Unreleased", root):
        yield f"CHANGELOG.md: Unreleased must be empty. Move its entries to the section {expected}"
    if not re.search(rf"^## \[{re.escape(expected)}\] - \d{{4}}-\d\d-\d\d$",
                     (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE):  # fmt: skip
        yield f"CHANGELOG.md: the heading of {expected} must have a date: 2026-01-31"
    short = expected.removesuffix(".0")
    upgrade = (root / "docs" / "upgrade.md").read_text("utf-8")
    if "\n### Upgrade\n" in f"\n{notes}\n" and f"| before {short} |" not in upgrade:
        yield f"docs/upgrade.md: has no row 'before {short}', but the changelog has upgrade notes"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m infra.release", description=__doc__)
    parser.add_argument("--tag", help="tag of the release, for example v1.2.3")
    parser.add_argument("--write", action="store_true", help="write the version into all places")
    parser.add_argument("--notes", type=Path, help="file that receives the changelog's section")
    options = parser.parse_args(arguments)
    if options.write:
        write()
    if found := list(problems(tag=options.tag)):
        print("\n".join(found), file=sys.stderr)
        return 1
    if options.notes:
        options.notes.write_text(section(version()) + "\n", "utf-8")
    print(f"Version {version()}: all {len(PLACES) + 1} places agree")
    return 0


if __name__ == "__main__":
    sys.exit(main())
