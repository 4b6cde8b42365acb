"""Lists licenses of the bundled packages: `python -m infra.licences SBOM PAGE`.

Fails for a package without a license, or with one that is not reviewed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Reviewed licenses: they allow redistribution with this project (Apache-2.0) with a notice.
LOOKED_AT = frozenset({
    "Apache-2.0", "License :: OSI Approved :: Apache Software License",
    "BSD-3-Clause", "License :: OSI Approved :: BSD License",
    "MIT", "MIT-0", "MIT OR AFL-2.1", "PSF-2.0",
})  # fmt: skip


def licences(sbom: Mapping[str, Any]) -> dict[str, str]:
    """Return the licenses by package and version, from a CycloneDX SBOM.

    Raises ValueError with all packages that have no license, or one that is not reviewed.
    """
    found, unknown = {}, []
    for component in sbom["components"]:
        told = {_name(each) for each in component.get("licenses", ())}
        name = f"{component['name']} {component['version']}"
        if not told or not told & LOOKED_AT:
            unknown.append(f"{name}: {', '.join(sorted(told)) or 'none'}")
        found[name] = ", ".join(sorted(told & LOOKED_AT))
    if unknown:
        raise ValueError(f"licenses not reviewed: {'; '.join(unknown)}")
    return dict(sorted(found.items()))


def _name(told: Mapping[str, Any]) -> str:
    licence = told.get("license", {})
    return str(told.get("expression") or licence.get("id") or licence.get("name"))


def main(arguments: list[str]) -> int:
    """Write the page. Returns the exit status."""
    sbom, page = map(Path, arguments)
    try:
        found = licences(json.loads(sbom.read_text("utf-8")))
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows = [f"| {name} | {licence} |" for name, licence in found.items()]
    head = [
        "# Licenses of the bundled packages",
        "",
        "| Package | License |",
        "|---|---|",
    ]
    page.write_text("\n".join([*head, *rows, ""]), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
