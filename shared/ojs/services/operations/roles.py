"""Identifies callers that IAM has authenticated, by the records of their roles."""

from __future__ import annotations

from collections.abc import Iterable

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain.access import EVERY_ROLE, Principal, role_arn
from ojs.store.deployment.access_keys import AccessKeyStore

_REMEMBERED = 1_000


class Roles:
    """Identifies roles, for one container.

    Caches results for `remembered_ms`, like API Gateway does for keys.
    """

    def __init__(
        self,
        keys: AccessKeyStore,
        clock: Clock,
        *,
        iam_operators: Iterable[str],
        remembered_ms: int,
    ) -> None:
        """Create the service.

        Args:
            keys: Store of the role records.
            clock: Source of the current time.
            iam_operators: ARNs of roles with all permissions, even without a record. EVERY_ROLE
                represents all roles that never had a record.
            remembered_ms: Time in milliseconds for which results are cached.
        """
        self._keys = keys
        self._clock = clock
        self._operators = frozenset(role_arn(each) or each for each in iam_operators)
        self._remembered_ms = remembered_ms
        # By role: when it was looked up (ms), and its principal. None if it never had a record.
        self._known: BoundedMap[str, tuple[int, Principal | None]] = BoundedMap(_REMEMBERED)

    def who(self, arn: str) -> Principal:
        """Return the principal for the ARN of a caller or of a role session.

        The principal has no permissions if the role has no record, or if its record has expired or
        was revoked.

        Makes at most two calls in `remembered_ms` per role, and none for a role in
        `iam_operators`. Raises BackendUnavailable and BackendTimeout: a failed lookup must not
        count as a missing record.
        """
        role = role_arn(arn)
        if self.operates(role or arn):
            return Principal(arn)
        found = None if role is None else self._recorded(role)
        if found is not None:
            return found
        return Principal(arn) if EVERY_ROLE in self._operators else _without_rights(arn)

    def operates(self, role: str) -> bool:
        """Return whether a role, in the format of `role_arn`, is listed as an operator."""
        return role in self._operators

    def _recorded(self, role: str) -> Principal | None:
        now_ms = self._clock.now_ms()
        at_ms, principal = self._known.get(role, (None, None))
        if at_ms is not None and 0 <= now_ms - at_ms < self._remembered_ms:
            return principal
        principal = self._read(role, now_ms)
        self._known.put(role, (now_ms, principal))
        return principal

    def _read(self, role: str, now_ms: int) -> Principal | None:
        key_id = self._keys.id_of_role(role)
        if key_id is None:
            return None
        # Race: between the two calls, the record is revoked and another one is created. The caller
        # has no permissions until the next lookup.
        key = self._keys.use_role(key_id, role, now_ms=now_ms)
        return _without_rights(role) if key is None else key.principal


def _without_rights(arn: str) -> Principal:
    return Principal(arn, frozenset(), ())
