"""`ojs-aws actions`: lists what operators did, shows what changed, and undoes it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from cli import bulk, kinds, output, target
from cli.command import YES, argument, command, group
from cli.jobs import listed
from cli.target import CommandError, Exit
from ojs_aws.client.call import Call, json_object, place

if TYPE_CHECKING:
    import argparse

_PAGE = 100
_ID = argument("id", type=target.name, help="ID of the action")


def add(commands: Any) -> None:
    """Add the commands to the parser."""
    verbs = group(commands, "actions", "list what operators did, show what changed, or undo it")
    limit = argument("--limit", type=output.count, default=20, metavar="N",
        help="maximum number of rows (default: 20); 0 for all")  # fmt: skip
    command(verbs, "list", _list, "list actions, newest first", limit)
    command(verbs, "show", _show, "show who did what, and the fields that changed", _ID)
    command(
        verbs,
        "undo",
        _undo,
        "restore the values before; fails if they have changed since",
        _ID,
        YES,
    )


def _list(options: argparse.Namespace) -> None:
    server = target.server(options)
    listing = partial(server.ask, "GET", "admin/actions")
    found = listed(server, listing, {}, options, _PAGE, "actions")
    if options.json:
        for each in found:
            output.as_json(each)
        return
    rows = [
        (it["id"], it["at"], it.get("actor"), it["operation"], it.get("name"),
         "yes" if "undo" in it else "")
        for it in found
    ]  # fmt: skip
    output.print_table(("ID", "AT", "BY", "OPERATION", "NAME", "CAN UNDO"), rows)


def _read(options: argparse.Namespace) -> Any:
    return target.server(options).ask("GET", place("admin/actions/{}", options.id))["action"]


def _changes(action: Any, *, undone: bool = False) -> None:
    """Print the changes of an action, or those of its undo."""
    ends = (action.get("before"), action.get("after"))
    old, new = reversed(ends) if undone else ends
    sign = "+" if old is None else "-" if new is None else "~"
    label = f"{action.get('resource', '')} {action.get('name', '')}".strip()
    kinds.show(sign, label, kinds.differences(old, new), json=False)


def _show(options: argparse.Namespace) -> None:
    action = _read(options)
    if options.json:
        output.as_json(action)
        return
    inner = ("before", "after", "undo")
    rows = [(name, value) for name, value in action.items() if name not in inner]
    output.print_table(("ACTION", action["id"]), rows)
    if "resource" in action and not action.get("omitted"):
        _changes(action)


def _undo(options: argparse.Namespace) -> None:
    action = _read(options)
    how = action.get("undo")
    if how is None:
        raise CommandError(f"{action['operation']}: can't be undone", Exit.REFUSED)
    if not options.json:
        _changes(action, undone=True)
    bulk.confirm(f"Undo {action['operation']}?", options)
    call = Call(how["method"], how["path"], json_object, how.get("body"), {}, how["headers"])
    answer = options.server.run(call)
    if options.json:
        output.as_json(answer)
    else:
        print(output.printable(f"{action['operation']} is undone"))
