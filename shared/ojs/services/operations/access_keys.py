"""Creates, lists, and revokes access keys and role records, on behalf of a caller."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from ojs.clock import Clock
from ojs.domain import times
from ojs.domain.access import MAX_ANCESTORS, OLD_KEYS_S, AccessKey, Credential, Principal, covers
from ojs.domain.errors import (
    BAD_CURSOR,
    BackendUnavailable,
    Conflict,
    InvalidRequest,
    NotFound,
    Unauthenticated,
    forbidden,
)
from ojs.domain.page import Page
from ojs.services.sweeps import GoOn, always
from ojs.store.deployment import access_keys
from ojs.store.table.errors import LostRace
from ojs.store.table.races import losing_as

if TYPE_CHECKING:
    from ojs.store.realtime.directory import RealtimeDirectory

_TRIES = 3
_CURSOR = re.compile(r"[0-9]{15}[0-9a-f]{16}")


class AccessKeys:
    """Manages access keys."""

    def __init__(
        self,
        keys: access_keys.AccessKeyStore,
        clock: Clock,
        random_bytes: Callable[[int], bytes] = os.urandom,
        directory: RealtimeDirectory | None = None,
    ) -> None:
        """`directory` ends the subscriptions of revoked keys. None: the deployment has none."""
        self._directory = directory
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
        tenant: str | None = None,
        max_requests_per_s: int | None = None,
    ) -> tuple[AccessKey, Credential]:
        """Create a key and its credential. The credential is not stored.

        The key expires with its creator's key, or earlier.

        Args:
            maker: The creator.
            name: Name of the key.
            scopes: Scopes of the key.
            queues: Queue scope of the key. None: all queues.
            expires_ms: Expiry in milliseconds since the epoch. Default: the expiry of the
                creator's key.
            tenant: Tenant of the key. Default: none.
            max_requests_per_s: Maximum rate of requests. A key with a limit can't create one with
                a higher limit. Default: the limit of the creator's key.

        Returns:
            The key, and the credential for its holder.

        Raises:
            PermissionDenied: The key would have more permissions than its creator, or its creator
                has MAX_ANCESTORS ancestors.
            Unauthenticated: The creator's key was revoked recently.
            InvalidRequest: `expires_ms` is in the past, or after the expiry of the creator's key.
            BackendUnavailable: DynamoDB rejected the write.
        """
        # Before the setup of a deployment, it is unknown whether keys of earlier versions exist.
        until_ms = self._clock.now_ms() + 1_000 * OLD_KEYS_S
        mac = self._keys.mac() or self._keys.made_mac(self._random_bytes, until_ms)
        for _ in range(_TRIES):
            credential = mac.sign(Credential.make(self._random_bytes))
            key = self._new(maker, credential.id, name, scopes, queues, expires_ms, tenant)
            key = replace(key, max_requests_per_s=_rate(maker, max_requests_per_s))
            # Either 64 random bits collided, and the existing key must not change. Or the
            # creator's key is being revoked, which the next attempt detects.
            if self._keys.add(key, credential):
                return key, credential
        raise BackendUnavailable("The access key was not created, because of concurrent requests.")

    def name_role(
        self,
        maker: Principal,
        role: str,
        name: str,
        scopes: Iterable[str],
        *,
        queues: Sequence[str] | None = None,
        expires_ms: int | None = None,
        tenant: str | None = None,
        max_requests_per_s: int | None = None,
    ) -> AccessKey:
        """Create a record that gives an IAM role a name, scopes, and queues.

        Args:
            maker: The creator.
            role: The role, in the format of `role_arn`.
            name: Name of the record.
            scopes: Scopes of the role.
            queues: Queue scope of the role. None: all queues.
            expires_ms: See `create`.
            tenant: Tenant of the role. Default: none.
            max_requests_per_s: See `create`.

        Returns:
            The record.

        Raises:
            Conflict: The role has an active record.
            OjsError: The errors of `create`.
        """
        for _ in range(_TRIES):
            key_id = Credential.make(self._random_bytes).id
            key = self._new(maker, key_id, name, scopes, queues, expires_ms, tenant)
            before = self._keys.id_of_role(role)
            there = None if before is None else self._keys.get(before)
            if there is not None and there.state(key.created_ms) == "active":
                raise Conflict(
                    f"The role already has the active entry '{there.id}'. Revoke that entry first.",
                    current_state="active",
                    details={"field": "role", "id": there.id},
                )
            key = replace(key, role=role, max_requests_per_s=_rate(maker, max_requests_per_s))
            if self._keys.add_role(key, role, instead_of=before):
                return key
        raise BackendUnavailable("The role was not stored, because of concurrent requests.")

    def _new(
        self,
        maker: Principal,
        key_id: str,
        name: str,
        scopes: Iterable[str],
        queues: Sequence[str] | None,
        expires_ms: int | None,
        tenant: str | None,
    ) -> AccessKey:
        """Return the key to create, if the creator has the permissions."""
        now_ms = self._clock.now_ms()
        wanted = frozenset(scopes)
        if not covers(maker, wanted):
            raise forbidden()
        if expires_ms is not None and expires_ms <= now_ms:
            raise InvalidRequest("expires_at", "must be in the future")
        made_with = None if maker.key is None else self._may_make(maker.key, now_ms)
        return AccessKey(
            id=key_id,
            name=name,
            scopes=wanted,
            created_ms=now_ms,
            queues=None if queues is None else tuple(dict.fromkeys(queues)),
            expires_ms=_end(expires_ms, made_with),
            made_by=maker.name,
            tenant=tenant,
            ancestors=() if made_with is None else (*made_with.ancestors, made_with.id),
        )

    def _may_make(self, key_id: str, now_ms: int) -> AccessKey:
        """Return the creator's key. It can be revoked: API Gateway caches authorizations."""
        key = self._keys.get(key_id)
        if key is None or key.state(now_ms) != "active":
            raise Unauthenticated
        if len(key.ancestors) >= MAX_ANCESTORS:
            raise forbidden()
        return key

    def of_role(self, role: str) -> AccessKey | None:
        """Return the active record of a role, or None. `role` is in the format of `role_arn`."""
        key_id = self._keys.id_of_role(role)
        key = None if key_id is None else self._keys.get(key_id)
        return key if key is not None and key.state(self._clock.now_ms()) == "active" else None

    def list(self, *, limit: int = 50, cursor: str | None = None) -> Page[AccessKey]:
        """Return a page of keys, oldest first, including revoked keys. Raises InvalidRequest."""
        if cursor is not None and not _CURSOR.fullmatch(cursor):
            raise InvalidRequest("cursor", BAD_CURSOR, value=cursor)
        page = self._keys.list(limit=limit, after=cursor)
        return Page([self._ending(key) for key in page.items], page.next_cursor)

    def get(self, key_id: str) -> AccessKey:
        """Return a key. Raises NotFound."""
        return self._ending(self._there(key_id))

    def _there(self, key_id: str) -> AccessKey:
        key = self._keys.get(key_id)
        if key is None:
            raise NotFound("key", key_id)
        return key

    def _ending(self, key: AccessKey) -> AccessKey:
        """Return the key. A key without a MAC expires when such keys stop being valid."""
        mac = self._keys.mac() if key.old else None
        if mac is None or (key.expires_ms or mac.old_until_ms) < mac.old_until_ms:
            return key
        return replace(key, expires_ms=mac.old_until_ms)

    def revoke(self, revoker: Principal, key_id: str) -> AccessKey:
        """Revoke a key. Safe to repeat.

        The revocation applies immediately, except for requests whose authorization API Gateway has
        cached (for the deployment's `authorizer_cache_s`). Raises NotFound, and PermissionDenied
        if the key has more permissions than the revoker.
        """
        key = self._there(key_id)
        if not covers(revoker, key.scopes):
            raise forbidden()
        with losing_as(lambda _: NotFound("key", key_id)):
            revoked = self._keys.revoke(key.revoked(self._clock.now_ms()))
        self._unsubscribe(key_id)
        return revoked

    def _unsubscribe(self, key_id: str) -> None:
        """End the subscriptions of a key, also if an earlier request revoked it and died."""
        if self._directory is not None:
            self._directory.revoke(key_id)

    def revoke_with_made(
        self, revoker: Principal, key_id: str, go_on: GoOn = always
    ) -> tuple[AccessKey, Sequence[str]]:
        """Revoke a key and all its descendants.

        Descendants are the keys that it created, the keys that these created, and so on. While
        this runs, no revoked key can create another key. After a crash, a repeated call revokes
        the remaining descendants: a key stays in its creator's list until all its descendants are
        revoked.

        Args:
            revoker: The caller.
            key_id: ID of the key.
            go_on: Returns whether enough time is left to continue.

        Returns:
            The key, and the IDs of the descendants that this call revoked.

        Raises:
            NotFound: The key does not exist.
            PermissionDenied: The key has more permissions than the revoker.
            BackendUnavailable: DynamoDB rejected a write, or the time ended before all were
                revoked.
        """
        key = self.revoke(revoker, key_id)
        revoked: list[str] = []
        line = [key.id]
        while line:
            if not go_on():
                raise BackendUnavailable(
                    f"The key and {len(revoked)} keys that it created are revoked. Other keys "
                    "that it created are still valid. Repeat the request."
                )
            made = self._keys.first_made(line[-1])
            if made is not None:
                if self._revoked(made):
                    revoked.append(made)
                line.append(made)
                continue
            done = line.pop()
            if line:
                self._keys.strike(line[-1], done)
        return key, revoked

    def _revoked(self, key_id: str) -> bool:
        """Revoke a descendant. Return false if it is already revoked or deleted."""
        key = self._keys.get(key_id)
        if key is None:
            return False
        if key.revoked_ms is None:
            # Race: the key has expired and is deleted now. It is invalid either way.
            with suppress(LostRace):
                self._keys.revoke(key.revoked(self._clock.now_ms()))
        self._unsubscribe(key_id)
        return key.revoked_ms is None


def _end(expires_ms: int | None, maker: AccessKey | None) -> int | None:
    """Return when a new key expires. Raises InvalidRequest if its creator expires earlier."""
    if maker is None or maker.expires_ms is None:
        return expires_ms
    if expires_ms is not None and expires_ms > maker.expires_ms:
        end = times.format_ms(maker.expires_ms)
        raise InvalidRequest(
            "expires_at", f"must not be later than {end}, when your own key expires"
        )
    return maker.expires_ms if expires_ms is None else expires_ms


def _rate(maker: Principal, wanted: int | None) -> int | None:
    """Return the limit of a new key. Raises InvalidRequest if it is above that of its creator."""
    most = maker.max_requests_per_s
    if most is not None and (wanted or 0) > most:
        rule = f"must be at most {most}, the limit of the key that creates it"
        raise InvalidRequest("max_requests_per_s", rule, value=wanted)
    return wanted or most
