"""Endpoints that answer well, badly, slowly and not at all; and those that must not be called."""

from __future__ import annotations

import datetime
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ojs.clock import ManualClock
from ojs.domain.delivery import signing
from ojs.domain.delivery.delivery import Delivery, Form
from ojs.domain.delivery.outcome import Outcome, Verdict
from ojs.domain.delivery.push import Push
from ojs.services.for_each import one_by_one
from ojs.targets.guard import Blocked, Connector, TimeLimit, place
from ojs.targets.https_target import MAX_ANSWER_BYTES, HttpsTarget
from tests.unit.domain.delivery.pushes import NOW_MS, job_id, push
from tests.unit.targets.endpoints import answer, endpoint

LOOPBACK = Connector(loopback=True)
# How long an endpoint may take here that takes for ever.
SHORT_MS = 150


def posted(
    url: str, connector: Connector = LOOPBACK, *, timeout_ms: int = 5_000,
    secrets: Sequence[str] = ("whsec_one", "whsec_two"), pushed: Push | None = None,
) -> Outcome:  # fmt: skip
    delivery = Delivery(
        "hook", endpoint=url, queues=("images",), form=Form.PUSH, signing_secrets=tuple(secrets)
    )
    target = HttpsTarget(ManualClock(NOW_MS), each=one_by_one, connector=connector)
    one = replace(pushed or push(name="hook"), timeout_ms=timeout_ms)
    assert target.waits_for(one, delivery=delivery)
    (found,) = target.send([one], delivery=delivery)
    assert found is not None
    return found


def test_a_job_is_posted_signed_and_answered() -> None:
    said = {"status": "completed", "result": {"size": 3}}
    with endpoint(answer(body=json.dumps(said).encode())) as seen:
        assert posted(seen.url) == Outcome(Verdict.COMPLETED, result={"size": 3})
    ((head, body),) = seen.requests
    headers = seen.headers()
    assert head.startswith("POST /jobs?x=1 HTTP/1.1\r\n")
    assert headers["host"] == f"localhost:{seen.port}"
    assert headers["content-type"] == "application/json"
    assert headers["x-ojs-delivery-id"] == "del_token-1"
    assert headers["x-ojs-job-id"] == job_id(1)
    assert headers["x-ojs-idempotency-window"] == "20"
    assert headers["x-ojs-timestamp"] == str(NOW_MS // 1_000)
    expected = [
        signing.signature(secret, headers["x-ojs-timestamp"], body)
        for secret in ("whsec_one", "whsec_two")
    ]
    assert headers["x-ojs-signature"].split(",") == expected
    told = json.loads(body)
    assert (told["worker_id"], told["job"]["id"]) == ("push_worker_hook", job_id(1))


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (400, Verdict.REFUSED), (403, Verdict.FORBIDDEN), (404, Verdict.GONE),
        (429, Verdict.THROTTLED), (500, Verdict.FAULT), (204, Verdict.FAULT),
    ],
)  # fmt: skip
def test_statuses(status: int, verdict: Verdict) -> None:
    with endpoint(answer(status, b"", "Retry-After: 9\r\n")) as seen:
        found = posted(seen.url)
    assert found.verdict is verdict
    assert found.retry_after_ms == (9_000 if status == 429 else None)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    with endpoint(answer()) as inside:
        location = f"Location: http://127.0.0.1:{inside.port}/\r\n"
        with endpoint(answer(status, b"", location)) as seen:
            assert posted(seen.url).verdict is Verdict.FAULT
    assert len(seen.requests) == 1
    assert inside.requests == []


@pytest.mark.parametrize("body", [b"OK", b"", b"null", b"<html>", b"\xff", b"[" * 9_000])
def test_what_is_no_answer_is_a_fault(body: bytes) -> None:
    with endpoint(answer(body=body)) as seen:
        found = posted(seen.url)
    assert found.verdict is Verdict.FAULT
    assert found.error is not None
    assert found.error["code"] == "invalid_response"


