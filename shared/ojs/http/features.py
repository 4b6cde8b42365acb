"""Features of the Open Job Spec and of its clients that this server does not support.

A request to one of their paths is rejected with 422 `unsupported`. The error names the feature.
"""

from __future__ import annotations

from ojs.records import record


@record(frozen=True)
class MissingFeature:
    """A feature that is not supported: its name in errors, the start of the message, and its paths.

    Paths are relative to the base path, and include all longer paths. A segment in braces matches
    any segment. `instead` describes an alternative.
    """

    name: str
    called: str
    paths: tuple[str, ...]
    instead: str = ""

    @property
    def message(self) -> str:
        """The error message."""
        told = f"{self.called} not supported by this server."
        return f"{told} {self.instead}" if self.instead else told


# fmt: off
MISSING: tuple[MissingFeature, ...] = (
    MissingFeature("schemas", "Schemas of jobs are", ("schemas", "admin/schemas")),
    MissingFeature("multi-tenancy", "Tenants are", ("tenants", "admin/tenants")),
    MissingFeature("event-streams", "This event stream is",
        ("admin/stats/stream", "jobs/{id}/progress/stream", "jobs/{id}/result/stream", "ws"),
        "Read /ojs/v1/events/stream or /ojs/v1/jobs/{id}/events, or connect to the WebSocket "
        "address in the manifest."),
    MissingFeature("bulk-results", "Reading many results at once is", ("jobs/results",),
        "Read /ojs/v1/jobs/{id}/result."),
    MissingFeature("execution-history", "This form of a job's history is",
        ("history", "jobs/{id}/lineage", "events/{id}/history", "admin/jobs/{id}/trace"),
        "Read /ojs/v1/jobs/{id}/history."),
)
# fmt: on
NO_TENANTS = (
    "is not supported, because this server does not isolate tenants. Omit the header and give each "
    "tenant its own queues and keys"
)
