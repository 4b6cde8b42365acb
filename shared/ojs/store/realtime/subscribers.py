"""Subscribers of channels: of a queue, of all events, and of one job."""

from __future__ import annotations

from collections.abc import Iterable

from ojs.domain.realtime import MAX_SUBSCRIBERS, MAX_WATCHERS, Subscriber
from ojs.store.realtime.connections import caller, ttl_s
from ojs.store.table import keys
from ojs.store.table.record import Record, flag, words
from ojs.store.table.table import Put, Table

SUBSCRIBER = Record(
    Subscriber,
    "a subscriber",
    {
        "channel": "channel",
        "caller": caller(),
        "line": words("line"),
        "until": "until_ms",
        "types": words("event_types"),
        "batch": flag("batch"),
        "detail": flag("detail"),
        "digest": flag("digest"),
    },
    apart={"connection": lambda item: str(item["sk"])},
)


class SubscriberStore:
    """The store of subscribers."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, subscriber: Subscriber, *, now_ms: int) -> bool:
        """Store a subscriber; return False if the channel has too many.

        Two calls. Concurrent requests can exceed the limit by their number.
        """
        pk = _partition(subscriber.channel)
        most = MAX_WATCHERS if subscriber.channel.startswith("job:") else MAX_SUBSCRIBERS
        others = [each for each in self._of(pk, now_ms) if each.connection != subscriber.connection]
        if len(others) >= most:
            return False
        # No condition: the connection subscribes again with other options.
        place = {"pk": pk, "sk": subscriber.connection}
        self._table.put(Put(SUBSCRIBER.item(subscriber, **place, ttl=ttl_s(subscriber.until_ms))))
        return True

    def remove(self, channel: str, connection: str) -> None:
        """Delete a subscriber. One call, safe to repeat."""
        self._table.delete(_partition(channel), connection)

    def of(self, channel: str, *, now_ms: int) -> list[Subscriber]:
        """Return the subscribers of a channel. One query."""
        return self._of(_partition(channel), now_ms)

    def watching(self, job_ids: Iterable[str], *, now_ms: int) -> dict[str, list[Subscriber]]:
        """Return the subscribers of jobs, by job ID. One consistent query for each job."""
        return {job_id: self._of(keys.watchers(job_id), now_ms) for job_id in job_ids}

    def _of(self, pk: str, now_ms: int) -> list[Subscriber]:
        found = self._table.query_all("pk = :channel", {":channel": pk})
        each = map(SUBSCRIBER.of, found)
        return [subscriber for subscriber in each if subscriber.until_ms > now_ms]


def _partition(channel: str) -> str:
    kind, _, name = channel.partition(":")
    if kind == "job":
        return keys.watchers(name)
    return keys.subscribers(name if kind == "queue" else None)
