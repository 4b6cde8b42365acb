"""`ojs-aws tenants`: create, change, suspend, and delete tenants."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from cli import output, target
from cli.jobs import add_limit, listed

_PAGE = 100
_LIMITS = ("max_concurrency", "max_queue_depth", "max_scheduled", "max_queues")


def add(commands: Any) -> None:
    """Add the command and its subcommands to the parser."""
    parser = commands.add_parser("tenants", help="manage tenants and their limits")
    actions = parser.add_subparsers(required=True, metavar="list|show|set|suspend|activate|delete")
    every = actions.add_parser("list", help="list tenants with their job counts")
    add_limit(every)
    every.set_defaults(run=_list)
    for verb, does, run in (
        ("show", "show a tenant and its statistics", _show),
        ("set", "change limits of a tenant; creates a missing one", _set),
        ("suspend", "reject pushes and fetches of a tenant", partial(_state, "suspended")),
        ("activate", "end a suspension", partial(_state, "active")),
        ("delete", "delete the record of a tenant without jobs and active keys", _delete),
    ):
        one = actions.add_parser(verb, help=does)
        one.add_argument("id", type=target.name, help="ID of the tenant")
        if verb == "set":
            for name, kind, metavar, about in (
                *((name, output.count, "N", "new limit, or 0 for none") for name in _LIMITS),
                ("max_enqueue_rate", _rate, "N/PERIOD", "for example 1000/PT1M, or 0 for none"),
                ("priority_boost", int, "N", "from -100 to 100"),
            ):
                option = f"--{name.replace('_', '-')}"
                one.add_argument(
                    option, type=kind, metavar=metavar, help=about, default=argparse.SUPPRESS
                )
        one.set_defaults(run=run)
    for each in actions.choices.values():
        output.add_json(each)
        target.add_arguments(each)


def _rate(text: str) -> dict[str, Any] | None:
    limit, slash, period = text.partition("/")
    if text == "0":
        return None
    if not (slash and period and limit.isascii() and limit.isdigit()):
        raise argparse.ArgumentTypeError("must be a number and a period, such as 1000/PT1M, or 0")
    return {"limit": int(limit), "period": period}


def _list(options: argparse.Namespace) -> None:
    server = target.server(options)
    listing = partial(server.ask, "GET", "admin/tenants")
    found = listed(server, listing, {}, options, _PAGE, "tenants")
    if options.json:
        for tenant in found:
            output.as_json(tenant)
        return
    rows = []
    for tenant in found:
        jobs = tenant["stats"]["jobs"]
        counts = (jobs["available"], jobs["active"], jobs["scheduled"])
        rows.append((tenant["id"], tenant["state"], *counts, _limits(tenant)))
    header = ("TENANT", "STATE", "#AVAILABLE", "#ACTIVE", "#SCHEDULED", "LIMITS")
    output.print_table(header, rows)


def _show(options: argparse.Namespace) -> None:
    server = target.server(options)
    tenant, stats = server.get_tenant(options.id), server.tenant_stats(options.id)
    if options.json:
        output.as_json({**tenant, "stats": stats})
        return
    _print(tenant)
    for name, count in stats["jobs"].items():
        print(output.printable(f"{name}  {count}"))


def _set(options: argparse.Namespace) -> None:
    names = (*_LIMITS, "max_enqueue_rate", "priority_boost")
    body = {name: value or None for name, value in vars(options).items() if name in names}
    _change(options, **body)


def _state(state: str, options: argparse.Namespace) -> None:
    _change(options, state=state)


def _delete(options: argparse.Namespace) -> None:
    answer = target.server(options).delete_tenant(options.id)
    if options.json:
        output.as_json(answer)
    else:
        print(output.printable(f"{answer['id']} is deleted"))


def _change(options: argparse.Namespace, **body: Any) -> None:
    tenant = target.server(options).put_tenant_limits(options.id, **body)
    if options.json:
        output.as_json(tenant)
    else:
        _print(tenant)


def _print(tenant: dict[str, Any]) -> None:
    print(output.printable(f"{tenant['id']} is {tenant['state']}  {_limits(tenant)}".rstrip()))


def _limits(tenant: dict[str, Any]) -> str:
    limits = tenant["limits"]
    found = [f"{name}={limits[name]}" for name in _LIMITS if name in limits]
    if (rate := limits.get("max_enqueue_rate")) is not None:
        found.append(f"max_enqueue_rate={rate['limit']}/{rate['period']}")
    if tenant["priority_boost"]:
        found.append(f"priority_boost={tenant['priority_boost']}")
    return " ".join(found)
