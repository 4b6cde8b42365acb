"""Storage of webhook subscriptions, their deliveries, and the directory of all subscriptions.

The projection reads the directory for each batch of events. A container caches it for
REMEMBERED_MS. A subscription and its entry in the directory are written in one transaction.

An event that is posted at the first attempt is not stored. The successes of a container are added
to one item, at most every few seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.page import Page
from ojs.domain.webhooks import (
    KEPT_S,
    HookDelivery,
    HookDisabled,
    HookStatus,
    Subscription,
    SubscriptionFilter,
)
from ojs.records import record
from ojs.store.table import keys
from ojs.store.table.errors import UnreadableItem
from ojs.store.table.record import Attribute, Record, as_json, flag, member, rewriting, words
from ojs.store.table.table import Delete, Put, Table, Update
from ojs.store.table.values import Item, Value, number

# Time for which a container caches the directory (ms).
REMEMBERED_MS = 10_000
MAX_DIRECTORY_BYTES = 100_000
# Successes that the log shows for each subscription.
MAX_SUCCESSES = 50
# Time (ms) after the due time of a message, after which the sweep sends it again.
SPARE_MS = 120_000
_KEY = (keys.HOOKS, keys.RECORD)


@record(frozen=True)
class HookDirectory:
    """What all subscriptions receive, by ID. `revision` increases with each change."""

    entries: Mapping[str, SubscriptionFilter] = field(default_factory=dict)
    revision: int = 0

    def with_entry(self, subscription: str, wanted: SubscriptionFilter | None) -> HookDirectory:
        """Return the directory after a change. None removes the subscription."""
        left = {name: it for name, it in self.entries.items() if name != subscription}
        more = {} if wanted is None else {subscription: wanted}
        return HookDirectory({**left, **more}, self.revision + 1)

    def text(self) -> str:
        """Return the directory as stored JSON."""
        return jsontext.dumps(
            {
                name: [it.events, it.queues, it.job_types, it.active]
                for name, it in sorted(self.entries.items())
            }
        )


@record(frozen=True)
class HookSuccesses:
    """Number of successes of a subscription, and the latest ones, the newest first."""

    count: int = 0
    latest: tuple[HookDelivery, ...] = ()


class WebhookStore:
    """Reads and writes subscriptions, deliveries, and the directory."""

    def __init__(self, table: Table) -> None:
        self._table = table

    # --- subscriptions ----------------------------------------------------------------------------

    def read_directory(self, *, consistent: bool = True) -> HookDirectory:
        """Read the directory. Makes one call."""
        item = self._table.get(*_KEY, consistent=consistent)
        return HookDirectory() if item is None else _directory(item)

    def get(self, subscription_id: str) -> Subscription | None:
        """Read a subscription."""
        item = self._table.get(keys.hook(subscription_id), keys.RECORD)
        return None if item is None else SUBSCRIPTION.of(item)

    def get_many(self, ids: Iterable[str]) -> dict[str, Subscription]:
        """Read subscriptions. Makes one call for a hundred."""
        wanted = [(keys.hook(each), keys.RECORD) for each in ids]
        found = self._table.batch_get(wanted) if wanted else {}
        return {it.id: it for it in map(SUBSCRIPTION.of, found.values())}

    def save(
        self, before: Subscription | None, after: Subscription, directory: HookDirectory
    ) -> Subscription:
        """Store a subscription, and its entry in the directory if that changes.

        Args:
            before: Subscription as read, or None if it is new.
            after: Subscription to store.
            directory: Directory as read.

        Raises:
            LostRace: The subscription or the directory has changed.
        """
        after = replace(after, turn=0 if before is None else before.turn + 1)
        entry = SubscriptionFilter.of(after)
        write = _rewriting(before, after)
        if directory.entries.get(after.id) == entry:
            self._write(write)
        else:
            next_one = directory.with_entry(after.id, entry)
            self._table.transact([write, _directing(directory, next_one)])
        return after

    def note(self, before: Subscription, after: Subscription) -> Subscription:
        """Store the state of an endpoint. Makes one write. Raises LostRace."""
        after = replace(after, turn=before.turn + 1)
        # Race: another container records attempts, or an operator changes the subscription. The
        # loser reads again.
        self._write(_rewriting(before, after))
        return after

    def remove(
        self, before: Subscription, directory: HookDirectory, *, exact: bool = False
    ) -> None:
        """Delete a subscription and its entry in the directory.

        Raises LostRace if it is deleted, or, if `exact`, for each change.
        """
        condition, values = "attribute_exists(pk)", dict[str, Value]()
        if exact:
            condition, values = "#turn = :turn", {":turn": before.turn}
        self._table.transact(
            [
                Delete(keys.hook(before.id), keys.RECORD, condition=condition, values=values),
                _directing(directory, directory.with_entry(before.id, None)),
            ]
        )

    def _write(self, write: Put | Update) -> None:
        if isinstance(write, Put):
            self._table.put(write)
        else:
            self._table.update(write)

    # --- successes --------------------------------------------------------------------------------

    def read_successes(self, ids: Iterable[str]) -> dict[str, HookSuccesses]:
        """Read the successes of subscriptions. Makes one call for a hundred."""
        wanted = [(keys.hook(each), keys.HOOK_SUCCESSES) for each in ids]
        found = self._table.batch_get(wanted, consistent=False) if wanted else {}
        return {str(item["pk"]).removeprefix(keys.hook("")): _ok(item) for item in found.values()}

    def add_successes(self, subscription_id: str, count: int, new: Sequence[HookDelivery]) -> None:
        """Count successes, and put them at the start of the latest ones.

        Race: another container adds successes. Both are counted, but the loser's are not listed.
        """
        known = self.read_successes([subscription_id]).get(subscription_id, HookSuccesses())
        latest = [*new, *known.latest][:MAX_SUCCESSES]
        self._table.update(
            Update(
                keys.hook(subscription_id),
                keys.HOOK_SUCCESSES,
                set={"of": jsontext.dumps([_written(each) for each in latest])},
                add={"n": count},
            ),
            tell_loser=False,
        )

    # --- deliveries -------------------------------------------------------------------------------

    def read_delivery(self, delivery_id: str) -> HookDelivery | None:
        """Read a stored delivery."""
        found = self.read_deliveries([delivery_id])
        return found.get(delivery_id)

    def read_deliveries(self, ids: Iterable[str]) -> dict[str, HookDelivery]:
        """Read stored deliveries. Makes one call for a hundred."""
        found = self._table.batch_get([*map(_delivery_key, ids)])
        return {it.id: it for it in map(DELIVERY.of, found.values())}

    def list_deliveries(
        self, subscription_id: str, *, limit: int, before: str | None
    ) -> Page[HookDelivery]:
        """Return stored deliveries of a subscription, newest first, with IDs below `before`."""
        found = self._table.query(
            "pk = :pk AND sk BETWEEN :first AND :last",
            {
                ":pk": keys.hook(subscription_id),
                ":first": keys.HOOK_DELIVERIES,
                ":last": f"{keys.HOOK_DELIVERIES}{before or 'del_~'}",
            },
            forward=False,
            limit=limit + 2,
        )
        read = [it for it in map(DELIVERY.of, found.items) if it.id != before]
        more = len(read) > limit or found.last is not None
        return Page(read[:limit], read[:limit][-1].id if more and read else None)

    def list_due(self, subscription_id: str, *, now_ms: int, limit: int) -> list[HookDelivery]:
        """Return pending deliveries whose message must be sent again. Makes one or two calls."""
        found = self._table.query(
            "wpk = :line AND wsk <= :now",
            {":line": keys.hooks_due(subscription_id), ":now": keys.upto(now_ms)},
            index="work",
            limit=limit,
        )
        ids = [str(item["sk"]).removeprefix(keys.HOOK_DELIVERIES) for item in found.items]
        there = self.read_deliveries(ids) if ids else {}
        # The index is eventually consistent.
        return [there[each] for each in ids if each in there and there[each].next_ms is not None]

    def put(self, before: HookDelivery | None, after: HookDelivery, *, again_ms: int = 0) -> None:
        """Store a delivery.

        Args:
            before: Delivery as read, or None if it is new.
            after: Delivery to store.
            again_ms: Time (ms) from which the sweep sends its message again. Default: its next
                attempt.

        Raises:
            LostRace: The delivery has changed, or exists already.
        """
        new = _delivery_item(after, again_ms or after.next_ms)
        if before is None:
            # Race: SQS delivered the message twice. The loser's attempt is not counted.
            self._table.put(Put(new, condition="attribute_not_exists(pk)"))
            return
        # Race: two messages of the same attempt, or an operator retries. The loser reads again.
        old = _delivery_item(before, before.next_ms)
        # The entry in the index can be missing or have another time.
        gone = {"wpk": "", "wsk": ""} | old
        write = rewriting(gone, new, "#turn = :turn", {":turn": before.turn})
        if again_ms:
            write = replace(write, set={**write.set, "wpk": new["wpk"], "wsk": new["wsk"]})
        self._table.update(write, tell_loser=False)

    def change_time(self, delivery: HookDelivery, again_ms: int) -> None:
        """Change the time (ms) from which the sweep sends a message. Raises LostRace."""
        pk, sk = _delivery_key(delivery.id)
        # Race: an attempt is recorded, with its own time.
        self._table.update(
            Update(
                pk,
                sk,
                set={"wsk": keys.instant(again_ms)},
                condition="#turn = :turn AND attribute_exists(wpk)",
                values={":turn": delivery.turn},
            ),
            tell_loser=False,
        )


class WebhookDirectory:
    """A cache of the directory in a container."""

    def __init__(self, webhooks: WebhookStore, clock: Clock) -> None:
        self._store = webhooks
        self._clock = clock
        self._seen: tuple[int, HookDirectory] | None = None

    def read_entries(self) -> Mapping[str, SubscriptionFilter]:
        """Return what subscriptions receive. One call in REMEMBERED_MS. Raises OjsError."""
        now_ms = self._clock.now_ms()
        if self._seen is None or not 0 <= now_ms - self._seen[0] < REMEMBERED_MS:
            self._seen = (now_ms, self._store.read_directory())
        return self._seen[1].entries

    def forget(self) -> None:
        """Read the directory at the next use."""
        self._seen = None


def _rewriting(before: Subscription | None, after: Subscription) -> Put | Update:
    new = _item(after)
    if before is None:
        # Race: an earlier attempt of this request, whose response was lost.
        return Put(new, condition="attribute_not_exists(pk)")
    return rewriting(_item(before), new, "#turn = :turn", {":turn": before.turn})


def _directing(seen: HookDirectory, after: HookDirectory) -> Put:
    """Return the write of the directory.

    Race: another subscription is changed. The loser reads again, because it would undo the change.
    """
    item: Item = {"pk": _KEY[0], "sk": _KEY[1], "of": after.text(), "rev": after.revision}
    if not seen.revision:
        return Put(item, condition="attribute_not_exists(pk)")
    return Put(item, condition="#rev = :seen", values={":seen": seen.revision})


def _directory(item: Item) -> HookDirectory:
    try:
        entries = {
            name: SubscriptionFilter(tuple(events), tuple(queues), tuple(types), active)
            for name, (events, queues, types, active) in jsontext.stored(str(item["of"])).items()
        }
        return HookDirectory(entries, number(item, "rev"))
    except Exception as error:
        raise UnreadableItem("the directory of webhooks", error) from error


def _item(subscription: Subscription) -> Item:
    return SUBSCRIPTION.item(subscription, pk=keys.hook(subscription.id), sk=keys.RECORD)


def _delivery_key(delivery_id: str) -> tuple[str, str]:
    subscription = HookDelivery(delivery_id).subscription
    return keys.hook(subscription), f"{keys.HOOK_DELIVERIES}{delivery_id}"


def _delivery_item(delivery: HookDelivery, again_ms: int | None) -> Item:
    pk, sk = _delivery_key(delivery.id)
    due: dict[str, Value] = {}
    if delivery.status is HookStatus.PENDING and again_ms is not None:
        due = {"wpk": keys.hooks_due(delivery.subscription), "wsk": keys.instant(again_ms)}
    return DELIVERY.item(delivery, pk=pk, sk=sk, ttl=delivery.created_ms // 1_000 + KEPT_S, **due)


def _written(success: HookDelivery) -> Mapping[str, Any]:
    it = success
    return {"id": it.id, "type": it.event.get("type"), "at": it.last_ms, "status": it.last_status,
            "took": it.took_ms, "event": it.event.get("id")}  # fmt: skip


def _ok(item: Item) -> HookSuccesses:
    latest = tuple(
        HookDelivery(
            each["id"],
            {"id": each["event"], "type": each["type"]},
            HookStatus.DELIVERED,
            attempts=1,
            last_ms=each["at"],
            last_status=each["status"],
            took_ms=each["took"],
            created_ms=each["at"],
            updated_ms=each["at"],
        )
        for each in jsontext.stored(str(item["of"]))
    )
    return HookSuccesses(number(item, "n"), latest)


SUBSCRIPTION = Record(
    Subscription,
    "webhook",
    {
        "url": "url",
        "events": words("events"),
        "queues": words("queues"),
        "types": words("job_types"),
        "meta": as_json("metadata"),
        "timeout": "timeout_s",
        "secrets": Attribute(
            "secrets", lambda it: jsontext.dumps([*it]), lambda text: tuple(jsontext.stored(text))
        ),
        "old": "old_until_ms",
        "line": words("line"),
        "paused": flag("paused"),
        "disabled": member("disabled", HookDisabled, "a webhook disabled as", HookDisabled.GONE),
        "faults": "breaker.faults",
        "until": "breaker.until_ms",
        "open": "breaker.open_ms",
        "trial": "breaker.trial_ms",
        "failing_since": "failing_ms",
        "failing": "failing",
        "failed": "failed",
        "failed_at": "failed_ms",
        "failed_status": "failed_status",
        "dead": "dead",
        "dead_id": "dead_id",
        "created": "created_ms",
        "updated": "updated_ms",
        "turn": "turn",
    },
    apart={"id": lambda item: str(item["pk"]).removeprefix(keys.hook(""))},
    always=("created", "updated", "turn"),
)
DELIVERY = Record(
    HookDelivery,
    "webhook delivery",
    {
        "event": as_json("event"),
        "status": member("status", HookStatus, "a webhook delivery with the status"),
        "attempts": "attempts",
        "turn": "turn",
        "next": "next_ms",
        "last": "last_ms",
        "code": "last_status",
        "took": "took_ms",
        "response": "response",
        "error": "error",
        "created": "created_ms",
        "updated": "updated_ms",
    },
    apart={"id": lambda item: str(item["sk"]).removeprefix(keys.HOOK_DELIVERIES)},
    always=("created", "updated", "turn"),
)  # fmt: skip
