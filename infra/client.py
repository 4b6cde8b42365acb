"""Generates methods of the library's client from the declared operations: `make facts`.

Operations that need more than one plain request are functions in `ojs_aws.client.operations`, for
example to generate an ID, to convert times, or to return a job. They are not generated.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Container, Iterable, Sequence
from textwrap import wrap

from infra import ROOT
from ojs.api.operations import OPERATIONS
from ojs.http.endpoint import BASE, WORKERS, Operation
from ojs.http.models import NoOptions
from ojs_aws.client import operations as by_hand

FILE = ROOT / "package" / "ojs_aws" / "client" / "generated.py"
# The worker session of the library sends these requests.
OF_WORKERS = {
    "ack_job_by_path", "nack_job_by_path", "report_progress", "report_worker_progress",
    "register_worker",
}  # fmt: skip
# Aliases of operations that have a method. Only their summaries differ.
OTHER_NAMES = {
    "purge_old_dead_letters", "admin_purge_old_dead_letters", "admin_get_queue", "quiet_worker",
    "admin_remove_worker", "root_metrics",
}  # fmt: skip
NAMES = {
    "admin_stats": "stats",
    "admin_stats_history": "stats_history",
    "admin_delete_job": "delete_job",
    "admin_erase_jobs": "erase_jobs",
    "enqueue_bulk": "enqueue_each",
}
# POST requests that the client may resend if the response is lost.
REPEATABLE = ("pause_", "resume_", "register_cron", "create_delivery")
HEADER = '''"""Methods of both clients, one per operation. `make facts` generates this file."""

from __future__ import annotations

from typing import Any

from ojs_aws.client.call import Answer, Call, json_object, place
from ojs_aws.client.method import Method


class Generated:
    """Operations that return the JSON object that the OpenAPI document describes."""
'''


def text() -> str:
    """Return the content of the generated file."""
    written = {name for name, _ in inspect.getmembers(by_hand, inspect.isfunction)}
    seen = {each.summary for each in OPERATIONS if NAMES.get(each.id, each.id) in written}
    parts = {}
    # Aliases of an operation are longer.
    for each in sorted(OPERATIONS, key=lambda each: len(each.id)):
        left_out = (each.function == WORKERS and each.method == "POST") or each.id in OF_WORKERS
        if left_out or each.id in OTHER_NAMES or each.summary in seen:
            continue
        seen.add(each.summary)
        parts[each.id] = _method(each)
    source = "\n".join([HEADER, *(parts[name] for name in sorted(parts))])
    format_ = [sys.executable, "-m", "ruff", "format", "-"]
    done = subprocess.run(format_, input=source, capture_output=True, text=True, check=True)
    return done.stdout


def _method(operation: Operation) -> str:
    path = operation.path.removeprefix(f"{BASE}/")
    taken, sent = [], [f'"{operation.method}"', f'"{path}"', "json_object"]
    about: list[str] = []
    if parameter := operation.path_parameter:
        named = f"{operation.subject}_id" if parameter == "id" else parameter
        taken.append(f"{named}: str")
        subject = operation.subject or "resource"
        kind = {"id": "ID", "key": "Key"}.get(parameter, "Name")
        about.append(f"{named}: {kind} of the {subject}.")
        sent[1] = f'place("{path.replace(f"{{{parameter}}}", "{}")}", {named})'
    fields = {} if operation.request is None else operation.request.model_fields
    if operation.request not in (None, NoOptions):
        body = "body"
        if not parameter and "name" in fields and fields["name"].required:
            taken.append("name: str")
            about.append("name: Name of the new resource.")
            body = '{"name": name, **body}'
        taken.append("**body: Any")
        ignored = {name for name, each in fields.items() if "ignored" in (each.description or "")}
        about.append(f"**body: Fields of the request: {_names(fields, ignored | {'name'})}.")
        sent.append(body)
    elif operation.query:
        taken.append("**query: Any")
        about.append(f"**query: Query parameters: {_names(each.name for each in operation.query)}.")
        sent.append("query=query")
    elif operation.method == "POST":
        sent.append("{}")
    if operation.method == "POST" and not operation.id.startswith(REPEATABLE):
        sent.append("repeatable=False")
    name = NAMES.get(operation.id, operation.id)
    return (
        f"    @Method\n    @staticmethod\n"
        f"    def {name}({', '.join(taken)}) -> Call[Answer]:\n"
        f'        """{operation.summary}.\n\n{_sections(about)}        """\n'
        f"        return Call({', '.join(sent)})\n"
    )


def _names(names: Iterable[str], without: Container[str] = ()) -> str:
    return ", ".join(f"`{name}`" for name in names if name not in without)


def _sections(arguments: Sequence[str]) -> str:
    """Return the sections of a method's docstring."""
    found = ["Args:", *arguments, ""] if arguments else []
    found += ["Returns:", "The call. Its result is the JSON object of the response.", ""]
    found += ["Raises:", "ApiError: The server rejected the request."]
    text = ""
    for line in found:
        heading = line.endswith(":")
        indent = " " * (8 if heading else 12)
        hanging = indent if heading or line[:4] == "The " else indent + "    "
        text += "\n".join(wrap(line, 100, initial_indent=indent, subsequent_indent=hanging)) + "\n"
    return text
