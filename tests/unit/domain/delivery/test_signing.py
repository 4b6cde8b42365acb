"""Signatures as ojs-webhooks, section 8, has them, and the addresses that may be called."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest

from ojs.domain.delivery import addresses, signing
from tests.unit.domain.delivery.pushes import NOW_MS, job_id, push

BODY = '{"job":"å"}'.encode()
PLACE: dict[str, Any] = {"delivery_id": "del_1", "url": "a.example/jobs?x=1", "now_ms": NOW_MS}


def test_the_timestamp_and_the_body_are_signed() -> None:
    headers = signing.signed(["whsec_old"], BODY, **PLACE)
    assert headers["X-OJS-Timestamp"] == "1780000000"
    expected = hmac.new(b"whsec_old", b"1780000000." + BODY, hashlib.sha256).hexdigest()
    assert headers["X-OJS-Signature"] == f"sha256={expected}"


def test_with_two_secrets_either_of_them_can_be_checked() -> None:
    both = signing.signed(["whsec_new", "whsec_old"], BODY, **PLACE)["X-OJS-Signature"]
    single = [
        signing.signed([secret], BODY, **PLACE)["X-OJS-Signature"]
        for secret in ("whsec_new", "whsec_old")
    ]
    assert both.split(",") == single


def test_the_second_version_is_bound_to_the_delivery_and_the_url() -> None:
    headers = signing.signed(["whsec_old", "whsec_new"], BODY, **PLACE)
    digest = hashlib.sha256(BODY).hexdigest()
    text = f"1780000000.del_1.POST.a.example/jobs?x=1.{digest}".encode()
    expected = [
        hmac.new(key, text, hashlib.sha256).hexdigest() for key in (b"whsec_old", b"whsec_new")
    ]
    assert headers["X-OJS-Signature-V2"] == ",".join(f"v2={each}" for each in expected)
    for other in ({"delivery_id": "del_2"}, {"url": "b.example/jobs?x=1"}, {"url": "a.example/"}):
        changed = signing.signed(["whsec_old", "whsec_new"], BODY, **{**PLACE, **other})
        assert changed["X-OJS-Signature-V2"] != headers["X-OJS-Signature-V2"]
        assert changed["X-OJS-Signature"] == headers["X-OJS-Signature"]


@pytest.mark.parametrize(
    ("host", "hosts", "right"),
    [
        ("a.example", ("a.example",), True),
        ("A.example.", ("a.example",), True),
        ("b.a.example", ("a.example",), False),
        ("b.a.example", ("*.a.example",), True),
        ("c.b.a.example", ("*.a.example",), True),
        ("a.example", ("*.a.example",), False),
        ("evila.example", ("*.a.example",), False),
        ("a.example.evil", ("a.example", "*.a.example"), False),
        ("a.example", ("*",), True),
        ("a.example", (), False),
    ],
)
def test_hosts_are_allowed_by_name_and_by_the_domain_above(
    host: str, hosts: tuple[str, ...], right: bool
) -> None:
    assert addresses.allowed(host, hosts) is right


def test_without_a_secret_nothing_is_signed() -> None:
    assert set(signing.signed([], BODY, **PLACE)) == {"X-OJS-Timestamp"}


@pytest.mark.requirement("SL-17")
def test_the_window_covers_all_attempts_and_the_delays_between_them() -> None:
    headers = signing.named(push())
    assert headers["X-OJS-Job-ID"] == job_id(1)
    assert headers["X-OJS-Delivery-ID"] == "del_token-1"
    # Three attempts of 30 s; delays of 1 s and 2 s, and half as much more by chance.
    assert headers["X-OJS-Idempotency-Window"] == "95"


@pytest.mark.parametrize(
    "address",
    ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2001:4860:4860::8888"],
)
def test_public_addresses(address: str) -> None:
    assert addresses.public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "0.0.0.0", "10.1.1.1", "172.16.0.1", "192.168.1.1", "169.254.169.254",
        "169.254.170.2", "100.64.0.1", "192.0.0.8", "192.0.2.1", "192.88.99.1", "198.18.0.1",
        "224.0.0.1", "240.0.0.1", "255.255.255.255",
        "::1", "::", "::127.0.0.1", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
        "64:ff9b::10.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808", "2002:7f00:1::",
        "2002:808:808::", "2001:0:808:808::", "2001:db8::1", "fd00:ec2::254", "fc00::1",
        "fe80::1", "fe80::1%eth0", "2606:4700::1111%eth0", "fec0::1", "ff02::1", "5f00::1",
        "", "localhost", "127.1", "2130706433", "8.8.8.8 ", "1.2.3.4.5",
    ],
)  # fmt: skip
def test_addresses_that_nobody_on_the_internet_could_reach(address: str) -> None:
    assert not addresses.public(address)
