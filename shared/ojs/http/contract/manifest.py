"""The conformance manifest: what this server offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ojs.http.contract import answers

SPECVERSION = "1.0"
BACKEND = "dynamodb"

# All levels up to this one are supported wholly.
CONFORMANCE_LEVEL = 4

CAPABILITIES = {
    "batch_enqueue": True,
    # The admin UI shows its page of cron jobs by this name.
    "cron": True,
    "cron_jobs": True,
    "dead_letter": True,
    "delayed_jobs": True,
    "events": True,
    "fair_scheduling": True,
    "job_ttl": True,
    "pause_resume": True,
    "priority_queues": True,
    "rate_limiting": True,
    "schema_validation": False,
    "unique_jobs": True,
    "workflows": True,
}

# Extensions of which all requirements and recommendations are met; of bulk operations not the
# metrics that section 12.2 recommends: their events have the same numbers.
EXTENSIONS = (
    "admin-api", "backpressure", "bulk-operations", "dead-letter", "fair-scheduling",
    "queue-config", "rate-limiting",
)  # fmt: skip
_EXTENSION_VERSION = "1.0.0-rc.1"
# This server's own. `batch-acks`: many acks and nacks in one request, or with a fetch;
# `push-delivery`: jobs are pushed to functions and endpoints.
OWN_EXTENSIONS = ("batch-acks", "push-delivery")
_OWN_VERSION = "1.0.0"

# Authorizer → the ways in which callers authenticate (ojs-http-binding section 5).
AUTHENTICATION: dict[str, tuple[Literal["api-key", "jwt", "aws-sigv4"], ...]] = {
    "none": (),
    "keys": ("api-key",),
    "jwt": ("jwt",),
    "iam": ("aws-sigv4",),
}


def manifest(version: str, authorizer: str = "none") -> answers.ManifestAnswer:
    """The conformance manifest (ojs-http-binding sections 5 and 21)."""
    return {
        "specversion": SPECVERSION,
        "ojs_version": SPECVERSION,
        "implementation": {
            "name": "ojs-backend-aws",
            "version": version,
            "language": "python",
        },
        "conformance_level": CONFORMANCE_LEVEL,
        "protocols": ["http"],
        "backend": BACKEND,
        "capabilities": dict(CAPABILITIES),
        "extensions": {
            "official": [
                {"name": name, "uri": f"urn:ojs:ext:{name}", "version": _EXTENSION_VERSION}
                for name in EXTENSIONS
            ],
            "experimental": [
                {"name": name, "uri": f"urn:ojs-aws:ext:{name}", "version": _OWN_VERSION}
                for name in OWN_EXTENSIONS
            ],
        },
        "authentication": {
            "required": authorizer != "none",
            "methods": list(AUTHENTICATION[authorizer]),
        },
        # The lock and the job are one transaction.
        "unique_job_strength": "strong",
        "endpoints": {
            "base_path": "/ojs/v1",
            "manifest": "/ojs/manifest",
            "health": "/ojs/v1/health",
            "openapi": "/ojs/v1/openapi.json",
        },
    }
