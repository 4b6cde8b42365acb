"""`ojs-aws dead`: lists, counts, and retries dead letters."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from cli import bulk, durable, output, target
from cli.jobs import add_limit, add_span, listed, print_jobs
from cli.target import CommandError, Exit, Server
from ojs_aws.client.call import place

_PAGE = 200
# Maximum number of dead letters that are counted before a retry, page by page.
_COUNTED = 2_000
_FILTER = ("queue", "type", "error_type", "since", "until", "older_than", "args")
_GROUPS = {"queue": "by_queue", "type": "by_type", "error": "by_error_type"}


def add(commands: Any) -> None:
    """Add the command and its subcommands to the parser."""
    parser = commands.add_parser("dead", help="list, count, and retry dead letters")
    actions = parser.add_subparsers(required=True, metavar="list|groups|retry")
    found = actions.add_parser("list", help="list dead letters, newest first")
    _add_filter(found)
    add_limit(found)
    found.set_defaults(run=_list)
    groups = actions.add_parser("groups", help="count dead letters by queue, type, and error")
    groups.add_argument("--by", choices=tuple(_GROUPS), help="count by this field only")
    groups.set_defaults(run=_groups)
    retry = actions.add_parser("retry", help="retry a dead letter, matching ones, or all")
    retry.add_argument(
        "id", nargs="?", type=target.name, help="ID of a dead letter, instead of a filter"
    )
    _add_filter(retry)
    retry.add_argument("--all", action="store_true", help="retry all dead letters")
    durable.add_kept(retry)
    bulk.add_options(retry)
    retry.set_defaults(run=_retry)
    for each in (found, groups, retry):
        output.add_json(each)
        target.add_arguments(each)


def _add_filter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--queue", help="dead letters of this queue")
    parser.add_argument("--type", help="dead letters of this job type")
    parser.add_argument("--error-type", help="dead letters whose last error has this type")
    add_span(parser, "discarded")
    parser.add_argument(
        "--older-than", metavar="WHEN", help="discarded before this time: RFC 3339, or an age: `7d`"
    )
    parser.add_argument("--args", help="dead letters whose args contain this text or JSON path")


def _filter(options: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(options, name) for name in _FILTER}
    return {name: value for name, value in given.items() if value is not None}


def _list(options: argparse.Namespace) -> None:
    server = target.server(options)
    found = listed(server, server.list_dead_letters, _filter(options), options, _PAGE)
    columns = ("ID", "QUEUE", "TYPE", "#ATTEMPTS", "DISCARDED", "ERROR")
    print_jobs(found, columns, _row, options)


def _row(job: Any) -> Sequence[object]:
    error = job.get("error", {})
    said = f"{error.get('type', '')}: {error.get('message', '')}" if error else ""
    return (
        job["id"], job["queue"], job["type"], job["attempt"], job.get("discarded_at"),
        said if len(said) <= 80 else f"{said[:79]}…",
    )  # fmt: skip


def _groups(options: argparse.Namespace) -> None:
    stats = target.server(options).dead_letter_stats()
    if options.json:
        output.as_json(stats)
        return
    for group, field in _GROUPS.items():
        if options.by in (None, group):
            counts = sorted(stats[field].items(), key=lambda each: -each[1])
            output.print_table((group.upper(), "#DEAD LETTERS"), counts)
            print()
    print(output.printable(f"{stats['total']} in total, as of {stats.get('computed_at', 'now')}"))


def _retry(options: argparse.Namespace) -> None:
    server = target.server(options)
    wanted = _filter(options)
    if [bool(wanted), options.all, options.id is not None].count(True) != 1:
        raise CommandError(
            "id, --all: exactly one of ID, a filter, and --all is required", Exit.USAGE
        )
    kept = durable.kept(options)
    if options.id is not None:
        _one(server, kept, options)
        return
    total = None
    if options.dry_run or not options.yes:
        total, whole = _count(server, wanted)
        said = f"{total}" if whole else f"{total} or more"
        if options.dry_run:
            if options.json:
                output.as_json({"dry_run": True, "matched": total, "whole": whole})
            else:
                print(f"matched: {output.number(said, 'dead letter')}")
            return
        if total:
            bulk.confirm(f"Retry {output.number(said, 'dead letter')}?", options)
        total = total if whole else None
    chosen: dict[str, Any] = {"filter": wanted} if wanted else {"all": True}
    begun = server.ask("POST", "dead-letter/retry", {"confirm": True, **chosen, **kept})
    bulk.report(bulk.follow(server.get_dead_letter_operation, begun, total), options)


def _one(server: Server, kept: dict[str, str], options: argparse.Namespace) -> None:
    if options.dry_run:
        raise CommandError("--dry-run: requires a filter or --all", Exit.USAGE)
    job = server.ask("POST", place("dead-letter/{}/retry", options.id), kept)["job"]
    if options.json:
        output.as_json(job)
    else:
        print(output.printable(f"{job['id']} is {job['state']}"))


def _count(server: Server, wanted: dict[str, Any]) -> tuple[int, bool]:
    """Count matching dead letters. Returns whether the count is complete. The API has no count."""
    count = 0
    for answer in server.pages(server.list_dead_letters, **wanted, limit=_PAGE):
        if count >= _COUNTED:
            return count, False
        count += len(answer["jobs"])
    return count, True
