"""Events of tenants."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ojs.domain.events.types import EventType
from ojs.projections.changes import NewEvent, TableChange
from ojs.records import record
from ojs.store.table import keys


@record(frozen=True)
class TenantEvent(TableChange):
    """A tenant that was created, or a limit that a push exceeded."""

    kind: EventType
    tenant: str
    at_ms: int
    data: Mapping[str, Any]

    def events(self, written_ms: int) -> Iterator[NewEvent]:
        """Yield the event."""
        data = {"tenant_id": self.tenant, **self.data}
        yield NewEvent(self.kind, self.at_ms, self.tenant, ("tenants", self.tenant), data)


def read_event(
    pk: str, old: Mapping[str, Any] | None, new: Mapping[str, Any] | None
) -> TenantEvent | None:
    """Return the event of a change of a tenant's record, or of its note of an exceeded limit."""
    record = keys.tenant_record("")
    if pk.startswith(record):
        if old is not None or new is None:
            return None
        return TenantEvent(
            EventType.TENANT_CREATED, pk.removeprefix(record), int(new["created"]), {}
        )
    if new is None or "limit" not in new:
        return None
    data = {name: new[name] for name in ("limit", "current", "maximum")}
    tenant = pk.removeprefix(keys.counter(keys.tenant_name("")))
    return TenantEvent(EventType.TENANT_LIMIT_EXCEEDED, tenant, int(new["at"]), data)
