"""Adds an access key from AWS Secrets Manager to requests.

Requires boto3, which Lambda provides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from ojs_aws.client.signing import Signer

# Time in seconds for which an access key is cached. A replaced key is rejected for as long.
_KEY_S = 300.0


class SecretKey(Signer):
    """Adds the access key that a secret in AWS Secrets Manager contains. Thread-safe."""

    def __init__(
        self,
        secret_id: str,
        *,
        read: Callable[[str], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a signer.

        Args:
            secret_id: ARN or name of the secret.
            read: Reads a secret. Default: with boto3, which Lambda provides.
            clock: Current time in seconds.
        """
        self._secret_id = secret_id
        self._read = read or _secret
        self._clock = clock
        self._lock = threading.Lock()
        self._key, self._until = "", 0.0

    def headers(self, *_request: Any) -> dict[str, str]:
        """Return the header with the key. Raises LookupError if the secret can't be read."""
        with self._lock:
            if not self._key or self._clock() >= self._until:
                self._key = self._read(self._secret_id).strip()
                self._until = self._clock() + _KEY_S
            return {"Authorization": f"Bearer {self._key}"}


def _secret(secret_id: str) -> str:
    try:
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise LookupError("OJS_KEY_SECRET requires boto3. Install it, or set OJS_KEY") from None
    try:
        client = boto3.client("secretsmanager")
        return str(client.get_secret_value(SecretId=secret_id)["SecretString"])
    except (BotoCoreError, ClientError, KeyError) as error:
        raise LookupError(f"the secret {secret_id} can't be read: {error}") from error
