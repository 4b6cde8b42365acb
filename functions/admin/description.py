"""The OpenAPI document."""

from __future__ import annotations

from functions.admin.app import app
from ojs import runtime
from ojs.http.binding.request import Request
from ojs.http.endpoint import Reply


@app.operation("openapi")
def openapi(_request: Request) -> Reply:
    """The OpenAPI document."""
    # Imported here: no other operation should wait for it.
    from ojs.api.openapi import document

    settings = runtime.current().settings
    return Reply(document(settings.version, settings.authorizer))
