"""Routes of server-sent events: answers, permissions, bad input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ojs.domain.access import ALL_SCOPES
from ojs.runtime import Runtime
from tests.unit.functions.client import Api
from tests.unit.functions.keyed import Keyed

BASE = "/ojs/v1"
UNKNOWN = "019539a4-0000-7000-8000-000000000000"


def job(api: Any, queue: str = "mail") -> str:
    body = {"type": "t", "args": [], "options": {"queue": queue}}
    return str(api("POST", f"{BASE}/jobs", body).json["job"]["id"])


@pytest.mark.parametrize("path", ["/jobs/{id}/events", "/events/stream?channel=job:{id}"])
def test_a_job(api: Api, path: str) -> None:
    path, _, channel = path.replace("{id}", job(api)).partition("?channel=")
    query = {"channel": channel} if channel else None
    reply = api("GET", BASE + path, query=query)
    assert (reply.status, reply.headers["Content-Type"]) == (200, "text/event-stream")
    assert reply.headers["Cache-Control"] == "no-store"
    assert reply.text.startswith("retry: 1000\n\nid: available.0.")
    last_id = reply.text.split("id: ")[1].partition("\n")[0]
    headers = {"Last-Event-ID": last_id, "Accept": "text/event-stream"}
    reply = api("GET", BASE + path, query=query, headers=headers)
    assert (reply.status, reply.text) == (200, "retry: 1000\n\n")
    (claimed,) = api("POST", f"{BASE}/workers/fetch", {"queues": ["mail"]}).json["jobs"]
    api("POST", f"{BASE}/workers/ack", {"job_id": claimed["id"]})
    reply = api("GET", BASE + path, query=query, headers=headers)
    assert '"from":"available","to":"completed"' in reply.text
    headers["Last-Event-ID"] = reply.text.split("id: ")[1].partition("\n")[0]
    reply = api("GET", BASE + path, query=query, headers=headers)
    assert (reply.status, reply.text) == (204, "")
    assert "Content-Type" not in reply.headers


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/queues/mail/events", {}),
        ("/events/stream", {"channel": "queue:mail"}),
        ("/events/stream", {"channel": "all"}),
        ("/events/stream", {}),
    ],
)
def test_a_queue(api: Api, path: str, query: dict[str, str]) -> None:
    job(api)
    reply = api("GET", BASE + path, query=query | {"event_types": "job.state_changed"})
    assert (reply.status, reply.headers["Content-Type"]) == (200, "text/event-stream")
    # The position, so that the next answer begins there.
    assert reply.text.startswith("retry: 3000\n\nid: f")
    assert reply.text.endswith("\n\n")
    headers = {"Last-Event-ID": "evt_1"}
    assert "event: system.gap" in api("GET", BASE + path, query=query, headers=headers).text


@pytest.mark.parametrize(
    ("path", "query", "status", "field"),
    [
        (f"/jobs/{UNKNOWN}/events", {}, 404, None),
        ("/jobs/x/events", {}, 400, "id"),
        ("/queues/none/events", {}, 404, None),
        (f"/queues/{'q' * 256}/events", {}, 400, "name"),
        ("/events/stream", {"channel": "queue:none"}, 404, None),
        ("/events/stream", {"channel": f"job:{UNKNOWN}"}, 404, None),
        ("/events/stream", {"channel": "job:x"}, 400, "channel"),
        ("/events/stream", {"channel": "queue:" + "q" * 256}, 400, "channel"),
        ("/events/stream", {"channel": ""}, 400, "channel"),
        ("/events/stream", {"channel": "jobs"}, 400, "channel"),
        ("/events/stream", {"event_types": "job.done"}, 400, "event_types"),
        ("/events/stream", {"event_types": "job.progress,"}, 400, "event_types"),
        ("/events/stream", {"types": "job.progress"}, 400, "types"),
    ],
)
def test_bad_input(
    api: Api, path: str, query: dict[str, str], status: int, field: str | None
) -> None:
    reply = api("GET", BASE + path, query=query, headers={"Accept": "text/event-stream"})
    assert reply.status == status, reply.text
    assert "json" in reply.headers["Content-Type"]
    if field is not None:
        assert reply.error["details"]["field"] == field


PATHS = {
    "jobs:read": ["/jobs/{id}/events", "/events/stream?channel=job:{id}"],
    "admin:read": [
        "/queues/mail/events",
        "/events/stream?channel=queue:mail",
        "/events/stream?channel=all",
    ],
}


@pytest.mark.parametrize("scope", sorted(ALL_SCOPES))
@pytest.mark.parametrize("queues", [None, ["mail"], ["other"]])
def test_the_matrix(
    make_runtime: Callable[..., Runtime], clock: Any, scope: str, queues: list[str] | None
) -> None:
    keyed = Keyed(make_runtime(authorizer="keys"), clock)
    job_id = job(keyed.holding(keyed.make("owner", *ALL_SCOPES)))
    api = keyed.holding(keyed.make("k", scope, queues=queues))
    for needed, paths in PATHS.items():
        for each in paths:
            path, _, channel = each.replace("{id}", job_id).partition("?channel=")
            reply = api("GET", BASE + path, query={"channel": channel} if channel else {})
            # All events are filtered by reach.
            allowed = scope == needed and (queues != ["other"] or channel == "all")
            assert reply.status == (200 if allowed else 403), (each, reply.text)
            if not allowed:
                assert reply.error["code"] == "permission_denied"
                assert job_id not in reply.text


def test_a_tenants_stream_names_its_channel(api: Api) -> None:
    headers = {"X-OJS-Tenant": "acme", "Last-Event-ID": "gone"}
    body = {"type": "t", "args": [], "options": {"queue": "mail"}}
    api("POST", f"{BASE}/jobs", body, headers=headers)
    told = api("GET", f"{BASE}/queues/mail/events", headers=headers).text
    assert '"channel":"queue:mail"' in told.replace(": ", ":")
