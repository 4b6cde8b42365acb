"""`ojs-aws events`: lists recent events, and follows new ones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cli import output, target
from cli.jobs import moment

if TYPE_CHECKING:
    import argparse

_SHOWN = 20
_MOST = 1_000
_INTERVAL_S = 2.0


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("events", help="list recent events, oldest first")
    parser.add_argument("--follow", "-f", action="store_true", help="continue until Ctrl-C")
    parser.add_argument("--type", help="event types, separated by commas: `job.completed,job.*`")
    parser.add_argument("--queue", help="events of these queues, separated by commas")
    parser.add_argument("--job-type", help="events of these job types, separated by commas")
    parser.add_argument(
        "--since", type=moment, help="events since this time: RFC 3339, or an age: `2h`"
    )
    parser.add_argument(
        "--limit", type=int, default=_SHOWN, help=f"number of recent events (default: {_SHOWN})"
    )
    output.add_json(parser)
    target.add_arguments(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    server = target.server(options)
    wanted = {
        "types": options.type,
        "queues": options.queue,
        "job_types": options.job_type,
        "since": options.since,
    }
    answer = server.list_events(**wanted, limit=options.limit)
    _show(answer["events"], options)
    while options.follow:
        if not answer["has_more"]:
            output.wait(_INTERVAL_S)
        after = {**wanted, "after": answer["cursor"], "limit": _MOST}
        # After a failure, use the same cursor again, so that no event is missed.
        nothing = {**answer, "has_more": False, "events": []}
        answer = target.answered(partial(server.list_events, **after), nothing)
        _show(answer["events"], options)


def _show(events: list[dict[str, Any]], options: argparse.Namespace) -> None:
    for event in events:
        if options.json:
            output.as_json(event)
            continue
        data = {name: value for name, value in event["data"].items() if name != "job_id"}
        line = f"{event['time']}  {event['type']:<20}  {event['subject']}  "
        print(output.printable(line) + output.compact(data, cut=200), flush=True)