def test_a_large_answer_is_not_read_to_its_end() -> None:
    sent = []

    def flood(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\n")
        for _ in range(100):
            connection.sendall(b"1" * 100_000)
            sent.append(100_000)

    with endpoint(flood) as seen:
        found = posted(seen.url)
    assert found.error is not None
    assert (found.verdict, found.error["code"]) == (Verdict.FAULT, "invalid_response")
    assert str(MAX_ANSWER_BYTES) in found.error["message"]
    assert sum(sent) < 10_000_000


def drip(connection: socket.socket, head: bytes, piece: bytes) -> None:
    """Send a little again and again, sooner than any read gives up."""
    connection.sendall(head)
    pause = threading.Event()
    while True:
        connection.sendall(piece)
        pause.wait(0.02)


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (b"", b"H"),
        (b"HTTP/1.1 200 OK\r\n", b"X-A: b\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"1"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n1\r\n"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", b" "),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_the_time_is_for_all_and_not_for_each_read(head: bytes, piece: bytes) -> None:
    with endpoint(lambda connection: drip(connection, head, piece)) as seen:
        found = posted(seen.url, timeout_ms=SHORT_MS)
    assert found.error is not None
    assert (found.verdict, found.error["code"]) == (Verdict.FAULT, "timeout")


@pytest.mark.requirement("SL-16")
def test_silence_ends_in_time() -> None:
    def wait(connection: socket.socket) -> None:
        connection.recv(1)

    with endpoint(wait) as seen:
        found = posted(seen.url, timeout_ms=SHORT_MS)
    assert found.error is not None
    assert (found.verdict, found.error["code"]) == (Verdict.FAULT, "timeout")


@pytest.mark.parametrize("text", [b"", b"HTTP/1.1 200", b"SSH-2.0-x\r\n", b"HTTP/1.1 abc\r\n\r\n"])
def test_what_is_no_http_is_a_fault(text: bytes) -> None:
    with endpoint(lambda connection: connection.sendall(text)) as seen:
        assert posted(seen.url).verdict is Verdict.FAULT


def test_nobody_there_is_a_fault() -> None:
    with endpoint(answer()) as seen:
        pass
    found = posted(seen.url)
    assert found.error is not None
    assert (found.verdict, found.error["code"]) == (Verdict.FAULT, "delivery_error")


# --- Which addresses are called ------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/", "ftp://example.com/", "//example.com", "example.com", "", "https://",
        "https://user:secret@example.com/", "https://example.com:99999/", "https://[::1/",
        "https://127.0.0.1/", "https://10.0.0.1/", "https://169.254.169.254/latest/meta-data/",
        "https://[::1]/", "https://[::ffff:127.0.0.1]/", "https://[64:ff9b::a00:1]/",
        "https://[fd00:ec2::254]/", "http://127.0.0.1/", "http://localhost/",
        "https://a..b/", f"https://{'a' * 64}.example/", f"https://{'a.' * 130}example/",
        "https://-a.example/", "https://a.example:0/", "https://a.example/ü", "https://a b/",
        "https://a.example/a b", "https://a.example/a\nb:c", "https://%61.example/",
        "https://localhost/", "https://LOCALHOST./", "https://a.localhost/", "https://127.1/",
        "https://2130706433/", "https://0x7f000001/", "https://017700000001/", "https://8.8/",
    ],
)  # fmt: skip
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(Blocked):
        place(url)


@pytest.mark.parametrize(
    ("url", "authority", "path"),
    [
        ("https://example.com", "example.com", "/"),
        ("https://EXAMPLE.com:443/a?b=c", "example.com", "/a?b=c"),
        ("https://example.com:8443/", "example.com:8443", "/"),
        ("https://bücher.example/", "xn--bcher-kva.example", "/"),
        ("https://[2606:4700::1111]/", "[2606:4700::1111]", "/"),
    ],
)
def test_urls_as_they_are_asked_for(url: str, authority: str, path: str) -> None:
    found = place(url)
    assert (found.authority, found.path) == (authority, path)


@pytest.mark.parametrize(
    "found",
    [
        ["127.0.0.1"], ["10.0.0.1"], ["169.254.169.254"], ["::1"], ["::ffff:10.0.0.1"],
        ["64:ff9b::7f00:1"], ["fe80::1%1"], ["8.8.8.8", "127.0.0.1"], ["127.0.0.1", "8.8.8.8"],
    ],
)  # fmt: skip
def test_a_name_with_an_address_that_is_not_public_is_not_called(found: list[str]) -> None:
    with endpoint(answer()) as seen:
        there = Connector(find=lambda _host, _port: found)
        outcome = posted(f"https://example.com:{seen.port}/", there)
    assert outcome.error is not None
    assert (outcome.verdict, outcome.error["code"]) == (Verdict.FORBIDDEN, "endpoint_blocked")
    assert seen.requests == []


def test_with_loopback_allowed_the_private_network_is_still_closed() -> None:
    there = Connector(loopback=True, find=lambda _host, _port: ["10.0.0.1"])
    assert posted("https://example.com/", there).verdict is Verdict.FORBIDDEN
    assert posted("http://example.com/", there).verdict is Verdict.FORBIDDEN
    assert posted("http://10.0.0.1/", LOOPBACK).verdict is Verdict.FORBIDDEN


