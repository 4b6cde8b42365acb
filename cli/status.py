"""`ojs-aws status`: shows queues with depth, age, and throughput."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from cli import output, target
from cli.target import CommandError, Exit, Server
from ojs_aws.client.call import place

if TYPE_CHECKING:
    import argparse

    from rich.console import RenderableType

_SHOWN = 30
_PAGE = 100
_INTERVAL_S = 5.0
_COLUMNS = (
    "QUEUE", "STATE", "#DEPTH", "#AVAILABLE", "#ACTIVE", "#SCHEDULED", "#RETRYABLE", "#DISCARDED",
    "OLDEST AVAILABLE", "#COMPLETED/MIN", "#DISCARDED/MIN",
)  # fmt: skip


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "status", help="show queues: depth, age of the oldest available job, and throughput"
    )
    parser.add_argument(
        "queue", nargs="*", type=target.name, help="names of queues (default: the largest ones)"
    )
    parser.add_argument(
        "--limit", type=output.count, default=_SHOWN, metavar="N",
        help=f"maximum number of queues (default: {_SHOWN}), 0 for all; one request per queue",
    )  # fmt: skip
    parser.add_argument(
        "--watch", type=float, nargs="?", const=_INTERVAL_S, metavar="SECONDS",
        help=f"refresh until Ctrl-C (default interval: {_INTERVAL_S:g} s)",
    )  # fmt: skip
    output.add_json(parser)
    target.add_arguments(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    if options.watch is not None and not options.watch >= 1:
        raise CommandError(
            f"--watch: must be at least 1 second, but is {options.watch:g}", Exit.USAGE
        )
    server = target.server(options)
    if options.watch is not None and sys.stdout.isatty() and not options.json:
        _watch(server, options)
        return
    while True:
        found = _read(server, options)
        if options.json:
            output.as_json(found)
        else:
            output.console().print(_drawn(found))
        if options.watch is None:
            return
        output.wait(options.watch)


def _watch(server: Server, options: argparse.Namespace) -> None:
    """Redraw the table in place."""
    from rich.live import Live

    drawn = _drawn(_read(server, options))
    with Live(drawn, console=output.console(), auto_refresh=False) as live:
        while True:
            output.wait(options.watch)
            # After a failure, the previous table stays.
            drawn = target.answered(lambda: _drawn(_read(server, options)), drawn)
            live.update(drawn, refresh=True)


def _read(server: Server, options: argparse.Namespace) -> dict[str, Any]:
    """Return the totals and the shown queues, largest first."""
    names, left_out = options.queue, 0
    if not names:
        found = sorted(
            server.each(server.list_queues, limit=_PAGE),
            key=lambda queue: (-queue["depth"], queue["name"]),
        )
        names = [queue["name"] for queue in found[: options.limit or None]]
        left_out = len(found) - len(names)
    queues = []
    for name in names:
        try:
            queues.append(server.ask("GET", place("admin/queues/{}", name)))
        except CommandError as error:
            # A listed queue can be deleted before it is read.
            if options.queue or error.status is not Exit.NOT_FOUND:
                raise
    return {
        "totals": server.stats(),
        "queues": [
            {
                "name": queue["name"],
                "state": queue["state"],
                "depth": _depth(queue["counts"]),
                "counts": queue["counts"],
                "oldest_available_age_seconds": queue.get("oldest_available_age_seconds"),
                **queue["throughput"],
            }
            for queue in queues
        ],
        "queues_left_out": left_out,
    }


def _depth(counts: dict[str, int]) -> int:
    waiting = ("scheduled", "available", "pending", "active", "retryable")
    return sum(counts[state] for state in waiting)


def _drawn(found: dict[str, Any]) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    rows = []
    for queue in found["queues"]:
        counts = queue["counts"]
        rows.append(
            (
                queue["name"],
                queue["state"],
                queue["depth"],
                *(
                    counts[s]
                    for s in ("available", "active", "scheduled", "retryable", "discarded")
                ),
                output.span(queue["oldest_available_age_seconds"]),
                f"{queue['processed_per_minute']:g}",
                f"{queue['failed_per_minute']:g}",
            )
        )
    totals = found["totals"]
    more = f" ({found['queues_left_out']} not shown)" if found["queues_left_out"] else ""
    parts = (
        f"{output.number(totals['queues'], 'queue')}{more}",
        output.number(totals["workers"], "worker"),
        f"{output.number(_depth(totals['jobs']), 'job')} not completed",
        output.number(totals["dead_letter"], "dead letter"),
        f"{totals['throughput']['processed_per_minute']:g} completed/min",
    )
    line = ", ".join(parts)
    return Group(output.table(_COLUMNS, rows), Text(""), Text(line))
