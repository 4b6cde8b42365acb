"""What a deployment does before its functions are changed: check the table, leave the first key."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from ojs.clock import Clock
from ojs.domain.access import ALL_SCOPES, AccessKey, Credential
from ojs.store.deployment.access_keys import AccessKeyStore
from ojs.store.deployment.notes import DeploymentStore
from ojs.store.table.schema import SCHEMA_VERSION

FIRST_KEY_NAME = "first"
# Secrets Manager takes one value for it.
_WRITE = "ojs-first-key-0000000000000000000"


class SecretStore(Protocol):
    """Where the first key is left: a secret that has no value at first."""

    def read(self) -> str | None:
        """Its value; None as long as it has none."""
        ...

    def write_once(self, text: str, token: str) -> str:
        """Give it a value, unless it was given one under this token before; what it is now."""
        ...


class SetupError(Exception):
    """The deployment must not go on; the message says why."""


class Setup:
    """One run of it. Every step may be done again."""

    def __init__(
        self,
        deployment: DeploymentStore,
        keys: AccessKeyStore,
        clock: Clock,
        *,
        version: str,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._deployment = deployment
        self._keys = keys
        self._clock = clock
        self._version = version
        self._random_bytes = random_bytes

    def check_table(self, schema: int = SCHEMA_VERSION) -> None:
        """Note which code works on the table. Raises SetupError for code that is too old for it."""
        if not self._deployment.note(
            version=self._version, now_ms=self._clock.now_ms(), schema=schema
        ):
            found = self._deployment.read()
            raise SetupError(
                f"Version {self._version} knows tables of schema {schema}, and this one needs "
                f"{found.needs if found else 'a newer one'}: deploy a newer version."
            )

    def leave_first_key(self, secret: SecretStore) -> str:
        """Have a key that may do everything, and its text in the secret; its id.

        Whoever dies in between does it again: the secret comes first, so there is no key that
        nobody knows; that it was done is noted last, so a key that was revoked stays so.
        """
        text = secret.read()
        if text is None:
            text = secret.write_once(Credential.make(self._random_bytes).text, _WRITE)
        credential = Credential.parse(text.strip())
        if credential is None:
            raise SetupError("The secret of the first key holds something that is no key.")
        noted = self._deployment.read()
        if noted is None or noted.first_key != credential.id:
            key = AccessKey(
                id=credential.id,
                name=FIRST_KEY_NAME,
                scopes=ALL_SCOPES,
                created_ms=self._clock.now_ms(),
            )
            if not self._keys.add(key, credential):
                raise SetupError("The first key's id is taken by another key.")
            self._deployment.note_first_key(credential.id)
        return credential.id