@pytest.mark.parametrize("url", ["http://127.1/", "http://2130706433/", "http://0x7f000001/"])
def test_odd_forms_of_this_machine_are_no_way_around(url: str) -> None:
    assert posted(url, Connector()).verdict is Verdict.FORBIDDEN
    secure = url.replace("http:", "https:")
    assert posted(secure, Connector()).verdict is Verdict.FORBIDDEN


def test_a_name_is_looked_up_once_for_a_call_and_anew_for_the_next() -> None:
    """The second answer is another one: as it would be between a check and a connection."""
    with endpoint(answer()) as seen:
        answers = [["127.0.0.1"], ["10.0.0.1"]]
        there = Connector(loopback=True, find=lambda _host, _port: answers.pop(0))
        assert posted(seen.url, there).verdict is Verdict.COMPLETED
        assert posted(seen.url, there).verdict is Verdict.FORBIDDEN
    assert len(seen.requests) == 1


def test_a_name_that_nobody_knows_is_a_fault() -> None:
    def unknown(_host: str, _port: int) -> Sequence[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    assert posted("https://example.com/", Connector(find=unknown)).verdict is Verdict.FAULT
    none: Connector = Connector(find=lambda _host, _port: [])
    assert posted("https://example.com/", none).verdict is Verdict.FAULT


def test_a_look_up_ends_at_the_time_limit() -> None:
    """The resolver of the system has a time limit of its own, of many seconds."""
    never = threading.Event()

    def silent(_host: str, _port: int) -> Sequence[str]:
        never.wait(30)
        return []

    with TimeLimit(0.05) as limit, pytest.raises(TimeoutError):
        Connector(find=silent).connect(place("https://example.com/"), limit)
    never.set()


def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://10.9.9.9:3128")
    with endpoint(answer()) as seen:
        assert posted(seen.url).verdict is Verdict.COMPLETED


# --- TLS -----------------------------------------------------------------------------------------


def certificate(folder: Path, host: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server that proves to be this host, and of a client that believes it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    names = [x509.DNSName(host), x509.IPAddress(ipaddress.ip_address("8.8.8.8"))]
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return server, ssl.create_default_context(cafile=str(folder / "cert.pem"))


def test_the_certificate_is_that_of_the_name_and_the_connection_goes_to_the_address(
    tmp_path: Path,
) -> None:
    server, client = certificate(tmp_path, "hooks.example")
    there = Connector(loopback=True, find=lambda _host, _port: ["127.0.0.1"], context=client)
    with endpoint(answer(), server.wrap_socket) as seen:
        found = posted(f"https://hooks.example:{seen.port}/", there)
        assert found.verdict is Verdict.COMPLETED
        assert seen.headers()["host"] == f"hooks.example:{seen.port}"
        # Another name at the same address, and a certificate that nobody vouches for.
        assert posted(f"https://other.example:{seen.port}/", there).verdict is Verdict.FAULT
        trusting = Connector(loopback=True, find=lambda _host, _port: ["127.0.0.1"])
        assert posted(f"https://hooks.example:{seen.port}/", trusting).verdict is Verdict.FAULT
    assert len(seen.requests) == 1


def test_a_slow_handshake_ends_in_time() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def greet() -> None:
        connection, _ = listener.accept()
        with connection:
            # The head of a long record of TLS, of which a byte comes now and then.
            try:
                drip(connection, b"\x16\x03\x03\x40\x00", b"\x02")
            except OSError:
                return

    slow = threading.Thread(target=greet, daemon=True)
    slow.start()
    found = posted(f"https://localhost:{port}/", LOOPBACK, timeout_ms=SHORT_MS)
    listener.close()
    slow.join(5)
    assert not slow.is_alive()
    assert found.error is not None
    assert (found.verdict, found.error["code"]) == (Verdict.FAULT, "timeout")


def test_nobody_waits_so_long_that_an_outcome_could_not_be_settled() -> None:
    """A sender runs for 900 s, as long as a delivery may say that its endpoint takes."""
    waited: list[float] = []

    def limit(timeout_s: float) -> TimeLimit:
        waited.append(timeout_s)
        return TimeLimit(0.001)

    delivery = Delivery("hook", endpoint="https://localhost:9/", queues=("images",), form=Form.PUSH)
    target = HttpsTarget(
        ManualClock(NOW_MS), each=one_by_one, connector=Connector(loopback=True), limit=limit
    )
    for timeout_ms in (30_000, 900_000):
        target.send([replace(push(name="hook"), timeout_ms=timeout_ms)], delivery=delivery)
    assert waited == [30, 885]
