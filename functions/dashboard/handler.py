"""Serves the dashboard. The function has no access to the table, and needs no key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from functions.dashboard.files import Dashboard
from ojs.environment import configured

if TYPE_CHECKING:
    from ojs.services.operations.origin import OriginGuard


def _origin() -> OriginGuard | None:
    if not configured(["origin_secret"]):
        return None
    # Only with a firewall, because it imports the SDK, which serving files doesn't need.
    from ojs import access_runtime

    return access_runtime.origin()


_configured = configured(["authorizer", "realtime", "socket_url"])
# Bundling copies the build of the dashboard to the folder of this module.
handler = Dashboard(
    Path(__file__).with_name("built"),
    _configured.get("authorizer", "keys"),
    _origin(),
    socket_url=_configured.get("socket_url") if _configured.get("realtime") == "all" else None,
)
