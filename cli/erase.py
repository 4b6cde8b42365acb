"""`ojs-aws erase`: takes the jobs of a person out of everything that the server keeps."""

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
        "erase", help="erase jobs in any state, and from the archive: by their meta, or by ids"
    )
    parser.add_argument("id", nargs="*", help="the jobs' ids, instead of --meta")
    parser.add_argument(
        "--meta", action="append", type=_value, default=[], metavar="NAME=TEXT",
        help="jobs with this value in their meta; NAME:=JSON for what is no string; repeatable",
    )  # fmt: skip
    parser.add_argument("--queue", help="only of this queue")
    parser.add_argument("--type", help="only of this type, or of those that begin so: `mail.*`")
    bulk.add_options(parser)
    output.add_json(parser)
    target.add_arguments(parser)
    parser.set_defaults(run=_erase)


def _value(text: str) -> tuple[str, Any]:
    """A key of meta and its value. Raises ArgumentTypeError."""
    name, given, value = text.partition("=")
    if not given or name in ("", ":"):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=TEXT, nor NAME:=JSON")
    if not name.endswith(":"):
        return name, value
    try:
        return name[:-1], json.loads(value)
    except (ValueError, RecursionError):
        raise argparse.ArgumentTypeError(f"{value!r} is not JSON") from None


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
        bulk.confirm(f"Erase {found}, and what the archive has, for good?", options)
    done = _begun(server, meant, total)
    try:
        bulk.report(done, options)
    finally:
        if not options.json:
            for copy in done.get("remains", ()):
                output.note(f"copies may be left: {copy['where']}, until {copy['until']}")


def _meant(options: argparse.Namespace) -> dict[str, Any]:
    """Which jobs, as the library has it. Raises CommandError."""
    if bool(options.id) == bool(options.meta):
        raise CommandError("name jobs by their ids, or a person by --meta", Exit.USAGE)
    if len(options.id) > _MOST_IDS:
        raise CommandError(f"at most {_MOST_IDS} ids at once", Exit.USAGE)
    narrowed = {name: getattr(options, name) for name in ("queue", "type")}
    narrowed = {name: value for name, value in narrowed.items() if value is not None}
    if options.id:
        if narrowed:
            raise CommandError("--queue and --type go with --meta alone", Exit.USAGE)
        return {"job_ids": options.id}
    meta = dict(options.meta)
    if len(meta) < len(options.meta):
        raise CommandError("--meta: a name stands there twice", Exit.USAGE)
    return {"meta": meta, **narrowed}


def _begun(
    server: Server, meant: dict[str, Any], total: int | None = None, *, dry_run: bool = False
) -> Any:
    """Begin an operation, and follow it to its end."""
    begun = server.erase_jobs(**meant, dry_run=dry_run)
    return bulk.follow(server.get_job_operation, begun, total)
