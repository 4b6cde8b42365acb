"""Idempotency keys. If a client repeats a request with the same key, no further job is created."""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

from ojs.domain import jsontext
from ojs.domain.access import Principal
from ojs.domain.errors import InvalidRequest
from ojs.domain.ids import derived_uuid7
from ojs.records import record

HEADER = "Idempotency-Key"
MAX_KEY_CHARACTERS = 256
KEY_PATTERN = rf"[\x20-\x7e]{{1,{MAX_KEY_CHARACTERS}}}"
# Time (ms) for which a key refers to the same jobs.
KEPT_MS = 86_400_000
_DIGEST_BYTES = 16


@record(frozen=True)
class IdempotencyKey:
    """Digests of a caller's idempotency key and of the request with this key.

    The keys of two callers never have the same `name`. Requests with different bodies or operations
    never have the same `request`. Whitespace and the order of fields in the body don't matter.
    """

    name: str
    request: bytes

    @classmethod
    def of(
        cls,
        header: str,
        *,
        caller: Principal,
        operation: str,
        body: Mapping[str, Any],
        field: str = HEADER,
    ) -> IdempotencyKey:
        """Create the key of a request.

        Args:
            header: Value of the key.
            caller: Caller of the request.
            operation: Operation of the request.
            body: Body of the request.
            field: Name of the header or field that contains the key, for errors. Default: the
                header.

        Raises:
            InvalidRequest: The key is not 1 to 256 printable ASCII characters.
        """
        text = header.strip()
        if not re.fullmatch(KEY_PATTERN, text):
            rule = f"must have 1 to {MAX_KEY_CHARACTERS} printable ASCII characters"
            raise InvalidRequest(field, rule, value=header)
        # Idempotency keys are separate for each access key, even if several have the same name.
        who = ["key", caller.key] if caller.key is not None else ["name", caller.name]
        if caller.tenant is not None:
            who.append(f"tenant {caller.tenant}")
        sent = [operation, body]
        return cls(_digest([*who, text]).hex(), _digest(sent))

    def steady_seed(self, at_ms: int) -> str:
        """Return a seed (8 characters) for all retries of the request that was first sent at
        `at_ms`.
        """
        return urlsafe_b64encode(_digest([self.name, at_ms])[:6]).decode()

    def job_id(self, seed: str, at_ms: int, index: int) -> str:
        """Derive the ID of a job of the request. The same arguments give the same ID.

        Args:
            seed: Seed of the request.
            at_ms: Time of the first request in milliseconds since the epoch.
            index: Index of the job in the request.
        """
        return derived_uuid7(at_ms, f"{self.name}|{seed}|{index}")


def _digest(value: Any) -> bytes:
    text = jsontext.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8"), digest_size=_DIGEST_BYTES).digest()
