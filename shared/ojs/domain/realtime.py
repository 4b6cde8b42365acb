"""Realtime: names, limits, and records of connections. A message to a connection is a hint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import field
from enum import Enum, auto
from typing import Protocol

from ojs.domain.access import Principal
from ojs.domain.events.types import EventType
from ojs.domain.job import envelope
from ojs.records import record

# The subprotocol of the WebSocket binding.
SUBPROTOCOL = "ojs.v1"
# How long a ticket is valid (s), and a connection: API Gateway closes one after two hours.
TICKET_S = 60
CONNECTION_MS = 125 * 60_000
# Maximum number of channels of a connection, of subscribers of a channel, and of watchers of a job.
MAX_CHANNELS = 50
MAX_SUBSCRIBERS = 100
MAX_WATCHERS = 10
# The types of events that subscribers can select. Messages about the connection itself always come.
STATE_CHANGED, PROGRESS = "job.state_changed", "job.progress"
EVENT_TYPES = (
    STATE_CHANGED, PROGRESS, EventType.QUEUE_PAUSED.value, EventType.QUEUE_RESUMED.value,
)  # fmt: skip
ALL = "all"
_CHECKS = {"job": envelope.check_job_id, "queue": envelope.check_queue}
# Maximum size (bytes) of a message that a client sends, and of one that is sent to it.
MAX_RECEIVED = 4_096
MAX_SENT = 32 * 1_024


class Posted(Enum):
    """The outcome of a message to a connection."""

    POSTED = auto()
    # The connection no longer exists.
    GONE = auto()
    FAILED = auto()


class Connections(Protocol):
    """The connections of this deployment."""

    def post(self, connection: str, text: str) -> Posted:
        """Send a text to a connection. Raises nothing."""
        ...


@record(frozen=True)
class Connection:
    """A WebSocket connection.

    Attributes:
        id: ID of the connection, from API Gateway.
        principal: The caller that the ticket was issued to.
        until_ms: End of the connection (ms since the epoch). It can close earlier.
        group: Group of queues that it listens to as a worker.
        channels: Channels that it is subscribed to.
    """

    id: str
    principal: Principal
    until_ms: int = 0
    group: str | None = None
    channels: tuple[str, ...] = ()


@record(frozen=True)
class Listener:
    """The connection of a worker that has a free slot. `owner`: see `owner_of`.

    `tenant` is the tenant of a worker that sends and receives local names.
    """

    connection: str
    worker_id: str | None = None
    until_ms: int = 0
    owner: str = ""
    tenant: str | None = None


@record(frozen=True)
class Subscriber:
    """A connection that is subscribed to a channel.

    Attributes:
        connection: ID of the connection.
        channel: `queue:{name}`, `job:{id}` or `all`.
        principal: The caller of the connection.
        until_ms: End of the subscription (ms since the epoch). The connection can close earlier.
        event_types: Types of events that are sent; empty: all.
        batch: Whether one message can have several events.
        detail: Whether messages include the envelopes of the event log.
        digest: Whether it receives only the names of changed queues.
    """

    connection: str
    channel: str
    principal: Principal
    until_ms: int = 0
    event_types: tuple[str, ...] = ()
    batch: bool = False
    detail: bool = False
    digest: bool = False


@record(frozen=True)
class DirectoryEntries:
    """Who listens and subscribes, as read at one time.

    Attributes:
        groups: The queues of each group of workers that listens.
        queues: Queues that have subscribers.
        everything: Whether there are subscribers of all events.
        jobs: Whether any job has watchers.
        revoked: IDs of revoked keys.
        whole: False if the directory is too large: workers poll then.
    """

    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)
    queues: frozenset[str] = frozenset()
    everything: bool = False
    jobs: bool = False
    revoked: frozenset[str] = frozenset()
    whole: bool = True

    def groups_of(self, queue: str) -> list[str]:
        """Return the groups that may take jobs of a queue."""
        return [group for group, queues in self.groups.items() if queue in queues]

    def has_subscribers(self) -> bool:
        """Return whether anybody is subscribed to anything."""
        return bool(self.queues) or self.everything or self.jobs


def group_of(queues: Iterable[str]) -> str:
    """Return the name of the group of workers of these queues: a hash of their sorted names."""
    text = "\n".join(sorted(set(queues)))
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def render_message(text: str, tenant: str | None) -> str:
    """Return a message (JSON) as the caller of a connection has its names."""
    if tenant is None:
        return text
    from ojs.domain import tenant_names

    return tenant_names.render_message(text, tenant)


def owner_of(principal: Principal) -> str:
    """Return the mark of who opened a connection. Empty for a server without keys."""
    if principal.name is None and principal.key is None:
        return ""
    text = f"{principal.key or ''}|{principal.name or ''}"
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def check_channel(value: str) -> str:
    """Return a channel. Raises ValueError with the rule."""
    kind, _, name = value.partition(":")
    if value != ALL:
        if kind not in _CHECKS:
            raise ValueError("must be job:{id}, queue:{name}, or all")
        try:
            _CHECKS[kind](name)
        except ValueError as error:
            raise ValueError(f"must be {kind}: and a valid name, which {error}") from None
    return value


def check_event_type(value: str) -> str:
    """Return a type of event. Raises ValueError with the rule."""
    if value not in EVENT_TYPES:
        raise ValueError(f"must be one of {', '.join(EVENT_TYPES)}")
    return value
