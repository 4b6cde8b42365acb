"""Events that are posted to endpoints: signed in two ways, and never to another host."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import time
from typing import Any

import pytest

from ojs.clock import ManualClock
from ojs.domain import jsontext
from ojs.domain.webhooks import HookDelivery, HookOutcome, HookVerdict, Subscription
from ojs.targets.guard import Connector
from ojs.targets.webhooks import WebhookTarget, make_standard_headers
from tests.unit.targets.endpoints import answer, endpoint

NOW_MS = 1_770_201_010_000
KEY = b"k" * 32
SECRET = f"whsec_{base64.b64encode(KEY).decode()}"
OLD = "an older secret, as text"
EVENT = {"id": "evt_1", "type": "job.completed", "data": {"queue": "q"}}


def post(
    url: str, *, loopback: bool = True, connector: Connector | None = None, **more: Any
) -> HookOutcome:
    subscription = Subscription(
        "sub_0123456789abcdef",
        url=url,
        **{"secrets": (SECRET, OLD), "old_until_ms": NOW_MS + 1, **more},
    )
    there = connector or Connector(loopback=loopback)
    target = WebhookTarget(ManualClock(NOW_MS), connector=there)
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


def test_the_example_of_the_standard_is_signed_alike() -> None:
    """https://github.com/standard-webhooks/standard-webhooks: the example of its libraries."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    headers = make_standard_headers([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", body)
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_the_library_of_the_standard_verifies_during_a_rotation() -> None:
    library = pytest.importorskip("standardwebhooks", reason="run make setup")
    secrets = [f"whsec_{base64.b64encode(each * 32).decode()}" for each in (b"n", b"o")]
    body, stamp = jsontext.dumps(EVENT).encode(), str(int(time.time()))
    headers = make_standard_headers(secrets, "del_1", stamp, body)
    for secret in secrets:
        assert library.Webhook(secret).verify(body, headers) == EVENT
    with pytest.raises(library.WebhookVerificationError):
        library.Webhook(SECRET).verify(body, headers)
    with pytest.raises(library.WebhookVerificationError):
        library.Webhook(secrets[0]).verify(body + b" ", headers)


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


def test_the_host_of_a_redirect_is_looked_up_and_checked_again() -> None:
    answers = [["127.0.0.1"], ["10.0.0.1"]]
    there = Connector(loopback=True, find=lambda _host, _port: answers.pop(0))
    with endpoint(redirecting("/other")) as seen:
        assert post(seen.url, connector=there).refused
        assert len(seen.requests) == 1


@pytest.mark.parametrize(
    "to",
    ["https://localhost:{port}/", "//127.0.0.1:{port}/", "http://u:p@localhost:{port}/",
     "http://10.0.0.1/", "file:///etc/passwd", "//[", "http://localhost:{port}@example.com/"],
)  # fmt: skip
def test_a_redirect_elsewhere_is_not_followed(to: str) -> None:
    def send(connection: socket.socket) -> None:
        redirecting(to.format(port=connection.getsockname()[1]))(connection)

    with endpoint(send) as seen:
        assert post(seen.url).verdict is not HookVerdict.DELIVERED
        assert len(seen.requests) == 1


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
