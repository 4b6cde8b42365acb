"""`ojs-aws workflows`: lists, shows, cancels, and retries workflows."""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from cli import output, target
from cli.jobs import add_limit

if TYPE_CHECKING:
    import argparse

_STATES = ("running", "completed", "failed", "cancelled")
_MODES = ("failed", "failed_and_following", "all")
_PAGE = 100


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("workflows", help="list, show, cancel, or retry workflows")
    verbs = parser.add_subparsers(required=True, metavar="verb")
    listed = verbs.add_parser("list", help="list workflows, newest first")
    listed.add_argument("--state", choices=_STATES, help="workflows in this state")
    listed.add_argument("--name", help="workflows with this name")
    add_limit(listed)
    listed.set_defaults(run=_list)
    show = verbs.add_parser("show", help="show a workflow and its steps")
    show.set_defaults(run=_show)
    cancel = verbs.add_parser("cancel", help="cancel a workflow; its active jobs can finish")
    cancel.set_defaults(run=partial(_act, "cancel"))
    retry = verbs.add_parser("retry", help="retry a finished workflow")
    retry.add_argument(
        "--mode", choices=_MODES, default=_MODES[0], help="steps to run again (default: failed)"
    )
    retry.set_defaults(run=partial(_act, "retry"))
    for each in (show, cancel, retry):
        each.add_argument("id", type=target.name, help="ID of the workflow")
    for each in (listed, show, cancel, retry):
        output.add_json(each)
        target.add_arguments(each)


def _list(options: argparse.Namespace) -> None:
    limit = options.limit or None
    wanted = {"state": options.state, "name": options.name, "limit": min(_PAGE, limit or _PAGE)}
    server = target.server(options)
    found = server.each(server.list_workflows, **wanted)
    shown = list(islice(found, limit))
    if options.json:
        for each in shown:
            output.as_json(each)
    else:
        columns = ("ID", "STATE", "TYPE", "NAME", "#COMPLETED", "#FAILED", "CREATED")
        output.print_table(columns, [_row(each) for each in shown])
    if limit is not None and next(found, None) is not None:
        output.note(f"more workflows exist. Use --limit {limit * 10}, or --limit 0 for all")


def _row(workflow: Any) -> tuple[object, ...]:
    done = f"{workflow['steps_completed']}/{workflow['steps_total']}"
    return (
        workflow["id"], workflow["state"], workflow["type"], workflow["name"], done,
        workflow["metadata"]["failed_count"], workflow["created_at"],
    )  # fmt: skip


def _show(options: argparse.Namespace) -> None:
    server = target.server(options)
    pages = server.pages(server.get_workflow, workflow_id=options.id)
    parts = [page["workflow"] for page in pages]
    if options.json:
        for part in parts:
            output.as_json(part)
        return
    columns = ("ID", "STATE", "TYPE", "NAME", "#COMPLETED", "#FAILED", "CREATED")
    output.print_table(columns, [_row(parts[0])])
    print()
    rows: list[tuple[object, ...]] = []
    for part in parts:
        _steps(part["steps"], 0, rows)
    output.print_table(("STEP", "TYPE", "STATE", "JOB", "ERROR"), rows)


def _steps(steps: Any, depth: int, rows: list[tuple[object, ...]]) -> None:
    """Append the rows of steps. Steps of a nested workflow are indented."""
    for step in steps:
        # A step without an ID has its index as the ID.
        name = step.get("id", str(step["index"]))
        if name == str(step["index"]):
            name = step.get("callback") or name
        error = step.get("error", {}).get("message", "")
        rows.append(
            (f"{'  ' * depth}{name}", step["type"], step["state"], step["job_id"], error[:60])
        )
        _steps(step.get("steps", ()), depth + 1, rows)


def _act(verb: str, options: argparse.Namespace) -> None:
    server = target.server(options)
    if verb == "retry":
        workflow = server.retry_workflow(options.id, options.mode)["workflow"]
    else:
        workflow = server.cancel_workflow(options.id)["workflow"]
    if options.json:
        output.as_json(workflow)
        return
    said = f"{workflow['id']} is {workflow['state']}"
    if verb == "cancel":
        said += (
            f": {output.number(workflow['steps_cancelled'], 'step')} cancelled, "
            f"{workflow['steps_running']} still active"
        )
    print(output.printable(said))
