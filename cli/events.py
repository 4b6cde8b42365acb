"""`ojs-aws events`: lists recent events, and follows new ones."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from cli import output, target
from cli.jobs import moment
from ojs_aws import OjsError
from ojs_aws.client.event import LOGGED

if TYPE_CHECKING:
    import argparse

    from cli.target import Server
    from ojs_aws.client.subscription import Subscription

_SHOWN = 20
_MOST = 1_000
_MOST_KNOWN = 10_000
# How often the event log is read without a subscription.
_INTERVAL_S = 2.0
# With one, it is read this time after an event, because it can have others of the same cause that
# the server doesn't send. Without an event, it is read in case that one was lost.
_LOGGED_S = 15.0
_FALLBACK_S = 300.0
# Events of the log that the server sends, each alone or with the event that it led to.
_SENT = frozenset(
    f"{about}.{kind}"
    for about, kinds in {
        "job": "enqueued scheduled started suspended completed failed retrying discarded expired"
        " cancelled",
        "queue": "paused resumed",
        "dead_letter": "added retried replayed",
    }.items()
    for kind in kinds.split()
)


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
    listed = partial(server.list_events, **wanted)
    if options.follow:
        _follow(server, listed, options)
    else:
        _show(listed(limit=options.limit)["events"], options, {})


def _follow(server: Server, listed: Callable[..., Any], options: argparse.Namespace) -> None:
    """Show events as the server sends them. Read the log for those that it doesn't send."""
    shown: dict[str, None] = {}
    live = _subscribed(server, options)
    try:
        answer = listed(limit=options.limit)
        while True:
            _show(answer["events"], options, shown)
            if not answer["has_more"]:
                live = _receive(live, options, shown)
            # After a failure, use the same cursor again, so that no event is missed.
            nothing = {**answer, "has_more": False, "events": []}
            after = partial(listed, after=answer["cursor"], limit=_MOST)
            answer = target.answered(after, nothing)
    finally:
        if live is not None:
            live.unsubscribe()


def _subscribed(server: Server, options: argparse.Namespace) -> Subscription | None:
    """Return an open subscription. None: read the log more often."""
    queues = _names(options.queue)
    channel = f"queue:{queues[0]}" if len(queues) == 1 else "all"
    live = server.subscribe(channel, types=LOGGED, detail=True)
    try:
        live.open()
    except OjsError:
        return None
    return live


def _receive(
    live: Subscription | None, options: argparse.Namespace, shown: dict[str, None]
) -> Subscription | None:
    """Show the events of the server until the log must be read again."""
    if live is None:
        output.wait(_INTERVAL_S)
        return None
    others = not _SENT.issuperset(_names(options.type) or ("*",))
    until = time.monotonic() + _FALLBACK_S
    while (left_s := until - time.monotonic()) > 0:
        try:
            event = live.get(left_s)
        except OjsError as error:
            output.note(f"error: {error}. The event log is read each {_INTERVAL_S:g} s")
            live.unsubscribe()
            return None
        if event is None:
            continue
        _show([each for each in event.envelopes if _wanted(each, options)], options, shown)
        if others or event.type.startswith("system."):
            until = min(until, time.monotonic() + _LOGGED_S)
    return live


def _wanted(event: dict[str, Any], options: argparse.Namespace) -> bool:
    """Whether the log would list an event."""
    kinds = _names(options.type) or ("*",)
    queues, job_types = _names(options.queue), _names(options.job_type)
    data = event["data"]
    return (
        any(event["type"] == kind or _starts(event["type"], kind) for kind in kinds)
        and (not queues or data.get("queue") in queues)
        and (not job_types or data.get("job_type") in job_types)
    )


def _starts(kind: str, pattern: str) -> bool:
    return pattern.endswith("*") and kind.startswith(pattern[:-1])


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(text.split(",")) if text else ()


def _show(
    events: list[dict[str, Any]], options: argparse.Namespace, shown: dict[str, None]
) -> None:
    """Print events, each of them once."""
    for event in events:
        if event["id"] in shown:
            continue
        shown[event["id"]] = None
        if len(shown) > _MOST_KNOWN:
            del shown[next(iter(shown))]
        if options.json:
            output.as_json(event)
            continue
        data = {name: value for name, value in event["data"].items() if name != "job_id"}
        line = f"{event['time']}  {event['type']:<20}  {event['subject']}  "
        print(output.printable(line) + output.compact(data, cut=200), flush=True)
