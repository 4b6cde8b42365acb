"""Storage of tenants, and a per-container cache of their records.

A container uses its cached copy for NOTICED_MS, also of a missing record. After that, the next push
or fetch reads the record in a call that it makes anyway.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain.errors import OjsError, TenantLimitExceeded
from ojs.domain.page import Page
from ojs.domain.rate_limit.limiter import Rate
from ojs.domain.tenant_limits import Tenant, TenantState
from ojs.domain.tenants import get_tenant
from ojs.store.queues.registry import QueueRegistry
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.races import lost_race
from ojs.store.table.record import Attribute, Record, member, rewriting
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value

NOTICED_MS = 10_000
# Minimum time between two events of a tenant whose limits are exceeded.
EXCEEDED_MS = 60_000
_KEPT_S = 86_400
_REMEMBERED = 1_000
_Key = tuple[str, str]


class TenantStore:
    """Reads and writes tenants, for one container."""

    def __init__(self, table: Table, clock: Clock, registry: QueueRegistry) -> None:
        self._table = table
        self._registry = registry
        self.clock = clock
        # By tenant: the time of the last read (ms), and the record.
        self._seen: BoundedMap[str, tuple[int, Tenant | None]] = BoundedMap(_REMEMBERED)
        self._exceeded: BoundedMap[str, int] = BoundedMap(_REMEMBERED)

    # --- pushes and fetches ---------------------------------------------------------------------

    def list_unread(self, queues: Iterable[str]) -> list[_Key]:
        """Return the keys of the records to read with the next call, for queues of tenants."""
        now_ms = self.clock.now_ms()
        named = dict.fromkeys(tenant for name in queues if (tenant := get_tenant(name)) is not None)
        return [
            key_of(tenant)
            for tenant in named
            if not 0 <= now_ms - self._seen.get(tenant, (now_ms - NOTICED_MS, None))[0] < NOTICED_MS
        ]

    def note(self, wanted: Sequence[_Key], items: Mapping[_Key, Item], *, asked_ms: int) -> None:
        """Cache the result of a strongly consistent read of `unread` that started at `asked_ms`.

        Raises UnknownForm or UnreadableItem.
        """
        for key in wanted:
            item = items.get(key)
            tenant = None if item is None else TENANT.of(item)
            self._seen.put(key[0].removeprefix(keys.tenant_record("")), (asked_ms, tenant))

    def get_cached(self, queue: str) -> Tenant | None:
        """Return the cached record of the tenant of a queue."""
        return self._seen.get(get_tenant(queue) or "", (0, None))[1]

    def check_room(self, queue: str) -> None:
        """Check whether the tenant of a new queue can have one more.

        Two queues that are created at the same time can exceed the limit. Makes no call for a known
        tenant without the limit.

        Raises:
            TenantLimitExceeded: The tenant has the maximum number of queues.
        """
        if unread := self.list_unread([queue]):
            asked_ms = self.clock.now_ms()
            self.note(unread, self._table.batch_get(unread), asked_ms=asked_ms)
        tenant = self.get_cached(queue)
        if tenant is None or tenant.max_queues is None:
            return
        there = sum(get_tenant(each.name) == tenant.id for each in self._registry.all(tenant.id))
        if there >= tenant.max_queues:
            with self.note_exceeded():
                raise TenantLimitExceeded(
                    tenant.id, "max_queues", current=there, maximum=tenant.max_queues
                )

    @contextmanager
    def note_exceeded(self) -> Iterator[None]:
        """Store that a limit was exceeded, for its event. Once in EXCEEDED_MS for each tenant."""
        try:
            yield
        except TenantLimitExceeded as error:
            self._note_exceeded(error.shown)
            raise

    def _note_exceeded(self, shown: Mapping[str, Any]) -> None:
        tenant, now_ms = str(shown["tenant_id"]), self.clock.now_ms()
        if now_ms - self._exceeded.get(tenant, now_ms - EXCEEDED_MS) < EXCEEDED_MS:
            return
        self._exceeded.put(tenant, now_ms)
        noted: dict[str, Value] = {
            **{name: shown[name] for name in ("limit", "current", "maximum")},
            "at": now_ms,
            "ttl": now_ms // 1_000 + _KEPT_S,
        }
        # Race: another container notes it. One of them is stored. If the write fails, there is no
        # event, and the request is rejected in any case.
        with suppress(LostRace, OjsError):
            self._table.update(
                Update(
                    keys.counter(keys.tenant_name(tenant)),
                    keys.REFUSED,
                    set=noted,
                    condition="attribute_not_exists(#at) OR #at <= :before",
                    values={":before": now_ms - EXCEEDED_MS},
                )
            )

    # --- operators ------------------------------------------------------------------------------

    def get(self, tenant_id: str) -> Tenant | None:
        """Read one tenant, strongly consistent."""
        item = self._table.get(*key_of(tenant_id))
        return None if item is None else TENANT.of(item)

    def list(self, *, limit: int, after: str | None = None) -> Page[Tenant]:
        """Return a page of tenants in order of ID.

        A tenant that was created within the last seconds might be missing.
        """
        condition, values = "epk = :line", {":line": keys.TENANTS}
        if after is not None:
            condition += " AND esk > :after"
            values[":after"] = after
        # One more than the page: DynamoDB returns a position also after the very last item.
        found = self._table.query(condition, dict(values), index="expiry", limit=limit + 1)
        wanted = [(str(item["pk"]), keys.RECORD) for item in found.items[:limit]]
        stored = self._table.batch_get(wanted)
        more = len(found.items) > limit
        return Page(
            [TENANT.of(stored[key]) for key in wanted if key in stored],
            str(found.items[limit - 1]["esk"]) if more else None,
        )

    def save(self, before: Tenant | None, tenant: Tenant) -> Tenant:
        """Store a tenant. `before` is the tenant as read, or None if it is new. Raises LostRace."""
        stored = replace(
            tenant,
            created_ms=tenant.configured_ms if before is None else before.created_ms,
            changes=0 if before is None else before.changes + 1,
        )
        # Race: another operator. The loser reads again and merges into the winner's limits. The
        # tenant is already stored if the response of an earlier attempt was lost.
        lost = lost_race(
            lambda: (
                self._table.put(Put(_item(stored), "attribute_not_exists(pk)"))
                if before is None
                else self._table.update(rewriting(_item(before), _item(stored), *_as_read(before)))
            )
        )
        if lost is not None and lost.item != _item(stored):
            raise lost
        self._seen.put(tenant.id, (self.clock.now_ms(), stored))
        return stored

    def remove(self, tenant: Tenant) -> None:
        """Delete a tenant's record. Raises LostRace if it has changed since it was read."""
        condition, values = _as_read(tenant)
        self._table.delete(*key_of(tenant.id), condition=condition, values=values)
        self._seen.put(tenant.id, (self.clock.now_ms(), None))


