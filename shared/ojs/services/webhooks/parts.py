"""Parts of a deployment that webhooks use: the message queue, the target, and allowed hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from ojs.domain.webhooks import HookDelivery, HookOutcome, Subscription
from ojs.records import record
from ojs.services.deliveries.parts import AllowedTargets


class HookQueue(Protocol):
    """Queues messages for the sender."""

    def put(self, messages: Sequence[dict[str, Any]], *, delay_s: int = 0) -> list[int]:
        """Send messages after `delay_s` seconds (0 to 900). Return the indexes of rejected ones."""
        ...


class HookTarget(Protocol):
    """Posts events."""

    def post(
        self, subscription: Subscription, delivery: HookDelivery, *, timeout_s: float | None = None
    ) -> HookOutcome:
        """Post the event of a delivery, and return the result. Raises no errors."""
        ...


@record(frozen=True)
class WebhookDependencies:
    """Parts that a deployment or a local server provides."""

    queue: HookQueue
    target: HookTarget
    allowed: AllowedTargets


def make_message(delivery: HookDelivery) -> dict[str, Any]:
    """Return the message of a stored delivery."""
    return {"delivery": delivery.id, "turn": delivery.turn}
