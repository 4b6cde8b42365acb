"""Every sample event under `events/` is answered as it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ojs.api import operations as contract
from ojs.http import endpoint
from tests.unit.functions.client import HANDLERS, Reply, check_described

EVENTS = Path(__file__).parents[3] / "events"
# File → status on an empty table. The others are in test_stream.py and test_sweep.py.
EXPECTED = {
    "jobs/enqueue_job": 201,
    "jobs/enqueue_batch": 201,
    "jobs/get_job": 404,
    "jobs/cancel_job": 404,
    "workers/fetch_jobs": 200,
    "workers/ack_job": 404,
    "workers/nack_job": 404,
    "workers/heartbeat": 200,
    "workers/register_worker": 200,
    "admin/health": 200,
    "admin/manifest": 200,
    "admin/openapi": 200,
    "admin/list_dead_letters": 200,
    "admin/list_events": 200,
    "admin/queue_stats": 200,
    "admin/root_metrics": 200,
    "admin/pause_queue": 200,
    "admin/create_queue": 201,
    "admin/admin_configure_queue": 200,
    "admin/set_queue_policy": 200,
    "admin/get_queue_config": 404,
    "admin/unknown_route": 404,
}


def test_every_sample_is_tried() -> None:
    found = {str(path.relative_to(EVENTS).with_suffix("")) for path in EVENTS.rglob("*.json")}
    assert found == EXPECTED.keys() | {"stream/job_life", "stream/poison", "sweep/schedule"}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.usefixtures("api")
def test_a_sample_event_is_answered(name: str) -> None:
    event = json.loads((EVENTS / f"{name}.json").read_text("utf-8"))
    function, _, operation_id = name.partition("/")
    answer = HANDLERS[function](event, None)
    reply = Reply(answer["statusCode"], answer["headers"], answer["body"])
    assert reply.status == EXPECTED[name]
    method, path = event["requestContext"]["http"]["method"], event["rawPath"]
    assert endpoint.function_for(path) == function
    if operation_id != "unknown_route":
        assert contract.at(path)[method].id == operation_id
    check_described(method, path, reply)
