"""Events that are posted to endpoints: signed in two ways, and never to another host."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
from typing import Any

import pytest

from ojs.clock import ManualClock
from ojs.domain import jsontext
from ojs.domain.webhooks import HookDelivery, HookOutcome, HookVerdict, Subscription
from ojs.targets.guard import Connector
from ojs.targets.webhooks import WebhookTarget
from tests.unit.targets.endpoints import answer, endpoint

NOW_MS = 1_770_201_010_000
KEY = b"k" * 32
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
OLD = "an older secret, as text"
EVENT = {"id": "evt_1", "type": "job.completed", "data": {"queue": "q"}}


def post(url: str, *, loopback: bool = True, **more: Any) -> HookOutcome:
    subscription = Subscription(
        "sub_0123456789abcdef",
        url=url,
        **{"secrets": (SECRET, OLD), "old_until_ms": NOW_MS + 1, **more},
    )
    target = WebhookTarget(ManualClock(NOW_MS), connector=Connector(loopback=loopback))
    return target.post(subscription, HookDelivery("del_1", EVENT), timeout_s=0.3)


def test_both_signatures_of_both_secrets_are_sent() -> None:
    with endpoint(answer(body=b"OK")) as seen:
        posted = post(seen.url)
    assert (posted.status, posted.body, posted.verdict) == (200, "OK", HookVerdict.DELIVERED)
    headers, body = seen.headers(), seen.requests[0][1]
    assert jsontext.loads(body) == EVENT
    stamp = str(NOW_MS // 1_000)
    assert (headers["x-ojs-timestamp"], headers["webhook-timestamp"]) == (stamp, stamp)
    signed = stamp.encode() + b"." + body
    assert headers["x-ojs-signature"].split(",") == [
        f"sha256={hmac.new(each.encode(), signed, hashlib.sha256).hexdigest()}"
        for each in (SECRET, OLD)
    ]
    # https://www.standardwebhooks.com: a secret in another format signs the first way alone.
    assert headers["webhook-id"] == headers["x-ojs-delivery-id"] == "del_1"
    digest = hmac.digest(KEY, b"del_1." + signed, "sha256")
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(digest).decode()}"
    assert headers["x-ojs-event-type"] == "job.completed"
    assert headers["x-ojs-subscription-id"] == "sub_0123456789abcdef"


def test_the_secret_before_a_rotation_ends_after_a_day() -> None:
    with endpoint(answer()) as seen:
        post(seen.url, old_until_ms=NOW_MS)
        assert seen.headers()["x-ojs-signature"].count("sha256=") == 1
        post(seen.url, secrets=(OLD,))
        assert "webhook-signature" not in seen.headers()


@pytest.mark.parametrize(
    ("status", "verdict"),
    [(204, "delivered"), (301, "dead"), (400, "dead"), (404, "dead"), (408, "retry"),
     (410, "gone"), (425, "retry"), (429, "retry"), (500, "retry"), (503, "retry")],
)  # fmt: skip
def test_what_follows_from_a_status(status: int, verdict: str) -> None:
    with endpoint(answer(status, b"", "Retry-After: 120\r\n")) as seen:
        posted = post(seen.url)
    assert posted.verdict == verdict
    assert posted.retry_after_ms == 120_000


def redirecting(to: str) -> Any:
    def send(connection: socket.socket) -> None:
        text = f"HTTP/1.1 308 So\r\nContent-Length: 0\r\nLocation: {to}\r\n\r\n"
        connection.sendall(text.encode())

    return send


def test_redirects_stay_at_the_host_and_end() -> None:
    with endpoint(redirecting("/other")) as seen:
        assert post(seen.url).status == 308
        assert len(seen.requests) == 4  # three redirects
        assert seen.requests[-1][0].startswith("POST /other ")
    with endpoint(answer()) as other, endpoint(redirecting(other.url)) as seen:
        assert post(seen.url).verdict is HookVerdict.DEAD
        assert not other.requests


@pytest.mark.parametrize("form", ["http://localhost:{port}/", "https://127.0.0.1:{port}/",
                                  "https://2130706433:{port}/"])  # fmt: skip
def test_addresses_that_are_not_public_are_never_called(form: str) -> None:
    with endpoint(answer()) as seen:
        posted = post(form.format(port=seen.port), loopback=False)
    assert (posted.status, posted.refused, posted.verdict) == (0, True, HookVerdict.DEAD)
    assert not seen.requests


def test_a_silent_or_endless_endpoint_ends_at_the_time_limit() -> None:
    def endless(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 So\r\nContent-Length: 100000\r\n\r\nx")
        connection.recv(1)

    with endpoint(endless) as seen:
        posted = post(seen.url)
    assert (posted.status, posted.verdict, posted.fault) == (0, HookVerdict.RETRY, True)
    assert "within 300 ms" in posted.error


def test_one_kib_of_a_response_is_read() -> None:
    with endpoint(answer(500, b"x" * 1_000_000)) as seen:
        assert len(post(seen.url).body) == 1_024
