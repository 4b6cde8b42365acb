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
    MissingFeature("event-streams", "This event stream is",
        ("admin/stats/stream", "jobs/{id}/progress/stream", "jobs/{id}/result/stream", "ws"),
        "Read /ojs/v1/events/stream or /ojs/v1/jobs/{id}/events, or connect to the WebSocket "
        "address in the manifest."),
    MissingFeature("execution-history", "This form of a job's history is",
        ("history/stats", "history/rebuild", "events/{id}/history", "admin/jobs/{id}/trace"),
        "Read /ojs/v1/history or /ojs/v1/jobs/{id}/history."),
)
# fmt: on
# Answered to DELETE requests for these paths, which have other methods.
PURGE = MissingFeature(
    "history-purge",
    "Deleting the history of jobs is",
    ("history", "jobs/{id}/history"),
    "Events expire. To erase jobs with their history, use POST /ojs/v1/admin/jobs/erase.",
)
