"""A small world of queues and jobs, made over HTTP as producers, workers and operators make it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

HOSTILE = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>"\'&\u202e\u0000é'
"""Text that would run, or break a page, where it was not escaped."""

_QUEUES: dict[str, dict[str, Any]] = {
    "mail": {"max_size": 500, "concurrency": 10},
    "billing": {"default_retry": {"max_attempts": 1}, "max_size": 200},
    "images": {"rate_limit": {"limit": 100, "period": "PT1M"}},
    "reports": {"retention": {"completed": "P3D"}},
    "exports": {},
}

# The pages, and a text on each.
PAGES = {
    "overview": "Top errors",
    "queues": "queues, by name",
    "queues/mail": "visibility_timeout",
    "jobs": "Arguments contain",
    "jobs?state=discarded&queue=billing": "invoice.generate",
    "running": "mailer-2",
    "waiting": "report.build",
    "dead-letters": "CardExpired",
    "dead-letters?queue=billing": "Replay rules",
    "cron": "Monday to Friday at 09:00",
    "cron/daily-report": "America/New_York",
    "workflows": "onboarding",
    "workers": "mailer-1",
    "pools": "weighted",
    "deliveries": "pushed:handler",
    "limits": "example.org",
    "webhooks": "No webhooks",
    "tenants": "Tenants",
    "schemas": "Schemas",
    "events": "job.",
    "audit": "first",
    "keys": "admin:write",
    "settings": "Defaults for new queues",
}


class Caller:
    """Asks a server, with a key if there is one. Raises AssertionError for what it refuses."""

    def __init__(self, url: str, key: str | None = None, *, timeout_s: float = 30.0) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def __call__(self, method: str, path: str, body: object = None) -> Any:
        """The answer's body, read as JSON; None where there is none."""
        request = urllib.request.Request(
            f"{self.url}/ojs/v1{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers=self._headers,
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()!r}") from None
        return json.loads(text) if text else None


def push(call: Caller, queue: str, kind: str, *args: object, **options: object) -> str:
    """The id of a job that was pushed."""
    job = {"type": kind, "args": list(args), "options": {"queue": queue, **options}}
    return str(call("POST", "/jobs", job)["job"]["id"])


def fetch(call: Caller, queue: str, count: int, worker: str) -> list[dict[str, Any]]:
    """Jobs that a worker was handed, for an hour: it sends no heartbeat."""
    body = {
        "queues": [queue], "count": count, "worker_id": worker, "visibility_timeout_ms": 3_600_000,
    }  # fmt: skip
    return list(call("POST", "/workers/fetch", body)["jobs"])


def fail(call: Caller, job: dict[str, Any], kind: str, message: str) -> None:
    """Report that an attempt failed."""
    error = {
        "code": "handler_error",
        "type": kind,
        "message": message,
        "backtrace": [f"at {kind.lower()}.py:{line}" for line in (142, 58, 7)],
    }
    call("POST", f"/jobs/{job['id']}/nack", {"job_id": job["id"], "error": error})


def done(call: Caller, job: dict[str, Any], result: object) -> None:
    """Report that a job is done."""
    call("POST", f"/jobs/{job['id']}/ack", {"job_id": job["id"], "result": result})


def make(call: Caller) -> dict[str, str]:
    """Fill an empty server with some of everything; ids of jobs that tests ask for by name."""
    return {**_jobs(call), "workflow": _others(call)}


