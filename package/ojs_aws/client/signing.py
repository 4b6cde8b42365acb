"""Signs requests with AWS credentials.

Implements Signature Version 4 with the standard library only. The credentials come from the
environment (Lambda), or from the endpoint that ECS and EKS provide to a container.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

# Host pattern of each service that requests can be signed for.
_HOSTS = {
    "execute-api": re.compile(r"[a-z0-9-]+\.execute-api\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?"),
    "lambda": re.compile(r"[a-z0-9]+\.lambda-url\.([a-z0-9-]+)\.on\.aws"),
}
_ECS = "http://169.254.170.2"
# Time in seconds before their expiry at which credentials are refreshed, and timeout of the
# refresh.
_SPARE_S = 300.0
_ASK_S = 2.0


@dataclass(frozen=True)
class Credentials:
    """AWS credentials. `end` is their expiry time in seconds since the epoch, or None."""

    key_id: str
    secret: str
    token: str | None = None
    end: float | None = None


class Credentialed:
    """Reads the credentials of this process and caches them until they expire. Thread-safe."""

    def __init__(
        self,
        environ: Mapping[str, str] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._environ = os.environ if environ is None else environ
        self._now = now
        self._lock = threading.Lock()
        self._known: Credentials | None = None

    def get(self) -> Credentials:
        """Return the current credentials.

        Raises:
            LookupError: The environment has no credentials.
            OSError: The endpoint is unreachable, and the cached credentials have expired.
            ValueError: The response of the endpoint is invalid.
        """
        with self._lock:
            known, now = self._known, self._now()
            if known is not None and (known.end is None or now < known.end - _SPARE_S):
                return known
            try:
                self._known = self._read()
            except (OSError, ValueError):
                # The refresh starts 5 minutes before expiry: the cached credentials are valid.
                if known is None or known.end is None or now >= known.end:
                    raise
                return known
            return self._known

    def _read(self) -> Credentials:
        env = self._environ
        if "AWS_ACCESS_KEY_ID" in env and "AWS_SECRET_ACCESS_KEY" in env:
            token = env.get("AWS_SESSION_TOKEN") or None
            return Credentials(env["AWS_ACCESS_KEY_ID"], env["AWS_SECRET_ACCESS_KEY"], token)
        path = env.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
        url = f"{_ECS}{path}" if path else env.get("AWS_CONTAINER_CREDENTIALS_FULL_URI")
        if not url:
            raise LookupError(
                "the environment has no AWS credentials. Set AWS_ACCESS_KEY_ID and"
                " AWS_SECRET_ACCESS_KEY, or run with a container role"
            )
        file = env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
        allowed = env.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
        if file:
            allowed = Path(file).read_text("utf-8").strip()
        request = Request(url, headers={"Authorization": allowed} if allowed else {})  # noqa: S310
        with urlopen(request, timeout=_ASK_S) as answer:  # noqa: S310 - named by the environment
            found = json.load(answer)
        try:
            # Python 3.10 can't parse the suffix Z.
            until = found["Expiration"].replace("Z", "+00:00")
            end = datetime.fromisoformat(until).timestamp()
            return Credentials(found["AccessKeyId"], found["SecretAccessKey"], found["Token"], end)
        except (KeyError, TypeError, AttributeError) as wrong:
            raise ValueError(
                f"the response of the credentials endpoint is invalid: {wrong!r}"
            ) from None


class Signer:
    """Signs the requests of a client. Pass it as `iam`. Works with both clients."""

    def __init__(
        self, credentials: Credentialed | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self._credentials = credentials or Credentialed(environ)
        environ = os.environ if environ is None else environ
        self._region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")

    def __call__(self, request: Any) -> Any:
        """Sign a request.

        Args:
            request: A request of httpx.

        Returns:
            The same request with the signature headers.

        Raises:
            httpx.ConnectError: No credentials, or the region is unknown. Nothing was sent.
        """
        import httpx

        try:
            signed = self.headers(
                request.method,
                request.url.host,
                request.headers["host"],
                request.url.raw_path.decode("ascii"),
                request.headers.get("content-type"),
                request.content,
            )
        except (OSError, ValueError, LookupError) as error:
            said = f"the request could not be signed, and was not sent: {error}"
            raise httpx.ConnectError(said, request=request) from error
        request.headers.update(signed)
        return request

    def headers(
        self, method: str, name: str, host: str, target: str, kind: str | None, body: bytes
    ) -> dict[str, str]:
        """Return the headers that sign a request.

        Args:
            method: HTTP method.
            name: Host name of the server, without the port.
            host: Value of the header `Host`.
            target: Path and query of the URL.
            kind: Value of the header `Content-Type`, or None.
            body: Body of the request.

        Returns:
            The headers by name: `Authorization`, `x-amz-date`, and with temporary credentials
            `x-amz-security-token`. A content type is included unchanged.

        Raises:
            LookupError: The environment has no credentials, or the region is unknown.
            OSError: The credentials endpoint is unreachable.
            ValueError: The response of the credentials endpoint is invalid.
        """
        service, region = "execute-api", self._region
        for kind_of_host, pattern in _HOSTS.items():
            if found := pattern.fullmatch(name):
                service, region = kind_of_host, found[1]
        if region is None:
            raise LookupError("the region of the API is unknown. Set AWS_REGION")
        own = self._credentials.get()
        at = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
        signed = {"host": host, "x-amz-date": at}
        if own.token:
            signed["x-amz-security-token"] = own.token
        given = {**signed, **({"content-type": kind} if kind else {})}
        names = ";".join(sorted(given))
        path, _, query = target.partition("?")
        canonical = "\n".join([
            method,
            # All services except S3 encode the path a second time.
            quote(path, safe="/~"),
            "&".join(sorted(query.split("&"))),
            *(f"{each}:{given[each].strip()}" for each in sorted(given)),
            "",
            names,
            hashlib.sha256(body).hexdigest(),
        ])  # fmt: skip
        scope = f"{at[:8]}/{region}/{service}/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{digest}"
        key = f"AWS4{own.secret}".encode()
        for part in scope.split("/"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        del signed["host"]
        authorization = f"Credential={own.key_id}/{scope}, SignedHeaders={names}"
        signed["Authorization"] = f"AWS4-HMAC-SHA256 {authorization}, Signature={signature}"
        return signed