def key_of(tenant_id: str) -> _Key:
    """Return the key of a tenant's record."""
    return keys.tenant_record(tenant_id), keys.RECORD


def _as_read(tenant: Tenant) -> tuple[str, dict[str, Value]]:
    """Return the condition that a tenant has not changed since it was read."""
    return (
        "#created = :created AND #changes = :changes",
        {":created": tenant.created_ms, ":changes": tenant.changes},
    )


def _rate(text: str) -> Rate:
    limit, _, period_ms = text.partition("/")
    return Rate(int(limit), int(period_ms))


TENANT = Record(
    Tenant,
    "tenant",
    {
        "name": "name",
        # A state of a newer version rejects jobs, as `suspended` does.
        "state": member("state", TenantState, "", TenantState.SUSPENDED),
        "concurrency": "max_concurrency",
        "rate": Attribute("max_enqueue_rate", lambda rate: f"{rate.limit}/{rate.period_ms}", _rate),
        "depth": "max_queue_depth",
        "scheduled": "max_scheduled",
        "most_queues": "max_queues",
        "boost": "priority_boost",
        "created": "created_ms",
        "configured": "configured_ms",
        "changes": "changes",
    },
    apart={"id": lambda item: str(item["pk"]).removeprefix(keys.tenant_record(""))},
    always=("created", "configured", "changes"),
)


def _item(tenant: Tenant) -> Item:
    pk, sk = key_of(tenant.id)
    return TENANT.item(tenant, pk=pk, sk=sk, epk=keys.TENANTS, esk=tenant.id)
