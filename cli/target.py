"""The server that a command uses, and its authentication."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from cli.output import note
from ojs_aws import ApiError, Client, Job, RetryPolicy, Unreachable, WaitTimeout
from ojs_aws.client.call import Call, json_object

if TYPE_CHECKING:
    from ojs_aws.client.signing import Signer

_LOCAL_URL = "http://127.0.0.1:8080"

T = TypeVar("T")


class Exit(IntEnum):
    """Exit status of a command. docs/terminal.md lists the same values."""

    DONE = 0
    FAILED = 1  # also: some of the jobs failed
    USAGE = 2
    UNREACHABLE = 3  # no response, or not an OJS server
    NOT_ALLOWED = 4  # 401, 403
    NOT_FOUND = 5  # 404
    REFUSED = 6  # any other 4xx
    BUSY = 7  # 429, 503, 504, or a timeout of `jobs wait`: retry later
    INTERRUPTED = 130  # Ctrl-C


class CommandError(Exception):
    """The command failed. The message is for the user, the exit status for scripts."""

    def __init__(self, message: str, status: Exit = Exit.FAILED) -> None:
        super().__init__(message)
        self.status = status


class Server(Client):
    """An OJS server. Requests are not retried: after a lost response, a retry could create a
    second key.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        signer: Signer | None = None,
        tenant: str | None = None,
    ) -> None:
        """Create a client. `key` is None without authentication, or with signed requests.

        Raises CommandError.
        """
        from httpx import InvalidURL

        try:
            super().__init__(
                url, key=key, iam=signer or False, tenant=tenant, retry=RetryPolicy(tries=1)
            )
        except (ValueError, InvalidURL) as error:
            raise CommandError(f"can't use {url}: {error}", Exit.UNREACHABLE) from None

    def run(self, call: Call[T]) -> T:
        """Send a call and return its result. Raises CommandError."""
        doubt = ". The server may have processed the request" if call.method != "GET" else ""
        with _failing(doubt):
            answer = super().run(call)
        if not answer:
            raise CommandError("the response is empty. Is this an OJS server?", Exit.UNREACHABLE)
        return answer

    def wait_for(self, job_id: str, timeout_s: float = 60.0) -> Job:
        """Wait until a job is in a final state. Raises CommandError."""
        with _failing():
            return super().wait_for(job_id, timeout_s)

    def ask(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """Send a request that the library has no method for. Raises CommandError."""
        return self.run(Call(method, path, json_object, body, query))

    def edit(
        self, method: str, path: str, body: Any = None, *, etag: str | None, new: bool = False
    ) -> Any:
        """Change a configuration that has this ETag, or create it. Raises CommandError."""
        headers = {"If-None-Match": "*"} if new else {"If-Match": f'"{etag}"'} if etag else {}
        return self.run(Call(method, path, json_object, body, {}, headers))


@contextmanager
def _failing(doubt: str = "") -> Iterator[None]:
    """Convert errors of requests. `doubt` is added if the server may have received the request."""
    try:
        yield
    except ApiError as error:
        raise _refused(error) from None
    except Unreachable as error:
        raise CommandError(f"{error}{doubt if error.sent else ''}", Exit.UNREACHABLE) from None
    except WaitTimeout as error:
        raise CommandError(str(error), Exit.BUSY) from None


def answered(ask: Callable[[], T], otherwise: T) -> T:
    """Send a read request. If the server is busy or unreachable, note it and return `otherwise`.

    Raises CommandError for other failures.
    """
    try:
        return ask()
    except CommandError as error:
        if error.status not in (Exit.BUSY, Exit.UNREACHABLE):
            raise
        note(f"error: {str(error).rstrip('.')}. Retrying")
        return otherwise


def name(text: str) -> str:
    """Parse an argument that is one path segment. Raises ArgumentTypeError."""
    if text in ("", ".", ".."):
        raise argparse.ArgumentTypeError(f"must be a name, but is '{text}'")
    return text


_STATUS = {401: Exit.NOT_ALLOWED, 403: Exit.NOT_ALLOWED, 404: Exit.NOT_FOUND} | dict.fromkeys(
    (429, 503, 504), Exit.BUSY
)


def _refused(error: ApiError) -> CommandError:
    if not (error.code or error.message):
        message = f"HTTP {error.status} without an error code. Is this an OJS server?"
        return CommandError(message, Exit.UNREACHABLE)
    # Errors of API Gateway have no code.
    message = f"{error.code or f'HTTP {error.status}'}: {error.message}"
    if error.retry_after_s:
        message += f" (retry after {error.retry_after_s:g} s)"
    fallback = Exit.REFUSED if error.status < 500 else Exit.FAILED
    return CommandError(message, _STATUS.get(error.status, fallback))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a server."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--url", help=f"URL of the server (default: $OJS_URL, or the local server {_LOCAL_URL})"
    )
    where.add_argument(
        "--stage",
        help="name of a deployment: reads its URL, and its bootstrap key unless you pass another, "
        "with your AWS credentials",
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
        help="file with the access key (default: $OJS_KEY, or no key). A key on the command line "
        "would be visible to other users of the machine",
    )

    parser.add_argument(
        "--tenant", metavar="ID", help="tenant to act for (default: that of the key, or none)"
    )


def server(options: argparse.Namespace) -> Server:
    """Return the server of the options. Close `options.server`. Raises CommandError."""
    options.server = found = Server(*place_of(options), options.tenant)
    return found


def place_of(options: argparse.Namespace) -> tuple[str, str | None, Signer | None]:
    """Return the URL, the key, and the signer of the options. Raises CommandError."""
    signer = _signer() if options.iam else None
    key = None if options.iam else _key(options.key_file)
    url = options.url or os.environ.get("OJS_URL") or _LOCAL_URL
    if options.stage:
        url, key = _deployed(options.stage, key, signer)
    return url, key, signer


def _signer() -> Signer:
    """Return a signer with the credentials of the SDK, including profiles.

    Raises CommandError, also when it signs.
    """
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    from ojs_aws.client.signing import Credentialed, Credentials, Signer

    class Found(Credentialed):
        def get(self) -> Credentials:
            own = session.get_credentials()
            if own is None:
                raise LookupError("no AWS credentials found to sign requests with")
            # The SDK refreshes expiring credentials.
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
        raise CommandError(f"--key-file: can't read {file}: {error}") from None


def _deployed(stage: str, key: str | None, signer: Signer | None) -> tuple[str, str | None]:
    """Return the URL and the key of a stage. Default: its bootstrap key, unless it has a signer."""
    import boto3
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        url = outputs(stage, "service")["ApiUrl"]
        if key is None and signer is None:
            secret = outputs(stage, "data").get("FirstKeySecretArn")
            if secret is None:
                raise CommandError(
                    f"--stage: {stage} has no access keys. With authorizer=iam, pass --iam. The "
                    "command doesn't support authorizer=jwt"
                )
            client = boto3.client("secretsmanager")
            key = client.get_secret_value(SecretId=secret)["SecretString"].strip()
    except (BotoCoreError, ClientError) as error:
        raise CommandError(f"AWS: {error}") from None
    return url, key


def outputs(stage: str, stack: str) -> dict[str, str]:
    """Return the outputs of a stack. Raises errors of the SDK, and CommandError."""
    import boto3

    name = f"ojs-{stage}-{stack}"
    found = boto3.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
    return {each["OutputKey"]: each["OutputValue"] for each in found[0].get("Outputs", [])}
