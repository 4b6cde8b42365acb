"""Subscribers of channels: of a queue, of all events, and of one job."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from ojs.domain import jsontext
from ojs.domain.realtime import ALL, MAX_SUBSCRIBERS, MAX_WATCHERS, Subscriber
from ojs.store.realtime.tickets import format_caller, parse_caller, to_ttl
from ojs.store.table import keys
from ojs.store.table.errors import LostRace
from ojs.store.table.record import Attribute, Record, flag, words
from ojs.store.table.table import Put, Table, Update
from ojs.store.table.values import Item, Value

SUBSCRIBER = Record(
    Subscriber,
    "a subscriber",
    {
        "caller": Attribute("principal", format_caller, parse_caller),
        "until": "until_ms",
        "types": words("event_types"),
        "batch": flag("batch"),
        "detail": flag("detail"),
        "digest": flag("digest"),
    },
    apart={
        "connection": lambda item: str(item["sk"]),
        "channel": lambda item: _channel(str(item["pk"])),
    },
)
# What the attributes of watchers in the item of a job begin with.
_WATCHER = "w_"


class SubscriberStore:
    """The store of subscribers.

    A subscriber of a queue or of all events is an item. Those of a job share one item, so that the
    watchers of many jobs are read with one call.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, subscriber: Subscriber, *, now_ms: int) -> bool:
        """Store a subscriber, or replace its options; return False if the channel has too many.

        Two calls, safe to repeat. Concurrent requests can exceed the limit by their number.
        """
        job = _job(subscriber.channel)
        if job is not None:
            return self._watch(job, subscriber, now_ms)
        found = self.list_of(subscriber.channel, now_ms=now_ms)
        if sum(each.connection != subscriber.connection for each in found) >= MAX_SUBSCRIBERS:
            return False
        # No condition: the connection subscribes again with other options.
        self._table.put(Put(_item(subscriber)))
        return True

    def _watch(self, job: str, subscriber: Subscriber, now_ms: int) -> bool:
        found = _watchers(self._table.get(keys.watchers(job), keys.RECORD))
        ended = [name for name, each in found.items() if each.until_ms <= now_ms]
        name = _name(subscriber.connection)
        others = [each for each in found if each not in ended and each != name]
        if len(others) >= MAX_WATCHERS:
            return False
        latest_ms = max([subscriber.until_ms, *(found[each].until_ms for each in others)])
        # No condition: each watcher has a separate attribute, and an ended one never returns.
        self._table.update(
            Update(
                keys.watchers(job),
                keys.RECORD,
                set={name: jsontext.dumps(_item(subscriber)), "ttl": to_ttl(latest_ms)},
                remove=[each for each in ended if each != name],
            )
        )
        return True

    def get(self, channel: str, connection: str, *, now_ms: int) -> Subscriber | None:
        """Return a subscription of a connection. One consistent read."""
        if (job := _job(channel)) is not None:
            item = self._table.get(keys.watchers(job), keys.RECORD)
            found = _watchers(item).get(_name(connection))
        else:
            item = self._table.get(_partition(channel), connection)
            found = None if item is None else SUBSCRIBER.of(item)
        return found if found is not None and found.until_ms > now_ms else None

    def remove(self, channel: str, connection: str) -> None:
        """Delete a subscriber. One call, safe to repeat."""
        if (job := _job(channel)) is None:
            self._table.delete(_partition(channel), connection)
            return
        removed = Update(
            keys.watchers(job),
            keys.RECORD,
            remove=[_name(connection)],
            condition="attribute_exists(pk)",
        )
        # Race: its time to live has ended.
        with suppress(LostRace):
            self._table.update(removed, tell_loser=False)

    def list_of(self, channel: str, *, now_ms: int) -> list[Subscriber]:
        """Return the subscribers of a queue, or of all events. One consistent query."""
        items = self._table.query_all("pk = :channel", {":channel": _partition(channel)})
        return [each for each in map(SUBSCRIBER.of, items) if each.until_ms > now_ms]

    def list_watching(self, jobs: Iterable[str], *, now_ms: int) -> dict[str, list[Subscriber]]:
        """Return the subscribers of jobs, by job ID. One consistent call for 100 jobs."""
        found = self._table.batch_get((keys.watchers(job), keys.RECORD) for job in jobs)
        watching = {}
        for (pk, _), item in found.items():
            each = [one for one in _watchers(item).values() if one.until_ms > now_ms]
            if each:
                watching[pk.removeprefix(keys.watchers(""))] = each
        return watching


def _job(channel: str) -> str | None:
    kind, _, name = channel.partition(":")
    return name if kind == "job" else None


def _partition(channel: str) -> str:
    if (job := _job(channel)) is not None:
        return keys.watchers(job)
    return keys.subscribers(None if channel == ALL else channel.partition(":")[2])


def _channel(pk: str) -> str:
    """Return the channel of a partition."""
    for kind, prefix in (("job", keys.watchers("")), ("queue", keys.subscribers(""))):
        if pk.startswith(prefix):
            return f"{kind}:{pk.removeprefix(prefix)}"
    return ALL


def _name(connection: str) -> str:
    """Return the attribute of a watcher.

    IDs of API Gateway have characters that are invalid in an expression.
    """
    return _WATCHER + connection.encode("utf-8").hex()


def _item(subscriber: Subscriber) -> dict[str, Value]:
    place = {"pk": _partition(subscriber.channel), "sk": subscriber.connection}
    return SUBSCRIBER.item(subscriber, **place, ttl=to_ttl(subscriber.until_ms))


def _watchers(item: Item | None) -> dict[str, Subscriber]:
    """Return the watchers in the item of a job, by attribute."""
    return {
        name: SUBSCRIBER.of(jsontext.stored(str(text)))
        for name, text in (item or {}).items()
        if name.startswith(_WATCHER)
    }
