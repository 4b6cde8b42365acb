"""Work on many jobs: counted, confirmed, and followed to its end.

The server does the work, and goes on when nobody watches.
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
# Failures in a row after which an operation is followed no more.
_TRIES = 60
_LISTED = 20
_GOING_ON = ("running", "stopping")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add what all commands have that work on many jobs."""
    parser.add_argument("--dry-run", action="store_true", help="only count them")
    parser.add_argument("--yes", "-y", action="store_true", help="do not ask")


def add_operation(commands: Any) -> None:
    """Add the command that shows an operation to the parser."""
    parser = commands.add_parser("operation", help="list, follow or stop work on many jobs")
    parser.add_argument(
        "id", nargs="?", type=target.name, help="which one to follow; lists the latest without"
    )
    parser.add_argument("--stop", action="store_true", help="what is done stays done")
    output.add_json(parser)
    target.add_arguments(parser)
    parser.set_defaults(run=_operation)


def _operation(options: argparse.Namespace) -> None:
    server = target.server(options)
    if options.id is None:
        if options.stop:
            raise CommandError("--stop: which one?", Exit.USAGE)
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
    columns = ("ID", "ACTION", "STATE", "#FOUND", "#DONE", "#NOT", "STARTED", "FILTER")
    names = ("id", "action", "state", "matched", "succeeded", "failed", "started_at")
    output.print_table(
        columns,
        [(*(each[name] for name in names), output.compact(each["filter"])) for each in found],
    )


def confirm(question: str, options: argparse.Namespace) -> None:
    """Ask whether to go on. Raises CommandError if not, or if there is no terminal to ask on."""
    if options.yes:
        return
    if not sys.stdin.isatty():
        raise CommandError(
            f"{question} There is no terminal to ask this on: --yes answers it", Exit.USAGE
        )
    print(f"{output.printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing was done")


def follow(read: Read, begun: Any, total: int | None = None) -> Any:
    """Watch an operation until it ends, with a bar if there is a terminal. Returns it as it ended.

    Raises CommandError, also for Ctrl-C: the operation goes on.
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
            f"done so far: {output.number(_handled(operation), 'job')}. The server goes on: "
            f"`ojs-aws operation {operation['id']}` follows it, and --stop stops it",
            Exit.INTERRUPTED,
        ) from None


def _later(read: Read, operation: Any) -> Any:
    """An operation a moment later. Raises CommandError if the server stays away."""
    for _ in range(_TRIES):
        output.wait(_INTERVAL_S)
        answer = target.answered(partial(read, operation["id"]), None)
        if answer is not None:
            return answer["operation"]
    message = f"the server does not answer; `ojs-aws operation {operation['id']}` follows the work"
    raise CommandError(message, Exit.UNREACHABLE)


def _handled(operation: Any) -> int:
    if operation.get("dry_run"):
        return int(operation["matched"])
    return int(operation["succeeded"]) + int(operation["failed"])


def report(operation: Any, options: argparse.Namespace) -> None:
    """Print what an operation did. Raises CommandError if some jobs could not be dealt with."""
    if options.json:
        output.as_json(operation)
    elif operation.get("dry_run"):
        print(f"matched: {output.number(operation['matched'], 'job')}")
    else:
        print(f"{operation['action']}: {operation['succeeded']} done, {operation['failed']} not")
    for error in operation["errors"]:
        output.note(f"{error['job_id']}: {error['message']}")
    if operation["failed"]:
        raise CommandError(f"not dealt with: {output.number(operation['failed'], 'job')}")
    if operation["state"] == "stopped":
        raise CommandError("the operation was stopped before its end")
