"""Signatures of what is pushed to endpoints (ojs-webhooks, section 8).

The HMAC-SHA256 of the timestamp, a point and the body, by each secret there is: with two of them,
while they are changed, whoever has one can check it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

from ojs.domain.delivery.push import Push

SIGNATURE = "X-OJS-Signature"
TIMESTAMP = "X-OJS-Timestamp"


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """One signature, as `sha256=` and hex digits."""
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def signed(secrets: Iterable[str], body: bytes, *, now_ms: int) -> dict[str, str]:
    """The headers that prove who sent this body, and when."""
    timestamp = str(now_ms // 1_000)
    signatures = [signature(secret, timestamp, body) for secret in secrets]
    headers = {TIMESTAMP: timestamp}
    return headers | ({SIGNATURE: ",".join(signatures)} if signatures else {})


def named(push: Push) -> Mapping[str, str]:
    """The headers that name a push, and for how long (s) its id is worth remembering: as long as
    all attempts may take that the job has, with the delays between them.
    """
    policy = push.job.policy
    # The delays grow up to their most within some fifty attempts, whatever the policy.
    counted = min(policy.max_attempts, 64)
    delays_ms = sum(policy.delay_ms(failures, 1.0) for failures in range(1, counted))
    delays_ms += (policy.max_attempts - counted) * policy.max_ms
    window_ms = policy.max_attempts * push.timeout_ms + delays_ms
    return {
        "X-OJS-Delivery-ID": push.delivery_id,
        "X-OJS-Job-ID": push.job.id,
        "X-OJS-Idempotency-Window": str(-(-window_ms // 1_000)),
    }
