"""Sends events to subscribers as the stream brings them.

This is a second reader of the stream, without a window: a change reaches subscribers within a
second, while the projection waits for more records. It writes nothing, except that it deletes
subscribers whose connections have ended. After a failure, records are redelivered, and their events
are sent twice with the same IDs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

from aws_lambda_powertools import Logger

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.errors import UnknownForm
from ojs.domain.job.job import Job
from ojs.domain.realtime import ALL, DirectoryEntries, Subscriber
from ojs.domain.realtime_events import LiveEvent, from_log, is_wanted, make_progress
from ojs.projections import events, records
from ojs.projections.queues import QueueChange
from ojs.projections.records import Change, Malformed
from ojs.projections.transitions import happened
from ojs.store.jobs.records import JobStore
from ojs.store.realtime.directory import RealtimeDirectory
from ojs.store.realtime.subscribers import SubscriberStore
from ojs.store.table import keys, values
from ojs.store.table.values import number

logger = Logger()

# How old (ms) the directory and the subscribers of a channel can be.
REMEMBERED_MS = 2_000
# How often (ms) a subscriber of a digest receives one.
DIGEST_MS = 1_000
_CHANNELS = 1_000
_DIGESTS = 10_000
# A stored value has millionths.
_PERCENT = 10_000
_JOB = "job:"

Subscribed = tuple[Subscriber, Sequence[LiveEvent]]


class Sender(Protocol):
    """Sends events (`ojs.services.realtime.event_sender`)."""

    def send(self, subscribed: Sequence[Subscribed]) -> set[str]:
        """Send events; return the IDs of connections that no longer exist."""
        ...


class EventNotifier:
    """Finds the subscribers of what a batch of stream records changed. One per container."""

    def __init__(
        self,
        *,
        directory: RealtimeDirectory,
        subscribers: SubscriberStore,
        jobs: JobStore,
        sender: Sender,
        clock: Clock,
        service: str,
    ) -> None:
        self._directory = directory
        self._subscribers = subscribers
        self._jobs = jobs
        self._sender = sender
        self._clock = clock
        self._service = service
        # By channel: when its subscribers were read (ms).
        self._read: BoundedMap[str, tuple[int, list[Subscriber]]] = BoundedMap(_CHANNELS)
        # By connection and channel: when a digest was sent (ms), and the queues since.
        self._digests: BoundedMap[tuple[str, str], tuple[int, dict[str, LiveEvent]]]
        self._digests = BoundedMap(_DIGESTS)

    def run(self, raw_records: Sequence[Mapping[str, Any]]) -> int:
        """Send the events of records, in their order. Safe to repeat.

        Returns:
            The number of subscriptions that received something. Without subscribers, the only call
            is one query in two seconds.

        Raises:
            OjsError: A read failed. The batch must be redelivered.
        """
        directory = self._directory.read(remembered_ms=REMEMBERED_MS)
        if not directory.has_subscribers():
            return 0
        by_channel: defaultdict[str, list[LiveEvent]] = defaultdict(list)
        for event in self._events(raw_records):
            for channel in event.channels:
                if _in_use(channel, directory):
                    by_channel[channel].append(event)
        now_ms = self._clock.now_ms()
        subscribed = [
            (subscriber, wanted)
            for subscriber in self._of(by_channel, now_ms)
            if subscriber.principal.key not in directory.revoked
            and (wanted := self._wanted(subscriber, by_channel[subscriber.channel], now_ms))
        ]
        self._remove(self._sender.send(subscribed), subscribed)
        return len(subscribed)

    # --- events ---------------------------------------------------------------------------------

    def _events(self, raw_records: Sequence[Mapping[str, Any]]) -> Iterator[LiveEvent]:
        """Return the events of records, in order.

        The projection reports records that it can't read.
        """
        reports = [raw for raw in raw_records if _sort_key(raw) == keys.PROGRESS]
        ids = {_job_id(raw) for raw in reports}
        jobs = self._jobs.read_records(ids, consistent=False) if ids else {}
        for raw in raw_records:
            try:
                if _sort_key(raw) == keys.PROGRESS:
                    yield from _progress(raw, jobs)
                    continue
                for change in records.parse(raw):
                    yield from self._of_change(change)
            except (Malformed, UnknownForm, LookupError, TypeError, ValueError) as error:
                logger.info("Stream record skipped", extra={"reason": type(error).__name__})

    def _of_change(self, change: Change) -> Iterator[LiveEvent]:
        for before, after in change.jobs:
            what = happened(before, after, written_ms=change.written_ms)
            # Errors that aren't on the job's record are not read.
            errors = events.failures_of(what, {})
            log = (
                events.of_job(one, self._service, errors, results=False)
                for one in events.explained(what, errors)
                if one.kind in events.ROWS
            )
            yield from from_log([event.to_dict() for event in log])
        if isinstance(change.other, QueueChange):
            for event in change.events(self._service):
                yield from from_log([event.to_dict()])

    # --- subscribers ----------------------------------------------------------------------------

    def _of(self, by_channel: Mapping[str, Sequence[LiveEvent]], now_ms: int) -> list[Subscriber]:
        """Return the subscribers of channels."""
        jobs = [channel.removeprefix(_JOB) for channel in by_channel if channel.startswith(_JOB)]
        found = list(
            chain(*self._subscribers.list_watching(jobs, now_ms=now_ms).values()) if jobs else ()
        )
        for channel in by_channel:
            if not channel.startswith(_JOB):
                found += self._of_channel(channel, now_ms)
        return found

    def _of_channel(self, channel: str, now_ms: int) -> list[Subscriber]:
        read_ms, found = self._read.get(channel, (None, []))
        if read_ms is None or not 0 <= now_ms - read_ms < REMEMBERED_MS:
            found = self._subscribers.list_of(channel, now_ms=now_ms)
            self._read.put(channel, (now_ms, found))
        return found

    def _wanted(
        self, subscriber: Subscriber, happening: Sequence[LiveEvent], now_ms: int
    ) -> Sequence[LiveEvent]:
        """Return the events for a subscriber now. For a digest: the latest of each queue."""
        wanted = [event for event in happening if is_wanted(subscriber, event)]
        if not subscriber.digest:
            return wanted
        key = (subscriber.connection, subscriber.channel)
        sent_ms, left = self._digests.get(key, (0, {}))
        left = left | {event.queue: event for event in wanted}
        if 0 <= now_ms - sent_ms < DIGEST_MS:
            # The next digest names these queues. Clients read again some time after a digest.
            self._digests.put(key, (sent_ms, left))
            return []
        self._digests.put(key, (now_ms, {}))
        return list(left.values())

    def _remove(self, gone: set[str], subscribed: Sequence[Subscribed]) -> None:
        for subscriber, _ in subscribed:
            if subscriber.connection in gone:
                self._subscribers.remove(subscriber.channel, subscriber.connection)
                self._read.forget(subscriber.channel)


def _in_use(channel: str, directory: DirectoryEntries) -> bool:
    """Return whether a channel may have subscribers."""
    if channel == ALL:
        return directory.everything
    kind, _, name = channel.partition(":")
    return directory.jobs if kind == "job" else name in directory.queues


def _sort_key(raw: Mapping[str, Any]) -> str:
    return str(raw["dynamodb"]["Keys"]["sk"]["S"])


def _job_id(raw: Mapping[str, Any]) -> str:
    return str(raw["dynamodb"]["Keys"]["pk"]["S"]).removeprefix(keys.job(""))


def _progress(raw: Mapping[str, Any], jobs: Mapping[str, Job]) -> Iterator[LiveEvent]:
    """Return the event of a report of progress; none for data alone, or a removed job."""
    job = jobs.get(_job_id(raw))
    image = raw["dynamodb"].get("NewImage")
    if job is None or image is None:
        return
    item, before = values.unpack(image), values.unpack(raw["dynamodb"].get("OldImage", {}))
    value, at_ms = number(item, "value"), number(item, "updated")
    message = jsontext.stored(str(item["told"])).get("message")
    same = (before.get("run"), before.get("value")) == (item["run"], value) and message is None
    if value >= 0 and not same:
        cause = f"{item['run']!s}|{value}"
        yield make_progress(cause, job.id, job.queue, value // _PERCENT, message, at_ms)
