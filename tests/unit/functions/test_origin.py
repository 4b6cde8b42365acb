"""Requests that went round the firewall: what an origin secret lets in, and what it costs."""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.exceptions import EndpointConnectionError
from moto import mock_aws

from functions.dashboard.files import Dashboard
from ojs import runtime
from ojs.api import operations as contract
from ojs.clock import ManualClock
from ojs.domain.errors import BackendUnavailable, PermissionDenied
from ojs.services.operations.origin import HEADER, REMEMBERED_MS, RETRY_MS, OriginGuard
from ojs.store.deployment.secrets import Secret
from ojs.store.table import clients
from tests.unit.functions.client import HANDLERS, Api

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient


class Rotated:
    """A secret that counts how often it is read, and may be away."""

    def __init__(self) -> None:
        self.held = ["now", "before"]
        self.reads = 0
        self.away = False

    def values(self) -> list[str]:
        self.reads += 1
        if self.away:
            raise BackendUnavailable("away")
        return list(self.held)


@pytest.fixture
def secret() -> Rotated:
    return Rotated()


@pytest.fixture
def origin(secret: Rotated, clock: ManualClock) -> OriginGuard:
    return OriginGuard(secret, clock)


def lets_in(origin: OriginGuard, shown: str) -> bool:
    try:
        origin.check({HEADER: shown})
    except PermissionDenied:
        return False
    return True


def test_the_current_value_and_the_one_before_let_in(origin: OriginGuard) -> None:
    found = {each: lets_in(origin, each) for each in ("now", "before", "no", "nowbefore", "", "ñ")}
    assert [each for each, let in found.items() if let] == ["now", "before"]
    # What no encoding takes is refused, and no fault.
    assert not lets_in(origin, "\ud800")


def test_a_request_without_the_header_takes_no_call(origin: OriginGuard, secret: Rotated) -> None:
    with pytest.raises(PermissionDenied):
        origin.check({"host": "abc.execute-api.eu-central-1.amazonaws.com"})
    assert secret.reads == 0


def test_it_is_read_once_in_ten_minutes_whoever_asks(
    origin: OriginGuard, secret: Rotated, clock: ManualClock
) -> None:
    for shown in ("now", "guess 1", "guess 2", "before") * 50:
        lets_in(origin, shown)
    clock.advance(REMEMBERED_MS - 1)
    assert lets_in(origin, "now")
    assert secret.reads == 1
    clock.advance(1)
    assert lets_in(origin, "now")
    assert secret.reads == 2


def test_a_rotation_stops_nobody(origin: OriginGuard, secret: Rotated, clock: ManualClock) -> None:
    """The distribution shows the value before until it is deployed; that may be before or after
    a container has read the new one, which it has ten minutes later.
    """
    assert lets_in(origin, "now")
    secret.held = ["next", "now"]
    for _ in range(2):
        assert lets_in(origin, "now")
        clock.advance(REMEMBERED_MS)
    assert lets_in(origin, "next")
    secret.held = ["third", "next"]
    clock.advance(REMEMBERED_MS)
    assert not lets_in(origin, "now")


def test_what_cannot_be_read_lets_nobody_in(
    origin: OriginGuard, secret: Rotated, clock: ManualClock
) -> None:
    secret.away = True
    for _ in range(20):
        with pytest.raises(BackendUnavailable) as told:
            lets_in(origin, "now")
        assert told.value.retryable
    # Requests are not held up by tries that fail, nor is the service asked for each.
    assert secret.reads == 1
    clock.advance(RETRY_MS)
    secret.away = False
    assert lets_in(origin, "now")
    assert secret.reads == 2


def test_what_was_read_lets_in_while_it_cannot_be_read(
    origin: OriginGuard, secret: Rotated, clock: ManualClock
) -> None:
    assert lets_in(origin, "now")
    secret.away = True
    clock.advance(REMEMBERED_MS)
    assert lets_in(origin, "now")
    # It may be the value after a rotation: to be tried again.
    with pytest.raises(BackendUnavailable):
        lets_in(origin, "next")
    secret.away, secret.held = False, ["next", "now"]
    clock.advance(RETRY_MS)
    assert lets_in(origin, "next")


def test_it_is_compared_in_constant_time(
    origin: OriginGuard, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, known: bytes) -> bool:
        compared.append((given, known))
        return given == known

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert lets_in(origin, "now")
    # The second one, too, although the first one is right.
    assert compared == [(b"now", b"now"), (b"now", b"before")]


# --- the secret itself ----------------------------------------------------------------------------


@pytest.fixture
def stored() -> Iterator[SecretsManagerClient]:
    with mock_aws():
        clients._session.cache_clear()  # it may be older than moto, which would not hear of it
        yield boto3.client("secretsmanager", region_name="us-east-1")


