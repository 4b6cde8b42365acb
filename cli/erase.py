"""`ojs-aws erase`: erases the jobs of a person, including archived copies."""

from __future__ import annotations

import argparse
import json
from typing import Any

from cli import bulk, output, target
from cli.target import CommandError, Exit, Server

_MOST_IDS = 1_000


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "erase", help="erase jobs in any state and their archived copies, by meta or by ID"
    )
    parser.add_argument("id", nargs="*", help="IDs of the jobs, instead of --meta")
    parser.add_argument(
        "--meta", action="append", type=_value, default=[], metavar="NAME=TEXT",
        help="jobs with this value in their meta; NAME:=JSON for other types; can be repeated",
    )  # fmt: skip
    parser.add_argument("--queue", help="jobs of this queue")
    parser.add_argument("--type", help="jobs of this type, or with this prefix: `mail.*`")
    bulk.add_options(parser)
    output.add_json(parser)
    target.add_arguments(parser)
    parser.set_defaults(run=_erase)


def _value(text: str) -> tuple[str, Any]:
    """Parse a name and a value of meta. Raises ArgumentTypeError."""
    name, given, value = text.partition("=")
    if not given or name in ("", ":"):
        raise argparse.ArgumentTypeError(f"must be NAME=TEXT or NAME:=JSON, but is {text!r}")
    if not name.endswith(":"):
        return name, value
    try:
        return name[:-1], json.loads(value)
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError(f"must be JSON after :=, but is {value!r}") from None


def _erase(options: argparse.Namespace) -> None:
    meant = _meant(options)
    server = target.server(options)
    total = None
    if options.dry_run or not options.yes:
        counted = _begun(server, meant, dry_run=True)
        if options.dry_run:
            bulk.report(counted, options)
            return
        total = counted["matched"]
        found = output.number(total, "job")
        bulk.confirm(f"Permanently erase {found} and their archived copies?", options)
    done = _begun(server, meant, total)
    try:
        bulk.report(done, options)
    finally:
        if not options.json:
            for copy in done.get("remains", ()):
                output.note(f"copies can remain: {copy['where']}, until {copy['until']}")


def _meant(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments that select the jobs. Raises CommandError."""
    if bool(options.id) == bool(options.meta):
        raise CommandError("--meta: required without IDs, rejected with IDs", Exit.USAGE)
    if len(options.id) > _MOST_IDS:
        raise CommandError(
            f"id: must have at most {_MOST_IDS:,} IDs, but has {len(options.id):,}", Exit.USAGE
        )
    narrowed = {name: getattr(options, name) for name in ("queue", "type")}
    narrowed = {name: value for name, value in narrowed.items() if value is not None}
    if options.id:
        if narrowed:
            raise CommandError("--queue, --type: require --meta", Exit.USAGE)
        return {"job_ids": options.id}
    meta = dict(options.meta)
    if len(meta) < len(options.meta):
        names = [name for name, _ in options.meta]
        twice = next(name for name in names if names.count(name) > 1)
        raise CommandError(f'--meta: duplicate name "{twice}"', Exit.USAGE)
    return {"meta": meta, **narrowed}


def _begun(
    server: Server, meant: dict[str, Any], total: int | None = None, *, dry_run: bool = False
) -> Any:
    """Start an operation, and follow it until it ends."""
    begun = server.erase_jobs(**meant, dry_run=dry_run)
    return bulk.follow(server.get_job_operation, begun, total)
