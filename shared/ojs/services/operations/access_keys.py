"""Creates, lists and revokes access keys, on behalf of the holder of another key."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence

from ojs.clock import Clock
from ojs.domain.access import AccessKey, Credential, Principal, covers
from ojs.domain.errors import (
    BAD_CURSOR,
    BackendUnavailable,
    InvalidRequest,
    NotFound,
    forbidden,
)
from ojs.domain.page import Page
from ojs.store.deployment import access_keys
from ojs.store.table.errors import LostRace

_TRIES = 3
_CURSOR = re.compile(r"[0-9]{15}[0-9a-f]{16}")


class AccessKeys:
    """Manages access keys."""

    def __init__(
        self,
        keys: access_keys.AccessKeyStore,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._keys = keys
        self._clock = clock
        self._random_bytes = random_bytes

    def create(
        self,
        maker: Principal,
        name: str,
        scopes: Iterable[str],
        *,
        queues: Sequence[str] | None = None,
        expires_ms: int | None = None,
    ) -> tuple[AccessKey, Credential]:
        """A new key, and the credential for its holder, which is stored nowhere.

        Raises PermissionDenied for more permissions than the creator has, InvalidRequest for a time
        in the past, BackendUnavailable.
        """
        now_ms = self._clock.now_ms()
        wanted = frozenset(scopes)
        if not covers(maker, wanted):
            raise forbidden()
        if expires_ms is not None and expires_ms <= now_ms:
            raise InvalidRequest("expires_at", "must be in the future")
        for _ in range(_TRIES):
            credential = Credential.make(self._random_bytes)
            key = AccessKey(
                id=credential.id,
                name=name,
                scopes=wanted,
                created_ms=now_ms,
                queues=None if queues is None else tuple(dict.fromkeys(queues)),
                expires_ms=expires_ms,
                made_by=maker.name,
            )
            # A collision of 64 random bits: the existing key must stay as it is.
            if self._keys.add(key, credential):
                return key, credential
        raise BackendUnavailable("No new key could be made; try again.")

    def list(self, *, limit: int = 50, cursor: str | None = None) -> Page[AccessKey]:
        """A page of keys in order of creation, revoked ones included. Raises InvalidRequest."""
        if cursor is not None and not _CURSOR.fullmatch(cursor):
            raise InvalidRequest("cursor", BAD_CURSOR, value=cursor)
        return self._keys.list(limit=limit, after=cursor)

    def get(self, key_id: str) -> AccessKey:
        """One key. Raises NotFound."""
        key = self._keys.get(key_id)
        if key is None:
            raise NotFound("key", key_id)
        return key

    def revoke(self, revoker: Principal, key_id: str) -> AccessKey:
        """Revoke a key. Safe to repeat.

        It takes effect at once, except for requests whose authorization API Gateway has cached
        (for the deployment's `authorizer_cache_s`). Raises NotFound, PermissionDenied for a key
        that has more permissions than the revoker.
        """
        key = self.get(key_id)
        if not covers(revoker, key.scopes):
            raise forbidden()
        try:
            return self._keys.revoke(key.revoked(self._clock.now_ms()))
        except LostRace:
            raise NotFound("key", key_id) from None
