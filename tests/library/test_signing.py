"""Requests signed with AWS credentials, compared with what the AWS SDK makes of them."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import httpx
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as SdkCredentials

from ojs_aws import AsyncClient, Client
from ojs_aws.client.exchange import RetryPolicy
from ojs_aws.client.secret_key import SecretKey
from ojs_aws.client.signing import Credentialed, Signer
from ojs_aws.errors import Unreachable

URL = "https://abc123.execute-api.eu-central-1.amazonaws.com"
ENV = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_SESSION_TOKEN": "t/k="}


def checked(
    request: httpx.Request, region: str = "eu-central-1", service: str = "execute-api"
) -> None:
    """The signature is the one that the SDK makes of the same request at the same time."""
    names = request.headers["authorization"].split("SignedHeaders=")[1].split(",")[0].split(";")
    same = AWSRequest(
        request.method,
        str(request.url),
        headers={name: request.headers[name] for name in names if name != "host"},
        data=request.content,
    )
    same.context["timestamp"] = request.headers["x-amz-date"]
    sdk = SigV4Auth(SdkCredentials("AKID", "secret", "t/k="), service, region)
    text = sdk.string_to_sign(same, sdk.canonical_request(same))
    scope = f"{request.headers['x-amz-date'][:8]}/{region}/{service}/aws4_request"
    assert request.headers["authorization"] == (
        f"AWS4-HMAC-SHA256 Credential=AKID/{scope}, SignedHeaders={';'.join(names)}, "
        f"Signature={sdk.signature(text, same)}"
    )


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OJS_KEY", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ENV.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("OJS_AUTH", "iam")


@pytest.mark.usefixtures("credentials")
def test_what_is_sent_is_what_was_signed() -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json={"items": [], "job": {"id": "1"}})

    with Client(URL, transport=httpx.MockTransport(answer)) as client:
        client.list_jobs(queue="a b", state=["available", "active"], args='$.x="ü+&"')
        client.erase_jobs(meta={"who": "ü"})
        client.get_queue("a.b") if hasattr(client, "get_queue") else None

    async def awaited() -> None:
        async with AsyncClient(URL, transport=httpx.MockTransport(answer)) as client:
            await client.list_jobs(queue="mail")

    asyncio.run(awaited())
    assert len(sent) >= 3
    for request in sent:
        assert "Bearer" not in request.headers["authorization"]
        checked(request)


@pytest.mark.usefixtures("credentials")
def test_another_name_needs_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json={"items": []})

    def client() -> Client:
        once = RetryPolicy(tries=1)
        transport = httpx.MockTransport(answer)
        return Client("https://jobs.example.com:8443", transport=transport, retry=once)

    with pytest.raises(Unreachable, match="AWS_REGION"):
        client().list_jobs()
    assert sent == []
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    client().list_jobs()
    checked(sent[0], "eu-west-1")
    url = "https://abc123.lambda-url.us-east-2.on.aws"
    Client(url, transport=httpx.MockTransport(answer)).list_jobs()
    checked(sent[1], "us-east-2", "lambda")


def test_a_key_is_sent_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["authorization"])
        return httpx.Response(200, json={"items": []})

    transport = httpx.MockTransport(answer)
    monkeypatch.setenv("OJS_KEY", "k")
    Client(URL, transport=transport).list_jobs()
    monkeypatch.setenv("OJS_AUTH", "iam")
    Client(URL, key="other", transport=transport).list_jobs()
    assert sent == ["Bearer k", "Bearer other"]
    with pytest.raises(ValueError, match="can't be combined"):
        Client(URL, key="k", iam=True)


# --- where credentials come from ------------------------------------------------------------------


class Container(http.server.BaseHTTPRequestHandler):
    """What ECS has beside a container."""

    answer: ClassVar[Any] = {}
    asked: ClassVar[list[str | None]]

    def do_GET(self) -> None:
        self.asked.append(self.headers.get("Authorization"))
        body = self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()
        self.send_response(200 if self.answer else 500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def container() -> Iterator[tuple[type[Container], dict[str, str]]]:
    kind = type("Own", (Container,), {"asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/creds"
    yield kind, {"AWS_CONTAINER_CREDENTIALS_FULL_URI": url}
    server.shutdown()
    server.server_close()


def given(number: int, end: str) -> dict[str, str]:
    found = {"AccessKeyId": f"A{number}", "SecretAccessKey": "s", "Token": "t"}
    return {**found, "Expiration": end}


def test_a_containers_credentials_are_replaced_in_time(container: Any) -> None:
    kind, env = container
    now = [1_780_000_000.0]  # 2026-05-28T20:26:40Z
    own = Credentialed({**env, "AWS_CONTAINER_AUTHORIZATION_TOKEN": "allowed"}, lambda: now[0])
    kind.answer = given(1, "2026-05-28T21:26:40Z")
    assert [own.get().key_id for _ in range(3)] == ["A1"] * 3
    assert kind.asked == ["allowed"]
    now[0] += 3_300
    kind.answer = given(2, "2026-05-28T23:26:40Z")
    assert own.get().key_id == "A2"
    # What is still good is used while no others are given.
    now[0] += 7_000
    for wrong in ({}, b"nonsense", {"AccessKeyId": "A3"}, ["A3"]):
        kind.answer = wrong
        assert own.get().key_id == "A2"
    now[0] += 600
    with pytest.raises((OSError, ValueError)):
        own.get()
    kind.answer = given(4, "2026-05-29T23:26:40Z")
    assert own.get().key_id == "A4"


def test_a_token_may_be_in_a_file(container: Any, tmp_path: Any) -> None:
    kind, env = container
    kind.answer = given(1, "2999-01-01T00:00:00Z")
    (tmp_path / "token").write_text("of a pod\n")
    file = {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "token")}
    assert Credentialed({**env, **file}).get().key_id == "A1"
    assert kind.asked == ["of a pod"]


def test_without_credentials_nothing_is_sent() -> None:
    with pytest.raises(LookupError):
        Credentialed({}).get()
    signer = Signer(Credentialed({}))
    with pytest.raises(httpx.ConnectError, match="could not be signed"):
        signer(httpx.Request("GET", URL))


def test_a_signer_has_credentials_of_its_own() -> None:
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json={})

    async def awaited() -> None:
        async with AsyncClient(URL, iam=signer, transport=httpx.MockTransport(answer)) as client:
            await client.health()

    signer = Signer(Credentialed(ENV), {})
    with Client(URL, iam=signer, transport=httpx.MockTransport(answer)) as client:
        client.health()
    asyncio.run(awaited())
    assert len(sent) == 2
    for request in sent:
        checked(request)
    with pytest.raises(ValueError, match="can't be combined"):
        Client(URL, iam=signer, key="k")


# --- a key in a secret ----------------------------------------------------------------------------


def test_a_key_in_a_secret_is_read_again_after_five_minutes() -> None:
    now, reads = [0.0], []

    def read(secret_id: str) -> str:
        reads.append(secret_id)
        return f"ojs_{len(reads)}\n"

    sent: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers["authorization"])
        return httpx.Response(200, json={"items": []})

    signer = SecretKey("arn:s", read=read, clock=lambda: now[0])
    with Client(URL, iam=signer, transport=httpx.MockTransport(answer)) as client:
        for at in (0.0, 299.0, 300.0):
            now[0] = at
            client.list_jobs()
    assert (sent, reads) == (["Bearer ojs_1", "Bearer ojs_1", "Bearer ojs_2"], ["arn:s"] * 2)


@pytest.mark.parametrize(
    ("env", "given", "sends"),
    [
        ({"OJS_KEY_SECRET": "s"}, {}, "Bearer of s"),
        ({"OJS_KEY_SECRET": "s", "OJS_KEY": "k"}, {}, "Bearer k"),
        ({"OJS_KEY_SECRET": "s"}, {"key": "mine"}, "Bearer mine"),
        ({"OJS_KEY_SECRET": "s"}, {"iam": False}, None),
        ({"OJS_KEY_SECRET": "s", "OJS_AUTH": "iam", "AWS_REGION": "eu-west-1", **ENV}, {}, "AWS4"),
    ],
)
def test_which_key_is_sent(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], given: dict[str, Any], sends: str | None
) -> None:
    for name in ("OJS_KEY", "OJS_KEY_SECRET", "OJS_AUTH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("ojs_aws.client.secret_key._secret", "of {}".format)
    sent: list[str | None] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request.headers.get("authorization"))
        return httpx.Response(200, json={"items": []})

    with Client(URL, transport=httpx.MockTransport(answer), **given) as client:
        client.list_jobs()
    assert len(sent) == 1
    assert sent[0] == sends or (sends and str(sent[0]).startswith(sends))


def test_without_the_secret_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_request: httpx.Request) -> httpx.Response:
        raise AssertionError

    for name in ("OJS_KEY", "OJS_AUTH", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OJS_KEY_SECRET", "s")
    for name in ("REGION", "DEFAULT_REGION"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    retry = RetryPolicy(tries=1)
    with (
        Client(URL, transport=httpx.MockTransport(answer), retry=retry) as client,
        pytest.raises(Unreachable, match="the secret s can't be read"),
    ):
        client.list_jobs()
