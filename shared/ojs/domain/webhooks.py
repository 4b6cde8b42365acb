"""Webhooks: subscriptions to events, and deliveries, the attempts to post an event to one.

Each request function imports this module, and its cold start delays first requests. Don't add slow
imports here.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlsplit

from ojs.domain import jsontext
from ojs.domain.delivery.breaker import Breaker, BreakerState
from ojs.domain.delivery.delivery import SUBSCRIPTION_ID, Delivery, Endpoint
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
# Duration (ms) from which an attempt is slow. The attempts of an endpoint whose breaker is closed
# end then, because invocations are shared. Afterwards they have `timeout_s`, in one invocation.
SLOW_MS = 3_000
ID = SUBSCRIPTION_ID
_OWN = "webhook."
# A subscription to this event could receive the failures of the same subscription.
_UNSUBSCRIBABLE = EventType.WEBHOOK_DEAD
# Fields of an answer that requests can send back.
SHOWN_BACK = frozenset(
    {
        "id", "created_at", "updated_at", "created_by", "last_delivery_at", "last_delivery_status",
        "success_count", "failure_count", "disabled_reason", "subscription", "etag",
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
    def configuration(self) -> dict[str, Any]:
        """The request that configures the subscription like this, without its secrets."""
        return {
            "url": self.url,
            "events": [*self.events],
            "filter": {"queues": [*self.queues], "job_types": [*self.job_types]},
            "metadata": dict(self.metadata),
            "timeout_s": self.timeout_s,
            "active": self.active,
        }

    @property
    def etag(self) -> str:
        """The version of the configuration. Also changes with a secret."""
        from ojs.domain.edits import make_version  # only requests of operators need it

        return make_version(self.configuration, self.updated_ms)

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

    @property
    def slow(self) -> bool:
        """Whether the endpoint responds slowly. Then its breaker is half open from the start."""
        return self.breaker.until_ms is not None and not self.breaker.open_ms

    def with_success(self) -> Subscription:
        """Return the subscription after a successful attempt."""
        return replace(self, failing_ms=None, failing=0, breaker=self.breaker.with_success())

    def with_attempts(self, now_ms: int, *, slow: bool) -> Subscription:
        """Return the subscription after attempts, whose outcomes it contains.

        `slow` means that one of them took SLOW_MS.
        """
        breaker = replace(self.breaker, trial_ms=None)
        if slow and breaker.state(now_ms) is not BreakerState.OPEN:
            breaker = Breaker(breaker.faults, now_ms)
        return replace(self, breaker=breaker)

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
class SubscriptionFilter:
    """What a subscription receives: patterns of event types, queues, and job types."""

    events: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    job_types: tuple[str, ...] = ()
    active: bool = True

    @classmethod
    def of(cls, subscription: Subscription) -> SubscriptionFilter:
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
    own = value.startswith(_OWN) and value in [*EventType] and value != _UNSUBSCRIBABLE
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


Events = Annotated[list[Annotated[str, After(_event)]], Field(min_length=1, max_length=MAX_EVENTS)]
_Secret = Annotated[str, After(_secret), Field(min_length=16, max_length=128)]


class SubscriptionFilterRequest(Model):
    """Further conditions of events. An event without the field does not match."""

    queues: Annotated[list[QueueName], Field(max_length=50)] | None = None
    job_types: Annotated[list[JobType], Field(max_length=100)] | None = None


class SubscriptionChange(Model):
    """A change of a subscription. An absent field keeps its value."""

    url: Endpoint | None = Field(None, description="https URL with public addresses")
    events: Events | None = Field(None, description="event types, or prefixes such as `job.*`")
    secret: _Secret | None = Field(None, description="required with another host")
    active: bool | None = Field(None, description="true also enables a disabled subscription")
    filter: SubscriptionFilterRequest | None = None
    metadata: Annotated[dict[str, Any], After(_metadata)] | None = None
    timeout_s: Annotated[int, NumberRange(5, 60)] | None = None


class SubscriptionRequest(SubscriptionChange):
    """A subscription."""

    url: Endpoint = Field(description="https URL with public addresses")
    events: Events = Field(description="event types, or prefixes such as `job.*`")
    secret: _Secret | None = Field(None, description="absent: the server makes one")


class SecretRequest(Model):
    """A new secret, or none: the server makes one."""

    secret: _Secret | None = None


def parse(kind: type[SubscriptionChange], raw: Mapping[str, Any]) -> SubscriptionChange:
    """Parse a request body. Raises InvalidRequest."""
    return kind.model_validate({key: it for key, it in raw.items() if key not in SHOWN_BACK})


def apply_change(before: Subscription, given: SubscriptionChange) -> Subscription:
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


# --- deliveries ---------------------------------------------------------------------------------

# Pauses (s) before the second attempt and the following ones, each varied by 10 %.
DELAYS_S = (30, 120, 600, 3_600, 14_400, 43_200, 86_400)
_JITTER = 0.1
MAX_RETRY_AFTER_MS = 86_400_000
# Maximum size of an event. Only results are larger.
MAX_EVENT_BYTES = 200_000
# Characters of a response, or of an error, that are kept.
MAX_SHOWN = 1_024
KEPT_S = 30 * 86_400
DELIVERY_ID = re.compile(r"del_([0-9a-f]{16})[0-9a-f]{28}")
TEST_TYPE = "webhook.test"
# Statuses of requests that can succeed later. Others from 400 to 499 are final.
_LATER = frozenset({408, 425, 429})
_GONE = 410
_OK, _REDIRECT, _FAULT = 200, 300, 500


class HookStatus(StrEnum):
    """The status of a delivery."""

    PENDING = "pending"
    DELIVERED = "delivered"
    DEAD = "dead"


class HookVerdict(StrEnum):
    """What follows from an attempt."""

    DELIVERED = "delivered"
    RETRY = "retry"
    DEAD = "dead"
    GONE = "gone"


@record(frozen=True)
class HookOutcome:
    """The result of an attempt. `status` is 0 without a response, and `error` then says why.

    `refused` means that the request was not sent because the address is not allowed.
    """

    status: int
    took_ms: int
    body: str = ""
    error: str = ""
    retry_after_ms: int | None = None
    refused: bool = False

    @property
    def verdict(self) -> HookVerdict:
        """What follows from the attempt."""
        if _OK <= self.status < _REDIRECT:
            return HookVerdict.DELIVERED
        if self.status == _GONE:
            return HookVerdict.GONE
        if self.fault or self.status in _LATER:
            return HookVerdict.RETRY
        return HookVerdict.DEAD

    @property
    def fault(self) -> bool:
        """Whether the attempt counts for the breaker: no response, or a server error."""
        return not self.refused and (not self.status or self.status >= _FAULT)


@record(frozen=True)
class HookDelivery:
    """A delivery as stored. Times in milliseconds since the epoch.

    `turn` increases with each change. A message that names another turn is obsolete.
    """

    id: str
    event: Mapping[str, Any] = field(default_factory=dict)
    status: HookStatus = HookStatus.PENDING
    attempts: int = 0
    turn: int = 0
    next_ms: int | None = None
    last_ms: int | None = None
    last_status: int = 0
    took_ms: int = 0
    response: str = ""
    error: str = ""
    created_ms: int = 0
    updated_ms: int = 0

    @property
    def subscription(self) -> str:
        """The ID of its subscription."""
        return subscription_of(self.id)

    def attempted(self, posted: HookOutcome, now_ms: int, chance: float) -> HookDelivery:
        """Return the delivery after an attempt. `chance` from 0 to 1 varies the next pause."""
        verdict, attempts = posted.verdict, self.attempts + 1
        status, next_ms = HookStatus.DEAD, None
        if verdict is HookVerdict.DELIVERED:
            status = HookStatus.DELIVERED
        elif verdict is HookVerdict.RETRY and attempts <= len(DELAYS_S):
            pause_ms = DELAYS_S[attempts - 1] * 1_000 * (1 - _JITTER + 2 * _JITTER * chance)
            asked_ms = min(posted.retry_after_ms or 0, MAX_RETRY_AFTER_MS)
            status, next_ms = HookStatus.PENDING, now_ms + max(round(pause_ms), asked_ms)
        return replace(
            self,
            status=status,
            attempts=attempts,
            turn=self.turn + 1,
            next_ms=next_ms,
            last_ms=now_ms,
            last_status=posted.status,
            took_ms=posted.took_ms,
            response=posted.body[:MAX_SHOWN],
            error=posted.error[:MAX_SHOWN],
            updated_ms=now_ms,
        )

    def waiting(self, next_ms: int, now_ms: int) -> HookDelivery:
        """Return the delivery with an attempt at `next_ms`, without counting one."""
        return replace(
            self,
            status=HookStatus.PENDING,
            turn=self.turn + 1,
            next_ms=next_ms,
            updated_ms=now_ms,
        )

    def given_up(self, error: str, now_ms: int) -> HookDelivery:
        """Return the dead delivery."""
        return replace(
            self,
            status=HookStatus.DEAD,
            turn=self.turn + 1,
            next_ms=None,
            error=error,
            updated_ms=now_ms,
        )


def delivery_id(subscription: str, event: Mapping[str, Any]) -> str:
    """Return the ID of the delivery of an event: the same each time, and sorted by time."""
    at_ms = round(datetime.fromisoformat(event["time"]).timestamp() * 1_000)
    digest = hashlib.sha256(f"{subscription}\0{event['id']}".encode()).hexdigest()[:16]
    return f"del_{subscription.removeprefix('sub_')}{at_ms:012x}{digest}"


def subscription_of(delivery: str) -> str:
    """Return the ID of the subscription of a delivery."""
    found = DELIVERY_ID.fullmatch(delivery)
    return f"sub_{found[1]}" if found else ""


def make_fit(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an event without its result if it is too large."""
    if jsontext.size_of(event) <= MAX_EVENT_BYTES:
        return event
    data = {name: it for name, it in event["data"].items() if name != "result"}
    return {**event, "data": {**data, "truncated": True}}


def make_test_event(subscription: Subscription, event_id: str, time: str) -> Mapping[str, Any]:
    """Return the event of a test."""
    return {
        "specversion": "1.0",
        "id": event_id,
        "type": TEST_TYPE,
        "source": "ojs://webhooks/test",
        "time": time,
        "subject": subscription.id,
        "data": {"subscription": subscription.id, "test": True},
    }
