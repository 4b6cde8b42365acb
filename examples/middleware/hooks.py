"""Middleware that runs on each job before the server stores it."""

from __future__ import annotations

from ojs.middleware import Envelope, Next, Refused

TEAMS = {"email": "growth", "invoice": "billing"}


def add_team(job: Envelope, following: Next) -> Envelope:
    """Store the responsible team in `meta`, by the first part of the job type."""
    job.meta.setdefault("team", TEAMS.get(job.type.partition(".")[0], "unknown"))
    return following(job)


def check_args(job: Envelope, following: Next) -> Envelope:
    """Reject an e-mail without an address."""
    if job.type == "email.send" and not (job.args and "@" in str(job.args[0])):
        raise Refused(
            "email.send requires an address as its first argument",
            code="no_address",
            details={"field": "args[0]"},
        )
    return following(job)


def route(job: Envelope, following: Next) -> Envelope:
    """Send invoices to a separate queue, unless later middleware has chosen another one."""
    after = following(job)
    if after.type.startswith("invoice.") and after.queue == "default":
        after.queue = "invoices"
    return after
