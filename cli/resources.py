"""`ojs-aws queue`, `pools`, `limits`, and `cron`: shows and sets one configuration."""

from __future__ import annotations

import argparse
import json
from functools import partial
from typing import Any

from cli import bulk, kinds, output, target
from cli.command import DIFF, NAME, YES, argument, command, group
from cli.kinds import CRONS, LIMITS, POOLS, QUEUES, Kind
from cli.target import CommandError, Exit
from ojs_aws.client.call import place

_ABOUT = {
    QUEUES: "show or set the configuration of a queue, or of new queues (`_default`)",
    POOLS: "list, show, set, or delete worker pools",
    LIMITS: "list, show, set, or delete overrides of rate limits, by key",
    CRONS: "list, show, register, pause, run, or delete cron jobs",
}
_GROUPS = {QUEUES: "queue", POOLS: "pools", LIMITS: "limits", CRONS: "cron"}
# Columns of lists: title and field.
_COLUMNS = {
    POOLS: ("name", "strategy", "queues", "#concurrency", "#active_workers", "#active_jobs"),
    LIMITS: ("key", "#active", "#limit", "period", "override"),
    CRONS: ("name", "status", "expression", "timezone", "queue", "type", "next_run_at"),
}


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    for kind, name in _GROUPS.items():
        verbs = group(commands, name, _ABOUT[kind])
        if kind is not QUEUES:
            command(verbs, "list", partial(_list, kind), f"list each {kind.one}")
        command(verbs, "show", partial(_show, kind), f"show a {kind.one} and its ETag", NAME)
        command(
            verbs, "put" if kind is CRONS else "set", partial(_set, kind),
            f"change fields of a {kind.one}, or create it; fails if it changes concurrently",
            NAME,
            argument("fields", nargs="+", type=field, metavar="FIELD=VALUE",
                help="value as JSON or text, null removes it; `retention.completed=P3D`"),
            DIFF, YES,
        )  # fmt: skip
        if kind.deletes:
            command(verbs, "delete", partial(_delete, kind), f"delete a {kind.one}", NAME, YES)
        if kind is CRONS:
            for verb, does in (("pause", "pause"), ("resume", "resume")):
                command(verbs, verb, partial(_cron, verb), f"{does} a cron job", NAME)
            command(verbs, "run", partial(_cron, "trigger"), "push a job of a cron job now", NAME)
            command(
                verbs, "next", _next, "show the next runs of an expression or a cron job",
                argument("expression", help="`0 9 * * 1-5`, or the name of a cron job"),
                argument("--timezone", help="IANA name (default: UTC, or that of the cron job)"),
                argument("--count", type=int, default=5, help="number of runs (default: 5)"),
            )  # fmt: skip


def field(text: str) -> tuple[list[str], Any]:
    """Parse `path.to.field=value`. Raises ArgumentTypeError."""
    path, equals, value = text.partition("=")
    if not equals or "" in path.split("."):
        raise argparse.ArgumentTypeError(f"must be FIELD=VALUE, but is '{text}'")
    return path.split("."), loose(value)


def loose(text: str) -> Any:
    """Return a text as JSON if it is JSON, otherwise unchanged."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _list(kind: Kind, options: argparse.Namespace) -> None:
    found = kinds.items(target.server(options), kind)
    if options.json:
        for each in found:
            output.as_json(each)
        return
    columns = _COLUMNS[kind]
    plain = [column.removeprefix("#") for column in columns]
    cells = ([each.get(name) for name in plain] for each in found)
    rows = [[output.compact(it) if isinstance(it, dict | list) else it for it in row]
            for row in cells]  # fmt: skip
    output.print_table([column.upper().replace("_", " ") for column in columns], rows)


def _show(kind: Kind, options: argparse.Namespace) -> None:
    answer = target.server(options).ask("GET", place(kind.path, options.name))
    if options.json:
        output.as_json(answer)
        return
    copies = {"pool", "cron", "cron_job", "config_sources"}
    rows = [
        (name, output.compact(value, cut=None) if isinstance(value, dict | list) else value)
        for name, value in answer.items()
        if name not in copies or isinstance(value, str)
    ]
    output.print_table((kind.one.upper(), options.name), rows)


def _set(kind: Kind, options: argparse.Namespace) -> None:
    server, changes = target.server(options), dict[str, Any]()
    for path, value in options.fields:
        inner = changes
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise CommandError(f"{'.'.join(path)}: is inside a field with a value", Exit.USAGE)
        inner[path[-1]] = value
    found = kinds.read(server, kind, options.name)
    there = found.configuration or {}
    # A queue's configuration is merged by the server, so a null there resets an inherited object.
    wanted = kinds.patched(there, changes)
    if kind is LIMITS:
        # Null removes the limits of the jobs. Only `delete` removes the override.
        wanted = {**there, **changes}
    shown = kinds.differences(found.configuration, wanted)
    sign = "+" if found.configuration is None else "~"
    label = f"{kind.one} {options.name}"
    if options.diff:
        kinds.show(sign, label, shown, json=options.json, dry_run=True)
        if not options.json:
            print("dry run: nothing was changed")
        return
    if found.configuration is None and kind is QUEUES and options.name != "_default":
        bulk.confirm(f"Queue '{options.name}' doesn't exist. Create it?", options)
    if shown or found.configuration is None:
        kinds.write(server, found, wanted)
    kinds.show(sign, label, shown, json=options.json)


def _delete(kind: Kind, options: argparse.Namespace) -> None:
    server = target.server(options)
    found = kinds.read(server, kind, options.name)
    if found.etag is None:
        raise CommandError(f"{kind.one} '{options.name}' not found", Exit.NOT_FOUND)
    bulk.confirm(f"Delete {kind.one} '{options.name}'?", options)
    answer = kinds.delete(server, found)
    if options.json:
        output.as_json(answer)
    else:
        print(output.printable(f"{kind.one} {options.name} is deleted"))


def _cron(verb: str, options: argparse.Namespace) -> None:
    answer = target.server(options).ask("POST", place(f"cron/{{}}/{verb}", options.name), {})
    if options.json:
        output.as_json(answer)
    elif verb == "trigger":
        print(output.printable(answer["job_id"]))
    else:
        print(output.printable(f"{answer['name']} is {answer['status']}"))


def _next(options: argparse.Namespace) -> None:
    server = target.server(options)
    asked = {"expression": options.expression, "timezone": options.timezone}
    if " " not in options.expression and not options.expression.startswith("@"):
        cron = server.ask("GET", place("cron/{}", options.expression))
        asked = {"expression": cron["expression"], "timezone": options.timezone or cron["timezone"]}
    answer = server.ask("GET", "cron/preview", None, count=options.count, **asked)
    if options.json:
        output.as_json(answer)
    else:
        output.print_table(("UTC", "LOCAL"), [(it["at"], it["local"]) for it in answer["firings"]])
