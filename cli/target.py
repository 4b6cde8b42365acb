"""Which server a command is for, and the key it is asked with."""

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
    """The command could not be done; the message is for whoever gave it."""


@dataclass(frozen=True)
class Server:
    """An OJS server. `key` is None where none is needed."""

    url: str
    key: str | None

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of an answer. Raises CommandError for one that is none, or an error."""
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
                # A key that was made, and whose secret did not arrive, is not to be made again
                # unnoticed.
                retries=False,
                redirect=False,
            )
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            raise CommandError(f"{self.url} does not answer: {error}") from None
        return _read(answer)


def _read(answer: urllib3.BaseHTTPResponse) -> Any:
    try:
        told = json.loads(answer.data)
    except ValueError:
        raise CommandError(f"HTTP {answer.status}, and no JSON: is that an OJS server?") from None
    if answer.status < 400:
        return told
    error = told.get("error") if isinstance(told, dict) else None
    if isinstance(error, dict):
        raise CommandError(f"{error.get('code')}: {error.get('message')}")
    # What API Gateway says itself.
    said = told.get("message") if isinstance(told, dict) else None
    raise CommandError(f"HTTP {answer.status}: {said or 'refused'}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that name a server."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--url", help=f"the server (default: $OJS_URL, or {_LOCAL_URL}, the local server)"
    )
    where.add_argument(
        "--stage",
        help="a deployed stage: its URL, and unless another key is given the first one, are read "
        "with your AWS credentials",
    )
    parser.add_argument(
        "--key-file",
        type=Path,
        help="file that holds the key to ask with (default: $OJS_KEY, or none). Keys are never "
        "given on the command line, where other users of the machine see them",
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
                raise CommandError(f"stage {stage} has no keys: it knows its callers otherwise")
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
