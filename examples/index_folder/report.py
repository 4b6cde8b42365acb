"""Has all files of a folder analysed in parallel, and then one report written: a workflow.

    python3 report.py FOLDER

The jobs are done by worker.py: one for each file, and, when all of them have ended, the report.
Ctrl-C stops the watching only.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from producer import files_of, parser_for

from ojs_aws import ApiError, Client, RetryPolicy, Unreachable

# The most jobs of a workflow, less one for the report.
MOST_FILES = 9_999
_LOOK_EVERY_S = 0.5


def workflow_for(paths: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """The workflow: a batch, whose callback writes the report whether or not all files could be
    read.
    """
    title = options.folder.resolve().name
    return {
        "type": "batch",
        "name": f"index {title}"[:255],
        "options": {
            "queue": options.queue,
            "retry": {"max_attempts": options.attempts, "initial_interval": options.retry_after},
        },
        "jobs": [{"type": "file.index", "args": [path]} for path in paths],
        # It is told the results and errors of the jobs, in their order.
        "callbacks": {"on_complete": {"type": "folder.report", "args": [title, list(paths)]}},
    }


def watch(client: Client, workflow_id: str) -> dict[str, Any]:
    """Wait until a workflow is over; what the server says of it then."""
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
    """Create and watch it; the exit status is 1 when it failed, 2 when nothing worked."""
    parser = parser_for(
        "Have all text files of a folder analysed by worker.py, and a report written."
    )
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is no folder")
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
    # The client chooses the id: should the answer be lost, it is not created a second time.
    workflow_id = client.create_workflow(**workflow)["workflow"]["id"]
    print(f"workflow {workflow_id}", flush=True)
    try:
        over = watch(client, workflow_id)
    except KeyboardInterrupt:
        print("Not watching any more; the workflow goes on without.")
        return 130
    failed = over["metadata"]["failed_count"]
    print(f"{over['state']}; {failed} of {len(workflow['jobs'])} files could not be read")
    return int(over["state"] != "completed")


if __name__ == "__main__":
    sys.exit(main())
