"""What this server says of itself. Nothing here that is not true of the code beside it."""

from __future__ import annotations

from typing import Any

from ojs.domain.errors import Unsupported

SPECVERSION = "1.0"
BACKEND = "dynamodb"

# The highest level of which everything works; parts of higher ones are in `CAPABILITIES`.
CONFORMANCE_LEVEL = 1

CAPABILITIES = {
    "batch_enqueue": True,
    "cron_jobs": False,
    "dead_letter": True,
    "delayed_jobs": True,
    "job_ttl": True,
    "pause_resume": True,
    "priority_queues": True,
    "rate_limiting": True,
    "schema_validation": False,
    "unique_jobs": True,
    "workflows": False,
}

# Those of which everything works that they require or recommend.
EXTENSIONS = ("backpressure", "dead-letter", "fair-scheduling", "queue-config", "rate-limiting")
_EXTENSION_VERSION = "1.0.0-rc.1"


# How who asks shows who they are (ojs-http-binding section 5).
AUTHENTICATION = {
    "none": (),
    "keys": ("api-key",),
    "jwt": ("jwt",),
    "iam": ("aws-sigv4",),
}


def manifest(version: str, authorizer: str = "none") -> dict[str, Any]:
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
            "experimental": [],
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


def not_offered(field: str, reason: str) -> Unsupported:
    """The refusal of something that clients know and this server does not do."""
    return Unsupported(f"'{field}': {reason}", field=field)
