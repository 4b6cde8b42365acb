"""Writes facts about the server for the construct and the client: `make facts`.

The construct is installed into other CDK apps, where a package named `ojs` can be another one. So
it doesn't import the server, and reads this file. A test compares it with the code.
"""

from __future__ import annotations

import json
import sys
import tomllib
from dataclasses import asdict
from typing import Any

from infra import ROOT, client
from ojs.api import operations
from ojs.http.binding import negotiation
from ojs.projections.project import ALWAYS
from ojs.store.table import schema

FILE = ROOT / "package" / "ojs_aws" / "cdk" / "server.json"


def facts() -> dict[str, Any]:
    """Return the current facts of the code."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = {
        "version": project["version"],
        "schema_version": schema.SCHEMA_VERSION,
        "stream_max_age_s": schema.STREAM_MAX_AGE_S,
        "table": asdict(schema.TABLE),
        "request_headers": negotiation.REQUEST_HEADERS,
        "exposed_headers": negotiation.EXPOSED_HEADERS,
        "always_on_bus": ALWAYS,
        "operations": [
            [each.method, each.path, scope]
            for each in sorted(operations.OPERATIONS, key=lambda each: (each.path, each.method))
            for scope in (each.permission.scope, *each.permission.others)
        ],
    }
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def text() -> str:
    """Format the facts: one line per fact, and one per operation."""
    found = facts()
    listed = ",\n  ".join(map(json.dumps, found.pop("operations")))
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in found.items()]
    lines.append(f' "operations": [\n  {listed}\n ]')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> int:
    """Write the file and the client's generated methods."""
    FILE.write_text(text(), "utf-8")
    client.FILE.write_text(client.text(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
