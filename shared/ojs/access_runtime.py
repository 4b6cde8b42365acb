"""Composition root of the authorizer, the setup of a deployment, and the dashboard function.

These functions don't use `ojs.runtime`, which loads all modules that process jobs. This module
loads only the modules that these functions need.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from ojs import environment
from ojs.clock import SystemClock
from ojs.services.operations.authentication import Authentication
from ojs.store.deployment.access_keys import AccessKeyStore
from ojs.store.table import clients
from ojs.store.table.table import Table

if TYPE_CHECKING:
    from ojs.services.operations.origin import OriginGuard
    from ojs.services.operations.setup import SecretStore, Setup
    from ojs.store.deployment.secrets import Secret
    from ojs.store.realtime.tickets import TicketStore

_used: list[Authentication] = []


def authentication() -> Authentication:
    """Return the container's authentication. The first call builds it from the environment."""
    return _used[0] if _used else _deployed()


def prepare() -> None:
    """Build the container's authentication while Lambda initializes the function."""
    with suppress(Exception):
        authentication()


def use(brought: Authentication) -> None:
    """Replace the authentication. The local server and tests provide their own."""
    _used[:] = [brought]


@cache
def tickets() -> TicketStore:
    """Return what redeems tickets."""
    from ojs.store.realtime.tickets import TicketStore

    return TicketStore(_table(), SystemClock())


@cache
def _table() -> Table:
    return Table(clients.dynamodb(), environment.required("table"))


@cache
def _deployed() -> Authentication:
    configured = environment.configured(["old_keys_until"])
    until_ms = environment.beginning_ms(configured["old_keys_until"]) if configured else None
    return Authentication(AccessKeyStore(_table(), until_ms), SystemClock())


def setup() -> Setup:
    """Build the setup of the deployment. Raise LookupError if the environment names no table."""
    from ojs.services.operations.setup import Setup
    from ojs.store.deliveries.deliveries import DeliveryStore
    from ojs.store.deployment.notes import DeploymentStore

    version = environment.required("version")
    return Setup(
        DeploymentStore(_table()),
        AccessKeyStore(_table()),
        DeliveryStore(_table()),
        SystemClock(),
        version=version,
    )


def table() -> str:
    """Return the name of the table."""
    return environment.required("table")


def egress_hosts() -> tuple[str, ...]:
    """Return the hosts that deliveries may send jobs to."""
    configured = environment.configured(["egress_hosts"])
    return tuple(filter(None, configured.get("egress_hosts", "").split(",")))


def pushes() -> bool:
    """Return whether the deployment includes push delivery."""
    return environment.configured(["push"]).get("push") != "false"


def first_key() -> SecretStore | None:
    """Return the secret that stores the bootstrap key, or None for a deployment without keys."""
    configured = environment.configured(["first_key_secret"])
    return secret(configured["first_key_secret"]) if configured else None


def origin() -> OriginGuard | None:
    """Return the check of the header that the firewall adds. Needs no table."""
    configured = environment.configured(["origin_secret"])
    if not configured:
        return None
    from ojs.services.operations.origin import OriginGuard
    from ojs.store.deployment.secrets import Secret

    client = clients.secrets_manager(clients.FIRST_CONFIG)
    return OriginGuard(Secret(client, configured["origin_secret"]), SystemClock())


def secret(arn: str) -> Secret:
    """Return the secret with this ARN."""
    from ojs.store.deployment.secrets import Secret

    return Secret(clients.secrets_manager(), arn)
