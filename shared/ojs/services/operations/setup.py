"""Deployment steps before the functions are updated: check the table, create the bootstrap key."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from typing import Protocol

from ojs.clock import Clock
from ojs.domain.access import ALL_SCOPES, OLD_KEYS_S, AccessKey, Credential, KeyMac, Scope
from ojs.domain.delivery.delivery import DeliveryState
from ojs.store.deliveries.deliveries import DeliveryStore
from ojs.store.deployment.access_keys import AccessKeyStore
from ojs.store.deployment.notes import DeploymentStore
from ojs.store.table.errors import LostRace
from ojs.store.table.schema import SCHEMA_VERSION

FIRST_KEY_NAME = "first"
# Secrets Manager stores only one value per token, so a repeated write changes nothing.
_WRITE = "ojs-first-key-0000000000000000000"


class SecretStore(Protocol):
    """The secret that contains the bootstrap key. It has no value initially."""

    def read(self) -> str | None:
        """Return the value. None if it has no value yet."""
        ...

    def write_once(self, text: str, token: str) -> str:
        """Set the value, unless it was set with this token before. Return the current value."""
        ...


class SetupError(Exception):
    """The deployment must stop. The message contains the reason."""


class Setup:
    """The steps of one deployment. Each can be repeated."""

    def __init__(
        self,
        deployment: DeploymentStore,
        keys: AccessKeyStore,
        deliveries: DeliveryStore,
        clock: Clock,
        *,
        version: str,
        random_bytes: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._deployment = deployment
        self._keys = keys
        self._deliveries = deliveries
        self._clock = clock
        self._version = version
        self._random_bytes = random_bytes

    def prepare_keys(self) -> KeyMac:
        """Create the secret of the key MACs if it doesn't exist. Call this before `check_table`.

        A table that no deployment has used has no keys without a MAC.
        """
        old_s = 0 if self._deployment.read() is None else OLD_KEYS_S
        until_ms = self._clock.now_ms() + 1_000 * old_s
        return self._keys.made_mac(self._random_bytes, until_ms)

    def check_table(self, schema: int = SCHEMA_VERSION) -> None:
        """Record the version that uses the table. Raises SetupError if it is too old."""
        if not self._deployment.note(
            version=self._version, now_ms=self._clock.now_ms(), schema=schema
        ):
            found = self._deployment.read()
            raise SetupError(
                f"Version {self._version} supports schema {schema}, but the table has schema "
                f"{found.needs if found else 'of a newer version'}. Deploy a newer version."
            )

    def check_identity(self, former: str, table: str, replaced: str) -> None:
        """Raise SetupError if the deployment would continue with a new, empty table.

        A table that a deployment has used is accepted: a restored one, and the former one in a
        rollback.

        Args:
            former: Name of the table of the previous deployment.
            table: Name of the table of this deployment.
            replaced: Name of the table that the operator agrees to replace.
        """
        if former in (table, replaced) or self._deployment.read() is not None:
            return
        raise SetupError(
            f"The table {table} is new, and would replace {former} with all its jobs and keys. "
            "CloudFormation creates a new table if the ID or the stack of the construct changes. "
            "Restore the ID, or pass the former table to Storage(table=...). To start with an empty"
            f" table, set replace_table={former}."
        )

    def check_deliveries(self, egress_hosts: Collection[str], *, push: bool) -> None:
        """Raise SetupError if the deployment would stop active deliveries.

        Without `push`, this applies to all deliveries. If `egress_hosts` is empty, it applies to
        deliveries to endpoints. Makes one call per delivery.
        """
        if push and egress_hosts:
            return
        stored = map(self._deliveries.get, self._deliveries.directory().entries)
        active = [each for each in stored if each and each.state is DeliveryState.ACTIVE]
        if active and not push:
            raise SetupError(
                f"The deliveries {', '.join(sorted(each.name for each in active))} are active, but "
                "push=false would stop them. Set push=true, or pause or delete the deliveries "
                "first."
            )
        hosts = sorted({each.host for each in active if each.host})
        if hosts:
            raise SetupError(
                f"Deliveries send jobs to {', '.join(hosts)}, but the setting egress_hosts allows "
                "no host. Add the hosts to egress_hosts, or pause or delete the deliveries first."
            )

    def leave_first_key(self, secret: SecretStore) -> str:
        """Create a key with all permissions, and store its text in the secret. Return its ID.

        Safe to repeat after a crash. The secret is written first, so that the text of no key is
        lost. The existence of the key is recorded last, so that a revoked key is not created
        again.
        """
        mac, text = self.prepare_keys(), secret.read()
        if text is None:
            text = secret.write_once(mac.sign(Credential.make(self._random_bytes)).text, _WRITE)
        credential = Credential.parse(text.strip())
        if credential is None:
            raise SetupError("The secret of the bootstrap key must contain a valid key.")
        signed = mac.sign(credential)
        if credential.mac not in (None, signed.mac):
            # An earlier deployment with another table stored it.
            secret.write_once(signed.text, f"ojs-first-key-{credential.id}{signed.mac}")
            credential = signed
        noted = self._deployment.read()
        if noted is None or noted.first_key != credential.id:
            key = AccessKey(
                id=credential.id,
                name=FIRST_KEY_NAME,
                scopes=ALL_SCOPES,
                created_ms=self._clock.now_ms(),
            )
            if not self._keys.add(key, credential):
                raise SetupError(
                    "The secret of the bootstrap key contains the id of a different key."
                )
            self._deployment.note_first_key(credential.id)
        return credential.id

    def leave_key(
        self,
        secret: SecretStore,
        *,
        token: str,
        name: str,
        scopes: Iterable[str],
        queues: Iterable[str] | None,
    ) -> str:
        """Create a key, and store its text in the secret. Replaces the text in the secret.

        With the same token, this is safe to repeat after a crash, because the secret is written
        first.

        Args:
            secret: The secret.
            token: Identifies this write of the secret.
            name: Name of the key.
            scopes: Scopes of the key.
            queues: Queue scope of the key. None: all queues.

        Returns:
            The ID of the key.

        Raises:
            SetupError: A scope is unknown, or the ID of the key is in use.
        """
        if unknown := sorted(set(scopes) - set(Scope)):
            raise SetupError(f"Unknown scope: {', '.join(unknown)}.")
        made = self.prepare_keys().sign(Credential.make(self._random_bytes))
        text = secret.write_once(made.text, token)
        credential = Credential.parse(text.strip())
        key = AccessKey(
            id=credential.id if credential else "",
            name=name,
            scopes=frozenset(scopes),
            created_ms=self._clock.now_ms(),
            queues=None if queues is None else tuple(queues),
        )
        if credential is None or not self._keys.add(key, credential):
            raise SetupError(
                f"The secret of key {name} must contain a valid key with an unused id."
            )
        return key.id

    def id_of(self, text: str) -> str | None:
        """Return the ID of a key from its text. None if the text is not a key."""
        credential = Credential.parse(text.strip())
        return credential.id if credential else None

    def take_back_key(self, key_id: str) -> None:
        """Revoke a key, if a key with this ID exists."""
        key = self._keys.get(key_id)
        if key is not None:
            # Race: the key expired long ago and is being deleted. It is invalid either way.
            with suppress(LostRace):
                self._keys.revoke(key.revoked(self._clock.now_ms()))
