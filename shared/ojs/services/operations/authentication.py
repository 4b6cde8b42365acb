"""Identifies the holder of a request's access key. The authorizer loads no other service."""

from __future__ import annotations

import hashlib

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain.access import Credential, Principal, bearer
from ojs.domain.errors import OjsError
from ojs.store.deployment.access_keys import AccessKeyStore

_REMEMBERED = 1_000


class Authentication:
    """Identifies callers by their access keys."""

    def __init__(self, keys: AccessKeyStore, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock

    def who(self, authorization: str | None) -> Principal | None:
        """Return the holder of the key in an `Authorization` header, or None without a valid key.

        A header without a key, or with an incorrect MAC, needs no call. Other headers need one. The
        first lookup of a container also reads the secret of the MACs. Raises BackendUnavailable and
        BackendTimeout: a failed lookup must not count as an invalid key.
        """
        token = bearer(authorization or "")
        credential = Credential.parse(token) if token is not None else None
        if credential is None or not self._admits(credential):
            return None
        key = self._keys.use(credential, now_ms=self._clock.now_ms())
        return None if key is None else key.principal

    def _admits(self, credential: Credential) -> bool:
        """Return whether the credential can exist, so that a lookup is necessary."""
        try:
            mac = self._keys.mac()
        except OjsError:
            # The MAC secret can't be read. The lookup decides, as for keys without a MAC.
            return True
        return mac is None or mac.admits(credential, self._clock.now_ms())


class PrincipalLookup:
    """Identifies callers by their access keys, for one container.

    Caches results for `remembered_ms`, like API Gateway caches the authorizer's responses.
    """

    def __init__(self, authentication: Authentication, clock: Clock, *, remembered_ms: int) -> None:
        self._authentication = authentication
        self._clock = clock
        self._remembered_ms = remembered_ms
        # By digest of the header: the time of the lookup (ms), and the principal.
        self._known: BoundedMap[bytes, tuple[int, Principal | None]] = BoundedMap(_REMEMBERED)

    def who(self, authorization: str | None) -> Principal | None:
        """Return the holder as `Authentication.who`, with at most one call in `remembered_ms` per
        header.
        """
        if not authorization:
            return None
        digest = hashlib.sha256(authorization.encode("utf-8", "surrogatepass")).digest()
        now_ms = self._clock.now_ms()
        at_ms, principal = self._known.get(digest, (None, None))
        if at_ms is not None and 0 <= now_ms - at_ms < self._remembered_ms:
            return principal
        principal = self._authentication.who(authorization)
        self._known.put(digest, (now_ms, principal))
        return principal
