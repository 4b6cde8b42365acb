"""Add the built site to the published versions: `make docs-publish ARGS=0.3.0`.

Each version has a folder. `latest` is a copy of the newest release, and `dev` is the main branch.
The selector of versions reads `versions.json`.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from docs.site.build import TARGET

DEV, LATEST = "dev", "latest"
_REDIRECT = """<!doctype html>
<meta charset="utf-8">
<title>ojs-backend-aws</title>
<link rel="icon" href="data:,">
<meta http-equiv="refresh" content="0; url={0}/">
<a href="{0}/">Documentation</a>
"""


def _newest_first(name: str) -> tuple[bool, list[int]]:
    return name == DEV, [int(part) for part in re.findall(r"\d+", name)]


def versions(folder: Path) -> list[str]:
    """The published versions, the newest first."""
    found = [each.name for each in folder.iterdir() if each.is_dir() and each.name != LATEST]
    return sorted(found, key=_newest_first, reverse=True)


def publish(built: Path, folder: Path, version: str) -> None:
    """Add a version to a folder of published versions.

    Args:
        built: The folder of the built site.
        folder: The folder of all versions. It is created if it does not exist.
        version: The number of a release, or `dev`.

    Raises:
        ValueError: The version is neither. Nothing was written.
    """
    if version != DEV and not re.fullmatch(r"\d+\.\d+\.\d+", version):
        raise ValueError(f"version: must be a release such as 0.3.0, or {DEV}, but is {version!r}")
    shutil.rmtree(folder / version, ignore_errors=True)
    shutil.copytree(built, folder / version)
    found = versions(folder)
    releases = [each for each in found if each != DEV]
    if version in releases[:1]:
        shutil.rmtree(folder / LATEST, ignore_errors=True)
        shutil.copytree(built, folder / LATEST)
    listed = [
        {"version": each, "title": each, "aliases": [LATEST] if each in releases[:1] else []}
        for each in found
    ]
    (folder / "versions.json").write_text(json.dumps(listed, indent=1) + "\n", "utf-8")
    start = LATEST if releases else DEV
    (folder / "index.html").write_text(_REDIRECT.format(start), "utf-8")


if __name__ == "__main__":
    publish(TARGET, Path(sys.argv[1]), sys.argv[2])
