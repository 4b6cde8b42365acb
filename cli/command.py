"""Declares a command: its parser, the options that all commands have, and its function."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from cli import output, target

Argument = tuple[tuple[str, ...], dict[str, Any]]
Run = Callable[[argparse.Namespace], None]


def argument(*names: str, **options: Any) -> Argument:
    """Return an argument for `command`, as for `argparse`."""
    return names, options


NAME = argument("name", type=target.name, help="its name")
YES = argument("--yes", "-y", action="store_true", help="don't ask for confirmation")
DIFF = argument("--diff", action="store_true", help="dry run: show the changes, and make none")


def command(verbs: Any, name: str, run: Run, about: str, *arguments: Argument) -> Any:
    """Add a command. Returns its parser."""
    parser = verbs.add_parser(name, help=about)
    for names, options in arguments:
        parser.add_argument(*names, **options)
    output.add_json(parser)
    target.add_arguments(parser)
    parser.set_defaults(run=run)
    return parser


def group(commands: Any, name: str, about: str) -> Any:
    """Add a command that has only subcommands. Returns where they are added."""
    return commands.add_parser(name, help=about).add_subparsers(required=True, metavar="command")
