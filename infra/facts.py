"""Writes facts about the server for the construct and the client: `make facts`.

The construct is installed into other CDK apps, where a package named `ojs` can be another one. So
it doesn't import the server, and reads this file. A test compares it with the code.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import asdict
from typing import Any

from infra import ROOT, client
from ojs.api import openapi, operations
from ojs.http.binding import negotiation
from ojs.projections.project import ALWAYS
from ojs.store.table import schema

FILE = ROOT / "package" / "ojs_aws" / "cdk" / "server.json"
# The schema of a job, for clients that check it without a server.
JOB_FILE = ROOT / "package" / "ojs_aws" / "client" / "job.json"
# Keywords that `ojs_aws.client.outbox` doesn't check.
_UNCHECKED = {"title", "description", "format", "if", "then"}


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


def job_text() -> str:
    """Format the schemas of a job and of its parts, by name."""
    schemas = openapi.document("")["components"]["schemas"]
    found, names = {}, ["JobRequest"]
    for name in names:
        found[name] = _checked(schemas[name])
        references = re.findall(r'"#/components/schemas/(\w+)"', json.dumps(found[name]))
        names += [each for each in dict.fromkeys(references) if each not in names]
    lines = [f" {json.dumps(name)}: {json.dumps(each)}" for name, each in found.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _checked(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_checked(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    # The names of properties can't be keywords.
    return {
        name: {key: _checked(one) for key, one in each.items()}
        if name == "properties"
        else _checked(each)
        for name, each in schema.items()
        if name not in _UNCHECKED
    }


def main() -> int:
    """Write the files and the client's generated methods."""
    FILE.write_text(text(), "utf-8")
    JOB_FILE.write_text(job_text(), "utf-8")
    client.FILE.write_text(client.text(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
