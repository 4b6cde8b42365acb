"""WebSocket connections: what a client sends, and the answers (ojs-realtime section 3)."""

from __future__ import annotations

from typing import Any

from ojs.clock import Clock
from ojs.domain import jsontext, socket_messages
from ojs.domain.access import Principal, Scope
from ojs.domain.errors import NotFound, OjsError, Unsupported, forbidden
from ojs.domain.events.event import event_id
from ojs.domain.realtime import (
    ALL,
    CONNECTION_MS,
    MAX_CHANNELS,
    MAX_SUBSCRIBERS,
    MAX_WATCHERS,
    Connection,
    Subscriber,
)
from ojs.domain.realtime_events import read_time
from ojs.domain.socket_messages import Resume, Subscribe, Unsubscribe
from ojs.services.realtime.event_replay import EventReplay
from ojs.store.jobs.records import JobStore
from ojs.store.queues.queues import QueueStore
from ojs.store.realtime.connections import ConnectionStore
from ojs.store.realtime.directory import RealtimeDirectory
from ojs.store.realtime.listeners import ListenerStore
from ojs.store.realtime.subscribers import SubscriberStore

# How old (ms) the list of revoked keys can be that a subscription is checked with.
_REMEMBERED_MS = 10_000
_NO_EVENTS = "This deployment sends no events: its setting realtime is wake."
_UNKNOWN = "The event ID is not known. Read the current state over HTTP."
_ENDED = "The connection has ended. Connect again with a new ticket."


