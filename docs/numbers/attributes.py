"""Writes the attributes of records into docs/table.md: `make facts`.

The rows of a record (`ojs.store.table.record`) say which attributes its item has, and their types.
What an attribute holds, and when it is there, is written on the page.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ojs.store.bulk import operations as bulk
from ojs.store.crons import crons
from ojs.store.deliveries import deliveries
from ojs.store.deployment import actions, maintenance
from ojs.store.derived import shards
from ojs.store.jobs import items, unique_locks
from ojs.store.queues import pools, queues
from ojs.store.table.record import Record
from ojs.store.workflows import workflows

PAGE = Path(__file__).parents[1] / "table.md"
# By title on the page. The rows for the configuration of a delivery are in one attribute.
RECORDS: dict[str, Record[Any]] = {
    "Job record": items.JOB,
    "Unique lock": unique_locks.LOCK,
    "Queue": queues.QUEUE,
    "Worker pool": pools.POOL,
    "Delivery": deliveries.DELIVERY,
    "Workflow": workflows.WORKFLOW,
    "Cron job": crons.CRON,
    "Run of a cron job": crons.RUN,
    "Bulk operation": bulk.OPERATION,
    "Counters of a shard": shards.SHARD,
    "Maintenance mode": maintenance.MAINTENANCE,
    "Action": actions.ACTION,
}
TO_DESCRIBE = "TO DESCRIBE"
_TYPES = {str: "S", int: "N", bool: "N", bytes: "B"}


def types(record: Record[Any]) -> dict[str, str]:
    """DynamoDB's type of each attribute."""
    found = {}
    for name, row in record.rows.items():
        hint: Any = record.kind
        for field in row.field.split("."):
            hint = get_type_hints(hint)[field]
        plain = (
            row.type
            if row.write
            else next(_TYPES[t] for t in (hint, *get_args(hint)) if t in _TYPES)
        )
        found[name] = plain
    return found


def page(text: str) -> str:
    """The page with the attributes as they are declared now."""
    for title, record in RECORDS.items():
        before, heading, rest = text.partition(f"\n### {title}\n")
        section, following, after = rest.partition("\n#")
        for name, kind in types(record).items():
            if record is deliveries.DELIVERY and name in deliveries.CONFIGURED:
                continue
            line = re.compile(rf"^(\|[^|]*`{name}`[^|]*\|) \S+ \|", re.MULTILINE)
            if line.search(section):
                section = line.sub(rf"\1 {kind} |", section)
            else:
                end = section.rindex("|\n") + 2
                new = f"| `{name}` | {kind} | {TO_DESCRIBE} | {TO_DESCRIBE} |\n"
                section = section[:end] + new + section[end:]
        text = before + heading + section + following + after
    return text


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
