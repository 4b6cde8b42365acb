"""`ojs-aws keys` and `ojs-aws roles`: manage access keys, and scopes of IAM roles."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Literal

from cli import target
from cli.output import add_json, printable

if TYPE_CHECKING:
    import argparse

SCOPES = ("jobs:write", "jobs:read", "work", "admin:read", "admin:write")


def add(commands: Any) -> None:
    """Add the commands and their subcommands to the parser."""
    for what, about, created in (
        (
            "keys",
            "create, list, and revoke access keys",
            "create a key; prints its secret to standard output, once",
        ),
        (
            "roles",
            "grant scopes to IAM roles, list the grants, and revoke them (authorizer=iam)",
            "grant scopes and queues to a role",
        ),
    ):
        parser = commands.add_parser(what, help=about)
        actions = parser.add_subparsers(required=True, metavar="create|list|revoke")
        create = actions.add_parser("create", help=created)
        create.add_argument("name", help="name of the holder, as in `producers` of a queue")
        if what == "roles":
            create.add_argument("role", metavar="ARN", help="ARN of an IAM role or user")
        create.add_argument(
            "--scope", action="append", required=True, choices=SCOPES,
            help="scope to grant; can be repeated",
        )  # fmt: skip
        create.add_argument(
            "--queue",
            action="append",
            metavar="NAME",
            help="allowed queue, or `prefix*`; can be repeated",
        )
        create.add_argument(
            "--expires", metavar="WHEN", help="expiry time: RFC 3339, or +P90D; default: never"
        )
        create.add_argument(
            "--max-requests-per-s", type=int, metavar="N",
            help="limit of requests per second; default: none",
        )  # fmt: skip
        create.set_defaults(run=_create, role=None)
        listed = actions.add_parser("list", help=f"list all {what}, without secrets")
        listed.set_defaults(run=_list, only_roles=what == "roles")
        revoke = actions.add_parser("revoke", help="revoke one")
        revoke.add_argument("id", help=f"ID, as shown by `{what} list`")
        revoke.add_argument(
            "--made", action="store_true", help="also revoke all keys that it created, at any depth"
        )
        revoke.set_defaults(run=_revoke)
        for each in (create, listed, revoke):
            add_json(each)
            target.add_arguments(each)


def _create(options: argparse.Namespace) -> None:
    limits = {}
    if options.tenant is not None:
        # The key's tenant. Only a caller without a tenant can create keys.
        limits["tenant"], options.tenant = options.tenant, None
    server = target.server(options)
    if options.queue:
        limits["queues"] = options.queue
    if options.expires:
        limits["expires_at"] = options.expires
    if options.max_requests_per_s is not None:
        limits["max_requests_per_s"] = options.max_requests_per_s
    if options.role is not None:
        made = server.create_role(options.name, options.role, options.scope, **limits)
        print(json.dumps(made) if options.json else printable(_line(made["key"])))
        return
    made = server.create_key(options.name, options.scope, **limits)
    if options.json:
        print(json.dumps(made))
        return
    print(printable(_line(made["key"])), file=sys.stderr)
    print(made["secret"])


def _list(options: argparse.Namespace) -> None:
    server = target.server(options)
    for key in server.each(server.list_keys, limit=200):
        if options.only_roles and "role" not in key:
            continue
        print(json.dumps(key) if options.json else printable(_line(key)))


def _revoke(options: argparse.Namespace) -> None:
    if not options.id.isalnum():
        raise target.CommandError("id: must have letters and digits only", target.Exit.USAGE)
    made: Literal["revoke"] | None = "revoke" if options.made else None
    answer = target.server(options).revoke_key(options.id, made=made)
    if options.json:
        print(json.dumps(answer))
        return
    print(printable(_line(answer["key"])))
    for each in answer.get("also_revoked", ()):
        print(printable(f"{each}  also revoked"))


def _line(key: dict[str, Any]) -> str:
    queues = ",".join(key.get("queues", ["*"]))
    times = [
        f"{what} {key[field]}"
        for what, field in (
            ("expires", "expires_at"),
            ("revoked", "revoked_at"),
            ("last used", "last_used_at"),
        )
        if field in key
    ]
    parts = [key["id"], key["state"], key["name"], ",".join(key["scopes"]), queues, *times]
    if "tenant" in key:
        parts.append(f"tenant {key['tenant']}")
    if "role" in key:
        parts.append(key["role"])
    return "  ".join(parts)
