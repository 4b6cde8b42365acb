"""A table of items with jobs. The construct creates it, with the key `id`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from ojs.store.table.errors import LostRace
from ojs.store.table.table import Table

Key = Mapping[str, Any]


class OutboxTable(Table):
    """A table of items with jobs. Keys have DynamoDB's format."""

    def __init__(self, table: Table, name: str, sleep: Callable[[float], None]) -> None:
        """Create the table with this name, for the client of another table."""
        super().__init__(table.client, name, measure=table.measure, meter=table.meter, sleep=sleep)

    def delete_items(self, keys: Iterable[Key]) -> None:
        """Delete these items, 25 per call. Raises OjsError if DynamoDB deleted some of them."""
        self._write_all([{"DeleteRequest": {"Key": key}} for key in keys])

    def expire_items(self, keys: Iterable[Key], until_s: int) -> None:
        """Set the time to live of those of these items that exist. Raises OjsError."""
        for key in keys:
            with suppress(LostRace):
                self._call(
                    "UpdateItem",
                    self.client.update_item,
                    TableName=self.name,
                    Key=key,
                    UpdateExpression="SET expires = :until",
                    ConditionExpression="attribute_exists(id)",
                    ExpressionAttributeValues={":until": {"N": str(until_s)}},
                )
