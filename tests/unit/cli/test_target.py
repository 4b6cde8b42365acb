"""Which server `ojs-aws` asks, and with which key."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import httpx
import pytest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from cli import target
from cli.__main__ import main
from cli.target import Exit
from ojs.domain.errors import BackendUnavailable
from ojs.services.operations.tidy import Tidy
from ojs.store.table import clients

KEY = "ojs_0123456789abcdef_" + "0" * 64
STACKS = {
    "ojs-prod-service": {"ApiUrl": "https://api.example"},
    "ojs-prod-data": {"FirstKeySecretArn": "arn:first", "TableName": "t", "PayloadBucketName": "b"},
    "ojs-iam-service": {"ApiUrl": "https://iam.example"},
    "ojs-iam-data": {"TableName": "t"},
}


class Aws:
    """As much of AWS as is asked."""

    def describe_stacks(self, *, StackName: str) -> Any:  # noqa: N803 - the SDK's names
        if StackName not in STACKS:
            error = {"Error": {"Code": "ValidationError", "Message": "does not exist"}}
            raise ClientError(error, "DescribeStacks")  # type: ignore[arg-type]
        outputs = STACKS[StackName].items()
        return {"Stacks": [{"Outputs": [{"OutputKey": k, "OutputValue": v} for k, v in outputs]}]}

    def get_secret_value(self, *, SecretId: str) -> Any:  # noqa: N803
        assert SecretId == "arn:first"
        return {"SecretString": f"{KEY}\n"}


@pytest.fixture(autouse=True)
def _aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boto3, "client", lambda *_, **__: Aws())
    monkeypatch.delenv("OJS_URL", raising=False)
    monkeypatch.delenv("OJS_KEY", raising=False)


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[str, str | None]:
    """The server that is asked, and by which authorization."""
    parser = argparse.ArgumentParser()
    target.add_arguments(parser)
    sent: list[httpx.Request] = []

    def answer(_: object, request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json={"jobs": {}})

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", answer)
    target.server(parser.parse_args(arguments)).stats()
    (request,) = sent
    return str(request.url.copy_with(path="")), request.headers.get("authorization")


def test_the_local_server_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch) == ("http://127.0.0.1:8080", None)


def test_a_stage_and_its_first_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(monkeypatch, "--stage", "prod") == ("https://api.example", f"Bearer {KEY}")


def test_another_key_for_a_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("mine\n")
    given = asked(monkeypatch, "--stage", "prod", "--key-file", str(tmp_path / "key"))
    assert given == ("https://api.example", "Bearer mine")
    monkeypatch.setenv("OJS_KEY", "from-the-environment")
    assert asked(monkeypatch, "--stage", "iam")[1] == "Bearer from-the-environment"


def test_a_stage_without_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Requests are signed with what the SDK finds: its credentials and its region."""
    with pytest.raises(target.CommandError, match="pass --iam"):
        asked(monkeypatch, "--stage", "iam")
    credentials = Credentials("id", "secret", "token")
    session = SimpleNamespace(get_credentials=lambda: credentials, region_name="eu-central-1")
    monkeypatch.setattr(boto3, "Session", lambda: session)
    # A key in the environment is not sent then, and its credentials are not used.
    monkeypatch.setenv("OJS_KEY", KEY)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    url, authorization = asked(monkeypatch, "--stage", "iam", "--iam")
    assert url == "https://iam.example"
    assert authorization is not None
    assert authorization.startswith("AWS4-HMAC-SHA256 Credential=id/")
    assert "/eu-central-1/execute-api/aws4_request" in authorization
    assert "x-amz-security-token" in authorization
    session.region_name = None
    assert main(["status", "--stage", "iam", "--iam"]) == Exit.FAILED
    assert "error: AWS: the region of the API is unknown" in capsys.readouterr().err
    session.get_credentials = lambda: None
    session.region_name = "eu-central-1"
    assert main(["status", "--stage", "iam", "--iam"]) == Exit.FAILED
    assert "error: AWS: no AWS credentials" in capsys.readouterr().err

    def denied() -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "AssumeRole")

    session.get_credentials = denied
    assert main(["status", "--stage", "iam", "--iam"]) == Exit.FAILED
    assert "error: AWS: An error occurred (AccessDenied)" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        asked(monkeypatch, "--iam", "--key-file", str(tmp_path / "key"))
    assert "not allowed with" in capsys.readouterr().err


def test_the_region_of_cdk_and_the_aws_command_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    regions: list[str] = []

    def client(*_: object) -> Aws:
        regions.append(os.environ["AWS_DEFAULT_REGION"])
        return Aws()

    monkeypatch.setattr(boto3, "client", client)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for region, expected in (("", "us-east-1"), ("eu-central-1", "eu-central-1")):
        monkeypatch.setenv("AWS_REGION", region)
        assert main(["keys", "list", "--stage", "iam"]) == Exit.FAILED
        assert regions.pop() == expected
    assert "pass --iam" in capsys.readouterr().err


def test_the_environment_names_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OJS_URL", "https://elsewhere.example")
    assert asked(monkeypatch)[0] == "https://elsewhere.example"
    assert asked(monkeypatch, "--url", "https://here.example")[0] == "https://here.example"


@pytest.mark.parametrize(
    "arguments", [["keys", "list", "--stage", "nowhere"], ["gc", "--stage", "nowhere"]]
)
def test_aws_says_no(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("error: AWS: ")
    assert said.err.count("\n") == 1


def test_a_table_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def busy(_self: Tidy, **_: Any) -> Any:
        raise BackendUnavailable("The table is busy.")

    monkeypatch.setattr(clients, "s3", Aws)
    monkeypatch.setattr(Tidy, "run", busy)
    assert main(["tidy", "--stage", "prod"]) == 1
    assert capsys.readouterr().err == "error: AWS: The table is busy. Retry after 1 s.\n"
