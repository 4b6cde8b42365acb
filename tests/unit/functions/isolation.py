"""Tenants side by side: a tenant's history, and what another tenant asks in between.

The other one knows all: the names, the identifiers, and the keys of the first. No answer to it may
hold content of the first, and the first must get the answers that it gets alone.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

from ojs.api import operations as contract
from ojs.http import endpoint
from ojs.runtime import Runtime
from tests.unit.functions.client import HANDLERS, Reply, event_of
from tests.unit.functions.keyed import about

CANARY = "canary-7f"
BASE = "/ojs/v1"
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
_TOKENS = re.compile(
    r'"(lease_token|unique_key|uniqueness_key|next_cursor|cursor|uptime_seconds|etag|request_id)": '
    r'("[^"]*"|\d+)'
)


class Caller:
    """A tenant's caller. `told` has its answers with identifiers in order of appearance."""

    def __init__(self, runtime: Runtime, tenant: str | None) -> None:
        self.runtime, self.tenant = runtime, tenant
        self.told: list[str] = []
        self.ids: dict[str, str] = {}

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Reply:
        sent = dict(headers or {})
        if self.tenant is not None:
            sent["x-ojs-tenant"] = self.tenant
        raw = None if body is None else json.dumps(body)
        event = event_of(method, path, raw, headers=sent, query=query)
        answer = HANDLERS[endpoint.function_for(path)](event, None)
        return Reply(answer["statusCode"], answer["headers"], answer["body"] or "")

    def __call__(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """The answer to a step of the history, which is kept."""
        reply = self.ask(method, path, body, **more)
        assert reply.status < 400, (method, path, reply.text)
        found = _TOKENS.sub(r'"\1": ""', json.dumps(reply.json))
        found = _TIME.sub("TIME", found)
        for name in ("tenant", "tenant_id"):
            found = found.replace(f'"{name}": "{self.tenant}"', f'"{name}": ""')
        for each in _ID.findall(found):
            self.ids.setdefault(each, f"id{len(self.ids)}")
        self.told.append(f"{method} {path.split('/')[3]} {_ID.sub(self._number, found)}")
        return reply.json

    def _number(self, found: re.Match[str]) -> str:
        return self.ids[found[0]]


def history(call: Caller, canary: str) -> Iterator[None]:
    """What a tenant does. Each step may be followed by calls of others."""
    job: dict[str, Any] = {
        "type": "t",
        "args": [canary],
        "meta": {"of": canary},
        "options": {
            "queue": "mine",
            "unique": {"key": "u1", "on_conflict": "reject"},
            "rate_limit": {"key": "k1", "concurrency": 1},
        },
    }
    plain = {"type": "t", "args": [canary]}
    graves = {"dead_letter_queue": "graves", "max_size": 50}
    yield call("POST", f"{BASE}/queues", {"name": "mine", "config": graves})
    first = call("POST", f"{BASE}/jobs", job)["job"]["id"]
    yield
    once = {"idempotency-key": "once"}
    second = call("POST", f"{BASE}/jobs", plain, headers=once)["job"]["id"]
    yield
    assert call("POST", f"{BASE}/jobs", plain, headers=once)["job"]["id"] == second
    yield call("POST", f"{BASE}/jobs/batch", {"jobs": [plain, plain]})
    own = {"jobs": [{**plain, "options": {"queue": "mine"}}], "idempotency_key": "many"}
    yield call("POST", f"{BASE}/jobs/bulk", own)
    # With a queue: a template shows the default queue of a tenant, because it is stored.
    template = {**plain, "tags": [canary], "options": {"queue": "mine"}}
    cron = {"name": "mine", "expression": "@daily", "job_template": template}
    yield call("POST", f"{BASE}/cron", cron)
    steps = {"type": "chain", "name": canary, "steps": [plain, {**plain, "queue": "mine"}]}
    workflow = call("POST", f"{BASE}/workflows", steps)["workflow"]["id"]
    yield
    worker: dict[str, Any] = {"worker_id": "w1"}
    yield call("POST", f"{BASE}/workers/register", {**worker, "queues": ["mine"], "info": canary})
    fetch = {**worker, "queues": ["mine", "default"], "count": 3}
    jobs = [each["id"] for each in call("POST", f"{BASE}/workers/fetch", fetch)["jobs"]]
    assert jobs[0] == first
    yield
    yield call("POST", f"{BASE}/workers/heartbeat", {**worker, "active_jobs": jobs})
    data = {"job_id": first, **worker, "percentage": 40, "data": {"of": canary}}
    yield call("POST", f"{BASE}/workers/progress", data)
    yield call("PUT", f"{BASE}/jobs/{first}/checkpoint", {"state": {"of": canary}})
    error = {"type": "Boom", "message": canary, "retryable": False}
    yield call("POST", f"{BASE}/workers/nack", {"job_id": first, **worker, "error": error})
    done = {"job_id": jobs[1], **worker, "result": canary}
    yield call("POST", f"{BASE}/workers/ack", done)
    for path in (
        f"jobs/{first}", f"jobs/{jobs[1]}/result", "jobs", "dead-letter",
        f"dead-letter/{first}", "dead-letter/stats", "queues", "queues/mine",
        "queues/mine/config", "queues/mine/stats", "admin/stats", "admin/queues", "cron",
        "cron/mine", "workflows", f"workflows/{workflow}", "unique-jobs", "workers/w1/health",
        "events", "me",
    ):  # fmt: skip
        yield call("GET", f"{BASE}/{path}")
    query = {"state": "available"}
    yield call("GET", f"{BASE}/jobs", query=query)
    yield call("POST", f"{BASE}/queues/mine/pause", {})
    yield call("POST", f"{BASE}/queues/mine/resume", {})
    yield call("POST", f"{BASE}/dead-letter/{first}/retry", {})
    yield call("POST", f"{BASE}/workers/fetch", {**fetch, "count": 10})
    yield call("DELETE", f"{BASE}/workflows/{workflow}")
    yield call("DELETE", f"{BASE}/cron/mine")


def alone(runtime: Runtime, tenant: str | None) -> Caller:
    """A caller at the end of its history, with nobody else."""
    caller = Caller(runtime, tenant)
    for _ in history(caller, CANARY):
        pass
    return caller


def beside(runtime: Runtime, mine: str | None, other: str, seed: int, rows: Any = None) -> Caller:
    """A caller at the end of its history, with calls of another tenant in between.

    Raises AssertionError if an answer to the other one has content of the first. `rows` counts the
    operations that were tried.
    """
    random, caller, foreign = Random(seed), Caller(runtime, mine), Caller(runtime, other)
    twin = history(foreign, "other")
    for _ in history(caller, CANARY):
        for _ in range(random.randrange(3)):
            if random.random() < 0.3:
                twin = _going_on(twin)
                continue
            operation = random.choice(contract.OPERATIONS)
            if rows is not None:
                rows[operation.id] += 1
            known = [*caller.ids, *foreign.ids] or ["01968f2a-0000-7000-8000-000000000000"]
            names = ["mine", "default", "graves", f"{mine}:mine"]
            path, body, query = about(operation, random.choice(names), random.choice(known))
            key = {"idempotency-key": "once"} if random.random() < 0.2 else {}
            reply = foreign.ask(operation.method, path, body, query, key)
            assert reply.status < 500, (operation.id, reply.text)
            assert CANARY not in reply.text, (operation.id, reply.text)
    return caller


def _going_on(twin: Iterator[None]) -> Iterator[None]:
    """The history of the other tenant, one step on, or over if its other calls have upset it."""
    try:
        next(twin, None)
    except (AssertionError, LookupError):
        return iter(())
    return twin


def items(runtime: Runtime, tenant: str) -> Counter[tuple[str, ...]]:
    """What the table has of a tenant: kinds of items, and states."""
    found = Counter[tuple[str, ...]]()
    client, name = runtime.table.client, runtime.table.name
    for page in client.get_paginator("scan").paginate(TableName=name):
        for item in page["Items"]:
            if f"{tenant}:" in repr(item):
                state = str(item.get("state", {}).get("S", ""))
                found[str(item["pk"].get("S", "")).partition("|")[0], state] += 1
    return found
