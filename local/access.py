"""Authentication as API Gateway does it: by access keys, or by IAM roles."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from functions.authorizer import handler as authorizer
from local.lambda_context import LambdaContext
from ojs import access_runtime
from ojs.domain.access import Principal, Scope
from ojs.services.operations.authentication import Authentication

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ojs.services.operations.setup import Setup

FIRST_KEY = "first-key"


class KeyFile:
    """The bootstrap key in a file that only its owner can read. Replaces Secrets Manager."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> str | None:
        """The key, or None if the file doesn't exist."""
        try:
            return self.path.read_text().strip() or None
        except FileNotFoundError:
            return None

    def write_once(self, text: str, _token: str) -> str:
        """Write the key. No other server uses this folder."""
        written = self.path.with_name(f"{self.path.name}.new")
        written.unlink(missing_ok=True)
        # Readers never see a partial file, and other users can't read it.
        with os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{text}\n")
        written.replace(self.path)
        return text


ROLES = "arn:aws:iam::000000000000:role/"
OPERATOR = f"{ROLES}operator"
_SIGNED = re.compile(
    r"AWS4-HMAC-SHA256 +Credential=(?P<name>[\w+=,.@-]{1,64})/\d{8}/[a-z0-9-]+/execute-api/"
    r"aws4_request, *SignedHeaders=\S+, *Signature=[0-9a-f]{64}",
    re.ASCII,
)


class SignedAccess:
    """Accepts requests that are signed as with `authorizer=iam`, without checking the signature.

    The field for the AWS access key ID contains the name of the role. So the server must be
    reachable from its own machine only.
    """

    def prepare(self, _setup: Setup) -> None:
        """Do nothing: the role `operator` has all scopes without a record."""

    def context(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return the authorizer context of a request.

        On AWS, API Gateway rejects requests without a signature.
        """
        headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
        found = _SIGNED.fullmatch(headers.get("authorization", ""))
        return {"iam": {"userArn": f"{ROLES}{found['name']}"}} if found else {}

    def may_reset(self, event: Mapping[str, Any]) -> bool:
        """Whether the caller can reset the server."""
        return self.context(event) == {"iam": {"userArn": OPERATOR}}


class Access:
    """Requires access keys, without a cache: a revoked key is rejected immediately."""

    def __init__(self, authentication: Authentication, first: KeyFile) -> None:
        self.first = first
        self._authentication = authentication

    def prepare(self, setup: Setup) -> None:
        """Create the bootstrap key in the table, or keep the existing one. Raises SetupError."""
        access_runtime.use(self._authentication)
        setup.leave_first_key(self.first)

    def context(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return the authorizer context of a request.

        On AWS, API Gateway rejects requests without the header. Here the function rejects them.
        """
        answer = authorizer.handler(event, LambdaContext("authorizer"))
        return {"lambda": answer["context"]}

    def may_reset(self, event: Mapping[str, Any]) -> bool:
        """Whether the caller can reset the server."""
        principal = Principal.of(self.context(event)["lambda"])
        return (
            principal is not None
            and Scope.ADMIN_WRITE in principal.scopes
            and not principal.limited
        )
