"""Analyzes all files of a folder in parallel, and then writes one report: a workflow.

    python3 report.py FOLDER

The worker (worker.py) runs the jobs: one for each file, and then the report. Ctrl-C stops only this
program.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from producer import files_of, parser_for

from ojs_aws import ApiError, Client, RetryPolicy, Unreachable

# The maximum number of jobs of a workflow, minus one for the report.
MOST_FILES = 9_999
_LOOK_EVERY_S = 0.5


def workflow_for(paths: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """Return the workflow: a batch. Its callback writes the report, also if files failed."""
    title = options.folder.resolve().name
    return {
        "type": "batch",
        "name": f"index {title}"[:255],
        "options": {
            "queue": options.queue,
            "retry": {"max_attempts": options.attempts, "initial_interval": options.retry_after},
        },
        "jobs": [{"type": "file.index", "args": [path]} for path in paths],
        # This job receives the results and errors of the others, in their order.
        "callbacks": {"on_complete": {"type": "folder.report", "args": [title, list(paths)]}},
    }


def watch(client: Client, workflow_id: str) -> dict[str, Any]:
    """Wait until a workflow is in a final state. Return its last state."""
    last = ""
    while True:
        told = client.workflow_progress(workflow_id)
        line = f"{told['steps_completed']}/{told['steps_total']} done, {told['progress']:.0%}"
        if line != last:
            print(line, flush=True)
            last = line
        if told["state"] != "running":
            over: dict[str, Any] = client.get_workflow(workflow_id, limit=1)["workflow"]
            return over
        time.sleep(_LOOK_EVERY_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Create the workflow and watch it. Return 1 if it failed, 2 if the server can't be reached."""
    parser = parser_for(
        "Have all text files of a folder analysed by worker.py, and a report written."
    )
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} must be a folder")
    paths = list(files_of(options.folder, options.pattern))
    if not 1 <= len(paths) <= MOST_FILES:
        parser.error(f"{len(paths)} files in {options.folder}: 1 to {MOST_FILES} make a workflow")
    try:
        with Client(options.url, retry=RetryPolicy(tries=2)) as client:
            return _run(client, workflow_for(paths, options))
    except ValueError as error:
        parser.error(str(error))
    except (ApiError, Unreachable) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2


def _run(client: Client, workflow: dict[str, Any]) -> int:
    # The client chooses the ID, so a retry after a lost response doesn't create a second workflow.
    workflow_id = client.create_workflow(**workflow)["workflow"]["id"]
    print(f"workflow {workflow_id}", flush=True)
    try:
        over = watch(client, workflow_id)
    except KeyboardInterrupt:
        print("Stopped watching. The workflow continues.")
        return 130
    failed = over["metadata"]["failed_count"]
    print(f"{over['state']}; {failed} of {len(workflow['jobs'])} files could not be read")
    return int(over["state"] != "completed")


if __name__ == "__main__":
    sys.exit(main())
