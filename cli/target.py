"""The server that a command talks to, and the key it uses, or the signature."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cli.output import note
from ojs_aws import ApiError, Client, RetryPolicy, Unreachable
from ojs_aws.client.call import Call, json_object

if TYPE_CHECKING:
    from ojs_aws.client.signing import Signer

_LOCAL_URL = "http://127.0.0.1:8080"

T = TypeVar("T")


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


class Server(Client):
    """An OJS server. No request is repeated: when an answer is lost, a second request could create
    a second key.
    """

    def __init__(self, url: str, key: str | None = None, signer: Signer | None = None) -> None:
        """`key` is None where no key is needed, or requests are signed. Raises CommandError."""
        from httpx import InvalidURL

        try:
            super().__init__(url, key=key, iam=signer or False, retry=RetryPolicy(tries=1))
        except (ValueError, InvalidURL) as error:
            raise CommandError(f"{url} does not answer: {error}", Exit.UNREACHABLE) from None

    def run(self, call: Call[T]) -> T:
        """The answer to a call. Raises CommandError."""
        try:
            answer = super().run(call)
        except ApiError as error:
            raise _refused(error) from None
        except Unreachable as error:
            doubt = "; the server may have carried it out"
            message = f"{error}{doubt if error.sent and call.method != 'GET' else ''}"
            raise CommandError(message, Exit.UNREACHABLE) from None
        if not answer:
            raise CommandError("the answer is empty: is that an OJS server?", Exit.UNREACHABLE)
        return answer

    def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The answer to a request that the library has no method for. Raises CommandError."""
        return self.run(Call(method, path, json_object, body, query))


def answered(ask: Callable[[], T], otherwise: T) -> T:
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


def name(text: str) -> str:
    """An argument that is one part of a path. Raises ArgumentTypeError for one that none can be."""
    if text in ("", ".", ".."):
        raise argparse.ArgumentTypeError(f"'{text}' is no name")
    return text


_STATUS = {401: Exit.NOT_ALLOWED, 403: Exit.NOT_ALLOWED, 404: Exit.NOT_FOUND} | dict.fromkeys(
    (429, 503, 504), Exit.BUSY
)


def _refused(error: ApiError) -> CommandError:
    if not (error.code or error.message):
        message = f"HTTP {error.status} without a reason in JSON: is that an OJS server?"
        return CommandError(message, Exit.UNREACHABLE)
    # API Gateway's own errors have no code.
    message = f"{error.code or f'HTTP {error.status}'}: {error.message}"
    if error.retry_after_s:
        message += f" (try again in {error.retry_after_s:g} s)"
    fallback = Exit.REFUSED if error.status < 500 else Exit.FAILED
    return CommandError(message, _STATUS.get(error.status, fallback))


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
    """The server that the options name; `options.server` is to be closed. Raises CommandError."""
    signer = _signer() if options.iam else None
    key = None if options.iam else _key(options.key_file)
    url = options.url or os.environ.get("OJS_URL") or _LOCAL_URL
    if options.stage:
        url, key = _deployed(options.stage, key, signer)
    options.server = found = Server(url, key, signer)
    return found


def _signer() -> Signer:
    """Signs with the credentials that the SDK finds, those of a profile among them. Raises
    CommandError, later too.
    """
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    from ojs_aws.client.signing import Credentialed, Credentials, Signer

    class Found(Credentialed):
        def get(self) -> Credentials:
            own = session.get_credentials()
            if own is None:
                raise LookupError("no AWS credentials were found to sign requests with")
            # The SDK reads those that expire again.
            key_id, secret, token = own.get_frozen_credentials()[:3]
            return Credentials(key_id or "", secret or "", token)

    class Signing(Signer):
        def headers(self, *request: Any) -> dict[str, str]:
            try:
                return super().headers(*request)
            except (LookupError, BotoCoreError, ClientError) as error:
                raise CommandError(f"AWS: {error}") from None

    try:
        session = boto3.Session()
    except BotoCoreError as error:
        raise CommandError(f"AWS: {error}") from None
    return Signing(Found(), {"AWS_REGION": session.region_name or ""})


def _key(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get("OJS_KEY", "").strip() or None
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"the key file {file} cannot be read: {error}") from None


def _deployed(stage: str, key: str | None, signer: Signer | None) -> tuple[str, str | None]:
    """A stage's URL, and the key for it: its first one, unless there is another or a signer."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        url = outputs(stage, "service")["ApiUrl"]
        if key is None and signer is None:
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
    return url, key


def outputs(stage: str, stack: str) -> dict[str, str]:
    """The outputs of one of a stage's stacks. Raises the SDK's errors, CommandError."""
    import boto3

    name = f"ojs-{stage}-{stack}"
    found = boto3.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
    return {each["OutputKey"]: each["OutputValue"] for each in found[0].get("Outputs", [])}
