"""Serves the dashboard. It knows no table and needs no key: there is nothing in it to protect."""

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
    # Behind a firewall alone: it takes the SDK, which files do not need.
    from ojs import access_runtime

    return access_runtime.origin()


# Bundling puts what the build made beside this module.
handler = Dashboard(
    Path(__file__).with_name("built"),
    configured(["authorizer"]).get("authorizer", "keys"),
    _origin(),
)
