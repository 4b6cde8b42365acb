"""`ojs-aws gc`: deletes orphans, which functions that crashed during a write have left."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from cli import output, target

if TYPE_CHECKING:
    import argparse


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "gc",
        aliases=["tidy"],
        help="garbage-collect parts of jobs and cron jobs that crashed functions left behind; "
        "reads the whole table, with your AWS credentials",
    )
    parser.add_argument("--stage", required=True, help="name of the deployment")
    parser.add_argument("--dry-run", action="store_true", help="count them, and delete nothing")
    output.add_json(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from botocore.exceptions import BotoCoreError, ClientError

    from ojs.domain.errors import OjsError
    from ojs.services.operations.tidy import Tidy
    from ojs.store.jobs.orphans import Orphans
    from ojs.store.table import clients
    from ojs.store.table.table import Table

    try:
        found = target.outputs(options.stage, "data")
        table = Table(clients.dynamodb(), found["TableName"])
        leftovers = Orphans(table, (clients.s3(), found["PayloadBucketName"]))
        done = Tidy(leftovers, time.sleep).run(remove=not options.dry_run)
    except (BotoCoreError, ClientError, OjsError) as error:
        raise target.CommandError(f"AWS: {error}") from None
    if options.json:
        told = {"checked": done.parts, "removed": done.removed, "dry_run": options.dry_run}
        output.as_json(told)
        return
    what = "would be deleted" if options.dry_run else "deleted"
    print(f"{done.parts} parts of jobs and cron jobs checked, {done.removed} {what}")
