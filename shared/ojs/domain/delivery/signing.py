"""Signs pushes to endpoints (ojs-webhooks, section 8).

A signature is the HMAC-SHA256 of the timestamp, a period, and the body. Each secret of the delivery
produces one. During a rotation there are two, so an endpoint that knows either secret can verify
the push.
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
    """Compute the signature of the specification.

    Args:
        secret: Signing secret.
        timestamp: Value of the timestamp header, in seconds since the epoch.
        body: Body of the request.

    Returns:
        `sha256=`, followed by hex digits.
    """
    signed = timestamp.encode() + b"." + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def bound_signature(secret: str, timestamp: str, delivery_id: str, url: str, body: bytes) -> str:
    """Compute a signature that is valid for one push to one URL only.

    Args:
        secret: Signing secret.
        timestamp: Value of the timestamp header, in seconds since the epoch.
        delivery_id: ID of the push.
        url: Host, port if it is not 443, path, and query of the endpoint.
        body: Body of the request.

    Returns:
        `v2=`, followed by hex digits.
    """
    digest = hashlib.sha256(body).hexdigest()
    signed = f"{timestamp}.{delivery_id}.POST.{url}.{digest}".encode()
    return "v2=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def signed(
    secrets: Sequence[str], body: bytes, *, delivery_id: str, url: str, now_ms: int
) -> dict[str, str]:
    """Build the headers that prove the sender and the time of a push.

    The signature of the specification covers the timestamp and the body. The second signature
    (`SIGNATURE_V2`) also covers the push and the URL.

    Args:
        secrets: Signing secrets of the delivery. If empty, only the timestamp is returned.
        body: Body of the request.
        delivery_id: ID of the push.
        url: Host, port if it is not 443, path, and query of the endpoint.
        now_ms: Current time in milliseconds since the epoch.

    Returns:
        Header values by name. Signatures of several secrets are separated by commas.
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
    """Build the headers that identify a push, and its idempotency window in seconds.

    The window is the maximum duration of all attempts of the job and of the delays between them.
    An endpoint that detects duplicates must remember the ID of the push for that time.
    """
    policy = push.job.policy
    # With any policy, the delays reach their maximum within about 50 attempts.
    counted = min(policy.max_attempts, 64)
    delays_ms = sum(policy.delay_ms(failures, 1.0) for failures in range(1, counted))
    delays_ms += (policy.max_attempts - counted) * policy.max_ms
    window_ms = policy.max_attempts * push.timeout_ms + delays_ms
    return {
        "X-OJS-Delivery-ID": push.delivery_id,
        "X-OJS-Job-ID": push.job.id,
        "X-OJS-Idempotency-Window": str(-(-window_ms // 1_000)),
    }
