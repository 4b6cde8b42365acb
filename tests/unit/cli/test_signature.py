"""Requests of `ojs-aws --iam`: what is sent is what was signed."""

from __future__ import annotations

import hashlib
import hmac
import re
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, urlsplit

import boto3
import pytest
import urllib3
from botocore.credentials import Credentials

from cli import target
from cli.signature import Signature

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
URL = "https://abc123.execute-api.eu-central-1.amazonaws.com"


def checked(method: str, url: str, body: bytes | None, headers: dict[str, str]) -> str:
    """The scope of a request's signature, which is computed anew as AWS's manual has it."""
    sent = {name.lower(): value for name, value in headers.items()}
    parts = urlsplit(url)
    sent["host"] = parts.netloc
    pattern = (
        r"AWS4-HMAC-SHA256 Credential=AKID/(\S+), SignedHeaders=(\S+), Signature=([0-9a-f]{64})"
    )
    found = re.fullmatch(pattern, sent["authorization"])
    assert found is not None
    scope, names, signature = found.groups()
    canonical = "\n".join([
        method,
        # A path is encoded once more, for all services but S3.
        quote(parts.path, safe="/~"),
        "&".join(sorted(parts.query.split("&"))),
        *(f"{name}:{sent[name].strip()}" for name in names.split(";")),
        "",
        names,
        hashlib.sha256(body or b"").hexdigest(),
    ])  # fmt: skip
    text = "\n".join([
        "AWS4-HMAC-SHA256", sent["x-amz-date"], scope,
        hashlib.sha256(canonical.encode()).hexdigest(),
    ])  # fmt: skip
    key = f"AWS4{SECRET}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    assert hmac.digest(key, text.encode(), "sha256").hex() == signature
    assert {"host", "x-amz-date", "content-type"} & {*names.split(";")} >= {"host", "x-amz-date"}
    return str(scope)


def signing(monkeypatch: pytest.MonkeyPatch, region: str | None, token: str | None = None) -> Any:
    """A server that is asked with signatures, and the requests that are sent to it."""
    asked: list[tuple[str, str, bytes | None, dict[str, str]]] = []

    def request(method: str, url: str, *, body: bytes | None, headers: Any, **_: Any) -> Any:
        asked.append((method, url, body, dict(headers)))
        return SimpleNamespace(status=200, data=b"{}", headers={})

    monkeypatch.setattr(urllib3, "request", request)
    signature = Signature(Credentials("AKID", SECRET, token), region)
    return signature, asked


def test_what_is_sent_is_what_was_signed(monkeypatch: pytest.MonkeyPatch) -> None:
    signature, asked = signing(monkeypatch, "us-east-1")
    server = target.Server(URL, None, signature)
    path = f"/rate-limits/{target.segment('a b/c%d')}"
    server.ask("GET", "/admin/jobs", query={"type": "mail.*", "args": '["a b+c/d~é"]', "tag": None})
    server.ask("POST", "/jobs", {"type": "t", "args": ["é"]})
    server.ask("PUT", path, {"concurrency": 2})
    server.ask("DELETE", "/admin/keys/0123?made=revoke")
    scopes = {checked(*one).split("/", 1)[1] for one in asked}
    # The region that the address names.
    assert scopes == {"eu-central-1/execute-api/aws4_request"}
    assert len(asked) == 4


def test_a_session_s_token_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    signature, asked = signing(monkeypatch, "us-east-1", "session-token")
    target.Server("https://jobs.example.com", None, signature).ask("GET", "/queues")
    assert asked[0][3]["X-Amz-Security-Token"] == "session-token"
    assert "/us-east-1/" in checked(*asked[0])


def test_a_region_that_nobody_says(monkeypatch: pytest.MonkeyPatch) -> None:
    signature, asked = signing(monkeypatch, None)
    with pytest.raises(target.CommandError, match="AWS_DEFAULT_REGION"):
        target.Server("https://jobs.example.com", None, signature).ask("GET", "/queues")
    assert asked == []


def test_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    session = SimpleNamespace(get_credentials=lambda: None, region_name=None)
    monkeypatch.setattr(boto3, "Session", lambda: session)
    with pytest.raises(LookupError, match="no AWS credentials"):
        Signature.own()
