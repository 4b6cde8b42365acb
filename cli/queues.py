"""`ojs-aws pause` and `ojs-aws resume`: whether jobs of queues are handed out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cli import output, target

if TYPE_CHECKING:
    import argparse


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    for verb, does in (
        ("pause", "hand out no more jobs of queues; those that run go on"),
        ("resume", "hand out jobs of queues again"),
    ):
        parser = commands.add_parser(verb, help=does)
        parser.add_argument("queue", nargs="+", help="a queue's name")
        output.add_json(parser)
        target.add_arguments(parser)
        parser.set_defaults(run=partial(_run, verb))


def _run(verb: str, options: argparse.Namespace) -> None:
    server = target.server(options)
    for name in options.queue:
        answer = server.ask("POST", f"/admin/queues/{target.segment(name)}/{verb}", {})
        if options.json:
            output.as_json(answer["queue"])
        else:
            print(output.printable(f"{answer['queue']['name']} is {answer['queue']['state']}"))
