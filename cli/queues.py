"""`ojs-aws queues` lists queues. `pause` and `resume` stop and restart dispatch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cli import bulk, output, target
from cli.jobs import add_limit, listed
from cli.target import CommandError, Exit
from ojs_aws.client.call import place

if TYPE_CHECKING:
    import argparse

_PAGE = 100
_COUNTS = ("available", "active", "scheduled", "retryable", "pending")


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    queues = commands.add_parser("queues", help="list queues with their job counts")
    queues.add_argument(
        "--sort", help="`name`, or in descending order `depth`, `available`, `active`, `oldest`, …"
    )
    add_limit(queues)
    output.add_json(queues)
    target.add_arguments(queues)
    queues.set_defaults(run=_list)
    for verb, does in (
        ("pause", "pause queues: no jobs are dispatched; active jobs continue"),
        ("resume", "resume paused queues"),
    ):
        parser = commands.add_parser(verb, help=does)
        parser.add_argument("queue", nargs="+", type=target.name, help="name of a queue")
        parser.add_argument(
            "--yes", "-y", action="store_true", help="don't ask before a missing queue is created"
        )
        output.add_json(parser)
        target.add_arguments(parser)
        parser.set_defaults(run=partial(_run, verb))


def _list(options: argparse.Namespace) -> None:
    server, wanted = target.server(options), {"sort": options.sort}
    listing = partial(server.ask, "GET", "admin/queues")
    found = listed(server, listing, wanted, options, _PAGE, "queues")
    if options.json:
        for queue in found:
            output.as_json(queue)
        return
    rows = []
    for queue in found:
        counts = [queue["counts"][state] for state in _COUNTS]
        rows.append((queue["name"], queue["state"], sum(counts), *counts))
    columns = (f"#{state.upper()}" for state in _COUNTS)
    output.print_table(("QUEUE", "STATE", "#DEPTH", *columns), rows)


def _run(verb: str, options: argparse.Namespace) -> None:
    server = target.server(options)
    for name in options.queue:
        if not options.yes:
            _check(server, verb, name, options)
        answer = server.pause_queue(name) if verb == "pause" else server.resume_queue(name)
        if options.json:
            output.as_json(answer["queue"])
        else:
            print(output.printable(f"{answer['queue']['name']} is {answer['queue']['state']}"))


def _check(server: target.Server, verb: str, name: str, options: argparse.Namespace) -> None:
    """Ask for confirmation if a queue doesn't exist: its name can be mistyped."""
    try:
        server.ask("GET", place("admin/queues/{}", name))
    except CommandError as error:
        if error.status is Exit.NOT_ALLOWED:
            return  # a key can be allowed to pause, but not to read
        if error.status is not Exit.NOT_FOUND:
            raise
        bulk.confirm(f"Queue '{name}' doesn't exist. Create it, to {verb} it?", options)
