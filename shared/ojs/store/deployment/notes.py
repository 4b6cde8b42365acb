"""What a deployment notes in its table about itself: for the next one to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.schema import NEEDED_VERSION, SCHEMA_VERSION
from ojs.store.table.table import Table, Update

if TYPE_CHECKING:
    from ojs.store.table.values import Value


@dataclass(frozen=True)
class DeploymentNotes:
    """The form of the table's items, the oldest form that code must know to work on them, and the
    id of the first key once it is in the table.
    """

    schema: int
    needs: int
    first_key: str | None = None


class DeploymentStore:
    """The store of that note."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def read(self) -> DeploymentNotes | None:
        """What the latest deployment noted, consistently; None for a table from before there were
        such notes, or a new one.
        """
        item: dict[str, Any] | None = self._table.get(keys.DEPLOYMENT, keys.HEAD)
        if item is None:
            return None
        return DeploymentNotes(item["schema"], item["needs"], item.get("first_key"))

    def note(self, *, version: str, now_ms: int, schema: int = SCHEMA_VERSION) -> bool:
        """Note that code of this version works on the table from now on; False when it must not:
        the items need newer code.
        """
        values: dict[str, Value] = {":schema": schema}
        # Race: two deployments at once. What needs newer code is never taken back by older.
        try:
            self._table.update(
                Update(
                    keys.DEPLOYMENT,
                    keys.HEAD,
                    set={
                        "schema": schema,
                        "needs": min(NEEDED_VERSION, schema),
                        "version": version,
                        "at": now_ms,
                    },
                    condition="attribute_not_exists(pk) OR #needs <= :schema",
                    values=values,
                )
            )
        except LostRace:
            return False
        return True

    def note_first_key(self, key_id: str) -> None:
        """Note that the first key is in the table. It must not come back once it was revoked."""
        self._table.update(Update(keys.DEPLOYMENT, keys.HEAD, set={"first_key": key_id}))
