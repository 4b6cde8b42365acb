"""API Gateway's part in asking who calls: by keys, and where the first is left; or by IAM roles."""

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
    """The first key in a file that only its owner may read, as Secrets Manager keeps it on AWS."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> str | None:
        """The key; None as long as there is none."""
        try:
            return self.path.read_text().strip() or None
        except FileNotFoundError:
            return None

    def write_once(self, text: str, _token: str) -> str:
        """Write it: no other server has this folder."""
        written = self.path.with_name(f"{self.path.name}.new")
        written.unlink(missing_ok=True)
        # A reader never sees half of it, and other users never see any of it.
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
    """Takes requests that are signed as with `authorizer=iam`, but checks no signature: there is no
    IAM here. What stands for the id of an AWS access key is the name of the role that asks. So this
    is for a server that only its own machine reaches.
    """

    def prepare(self, _setup: Setup) -> None:
        """Nothing is made beforehand: the role `operator` may do everything."""

    def context(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """What API Gateway adds to the context of a request. On AWS one without a signature does
        not get this far.
        """
        headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
        found = _SIGNED.fullmatch(headers.get("authorization", ""))
        return {"iam": {"userArn": f"{ROLES}{found['name']}"}} if found else {}

    def may_reset(self, event: Mapping[str, Any]) -> bool:
        """Whether the caller may empty the server."""
        return self.context(event) == {"iam": {"userArn": OPERATOR}}


class Access:
    """Asks for keys, as the deployed API does, but remembers none: revoked is refused at once."""

    def __init__(self, authentication: Authentication, first: KeyFile) -> None:
        self.first = first
        self._authentication = authentication

    def prepare(self, setup: Setup) -> None:
        """Have the first key in the table, new or not. Raises SetupError."""
        access_runtime.use(self._authentication)
        setup.leave_first_key(self.first)

    def context(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """What API Gateway adds to the context of a request. On AWS one without the header does
        not get this far; here the function refuses it, with the body that clients know.
        """
        answer = authorizer.handler(event, LambdaContext("authorizer"))
        return {"lambda": answer["context"]}

    def may_reset(self, event: Mapping[str, Any]) -> bool:
        """Whether the caller may empty the server."""
        principal = Principal.of(self.context(event)["lambda"])
        return (
            principal is not None
            and Scope.ADMIN_WRITE in principal.scopes
            and not principal.limited
        )
