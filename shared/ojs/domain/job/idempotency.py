"""Idempotency keys: what a client sends with a push, so that a repetition of it pushes nothing."""

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
# For how long a key stands for the same jobs.
KEPT_MS = 86_400_000
_DIGEST_BYTES = 16


@record(frozen=True)
class IdempotencyKey:
    """A key of one caller, and the request that it was sent with: digests of both.

    Keys of two callers never have the same `name`. A request with another `body`, or to another
    operation, has another `request`. How a body is spaced, and the order of its fields, do not
    count.
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
        """The key in a header, or in a `field` of the body. Raises InvalidRequest."""
        text = header.strip()
        if not re.fullmatch(KEY_PATTERN, text):
            rule = f"must have 1 to {MAX_KEY_CHARACTERS} printable ASCII characters"
            raise InvalidRequest(field, rule, value=header)
        # An access key has jobs of its own, though others may bear its name.
        who = ["key", caller.key] if caller.key is not None else ["name", caller.name]
        sent = [operation, body]
        return cls(_digest([*who, text]).hex(), _digest(sent))

    def steady_seed(self, at_ms: int) -> str:
        """A seed (eight characters) of all tries of the request that first came at this time."""
        return urlsafe_b64encode(_digest([self.name, at_ms])[:6]).decode()

    def job_id(self, seed: str, at_ms: int, index: int) -> str:
        """The id of the job of this index: the same for each try with this seed and time (ms)."""
        return derived_uuid7(at_ms, f"{self.name}|{seed}|{index}")


def _digest(value: Any) -> bytes:
    text = jsontext.dumps(value, sort_keys=True)
    return hashlib.blake2b(text.encode("utf-8"), digest_size=_DIGEST_BYTES).digest()
