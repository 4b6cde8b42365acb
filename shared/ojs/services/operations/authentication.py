"""Identifies the holder of the key in a request. The authorizer loads nothing else."""

from __future__ import annotations

from ojs.clock import Clock
from ojs.domain.access import Credential, Principal, bearer
from ojs.store.deployment.access_keys import AccessKeyStore


class Authentication:
    """Identifies callers by their access keys."""

    def __init__(self, keys: AccessKeyStore, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock

    def who(self, authorization: str | None) -> Principal | None:
        """The holder of the key in this `Authorization` header; None if there is no valid key.

        No call for a header without a key, one otherwise. Raises BackendUnavailable and
        BackendTimeout: a failed lookup must not count as an invalid key.
        """
        token = bearer(authorization or "")
        credential = Credential.parse(token) if token is not None else None
        if credential is None:
            return None
        key = self._keys.use(credential, now_ms=self._clock.now_ms())
        return None if key is None else key.principal
