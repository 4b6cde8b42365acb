"""Families of the Open Job Spec and of its clients that this server knows and does not offer.

A request to one of their paths is refused with 422 `unsupported`, and told what is missing.
"""

from __future__ import annotations

from ojs.records import record


@record(frozen=True)
class MissingFeature:
    """What is not offered: its name in errors, how a message calls it, and its paths.

    Paths are below the base path; what is below one of them belongs to it. A part in braces stands
    for any one segment. `instead` is what to do for now.
    """

    name: str
    called: str
    paths: tuple[str, ...]
    instead: str = ""

    @property
    def message(self) -> str:
        """What the caller is told."""
        told = f"{self.called} not supported by this server."
        return f"{told} {self.instead}" if self.instead else told


# fmt: off
MISSING: tuple[MissingFeature, ...] = (
    MissingFeature("webhooks", "Webhooks are", ("webhooks",),
        "Poll /ojs/v1/events, or receive events from the EventBridge bus."),
    MissingFeature("schemas", "Schemas of jobs are", ("schemas", "admin/schemas")),
    # The last is what the durable helpers of official SDKs ask for: they say the base path twice.
    MissingFeature("checkpoints", "Checkpoints are",
        ("jobs/{id}/checkpoint", "checkpoints", "ojs/v1/checkpoints"),
        "Store the state of a job in your own database."),
    MissingFeature("multi-tenancy", "Tenants are", ("tenants", "admin/tenants")),
    MissingFeature("event-streams", "Event streams are",
        ("events/stream", "admin/stats/stream", "jobs/{id}/events", "jobs/{id}/progress/stream",
         "jobs/{id}/result/stream", "queues/{name}/events", "ws"),
        "Poll instead: /ojs/v1/events?after=, /ojs/v1/jobs/{id}/progress, or a job's result with "
        "wait=true."),
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
