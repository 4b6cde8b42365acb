"""The server that a command talks to, and the key it uses."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import urllib3

if TYPE_CHECKING:
    import argparse

_TIMEOUT_S = 30.0
_LOCAL_URL = "http://127.0.0.1:8080"
_TYPE = "application/openjobspec+json"


class CommandError(Exception):
    """The command failed; the message is for the user."""


@dataclass(frozen=True)
class Server:
    """An OJS server. `key` is None where no key is needed."""

    url: str
    key: str | None

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request. Returns the answer's JSON; raises CommandError for anything else."""
        headers = {"Accept": _TYPE, "User-Agent": "ojs-aws"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        if body is not None:
            headers["Content-Type"] = _TYPE
        try:
            answer = urllib3.request(
                method,
                f"{self.url.rstrip('/')}/ojs/v1{path}",
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=_TIMEOUT_S,
                # A repeated request could create a second key when the first answer is lost.
                retries=False,
                redirect=False,
            )
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise CommandError(f"{self.url} does not answer: {error}") from None
        return _read(answer)


def _read(answer: urllib3.BaseHTTPResponse) -> Any:
    try:
        body = json.loads(answer.data)
    except ValueError:
        raise CommandError(f"HTTP {answer.status} without JSON: is that an OJS server?") from None
    if answer.status < 400:
        return body
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        raise CommandError(f"{error.get('code')}: {error.get('message')}")
    # API Gateway's own errors.
    message = body.get("message") if isinstance(body, dict) else None
    raise CommandError(f"HTTP {answer.status}: {message or 'refused'}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a server."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--url", help=f"the server (default: $OJS_URL, or {_LOCAL_URL}, the local server)"
    )
    where.add_argument(
        "--stage",
        help="a deployed stage: its URL is read with your AWS credentials, and so is its first key "
        "unless another key is given",
    )
    parser.add_argument(
        "--key-file",
        type=Path,
        help="file that holds the key to use (default: $OJS_KEY, or none). A key is never given on "
        "the command line, where other users of the machine would see it",
    )


def server(options: argparse.Namespace) -> Server:
    """The server that the options name. Raises CommandError."""
    key = _key(options.key_file)
    if options.stage:
        return _deployed(options.stage, key)
    return Server(options.url or os.environ.get("OJS_URL") or _LOCAL_URL, key)


def _key(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("OJS_KEY", "").strip() or None
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"the key file {file} cannot be read: {error}") from None


def _deployed(stage: str, key: str | None) -> Server:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        url = outputs(stage, "service")["ApiUrl"]
        if key is None:
            secret = outputs(stage, "data").get("FirstKeySecretArn")
            if secret is None:
                raise CommandError(f"stage {stage} has no keys: callers authenticate otherwise")
            client = boto3.client("secretsmanager")
            key = client.get_secret_value(SecretId=secret)["SecretString"].strip()
    except (BotoCoreError, ClientError) as error:
        raise CommandError(f"AWS: {error}") from None
    return Server(url, key)


def outputs(stage: str, stack: str) -> dict[str, str]:
    """The outputs of one of a stage's stacks. Raises the SDK's errors, CommandError."""
    import boto3

    name = f"ojs-{stage}-{stack}"
    found = boto3.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
    return {each["OutputKey"]: each["OutputValue"] for each in found[0].get("Outputs", [])}
