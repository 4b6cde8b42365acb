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
from pathlib import Path
from typing import Any

from client import ApiError, Client, Unreachable, uuid7
from producer import files_of

# The most jobs of a workflow, less one for the report.
MOST_FILES = 9_999
_LOOK_EVERY_S = 0.5


def workflow_for(paths: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    """The workflow: a batch, whose callback writes the report whether or not all files could be
    read.

    Its id is chosen here: should the answer be lost, sending it again cannot create it twice.
    """
    title = options.folder.resolve().name
    return {
        "id": uuid7(),
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


def create(client: Client, workflow: dict[str, Any]) -> None:
    """Create it. Raises ApiError, Unreachable."""
    try:
        client.call("POST", "/workflows", workflow)
    except ApiError as error:
        if not (error.code == "duplicate" and error.repeated):
            raise


def watch(client: Client, workflow_id: str) -> dict[str, Any]:
    """Wait until a workflow is over; what the server says of it then."""
    last = ""
    while True:
        told = client.call("GET", f"/workflows/{workflow_id}/progress")
        line = f"{told['steps_completed']}/{told['steps_total']} done, {told['progress']:.0%}"
        if line != last:
            print(line, flush=True)
            last = line
        if told["state"] != "running":
            answer = client.call("GET", f"/workflows/{workflow_id}?limit=1")
            over: dict[str, Any] = answer["workflow"]
            return over
        time.sleep(_LOOK_EVERY_S)


def main(arguments: Sequence[str] | None = None) -> int:
    """Create and watch it; the exit status is 1 when it failed, 2 when nothing worked."""
    parser = argparse.ArgumentParser(
        description="Have all text files of a folder analysed by worker.py, and a report written."
    )
    parser.add_argument("folder", type=Path, help="the folder; workers must be given the same")
    parser.add_argument("--url", default="http://localhost:8080", help="the server")
    parser.add_argument("--queue", default="files", help="where to put the jobs")
    parser.add_argument("--pattern", default="*", help="which files, for example '*.txt'")
    parser.add_argument("--attempts", type=int, default=3, help="tries for each file")
    parser.add_argument(
        "--retry-after", default="PT1S", metavar="DURATION", help="first wait, doubled each time"
    )
    options = parser.parse_args(arguments)
    if not options.folder.is_dir():
        parser.error(f"{options.folder} is no folder")
    paths = list(files_of(options.folder, options.pattern))
    if not 1 <= len(paths) <= MOST_FILES:
        parser.error(f"{len(paths)} files in {options.folder}: 1 to {MOST_FILES} make a workflow")
    try:
        return _run(Client(options.url), workflow_for(paths, options))
    except ValueError as error:
        parser.error(str(error))
    except (ApiError, Unreachable) as error:
        print(f"report: {error}", file=sys.stderr)
        return 2


def _run(client: Client, workflow: dict[str, Any]) -> int:
    create(client, workflow)
    print(f"workflow {workflow['id']}", flush=True)
    try:
        over = watch(client, workflow["id"])
    except KeyboardInterrupt:
        print("Not watching any more; the workflow goes on without.")
        return 130
    failed = over["metadata"]["failed_count"]
    print(f"{over['state']}; {failed} of {len(workflow['jobs'])} files could not be read")
    return int(over["state"] != "completed")


if __name__ == "__main__":
    sys.exit(main())
