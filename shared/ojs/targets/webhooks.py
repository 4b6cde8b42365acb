"""Posts events to the endpoints of webhooks."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence
from urllib.parse import urljoin

from ojs.domain import jsontext
from ojs.domain.delivery import signing
from ojs.domain.delivery.outcome import retry_after_ms
from ojs.domain.webhooks import MAX_SHOWN, HookDelivery, HookOutcome, Subscription
from ojs.targets.guard import EndpointAddress, TimeLimit
from ojs.targets.https_target import (
    BLOCKED,
    HttpAnswer,
    NoAnswer,
    SignedTarget,
    send_request,
    send_within,
)

PREFIX = "whsec_"
_REDIRECTS = frozenset({307, 308})
_MAX_REDIRECTS = 3


class WebhookTarget(SignedTarget):
    """Posts events, each signed for its subscription."""

    def post(
        self, subscription: Subscription, delivery: HookDelivery, *, timeout_s: float | None = None
    ) -> HookOutcome:
        """Post the event of a delivery, and return the result. Raises no errors.

        Args:
            subscription: The subscription.
            delivery: The delivery.
            timeout_s: Time limit. Default: that of the subscription.
        """
        began_ms = self._clock.now_ms()
        most_s = subscription.timeout_s if timeout_s is None else timeout_s
        with self._limit(most_s) as limit:
            found = send_within(
                limit, round(1_000 * most_s), lambda: self._follow(subscription, delivery, limit)
            )
        now_ms = self._clock.now_ms()
        took_ms = max(0, now_ms - began_ms)
        if isinstance(found, NoAnswer):
            return HookOutcome(0, took_ms, error=found.message, refused=found.code == BLOCKED)
        status, headers, text = found
        return HookOutcome(
            status,
            took_ms,
            text[:MAX_SHOWN].decode("utf-8", "replace"),
            retry_after_ms=retry_after_ms(headers.get("retry-after"), now_ms=now_ms),
        )

    def _follow(
        self, subscription: Subscription, delivery: HookDelivery, limit: TimeLimit
    ) -> HttpAnswer:
        """Post an event, and follow redirects to the same host."""
        url, body = subscription.url, jsontext.dumps(delivery.event).encode()
        to = self._place(url)
        for _ in range(_MAX_REDIRECTS + 1):
            headers = self._all_headers(subscription, delivery, to, body)
            answer = send_request(self._connector, to, headers, body, limit, MAX_SHOWN)
            location = answer[1].get("location")
            if answer[0] not in _REDIRECTS or not location:
                return answer
            url = urljoin(url, location)
            next_one = self._place(url)
            if (to.secure, to.host, to.port) != (next_one.secure, next_one.host, next_one.port):
                return answer
            to = next_one
        return answer

    def _all_headers(
        self,
        subscription: Subscription,
        delivery: HookDelivery,
        to: EndpointAddress,
        body: bytes,
    ) -> Mapping[str, str]:
        secrets = subscription.signing_secrets(self._clock.now_ms())
        signed = self._headers(to, body, secrets, delivery.id)
        return {
            "X-OJS-Event-Type": str(delivery.event["type"]),
            "X-OJS-Delivery-ID": delivery.id,
            "X-OJS-Subscription-ID": subscription.id,
            **signed,
            **make_standard_headers(secrets, delivery.id, signed[signing.TIMESTAMP], body),
        }


def make_standard_headers(
    secrets: Sequence[str], name: str, timestamp: str, body: bytes
) -> dict[str, str]:
    """Build the headers of Standard Webhooks 1.0.

    They are empty if no secret has its format: `whsec_`, followed by base64.

    Args:
        secrets: Signing secrets.
        name: ID of the delivery.
        timestamp: Seconds since the epoch.
        body: Body of the request.
    """
    signed = f"{name}.{timestamp}.".encode() + body
    found = []
    for secret in secrets:
        try:
            key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
        except (binascii.Error, ValueError):
            continue
        if secret.startswith(PREFIX):
            digest = hmac.digest(key, signed, hashlib.sha256)
            found.append(f"v1,{base64.b64encode(digest).decode()}")
    if not found:
        return {}
    return {
        "webhook-id": name,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(found),
    }
