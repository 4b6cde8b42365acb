"""Deliveries of webhooks: the attempts to post one event to one subscription."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from ojs.domain import jsontext
from ojs.domain.webhooks.subscription import Subscription
from ojs.records import record

# Pauses (s) before the second attempt and the following ones, each varied by 10 %.
DELAYS_S = (30, 120, 600, 3_600, 14_400, 43_200, 86_400)
_JITTER = 0.1
MAX_RETRY_AFTER_MS = 86_400_000
# Maximum size of an event. Only results are larger.
MAX_EVENT_BYTES = 200_000
# Characters of a response, or of an error, that are kept.
MAX_SHOWN = 1_024
KEPT_S = 30 * 86_400
ID = re.compile(r"del_([0-9a-f]{16})[0-9a-f]{28}")
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
class Posted:
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

    def attempted(self, posted: Posted, now_ms: int, chance: float) -> HookDelivery:
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
    found = ID.fullmatch(delivery)
    return f"sub_{found[1]}" if found else ""


def fitting(event: Mapping[str, Any]) -> Mapping[str, Any]:
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