def test_the_value_before_the_last_rotation_is_read_too(stored: SecretsManagerClient) -> None:
    arn = stored.create_secret(Name="s", SecretString="first")["ARN"]
    read = Secret(stored, arn)
    assert read.values() == ["first"]
    for value in ("second", "third"):
        stored.put_secret_value(SecretId=arn, SecretString=value)
    assert read.values() == ["third", "second"]


def test_a_secret_that_is_gone_or_out_of_reach_is_unavailable(
    stored: SecretsManagerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    arn = stored.create_secret(Name="s", SecretString="first")["ARN"]
    read = Secret(stored, arn)
    stored.delete_secret(SecretId=arn)
    with pytest.raises(BackendUnavailable):
        read.values()

    def unreachable(**_: Any) -> Any:
        raise EndpointConnectionError(endpoint_url="https://secretsmanager")

    monkeypatch.setattr(stored, "get_secret_value", unreachable)
    with pytest.raises(BackendUnavailable):
        read.values()


# --- in front of the functions --------------------------------------------------------------------


@pytest.fixture
def walled(make_runtime: Callable[..., Any], origin: OriginGuard, clock: ManualClock) -> Api:
    built = make_runtime()
    built.origin = origin
    runtime.use(built)
    return Api(built, clock)


def ask(function: str, method: str, path: str, **headers: str) -> dict[str, Any]:
    event: dict[str, Any] = {
        "rawPath": path,
        "headers": {name.replace("_", "-"): value for name, value in headers.items()},
        "requestContext": {"http": {"method": method}},
    }
    if method == "POST":
        event["body"] = json.dumps({"type": "t", "args": []})
    answer: dict[str, Any] = HANDLERS[function](event, None)
    return answer


ASKED = [
    ("admin", "GET", "/ojs/v1/health"),
    ("admin", "GET", "/ojs/manifest"),
    ("admin", "GET", "/nowhere"),
    ("admin", "OPTIONS", "/ojs/v1/queues"),
    ("jobs", "POST", "/ojs/v1/jobs"),
    ("jobs", "OPTIONS", "/ojs/v1/jobs"),
    ("workers", "POST", "/ojs/v1/workers/fetch"),
]


@pytest.mark.parametrize(("function", "method", "path"), ASKED)
def test_nothing_is_done_for_who_went_round(
    walled: Api, secret: Rotated, clock: ManualClock, function: str, method: str, path: str
) -> None:
    walled.runtime.table.meter.reset()
    for headers in ({}, {"X-Origin-Verify": "guess"}, {"x_origin_verify": ""}):
        answer = ask(function, method, path, **headers)
        assert answer["statusCode"] == 403
        error = json.loads(answer["body"])["error"]
        assert (error["code"], error["retryable"]) == ("permission_denied", False)
        assert error["request_id"] == answer["headers"]["X-Request-Id"]
    secret.away = True
    walled.runtime.origin = OriginGuard(secret, clock)
    answer = ask(function, method, path, x_origin_verify="now")
    assert answer["statusCode"] == 503
    assert json.loads(answer["body"])["error"]["retryable"]
    assert answer["headers"]["Retry-After"] == "5"
    assert list(walled.runtime.table.meter.calls) == []


@pytest.mark.parametrize(("function", "method", "path"), ASKED)
def test_what_came_through_is_answered_as_ever(
    walled: Api, function: str, method: str, path: str
) -> None:
    expected = {"/nowhere": 404, "/ojs/v1/workers/fetch": 400}.get(path)
    expected = expected or {"GET": 200, "OPTIONS": 204, "POST": 201}[method]
    answer = ask(function, method, path, **{"X-Origin-Verify": "now"})
    assert answer["statusCode"] == expected


def test_without_a_firewall_nothing_is_asked_for(api: Api) -> None:
    assert api.runtime.origin is None
    assert {each.function for each in contract.OPERATIONS} == set(HANDLERS)
    assert ask("admin", "GET", "/ojs/v1/health")["statusCode"] == 200


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
def test_the_dashboard_asks_as_well(
    tmp_path: Path, origin: OriginGuard, secret: Rotated, clock: ManualClock, method: str
) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    dashboard = Dashboard(tmp_path, "keys", origin)
    event: dict[str, Any] = {
        "rawPath": "/ojs/admin/",
        "headers": {},
        "requestContext": {"http": {"method": method}},
    }
    assert dashboard(event)["statusCode"] == 403
    event["headers"] = {"X-Origin-Verify": "now"}
    assert dashboard(event)["statusCode"] == (200 if method in {"GET", "HEAD"} else 405)
    event["headers"] = {"X-Origin-Verify": "next"}
    assert dashboard(event)["statusCode"] == 403
    secret.away = True
    answer = Dashboard(tmp_path, "keys", OriginGuard(secret, clock))(event)
    assert (answer["statusCode"], answer["headers"]["retry-after"]) == (503, "5")