class MessageRefused(Exception):
    """A message that is refused for a reason that only connections have."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Sockets:
    """Serves the messages of clients. Nothing is kept between two messages but in the table."""

    def __init__(
        self,
        *,
        connections: ConnectionStore,
        listeners: ListenerStore,
        subscribers: SubscriberStore,
        realtime_directory: RealtimeDirectory,
        jobs: JobStore,
        queues: QueueStore,
        event_replay: EventReplay | None,
        clock: Clock,
        realtime: str,
    ) -> None:
        """`event_replay` is None where no messages can be sent to connections."""
        self._connections = connections
        self._listeners = listeners
        self._subscribers = subscribers
        self._directory = realtime_directory
        self._jobs = jobs
        self._queues = queues
        self._replay = event_replay
        self._clock = clock
        self._events = realtime == "all"

    def add_connection(self, connection: str, principal: Principal) -> None:
        """Store a new connection. One call, safe to repeat."""
        until_ms = self._clock.now_ms() + CONNECTION_MS
        if principal.until_ms is not None:
            until_ms = min(until_ms, principal.until_ms)
        if principal.tenant is not None:
            principal = principal.with_tenant(principal.tenant)
        self._connections.add(Connection(connection, principal, until_ms))

    def remove_connection(self, connection: str) -> None:
        """Delete a connection, its subscriptions, and its listener. Safe to repeat."""
        found = self._connections.remove(connection)
        if found is None:
            return
        if found.group is not None:
            self._listeners.remove(found.group, connection)
        for channel in found.channels:
            self._subscribers.remove(channel, connection)

    def handle(self, connection: str, text: str) -> str:
        """Return the answer to a message. Raises nothing that is meant for the client."""
        message: socket_messages.Message | None = None
        try:
            message = socket_messages.parse(text)
            answer = self._answer(connection, message)
        except (OjsError, MessageRefused) as error:
            answer = {"type": "error", "code": error.code, "message": error.message}
            if isinstance(message, Unsubscribe):
                answer["channel"] = message.channel
        return jsontext.dumps(answer)

    def _answer(self, connection: str, message: socket_messages.Message) -> dict[str, Any]:
        match message:
            case Subscribe():
                return self._subscribe(connection, message)
            case Unsubscribe():
                return self._unsubscribe(connection, message.channel)
            case Resume():
                return self._resume(connection, message.last_event_id)
            case _ if message.action == "ping":
                return {"type": "pong"}
            case _:
                return {"type": "hello", "connection": connection}

    # --- subscriptions --------------------------------------------------------------------------

    def _subscribe(self, connection: str, message: Subscribe) -> dict[str, Any]:
        if not self._events:
            raise Unsupported(_NO_EVENTS)
        found = self._there(connection)
        channel = self._permit(found.principal, message.channel)
        added = channel not in found.channels
        if added and len(found.channels) >= MAX_CHANNELS:
            rule = f"A connection can subscribe to {MAX_CHANNELS} channels."
            raise MessageRefused("too_many", rule)
        # Before the subscriber is stored, so that the end of the connection deletes it.
        if not self._connections.add_channel(connection, channel):
            raise MessageRefused("connection_ended", _ENDED)
        now_ms = self._clock.now_ms()
        subscriber = Subscriber(
            connection,
            channel,
            found.principal,
            found.until_ms,
            event_types=tuple(message.event_types or ()),
            batch=message.batch,
            detail=message.detail,
            digest=message.digest,
        )
        if not self._subscribers.add(subscriber, now_ms=now_ms):
            if added:
                self._connections.remove_channel(connection, channel)
            most = MAX_WATCHERS if channel.startswith("job:") else MAX_SUBSCRIBERS
            raise MessageRefused(
                "too_many", f"The channel has {most} subscribers, the most it can have."
            )
        self._directory.note_channel(channel)
        # To resume from: a subscription takes effect some seconds later.
        position = event_id(now_ms, channel, connection)
        answer: dict[str, Any] = {
            "type": "subscribed",
            "channel": message.channel,
            "last_event_id": position,
        }
        if message.event_types is not None:
            answer["event_types"] = message.event_types
        if channel.startswith("job:"):
            # Read after the watcher is stored: a change in between is an event as well.
            answer["state"] = self._job(channel)[1]
        return answer

    def _unsubscribe(self, connection: str, channel: str) -> dict[str, Any]:
        stored = _stored(self._there(connection).principal, channel)
        self._subscribers.remove(stored, connection)
        self._connections.remove_channel(connection, stored)
        return {"type": "unsubscribed", "channel": channel}

    def _resume(self, connection: str, last_event_id: str) -> dict[str, Any]:
        """Send the events after one, on the channels that the connection has subscribed to."""
        if self._replay is None or not self._events:
            raise Unsupported(_NO_EVENTS)
        after_ms = read_time(last_event_id, self._clock.now_ms())
        if after_ms is None:
            raise MessageRefused("unknown_event_id", _UNKNOWN)
        found = self._there(connection)
        self._check_key(found.principal)
        now_ms = self._clock.now_ms()
        each = (self._subscribers.get(one, connection, now_ms=now_ms) for one in found.channels)
        there = [one for one in each if one is not None]
        return {"type": "resumed", "events": self._replay.send(there, after_ms)}

    def _check_key(self, principal: Principal) -> None:
        """Raise PermissionDenied if the key of a connection was revoked since it was opened."""
        if principal.key in self._directory.read(remembered_ms=_REMEMBERED_MS).revoked:
            raise forbidden()

    def _permit(self, principal: Principal, given: str) -> str:
        """Return the stored form of a channel. Raise NotFound for one that doesn't exist or is out
        of reach, InvalidRequest for that of another tenant, PermissionDenied for a missing scope
        or a revoked key.
        """
        channel = _stored(principal, given)
        of_job = channel.startswith("job:")
        needed = Scope.JOBS_READ if of_job else Scope.ADMIN_READ
        if needed not in principal.scopes:
            raise forbidden()
        self._check_key(principal)
        if channel == ALL:
            return channel
        queue = self._job(channel)[0] if of_job else channel.partition(":")[2]
        if not principal.reaches(queue):
            raise NotFound(*_named(given))
        if not of_job and self._queues.get(queue) is None:
            raise NotFound(*_named(given))
        return channel

    def _job(self, channel: str) -> tuple[str, str]:
        """Return the queue and the state of the job of a channel. Raises NotFound."""
        record = self._jobs.read_record(channel.partition(":")[2])
        if record is None:
            raise NotFound(*_named(channel))
        return record.queue, record.state.value

    def _there(self, connection: str) -> Connection:
        found = self._connections.get(connection, now_ms=self._clock.now_ms())
        if found is None:
            raise MessageRefused("connection_ended", _ENDED)
        return found


def _stored(principal: Principal, channel: str) -> str:
    """Return the stored form of a channel. Raises InvalidRequest for that of another tenant."""
    if principal.tenant is None:
        return channel
    from ojs.domain import tenant_names

    return tenant_names.format_channel(channel, principal.tenant)


def _named(channel: str) -> tuple[str, str]:
    """Return what a channel names, and its name."""
    kind, _, name = channel.partition(":")
    return kind, name
