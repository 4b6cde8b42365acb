"""Middleware of a company's deployment: what happens to each job before it is stored."""

from __future__ import annotations

from ojs.middleware import Envelope, Next, Refused

TEAMS = {"email": "growth", "invoice": "billing"}


def add_team(job: Envelope, following: Next) -> Envelope:
    """Note whose job it is, by the first part of its type."""
    job.meta.setdefault("team", TEAMS.get(job.type.partition(".")[0], "nobody"))
    return following(job)


def check_args(job: Envelope, following: Next) -> Envelope:
    """Refuse an e-mail without an address."""
    if job.type == "email.send" and not (job.args and "@" in str(job.args[0])):
        raise Refused(
            "email.send wants an address as its first argument",
            code="no_address",
            details={"field": "args[0]"},
        )
    return following(job)


def route(job: Envelope, following: Next) -> Envelope:
    """Give invoices a queue of their own, unless the rest of the middleware has chosen another."""
    after = following(job)
    if after.type.startswith("invoice.") and after.queue == "default":
        after.queue = "invoices"
    return after