def _jobs(call: Caller) -> dict[str, str]:
    for name, config in _QUEUES.items():
        call("POST", "/queues", {"name": name, **config})
    for number in range(12):
        push(call, "mail", "email.send", f"user-{number}@example.org", {"template": "welcome"})
    for number in range(6):
        push(call, "images", "image.resize", {"file": f"cat-{number}.png", "width": 640})
    for number in range(5):
        push(call, "billing", "invoice.generate", {"customer": f"c{number}", "amount": 99.5})
    ids = {}
    for job in fetch(call, "billing", 3, "billing-1"):
        fail(call, job, "CardExpired", "the card has expired")
        ids["dead"] = job["id"]
    for job in fetch(call, "billing", 1, "billing-1"):
        fail(call, job, "ConnectionRefused", "no route to billing-db:5432")
    for job in fetch(call, "mail", 4, "mailer-1"):
        done(call, job, {"delivered": True, "hops": [1, 2, 3]})
        ids["done"] = job["id"]
    for job in fetch(call, "mail", 1, "mailer-1"):
        fail(call, job, "Timeout", "smtp.example.org did not answer")
        ids["retryable"] = job["id"]
    for job in fetch(call, "mail", 2, "mailer-2"):
        call("POST", "/workers/progress", {
            "job_id": job["id"], "percentage": 40, "message": "connecting", "worker_id": "mailer-2",
        })  # fmt: skip
        ids["running"] = job["id"]
    ids["scheduled"] = push(call, "reports", "report.build", "monthly", delay_until="+PT2H")
    ids["tagged"] = push(call, "mail", "email.news", "list", tags=["weekly"], priority=5)
    return ids


def _others(call: Caller) -> str:
    for name, kind in (("mailer-1", "mail"), ("billing-1", "billing")):
        call("POST", "/workers/register", {
            "worker_id": name, "queues": [kind], "hostname": f"{kind}-host", "concurrency": 4,
        })  # fmt: skip
    call("POST", "/cron", {
        "name": "daily-report", "expression": "0 9 * * MON-FRI", "timezone": "America/New_York",
        "type": "report.generate", "args": ["daily"], "options": {"queue": "reports"},
    })  # fmt: skip
    call("POST", "/cron", {"name": "cleanup", "expression": "@every 15m", "type": "tmp.clean"})
    flow = call("POST", "/workflows", {
        "type": "chain", "name": "onboarding", "steps": [
            {"type": "account.create", "args": [1], "options": {"queue": "exports"}},
            {"type": "group", "name": "welcome", "jobs": [
                {"type": "email.welcome", "args": [1], "options": {"queue": "exports"}},
                {"type": "crm.sync", "args": [1], "options": {"queue": "exports"}},
            ]},
            {"type": "report.done", "args": [1], "options": {"queue": "exports"}},
        ],
    })["id"]  # fmt: skip
    call("PUT", "/admin/pools/office", {
        "queues": {"mail": {"weight": 3}, "reports": {"weight": 1}}, "strategy": "weighted",
    })  # fmt: skip
    push(call, "images", "image.fetch", "https://example.org/1.png", rate_limit={
        "key": "example.org", "concurrency": 2,
    })  # fmt: skip
    return str(flow)


def make_hostile(call: Caller) -> str:
    """A job and what goes with it, all of which say what a page must not take for its own."""
    shown = HOSTILE.replace("\u0000", "")
    body = {"type": "hostile.job", "args": [{shown: shown}], "meta": {shown: shown}, "options": {
        "queue": "hostile", "tags": [shown[:40]], "retry": {"max_attempts": 1},
    }}  # fmt: skip
    ident = str(call("POST", "/jobs", body)["job"]["id"])
    for job in fetch(call, "hostile", 1, shown[:60]):
        fail(call, job, shown[:100], shown)
    call("POST", "/workers/register", {
        "worker_id": shown[:60], "queues": ["hostile"], "hostname": shown,
    })  # fmt: skip
    call("POST", "/cron", {
        "name": "hostile", "expression": "@every 24h", "type": "t.cron", "args": [shown],
        "description": shown,
    })  # fmt: skip
    call("POST", "/workflows", {"type": "chain", "name": shown[:60], "steps": [
        {"type": "t.step", "name": shown[:40], "args": [shown], "options": {"queue": "hostile"}},
    ]})  # fmt: skip
    call("POST", "/admin/keys", {"name": "<img src=x onerror=window.hacked=1>", "scopes": ["work"]})
    call("PUT", "/queues/hostile/config", {"replay_rules": [
        {"name": shown[:30], "filter": {"error_type": shown[:30]}, "delay": "PT9H",
         "max_replays": 1},
    ]})  # fmt: skip
    return ident


if __name__ == "__main__":
    import sys

    caller = Caller(sys.argv[1], *sys.argv[2:])
    print(make(caller), make_hostile(caller))  # noqa: T201
