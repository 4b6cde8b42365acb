"""The composition root of what decides on access: the authorizer, the setup of a deployment, and
who may ask for the dashboard's files.

Apart from `ojs.runtime`, which loads all that serves jobs: here nothing is loaded that is not
needed for one of these.
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

_used: list[Authentication] = []


def authentication() -> Authentication:
    """The container's, built from the environment on first use."""
    return _used[0] if _used else _deployed()


def prepare() -> None:
    """Build the container's as `ojs.runtime.prepare` does."""
    with suppress(Exception):
        authentication()


def use(brought: Authentication) -> None:
    """Put another in place: the local server and tests bring their own."""
    _used[:] = [brought]


@cache
def _table() -> Table:
    return Table(clients.dynamodb(), environment.required("table"))


@cache
def _deployed() -> Authentication:
    configured = environment.configured(["old_keys_until"])
    until_ms = environment.beginning_ms(configured["old_keys_until"]) if configured else None
    return Authentication(AccessKeyStore(_table(), until_ms), SystemClock())


def setup() -> Setup:
    """One setup of the deployment. Raises LookupError when the environment names no table."""
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


def egress_hosts() -> tuple[str, ...]:
    """The hosts that deliveries may send jobs to."""
    configured = environment.configured(["egress_hosts"])
    return tuple(filter(None, configured.get("egress_hosts", "").split(",")))


def pushes() -> bool:
    """Whether the deployment has what pushes jobs to targets."""
    return environment.configured(["push"]).get("push") != "false"


def first_key() -> SecretStore | None:
    """Where the first key is left; None for a deployment without keys."""
    configured = environment.configured(["first_key_secret"])
    return secret(configured["first_key_secret"]) if configured else None


def origin() -> OriginGuard | None:
    """As `Runtime.origin`, for a function that has no table."""
    configured = environment.configured(["origin_secret"])
    if not configured:
        return None
    from ojs.services.operations.origin import OriginGuard
    from ojs.store.deployment.secrets import Secret

    client = clients.secrets_manager(clients.FIRST_CONFIG)
    return OriginGuard(Secret(client, configured["origin_secret"]), SystemClock())


def secret(arn: str) -> SecretStore:
    """A secret that takes a key."""
    from ojs.store.deployment.secrets import Secret

    return Secret(clients.secrets_manager(), arn)
