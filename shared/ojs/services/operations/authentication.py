"""Who holds the key that a request bears. All that the authorizer needs, and nothing else."""

from __future__ import annotations

from ojs.clock import Clock
from ojs.domain.access import Credential, Principal, bearer
from ojs.store.deployment.access_keys import AccessKeyStore


class Authentication:
    """Tells who asks."""

    def __init__(self, keys: AccessKeyStore, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock

    def who(self, authorization: str | None) -> Principal | None:
        """Who holds the key in this `Authorization` header; None for nobody.

        No call for what is no key at all, one otherwise. Raises BackendUnavailable and
        BackendTimeout: who cannot be looked up is not nobody.
        """
        token = bearer(authorization or "")
        credential = Credential.parse(token) if token is not None else None
        if credential is None:
            return None
        key = self._keys.use(credential, now_ms=self._clock.now_ms())
        return None if key is None else key.principal
