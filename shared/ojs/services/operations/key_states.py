"""Checks whether the keys that configured cron jobs and deliveries are revoked.

The check happens before a cron job fires or a delivery dispatches. An expired key stops nothing:
keys of deployments expire, while the cron jobs and deliveries remain.
"""

from __future__ import annotations

from aws_lambda_powertools import Logger

from ojs.bounded import BoundedMap
from ojs.clock import Clock
from ojs.domain.access import Principal
from ojs.domain.errors import BackendUnavailable, OjsError
from ojs.services.sweeps import GoOn
from ojs.store.deployment.access_keys import AccessKeyStore

logger = Logger()

REMEMBERED_MS = 60_000
_REMEMBERED = 1_000


class KeyStates:
    """Caches in a container which keys are revoked."""

    def __init__(self, keys: AccessKeyStore, clock: Clock) -> None:
        self._keys = keys
        self._clock = clock
        # By ID: when it was read (ms), and whether it was revoked.
        self._known: BoundedMap[str, tuple[int, bool]] = BoundedMap(_REMEMBERED)

    def line(self, caller: Principal) -> tuple[str, ...]:
        """Return the IDs of the ancestors of the caller's key, and its own ID. Makes one call.

        Empty for a caller without a key. Raises OjsError.
        """
        key = None if caller.key is None else self._keys.get(caller.key)
        if key is None:
            return () if caller.key is None else (caller.key,)
        return (*key.ancestors, key.id)

    def revoked(self, line: tuple[str, ...]) -> bool:
        """Return whether the last key of a line is revoked.

        Costs at most 0.5 read units in REMEMBERED_MS per key. Makes no call for an empty line. A
        key that can't be read counts as not revoked.
        """
        if not line:
            return False
        now_ms = self._clock.now_ms()
        read_ms, revoked = self._known.get(line[-1], (None, False))
        if read_ms is not None and 0 <= now_ms - read_ms < REMEMBERED_MS:
            return revoked
        try:
            key = self._keys.get(line[-1], consistent=False)
        except OjsError as error:
            logger.warning("Reading a key failed", extra={"key": line[-1], "why": str(error)})
            return False
        revoked = key is not None and key.revoked_ms is not None
        self._known.put(line[-1], (now_ms, revoked))
        return revoked


def check_time(go_on: GoOn) -> None:
    """Raise BackendUnavailable if no time is left to pause more of a key's jobs and deliveries."""
    if not go_on():
        raise BackendUnavailable(
            "The key is revoked, but some cron jobs or deliveries that it created are not paused "
            "yet. Repeat the request."
        )
