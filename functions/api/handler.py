"""The operations of the functions jobs, workers, and admin in one function.

It is the target of a function URL, or of a private REST API.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from functions.admin.handler import handler as admin
from functions.dashboard.files import ROOT
from functions.dashboard.handler import handler as dashboard
from functions.jobs.handler import handler as jobs
from functions.workers.handler import handler as workers
from ojs.http import endpoint
from ojs.http.binding import payload

_HANDLERS = {endpoint.JOBS: jobs, endpoint.WORKERS: workers, endpoint.ADMIN: admin}


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Answer a request to a function URL or a REST API."""
    request = payload.version_2(event)
    path = request["rawPath"]
    if path == ROOT or path.startswith(f"{ROOT}/"):
        if event.get("version") == "2.0":
            return dashboard(request)
        return _behind_stage(event, request)
    return _HANDLERS[endpoint.function_for(path)](request, context)


def _behind_stage(event: Mapping[str, Any], request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a file of the dashboard for a REST API.

    Its paths begin with a stage, and its responses are texts, not bytes.
    """
    answer = dashboard({**request, "headers": {**request["headers"], "accept-encoding": ""}})
    stage = event["requestContext"]["path"].removesuffix(event["path"])
    text = base64.b64decode(answer["body"]).decode()
    if answer["headers"]["content-type"].startswith("text/html"):
        text = text.replace(f'"{ROOT}/', f'"{stage}{ROOT}/')
    return {**answer, "body": text, "isBase64Encoded": False}
