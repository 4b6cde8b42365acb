"""Writes the methods of the library's client that follow from the operations: `make facts`.

A method that does more than send one request (it chooses an id, converts times, or returns a job)
is a function in `ojs_aws.client.operations`. This module writes no method for such an operation.
"""

from __future__ import annotations

import inspect
import subprocess
import sys

from infra import ROOT
from ojs.api.operations import OPERATIONS
from ojs.http.contract.models import NoOptions
from ojs.http.endpoint import BASE, WORKERS, Operation
from ojs_aws.client import operations as by_hand

FILE = ROOT / "package" / "ojs_aws" / "client" / "generated.py"
# The worker session of the library calls these.
OF_WORKERS = {
    "ack_job_by_path", "nack_job_by_path", "report_progress", "report_worker_progress",
    "register_worker",
}  # fmt: skip
# Other names of operations that have a method: only their summaries differ.
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
# A POST that may be sent again if no answer came.
REPEATABLE = ("pause_", "resume_", "register_cron", "create_delivery")
HEADER = '''"""Methods of both clients, one for each operation: written by `make facts`."""

from __future__ import annotations

from typing import Any

from ojs_aws.client.call import Answer, Call, json_object, place
from ojs_aws.client.method import Method


class Generated:
    """Operations whose answer is the JSON that the OpenAPI document describes."""
'''


def text() -> str:
    """What the file holds if it is written now."""
    written = {name for name, _ in inspect.getmembers(by_hand, inspect.isfunction)}
    seen = {each.summary for each in OPERATIONS if NAMES.get(each.id, each.id) in written}
    parts = {}
    # The other names of an operation are longer.
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
    if parameter := operation.path_parameter:
        named = f"{operation.subject}_id" if parameter == "id" else parameter
        taken.append(f"{named}: str")
        sent[1] = f'place("{path.replace(f"{{{parameter}}}", "{}")}", {named})'
    fields = {} if operation.request is None else operation.request.model_fields
    if operation.request not in (None, NoOptions):
        body = "body"
        if not parameter and "name" in fields and fields["name"].required:
            taken.append("name: str")
            body = '{"name": name, **body}'
        taken.append("**body: Any")
        sent.append(body)
    elif operation.query:
        taken.append("**query: Any")
        sent.append("query=query")
    elif operation.method == "POST":
        sent.append("{}")
    if operation.method == "POST" and not operation.id.startswith(REPEATABLE):
        sent.append("repeatable=False")
    name = NAMES.get(operation.id, operation.id)
    return (
        f"    @Method\n    @staticmethod\n"
        f"    def {name}({', '.join(taken)}) -> Call[Answer]:\n"
        f'        """{operation.summary}."""\n'
        f"        return Call({', '.join(sent)})\n"
    )
