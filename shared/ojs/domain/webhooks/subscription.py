"""Webhook subscriptions: an endpoint, the events that it receives, and its state."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlsplit

from ojs.domain import jsontext
from ojs.domain.delivery.breaker import Breaker
from ojs.domain.delivery.delivery import Delivery, Endpoint
from ojs.domain.errors import InvalidRequest
from ojs.domain.events.event import matches
from ojs.domain.events.query import check_type
from ojs.domain.events.types import EventType
from ojs.domain.fields import NumberRange
from ojs.domain.job.envelope import JobType, QueueName
from ojs.domain.requests import After, Field, Model
from ojs.records import record

MAX_SUBSCRIPTIONS = 100
MAX_EVENTS = 50
MAX_METADATA_BYTES = 4_096
DEFAULT_TIMEOUT_S = 30
# Time (ms) for which the secret before a rotation still signs.
OLD_SECRET_MS = 86_400_000
# A subscription is disabled after this time (ms) without a success and this number of failures.
FAILING_MS = 3 * 86_400_000
FAILING_COUNT = 20
ID = re.compile(r"sub_[0-9a-f]{16}")
_OWN = "webhook."
# A subscription to this event could receive the failures of its own deliveries.
_UNSUBSCRIBABLE = EventType.WEBHOOK_DEAD
# Fields of an answer that requests can send back.
SHOWN_BACK = frozenset(
    {
        "id", "created_at", "updated_at", "created_by", "last_delivery_at", "last_delivery_status",
        "success_count", "failure_count", "disabled_reason", "subscription",
    }
)  # fmt: skip


class HookDisabled(StrEnum):
    """The reason why the server disabled a subscription."""

    GONE = "gone"
    FAILING = "failing"
    ENDPOINT_NOT_ALLOWED = "endpoint_not_allowed"
    KEY_ENDED = "key_ended"


@record(frozen=True)
class Subscription:
    """A subscription as stored. Times in milliseconds since the epoch.

    `secrets` are the signing secret and, until `old_until_ms`, the one before. `line` contains the
    IDs of the access key that changed it last and of that key's ancestors. `failing_ms` is the time
    of the first failure after the last success, and `failing` the number of failures since.
    """

    id: str
    url: str = ""
    events: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: int = DEFAULT_TIMEOUT_S
    secrets: tuple[str, ...] = field(default=(), repr=False)
    old_until_ms: int | None = None
    line: tuple[str, ...] = ()
    paused: bool = False
    disabled: HookDisabled | None = None
    breaker: Breaker = field(default_factory=Breaker)
    failing_ms: int | None = None
    failing: int = 0
    # Failed attempts and dead deliveries since it was created, and the latest of each.
    failed: int = 0
    failed_ms: int | None = None
    failed_status: int = 0
    dead: int = 0
    dead_id: str = ""
    created_ms: int = 0
    updated_ms: int = 0
    turn: int = 0

    @property
    def active(self) -> bool:
        """Whether events are sent."""
        return not self.paused and self.disabled is None

    @property
    def target(self) -> Delivery:
        """The endpoint as a delivery, for the rules that both share."""
        return Delivery(self.id, endpoint=self.url, timeout_ms=1_000 * self.timeout_s)

    def signing_secrets(self, now_ms: int) -> Sequence[str]:
        """Return the secrets that sign a request now."""
        old = self.old_until_ms is not None and now_ms < self.old_until_ms
        return self.secrets if old else self.secrets[:1]

    def begun(self) -> Subscription:
        """Return the enabled subscription, without its failures."""
        return replace(
            self, paused=False, disabled=None, breaker=Breaker(), failing_ms=None, failing=0
        )

    def after_failure(self, now_ms: int, status: int, *, fault: bool) -> Subscription:
        """Return the subscription after a failed attempt, disabled if it fails for days."""
        since_ms = self.failing_ms or now_ms
        after = replace(
            self,
            failing_ms=since_ms,
            failing=self.failing + 1,
            failed=self.failed + 1,
            failed_ms=now_ms,
            failed_status=status,
            breaker=self.breaker.after_fault(now_ms) if fault else self.breaker,
        )
        if now_ms - since_ms < FAILING_MS or after.failing < FAILING_COUNT:
            return after
        return replace(after, disabled=after.disabled or HookDisabled.FAILING)


@record(frozen=True)
class Wanted:
    """What a subscription receives: patterns of event types, queues, and job types."""

    events: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
    active: bool = True

    @classmethod
    def of(cls, subscription: Subscription) -> Wanted:
        """Return what a subscription receives."""
        it = subscription
        return cls(it.events, it.queues, it.job_types, it.active)

    def matches(self, kind: str, data: Mapping[str, Any]) -> bool:
        """Return whether the subscription receives an event.

        Events of webhooks are received only if their type is named, so that no subscription sends
        itself events without end.
        """
        own = kind.startswith(_OWN)
        return (
            self.active
            and (kind in self.events if own else matches(kind, self.events))
            and kind != _UNSUBSCRIBABLE
            and (not self.queues or data.get("queue") in self.queues)
            and (not self.job_types or data.get("job_type") in self.job_types)
        )


def _event(value: str) -> str:
    known = any(matches(kind, (value,)) for kind in EventType if not kind.startswith(_OWN))
    own = value.startswith(_OWN) and value in EventType and value != _UNSUBSCRIBABLE
    if not (known or own):
        raise ValueError(
            "must match an event type that webhooks can receive, such as job.completed, job.*, or *"
        )
    return check_type(value)


def _secret(value: str) -> str:
    if not value.isprintable():
        raise ValueError("must contain only printable characters")
    return value


def _metadata(value: dict[str, Any]) -> dict[str, Any]:
    if jsontext.size_of(value) > MAX_METADATA_BYTES:
        raise ValueError(f"must have at most {MAX_METADATA_BYTES} bytes")
    return value


_Secret = Annotated[str, After(_secret), Field(min_length=16, max_length=128)]


class HookFilter(Model):
    """Further conditions of events. An event without the field does not match."""

    queues: Annotated[list[QueueName], Field(max_length=50)] | None = None
    job_types: Annotated[list[JobType], Field(max_length=100)] | None = None


class SubscriptionChange(Model):
    """A change of a subscription. An absent field keeps its value."""

    url: Endpoint | None = Field(None, description="https URL with public addresses")
    events: (
        Annotated[
            list[Annotated[str, After(_event)]], Field(min_length=1, max_length=MAX_EVENTS)
        ]
        | None
    ) = Field(None, description="event types, or prefixes such as `job.*`")
    secret: _Secret | None = Field(None, description="required with another host")
    active: bool | None = Field(None, description="true also enables a disabled subscription")
    filter: HookFilter | None = None
    metadata: Annotated[dict[str, Any], After(_metadata)] | None = None
    timeout_s: Annotated[int, NumberRange(5, 60)] | None = None


class SubscriptionRequest(SubscriptionChange):
    """A subscription."""

    secret: _Secret | None = Field(None, description="absent: the server makes one")


class RotateRequest(Model):
    """A new secret, or none: the server makes one."""

    secret: _Secret | None = None


def parse(kind: type[SubscriptionChange], raw: Mapping[str, Any]) -> SubscriptionChange:
    """Parse a request body. Raises InvalidRequest."""
    return kind.model_validate({key: it for key, it in raw.items() if key not in SHOWN_BACK})


def changed(before: Subscription, given: SubscriptionChange) -> Subscription:
    """Return a subscription after a request. Its new secret, if any, replaces all others.

    Raises:
        InvalidRequest: The host changes and the secret doesn't.
    """
    sent: dict[str, Any] = {}
    for name in ("url", "timeout_s", "metadata"):
        if (value := getattr(given, name)) is not None:
            sent[name] = value
    if given.events is not None:
        sent["events"] = tuple(dict.fromkeys(given.events))
    if given.filter is not None:
        sent["queues"] = tuple(dict.fromkeys(given.filter.queues or ()))
        sent["job_types"] = tuple(dict.fromkeys(given.filter.job_types or ()))
    after = replace(before, **sent)
    if before.url and _host(before.url) != _host(after.url):
        if given.secret is None or given.secret in before.secrets:
            rule = "must be new for another host. Send a secret that was not used before"
            raise InvalidRequest("secret", rule)
        after = replace(after.begun(), paused=after.paused)
    if given.secret is not None:
        after = replace(after, secrets=(given.secret,), old_until_ms=None)
    if given.active is not None:
        after = after.begun() if given.active else replace(after, paused=True)
    return after


def _host(url: str) -> tuple[object, ...]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port
