"""Storage of the record of the most recent deployment, which the next deployment reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.races import wins
from ojs.store.table.schema import NEEDED_VERSION, SCHEMA_VERSION
from ojs.store.table.table import Table, Update

if TYPE_CHECKING:
    from ojs.store.table.values import Value


@record(frozen=True)
class DeploymentRecords:
    """The record of the most recent deployment.

    It has the schema of the table's items, the oldest schema that code must support to use them,
    the ID of the bootstrap key if it is stored, and the start time of the deployment (ms).
    """

    schema: int
    needs: int
    first_key: str | None = None
    at_ms: int = 0


class DeploymentStore:
    """Reads and writes the deployment record."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def read(self) -> DeploymentRecords | None:
        """Read the record of the most recent deployment, or None.

        The read is strongly consistent.
        """
        item: dict[str, Any] | None = self._table.get(keys.DEPLOYMENT, keys.RECORD)
        if item is None:
            return None
        return DeploymentRecords(
            item["schema"], item["needs"], item.get("first_key"), item.get("at", 0)
        )

    def note(self, *, version: str, now_ms: int, schema: int = SCHEMA_VERSION) -> bool:
        """Record that code of this version uses the table from now on.

        Args:
            version: Version of the code.
            now_ms: Current time in milliseconds since the epoch.
            schema: Schema of the code.

        Returns:
            False if the items require newer code.
        """
        values: dict[str, Value] = {":schema": schema}
        # Race: two deployments at the same time. The older one never lowers the required schema.
        return wins(
            lambda: self._table.update(
                Update(
                    keys.DEPLOYMENT,
                    keys.RECORD,
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
        )

    def note_first_key(self, key_id: str) -> None:
        """Record that the bootstrap key is stored, so that it is not created again after its
        revocation.
        """
        self._table.update(Update(keys.DEPLOYMENT, keys.RECORD, set={"first_key": key_id}))
