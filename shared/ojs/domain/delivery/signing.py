"""Signatures of what is pushed to endpoints (ojs-webhooks, section 8).

The HMAC-SHA256 of the timestamp, a point and the body, by each secret there is: with two of them,
while they are changed, whoever has one can check it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence

from ojs.domain.delivery.push import Push

SIGNATURE = "X-OJS-Signature"
SIGNATURE_V2 = "X-OJS-Signature-V2"
TIMESTAMP = "X-OJS-Timestamp"


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """One signature, as `sha256=` and hex digits."""
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def bound_signature(secret: str, timestamp: str, delivery_id: str, url: str, body: bytes) -> str:
    """One signature that holds for one push to one URL, as `v2=` and hex digits. `url` is the host,
    with its port if it is not 443, and the path with its query.
    """
    digest = hashlib.sha256(body).hexdigest()
    signed = f"{timestamp}.{delivery_id}.POST.{url}.{digest}".encode()
    return "v2=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def signed(
    secrets: Sequence[str], body: bytes, *, delivery_id: str, url: str, now_ms: int
) -> dict[str, str]:
    """The headers that prove who sent this body, and when: the first signature is that of the
    specification, the second one holds for this push and this URL only.
    """
    timestamp = str(now_ms // 1_000)
    if not secrets:
        return {TIMESTAMP: timestamp}
    bound = [bound_signature(each, timestamp, delivery_id, url, body) for each in secrets]
    return {
        TIMESTAMP: timestamp,
        SIGNATURE: ",".join(signature(each, timestamp, body) for each in secrets),
        SIGNATURE_V2: ",".join(bound),
    }


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
