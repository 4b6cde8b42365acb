"""`ojs-aws config`: exports the configuration, and makes it as in a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli import bulk, kinds, output, target
from cli.command import YES, argument, command, group
from cli.kinds import BY_NAME, KINDS, Found
from cli.target import CommandError, Exit, Server

if TYPE_CHECKING:
    import argparse

_FILE = argument("file", type=Path, metavar="FILE", help="JSON, or TOML if its name ends in .toml")
_PRUNE = argument(
    "--prune", action="append", default=[], metavar="KIND/NAME",
    help="delete this one, which the file doesn't have: `pools/old`; can be repeated",
)  # fmt: skip

Step = tuple[str, Found, dict[str, Any] | None]


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    verbs = group(
        commands, "config", "queues, pools, crons, limits, and webhooks as a file, without secrets"
    )
    kind = argument("--kind", action="append", choices=[*BY_NAME], help="only these; default: all")
    command(verbs, "export", _export, "print the configuration as JSON, for a file", kind)
    check = argument("--check", action="store_true", help="fail with status 1 if there are changes")
    command(verbs, "plan", _plan, "show what `apply` would change; a dry run", _FILE, _PRUNE, check)
    command(verbs, "apply", _apply, "make the configuration as in a file", _FILE, _PRUNE, YES)


def _export(options: argparse.Namespace) -> None:
    server, found = target.server(options), {}
    for kind in KINDS:
        if options.kind and kind.name not in options.kind:
            continue
        each = [kinds.read(server, kind, name) for name in sorted(kinds.names(server, kind))]
        there = {it.name: it.configuration for it in each if it.configuration is not None}
        if there:
            found[kind.name] = there
    print(json.dumps(found, indent=None if options.json else 2), flush=True)


def _load(path: Path) -> dict[str, dict[str, Any]]:
    """Read a file. Raises CommandError."""
    try:
        if path.suffix == ".toml":
            import tomllib

            given = tomllib.loads(path.read_text("utf-8"))
        else:
            given = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CommandError(f"can't read {path}: {error}", Exit.USAGE) from None
    if not isinstance(given, dict):
        raise CommandError(f"{path}: must be an object", Exit.USAGE)
    for name, objects in given.items():
        if name not in BY_NAME:
            raise CommandError(f"{name}: must be one of {', '.join(BY_NAME)}", Exit.USAGE)
        if not (isinstance(objects, dict) and all(isinstance(it, dict) for it in objects.values())):
            raise CommandError(f"{name}: must be an object of objects by name", Exit.USAGE)
        if name == "webhooks" and any("secret" in it for it in objects.values()):
            raise CommandError("webhooks: must not contain a secret", Exit.USAGE)
    return given


def _steps(server: Server, options: argparse.Namespace) -> tuple[list[Step], list[str]]:
    """Return the changes that a file makes, and the names that it omits. Raises CommandError."""
    given, pruned = _load(options.file), set(options.prune)
    steps: list[Step] = []
    unlisted: list[str] = []
    for kind in KINDS:
        mine = given.get(kind.name, {})
        for name, fields in mine.items():
            found = kinds.read(server, kind, name)
            wanted = kinds.wanted_of(found, fields)
            if found.configuration != wanted:
                steps.append(("+" if found.configuration is None else "~", found, wanted))
        ends = {it for it in pruned if it.startswith(f"{kind.name}/")}
        for name in kinds.names(server, kind) if kind.name in given or ends else ():
            label = f"{kind.name}/{name}"
            if name in mine or name == "_default":
                continue
            if label not in pruned:
                unlisted.append(label)
            elif kind.deletes:
                pruned.discard(label)
                steps.append(("-", kinds.read(server, kind, name), None))
    if pruned:
        rule = (
            "must name a pool, cron, limit, or webhook that exists and that the file doesn't have"
        )
        raise CommandError(f"--prune {min(pruned)}: {rule}", Exit.USAGE)
    return steps, unlisted


def _shown(steps: list[Step], unlisted: list[str], options: argparse.Namespace) -> None:
    for sign, found, wanted in steps:
        changes = kinds.differences(found.configuration, wanted)
        kinds.show(sign, f"{found.kind.name}/{found.name}", changes, json=options.json)
    for label in unlisted:
        kinds.show("?", label, {}, json=options.json)
    if not options.json:
        if unlisted:
            print("? are not in the file, and stay. --prune deletes one by its name")
        print(f"{output.number(len(steps), 'change')}")


def _plan(options: argparse.Namespace) -> None:
    steps, unlisted = _steps(target.server(options), options)
    _shown(steps, unlisted, options)
    if options.check and steps:
        raise CommandError(f"the file makes {output.number(len(steps), 'change')}")


def _apply(options: argparse.Namespace) -> None:
    server = target.server(options)
    steps, unlisted = _steps(server, options)
    _shown(steps, unlisted, options)
    if not steps:
        return
    sys.stdout.flush()
    bulk.confirm(f"Make {output.number(len(steps), 'change')}?", options)
    for done, (sign, found, wanted) in enumerate(steps):
        label = f"{found.kind.name}/{found.name}"
        try:
            if wanted is None:
                kinds.delete(server, found)
            else:
                answer = kinds.write(server, found, wanted)
                if found.kind is kinds.WEBHOOKS and sign == "+":
                    output.note(
                        f"{label}: the server made its secret. To read one, send POST "
                        f"/ojs/v1/webhooks/subscriptions/{answer['id']}/rotate-secret"
                    )
        except CommandError as error:
            raise CommandError(
                f"{label}: {error}. {done} of {output.number(len(steps), 'change')} made. Run "
                "the command again",
                error.status,
            ) from None
    output.note(f"{output.number(len(steps), 'change')} made")
