"""The operations of the functions jobs, workers and admin behind one address: that of a function
URL, or of a private REST API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from functions.admin.handler import handler as admin
from functions.dashboard.files import ROOT
from functions.dashboard.handler import handler as dashboard
from functions.jobs.handler import handler as jobs
from functions.workers.handler import handler as workers
from ojs import runtime
from ojs.http import endpoint
from ojs.http.binding import payload

_HANDLERS = {endpoint.JOBS: jobs, endpoint.WORKERS: workers, endpoint.ADMIN: admin}


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Answer a request that came to a function URL or to a REST API."""
    request = payload.version_2(event)
    path = request["rawPath"]
    # Not behind a private API, whose addresses begin with a stage that the page does not know.
    if (
        path == ROOT or path.startswith(f"{ROOT}/")
    ) and runtime.current().settings.entry == "function_url":
        return dashboard(request)
    return _HANDLERS[endpoint.function_for(path)](request, context)
