"""Lets in only what came through the distribution in front, which adds a secret to requests."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Protocol

from ojs.clock import Clock
from ojs.domain.errors import BackendUnavailable, PermissionDenied

HEADER = "x-origin-verify"
# For how long what was read counts as what is stored, and when reading is tried again if it failed.
REMEMBERED_MS = 600_000
RETRY_MS = 5_000


class OriginSecret(Protocol):
    """A secret whose value changes now and then."""

    def values(self) -> list[str]:
        """Its value and the one before. Raises BackendUnavailable."""
        ...


class OriginGuard:
    """What one container knows of the secret."""

    def __init__(self, secret: OriginSecret, clock: Clock) -> None:
        self._secret = secret
        self._clock = clock
        self._values: list[bytes] = []
        self._tried_ms: int | None = None
        self._failed: BackendUnavailable | None = None

    def check(self, headers: Mapping[str, str]) -> None:
        """Raise PermissionDenied for a request (names of its headers in lower case) that did not
        come through the distribution, BackendUnavailable where that cannot be told.

        No call for a request without the header, and otherwise the secret is read once in
        `REMEMBERED_MS`. While it cannot be read, what was read before still lets requests in.
        """
        given = headers.get(HEADER, "").encode("utf-8", "surrogatepass")
        if given:
            self._read()
            # Each is compared, and each in a time that does not tell how much of it is right.
            right = [hmac.compare_digest(given, each) for each in self._values]
            if any(right):
                return
            if self._failed is not None:
                message = (
                    "The server can't verify the origin of this request, because its secret "
                    "can't be read."
                )
                raise BackendUnavailable(message, retry_after_s=5) from self._failed
        raise PermissionDenied("Requests must use the domain name of the deployment.")

    def _read(self) -> None:
        now_ms = self._clock.now_ms()
        good_for_ms = REMEMBERED_MS if self._failed is None else RETRY_MS
        if self._tried_ms is not None and 0 <= now_ms - self._tried_ms < good_for_ms:
            return
        self._tried_ms = now_ms
        try:
            self._values = [each.encode() for each in self._secret.values()]
            self._failed = None
        except BackendUnavailable as error:
            self._failed = error
