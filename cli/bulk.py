"""Bulk operations: dry run, confirmation, and progress.

The server runs the operation, and continues if the command ends.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from cli import output, target
from cli.target import CommandError, Exit, Server

if TYPE_CHECKING:
    import argparse

Read = Callable[[str], Any]
_INTERVAL_S = 1.0
# Consecutive failures after which the command stops following an operation.
_TRIES = 60
_LISTED = 20
_GOING_ON = ("running", "stopping")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of all bulk commands."""
    parser.add_argument("--dry-run", action="store_true", help="count the jobs, and change nothing")
    parser.add_argument("--yes", "-y", action="store_true", help="don't ask for confirmation")


def add_operation(commands: Any) -> None:
    """Add the command for operations to the parser."""
    parser = commands.add_parser("operation", help="list, follow, or stop bulk operations")
    parser.add_argument(
        "id", nargs="?", type=target.name, help="ID of an operation to follow; default: list all"
    )
    parser.add_argument(
        "--stop", action="store_true", help="stop it; completed changes are not reverted"
    )
    output.add_json(parser)
    target.add_arguments(parser)
    parser.set_defaults(run=_operation)


def _operation(options: argparse.Namespace) -> None:
    server = target.server(options)
    if options.id is None:
        if options.stop:
            raise CommandError("--stop: requires the ID of an operation", Exit.USAGE)
        _list(server, options)
        return
    read, stop = server.get_job_operation, server.stop_job_operation
    try:
        begun = read(options.id)
    except CommandError as error:
        if error.status is not Exit.NOT_FOUND:
            raise
        read, stop = server.get_dead_letter_operation, server.stop_dead_letter_operation
        begun = read(options.id)
    report(follow(read, stop(options.id) if options.stop else begun), options)


def _list(server: Server, options: argparse.Namespace) -> None:
    found = [
        operation
        for listing in (server.list_job_operations, server.list_dead_letter_operations)
        for operation in listing(limit=_LISTED)["operations"]
    ]
    found.sort(key=lambda operation: str(operation["started_at"]), reverse=True)
    if options.json:
        for operation in found:
            output.as_json(operation)
        return
    columns = ("ID", "ACTION", "STATE", "#MATCHED", "#SUCCEEDED", "#FAILED", "STARTED", "FILTER")
    names = ("id", "action", "state", "matched", "succeeded", "failed", "started_at")
    output.print_table(
        columns,
        [
            (*(_told(each, name) for name in names), output.compact(each["filter"]))
            for each in found
        ],
    )


def confirm(question: str, options: argparse.Namespace) -> None:
    """Ask for confirmation. Raises CommandError without it, and without a terminal."""
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(
            f"--yes: required without a terminal, to confirm: {question}", Exit.USAGE
        )
    print(f"{output.printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("cancelled; nothing was changed")


def _told(operation: Any, name: str) -> Any:
    """Return a cell of the list. A dry run changes nothing, so that it isn't completed."""
    return "dry run" if name == "state" and operation.get("dry_run") else operation[name]


def follow(read: Read, begun: Any, total: int | None = None) -> Any:
    """Follow an operation until it ends, with a progress bar on a terminal.

    Args:
        read: Reads the operation by its ID.
        begun: Response that contains the operation.
        total: Number of jobs, if known.

    Returns:
        The operation in its final state.

    Raises:
        CommandError: The server is unreachable, or Ctrl-C was pressed. The operation continues.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    operation = begun["operation"]
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
    )  # fmt: skip
    shown = sys.stderr.isatty()
    try:
        with Progress(*columns, console=output.console(sys.stderr), disable=not shown) as progress:
            task = progress.add_task(operation["action"], total=total)
            while True:
                progress.update(task, completed=_handled(operation))
                if operation["state"] not in _GOING_ON:
                    return operation
                operation = _later(read, operation)
    except KeyboardInterrupt:
        raise CommandError(
            f"{output.number(_handled(operation), 'job')} processed. The operation continues. To "
            f"follow it, run `ojs-aws operation {operation['id']}`. To stop it, add --stop",
            Exit.INTERRUPTED,
        ) from None


def _later(read: Read, operation: Any) -> Any:
    """Read an operation after a pause. Raises CommandError if the server stays unreachable."""
    for _ in range(_TRIES):
        output.wait(_INTERVAL_S)
        answer = target.answered(partial(read, operation["id"]), None)
        if answer is not None:
            return answer["operation"]
    message = f"no response. Run `ojs-aws operation {operation['id']}` to follow the operation"
    raise CommandError(message, Exit.UNREACHABLE)


def _handled(operation: Any) -> int:
    if operation.get("dry_run"):
        return int(operation["matched"])
    return int(operation["succeeded"]) + int(operation["failed"])


def report(operation: Any, options: argparse.Namespace) -> None:
    """Print the result of an operation. Raises CommandError if some jobs failed."""
    if options.json:
        output.as_json(operation)
    elif operation.get("dry_run"):
        print(f"matched: {output.number(operation['matched'], 'job')}")
    else:
        done, failed = operation["succeeded"], operation["failed"]
        print(f"{operation['action']}: {done} succeeded, {failed} failed")
    for error in operation["errors"]:
        output.note(f"{error['job_id']}: {error['message']}")
    if operation["failed"]:
        raise CommandError(f"{output.number(operation['failed'], 'job')} failed")
    if operation["state"] == "stopped":
        raise CommandError("the operation was stopped before it finished")
