"""`ojs-aws enqueue`, `workers`, `maintenance`, and `top`."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from cli import bulk, output, target
from cli.command import NAME, YES, argument, command, group
from cli.jobs import moment
from cli.resources import loose
from cli.target import CommandError, Exit, Server

if TYPE_CHECKING:
    from rich.console import RenderableType

_LIVE_S = 2.0
_SHOWN = 30
_STATES = ("available", "active", "scheduled", "retryable", "pending")


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    command(
        commands, "enqueue", _enqueue, "enqueue a job",
        argument("type", help="type of the job"),
        argument("args", nargs="*", type=loose, help="each as JSON, or as text"),
        argument("--queue", help="queue (default: default)"),
        argument("--priority", type=int, help="higher first (default: 0)"),
        argument("--at", metavar="WHEN", help="RFC 3339, or `+PT5M`: not before this time"),
        argument("--max-attempts", type=int, metavar="N", help="maximum number of attempts"),
        argument("--tag", action="append", help="tag; can be repeated"),
        argument("--meta", type=loose, help="JSON object"),
    )  # fmt: skip
    verbs = group(commands, "workers", "list workers, or tell them to go quiet or stop")
    command(verbs, "list", _workers, "list workers")
    for verb, directive, does in (
        ("quiet", "quiet", "fetch no more jobs; active jobs continue"),
        ("stop", "terminate", "finish active jobs and stop"),
        ("run", "running", "fetch jobs again"),
    ):
        run = partial(_direct, directive)
        command(verbs, verb, run, f"tell a worker to {does}", NAME)
    verbs = group(commands, "maintenance", "show, begin, or end maintenance: no job is dispatched")
    command(verbs, "show", _maintenance, "show whether maintenance is on")
    command(
        verbs, "on", _maintenance, "begin maintenance",
        argument("--reason", help="reason that others see"),
        argument("--duration", help="how long it should take: `30m`; it doesn't end automatically"),
        YES,
    ).set_defaults(enabled=True)  # fmt: skip
    command(verbs, "off", _maintenance, "end maintenance").set_defaults(enabled=False)
    command(
        commands, "top", _top, "live view of the fullest queues; one request for each refresh",
        argument("--sort", default="depth", help="as for `queues` (default: depth)"),
        argument("--interval", type=float, default=_LIVE_S, metavar="SECONDS",
            help=f"time between two refreshes (default: {_LIVE_S:g})"),
        argument("--count", type=output.count, default=0, metavar="N",
            help="number of refreshes; default: until Ctrl-C"),
    )  # fmt: skip


def _enqueue(options: argparse.Namespace) -> None:
    if options.meta is not None and not isinstance(options.meta, dict):
        raise CommandError("--meta: must be a JSON object", Exit.USAGE)
    retry = options.max_attempts and {"max_attempts": options.max_attempts}
    given = {
        "queue": options.queue,
        "priority": options.priority,
        "delay_until": options.at and moment(options.at),
        "retry": retry,
        "tags": options.tag,
    }
    body = {"type": options.type, "args": options.args} | (
        {} if options.meta is None else {"meta": options.meta}
    )
    body["options"] = {name: value for name, value in given.items() if value is not None}
    job = target.server(options).ask("POST", "jobs", body)["job"]
    if options.json:
        output.as_json(job)
    else:
        print(output.printable(f"{job['id']} is {job['state']} in {job['queue']}"))


def _workers(options: argparse.Namespace) -> None:
    server = target.server(options)
    found = server.each(server.list_workers, limit=100)
    if options.json:
        for each in found:
            output.as_json(each)
        return
    names = ("id", "state", "directive", "active_jobs", "last_heartbeat_at")
    rows = [(*(it.get(name) for name in names), ",".join(it.get("queues") or ())) for it in found]
    columns = ("WORKER", "STATE", "DIRECTIVE", "#ACTIVE", "HEARTBEAT", "QUEUES")
    output.print_table(columns, rows)


def _direct(directive: str, options: argparse.Namespace) -> None:
    body = {"worker_id": options.name, "directive": directive}
    worker = target.server(options).ask("POST", "admin/workers/directive", body)
    if options.json:
        output.as_json(worker)
    else:
        print(output.printable(f"{options.name} has the directive {directive}"))


def _maintenance(options: argparse.Namespace) -> None:
    server, enabled = target.server(options), getattr(options, "enabled", None)
    if enabled is None:
        answer = server.ask("GET", "admin/maintenance")
    else:
        body: dict[str, Any] = {"enabled": enabled}
        if enabled:
            bulk.confirm("Stop the dispatch of all jobs?", options)
            given = {"reason": options.reason, "duration": options.duration}
            body |= {name: value for name, value in given.items() if value is not None}
        answer = server.ask("POST", "admin/maintenance", body)
    if options.json:
        output.as_json(answer)
        return
    about = [f"{name} {answer[name]}" for name in ("reason", "ends_at") if name in answer]
    print(output.printable(", ".join([f"maintenance is {_ON[answer['enabled']]}", *about])))


_ON = {True: "on", False: "off"}


def _top(options: argparse.Namespace) -> None:
    if not options.interval >= 1:
        raise CommandError("--interval: must be at least 1 second", Exit.USAGE)
    server = target.server(options)
    found = _read(server, options)
    rounds = range(options.count - 1) if options.count else iter(int, 1)
    if options.json or not sys.stdout.isatty():
        _print(found, options)
        for _ in rounds:
            output.wait(options.interval)
            _print(_read(server, options), options)
        return
    from rich.live import Live

    with Live(_drawn(found), console=output.console(), auto_refresh=False, screen=True) as live:
        for _ in rounds:
            output.wait(options.interval)
            # After a failure, the previous table stays.
            found = target.answered(lambda: _read(server, options), found)
            live.update(_drawn(found), refresh=True)


def _read(server: Server, options: argparse.Namespace) -> list[Any]:
    answer = server.ask("GET", "admin/queues", None, sort=options.sort, limit=_SHOWN)
    return list(islice(answer["items"], _SHOWN))


def _print(found: list[Any], options: argparse.Namespace) -> None:
    if options.json:
        output.as_json({"queues": found})
    else:
        output.console().print(_drawn(found))


def _drawn(found: list[Any]) -> RenderableType:
    rows = [
        (it["name"], it["state"], sum(counts), *counts)
        for it in found
        for counts in ([it["counts"][state] for state in _STATES],)
    ]
    return output.table(("QUEUE", "STATE", "#DEPTH", *(f"#{s.upper()}" for s in _STATES)), rows)
