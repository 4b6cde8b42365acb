"""Write the page of the table's attributes: `make facts`.

A record (`ojs.store.table.record`) declares the attributes of its item and their types. The meaning
of an attribute, and when it is present, are in `attributes.tsv`. This file has also the attributes
of items without such a record.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

from ojs.domain.tenant_limits import Tenant
from ojs.store.bulk import operations as bulk
from ojs.store.crons import crons
from ojs.store.deliveries import deliveries
from ojs.store.deployment import actions, maintenance
from ojs.store.derived import shards
from ojs.store.jobs import items, unique_locks
from ojs.store.queues import pools, queues, tenants
from ojs.store.realtime import connections, listeners, subscribers
from ojs.store.schemas import schemas
from ojs.store.table.record import Record
from ojs.store.webhooks import webhooks
from ojs.store.workflows import workflows

ROWS = Path(__file__).with_name("attributes.tsv")
PAGE = Path(__file__).with_name("attributes.md")
# By kind of item. The rows for the configuration of a delivery are in one attribute.
RECORDS: dict[str, Record[Any]] = {
    "Job record": items.JOB,
    "Unique lock": unique_locks.LOCK,
    "Queue": queues.QUEUE,
    "Worker pool": pools.POOL,
    "Tenant": tenants.TENANT,
    "Schema": schemas.SCHEMA,
    "Delivery": deliveries.DELIVERY,
    "Webhook": webhooks.SUBSCRIPTION,
    "Delivery of a webhook": webhooks.DELIVERY,
    "Workflow": workflows.WORKFLOW,
    "Cron job": crons.CRON,
    "Run of a cron job": crons.RUN,
    "Bulk operation": bulk.OPERATION,
    "Counters of a shard": shards.SHARD,
    "Maintenance mode": maintenance.MAINTENANCE,
    "Action": actions.ACTION,
    "Connection": connections.CONNECTION,
    "Listener": listeners.LISTENER,
    "Subscriber": subscribers.SUBSCRIBER,
}
TO_DESCRIBE = "TO DESCRIBE"
_TYPES = {str: "S", int: "N", bool: "N", bytes: "B"}


def types(record: Record[Any]) -> dict[str, str]:
    """DynamoDB's type of each attribute."""
    found = {}
    for name, row in record.rows.items():
        hint: Any = record.kind
        for field in row.field.split("."):
            hint = get_type_hints(hint, localns={"Tenant": Tenant})[field]
        plain = (
            row.type
            if row.write
            else next(_TYPES[t] for t in (hint, *get_args(hint)) if t in _TYPES)
        )
        found[name] = plain
    return found


def listed(text: str) -> Iterator[list[str]]:
    """The cells of each row: kind of item, names, type, meaning, presence."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            yield line.split("\t")


def declared(text: str) -> str:
    """The rows with the attributes and types that records declare now."""
    head = "".join(f"{line}\n" for line in text.splitlines() if line.startswith("#"))
    by_kind: dict[str, list[list[str]]] = {}
    for row in listed(text):
        by_kind.setdefault(row[0], []).append(row)
    for title, record in RECORDS.items():
        rows = by_kind[title]
        for name, kind in types(record).items():
            if record is deliveries.DELIVERY and name in deliveries.CONFIGURED:
                continue
            found = [row for row in rows if f"`{name}`" in row[1].split(", ")]
            for row in found:
                row[2] = kind
            if not found:
                rows.append([title, f"`{name}`", kind, TO_DESCRIBE, TO_DESCRIBE])
    return head + "".join("\t".join(row) + "\n" for rows in by_kind.values() for row in rows)


def page(text: str) -> str:
    """The page of all attributes."""
    found = (
        "<!-- Written by `make facts`. Do not edit. -->\n\n# Attributes of the table\n\n"
        "[The table](../table.md) describes the items, and the types S, N, and B. ms are"
        " milliseconds since 1970, s are seconds.\n"
    )
    last = None
    for title, *cells in listed(text):
        if title != last:
            found += (
                f"\n## {title}\n\n| Attribute | Type | Meaning | Present |\n|---|---|---|---|\n"
            )
            last = title
        found += f"| {' | '.join(cells)} |\n"
    return found


def main() -> int:
    """Write the rows and the page."""
    text = declared(ROWS.read_text("utf-8"))
    ROWS.write_text(text, "utf-8")
    PAGE.write_text(page(text), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
