"""Rejects requests that did not pass the distribution in front, which adds a secret header."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Protocol

from ojs.clock import Clock
from ojs.domain.errors import BackendUnavailable, PermissionDenied

HEADER = "x-origin-verify"
# Time (ms) for which the secret is cached, and time until the next attempt after a failed read.
REMEMBERED_MS = 600_000
RETRY_MS = 5_000


class OriginSecret(Protocol):
    """A secret that is rotated."""

    def values(self) -> list[str]:
        """Return its current and its previous value. Raises BackendUnavailable."""
        ...


class OriginGuard:
    """Checks the secret header, with the secret cached in this container."""

    def __init__(self, secret: OriginSecret, clock: Clock) -> None:
        self._secret = secret
        self._clock = clock
        self._values: list[bytes] = []
        self._tried_ms: int | None = None
        self._failed: BackendUnavailable | None = None

    def check(self, headers: Mapping[str, str]) -> None:
        """Check that a request came through the distribution. Header names are in lower case.

        Makes no call for a request without the header. Otherwise reads the secret once in
        `REMEMBERED_MS`. While it can't be read, the cached values remain valid.

        Raises PermissionDenied if it didn't, and BackendUnavailable if this can't be determined.
        """
        given = headers.get(HEADER, "").encode("utf-8", "surrogatepass")
        if given:
            self._read()
            # All values are compared, each in constant time, so that the duration reveals nothing.
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
