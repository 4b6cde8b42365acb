"""The server that a command talks to, and the key it uses, or the signature."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import ProtocolError, ReadTimeoutError

from cli.output import note

if TYPE_CHECKING:
    import argparse

    from cli.signature import Signature

_TIMEOUT_S = 30.0
_LOCAL_URL = "http://127.0.0.1:8080"
_TYPE = "application/openjobspec+json"

Answer = TypeVar("Answer")


class Exit(IntEnum):
    """What a command ends with; docs/terminal.md has the same list."""

    DONE = 0
    FAILED = 1  # also: some of many jobs were not dealt with
    USAGE = 2
    UNREACHABLE = 3  # no server answers there, or it is none of this kind
    NOT_ALLOWED = 4  # 401, 403
    NOT_FOUND = 5  # 404
    REFUSED = 6  # any other 4xx
    BUSY = 7  # 429, 503, 504: try again later
    INTERRUPTED = 130  # Ctrl-C


class CommandError(Exception):
    """The command failed; the message is for the user, the exit status for scripts."""

    def __init__(self, message: str, status: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Server:
    """An OJS server. `key` is None where no key is needed, or requests are signed."""

    url: str
    key: str | None
    signature: Signature | None = None

    def ask(
        self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None
    ) -> Any:
        """Send a request. Returns the answer's JSON; raises CommandError for anything else.

        Of the query, what is None is left out.
        """
        headers = {"Accept": _TYPE, "User-Agent": "ojs-aws"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        if body is not None:
            headers["Content-Type"] = _TYPE
        given = {name: value for name, value in (query or {}).items() if value is not None}
        # With %20 for a space, as it is signed.
        named = urlencode(given, quote_via=quote, safe="")
        url = f"{self.url.rstrip('/')}/ojs/v1{path}{'?' if given else ''}{named}"
        sent_body = None if body is None else json.dumps(body).encode()
        if self.signature is not None:
            headers = _signed(self.signature, method, url, sent_body, headers)
        try:
            answer = urllib3.request(
                method,
                url,
                body=sent_body,
                headers=headers,
                timeout=_TIMEOUT_S,
                # A repeated request could create a second key when the first answer is lost.
                retries=False,
                redirect=False,
            )
        except (urllib3.exceptions.HTTPError, ValueError) as error:
            sent = isinstance(error, (ProtocolError, ReadTimeoutError))
            doubt = "; it may have been done all the same" if sent and method != "GET" else ""
            message = f"{self.url} does not answer: {error}{doubt}"
            raise CommandError(message, Exit.UNREACHABLE) from None
        return _read(answer)

    def pages(self, path: str, query: Mapping[str, Any]) -> Iterator[Any]:
        """The answers of a listing, page by page. Raises CommandError."""
        cursor = None
        while True:
            answer = self.ask("GET", path, query={**query, "cursor": cursor})
            yield answer
            # That of a job's history stands beside its events.
            cursor = answer.get("pagination", answer).get("next_cursor")
            if cursor is None:
                return


def answered(ask: Callable[[], Answer], otherwise: Answer) -> Answer:
    """What a request that only reads is answered; something else where the server is busy or away,
    which is told. Raises CommandError for other failures.
    """
    try:
        return ask()
    except CommandError as error:
        if error.status not in (Exit.BUSY, Exit.UNREACHABLE):
            raise
        note(f"ojs-aws: {error}; trying again")
        return otherwise


def segment(text: str) -> str:
    """A text as one part of a path. Raises CommandError for one that no path can have."""
    if text in ("", ".", ".."):
        raise CommandError(f"'{text}' is no name", Exit.USAGE)
    return quote(text, safe="")


def _signed(
    signature: Signature, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
) -> dict[str, str]:
    from botocore.exceptions import BotoCoreError

    try:
        return signature.headers(method, url, body, headers)
    except (LookupError, BotoCoreError) as error:
        raise CommandError(f"AWS: {error}") from None


_STATUS = {401: Exit.NOT_ALLOWED, 403: Exit.NOT_ALLOWED, 404: Exit.NOT_FOUND} | dict.fromkeys(
    (429, 503, 504), Exit.BUSY
)


def _read(answer: urllib3.BaseHTTPResponse) -> Any:
    try:
        body = json.loads(answer.data)
    except ValueError:
        message = f"HTTP {answer.status} without JSON: is that an OJS server?"
        raise CommandError(message, Exit.UNREACHABLE) from None
    if answer.status < 400:
        return body
    status = _STATUS.get(answer.status, Exit.REFUSED if answer.status < 500 else Exit.FAILED)
    error = body.get("error") if isinstance(body, dict) else None
    if isinstance(error, dict):
        message = f"{error.get('code')}: {error.get('message')}"
        if after := answer.headers.get("Retry-After"):
            message += f" (try again in {after} s)"
        raise CommandError(message, status)
    # API Gateway's own errors.
    said = body.get("message") if isinstance(body, dict) else None
    raise CommandError(f"HTTP {answer.status}: {said or 'refused'}", status)


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
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "--iam",
        action="store_true",
        help="sign requests with your AWS credentials, for a stage with authorizer=iam",
    )
    who.add_argument(
        "--key-file",
        type=Path,
        help="file that holds the key to use (default: $OJS_KEY, or none). A key is never given on "
        "the command line, where other users of the machine would see it",
    )


def server(options: argparse.Namespace) -> Server:
    """The server that the options name. Raises CommandError."""
    signature = _signature() if options.iam else None
    key = None if options.iam else _key(options.key_file)
    if options.stage:
        return _deployed(options.stage, key, signature)
    return Server(options.url or os.environ.get("OJS_URL") or _LOCAL_URL, key, signature)


def _signature() -> Signature:
    from botocore.exceptions import BotoCoreError

    from cli.signature import Signature

    try:
        return Signature.own()
    except (LookupError, BotoCoreError) as error:
        raise CommandError(f"AWS: {error}") from None


def _key(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("OJS_KEY", "").strip() or None
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"the key file {file} cannot be read: {error}") from None


def _deployed(stage: str, key: str | None, signature: Signature | None) -> Server:
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        url = outputs(stage, "service")["ApiUrl"]
        if key is None and signature is None:
            secret = outputs(stage, "data").get("FirstKeySecretArn")
            if secret is None:
                raise CommandError(
                    f"stage {stage} has no keys: with authorizer=iam say --iam; with a JWT the "
                    "command cannot ask"
                )
            client = boto3.client("secretsmanager")
            key = client.get_secret_value(SecretId=secret)["SecretString"].strip()
    except (BotoCoreError, ClientError) as error:
        raise CommandError(f"AWS: {error}") from None
    return Server(url, key, signature)


def outputs(stage: str, stack: str) -> dict[str, str]:
    """The outputs of one of a stage's stacks. Raises the SDK's errors, CommandError."""
    import boto3

    name = f"ojs-{stage}-{stack}"
    found = boto3.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
    return {each["OutputKey"]: each["OutputValue"] for each in found[0].get("Outputs", [])}
