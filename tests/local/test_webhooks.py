"""Webhooks of a local server: a dead endpoint, and threads that all subscriptions share."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from local.webhooks import LocalWebhooks
from ojs import runtime
from ojs.clock import SystemClock
from ojs.domain.events.event import Event, event_id
from ojs.settings import Settings
from ojs.store.jobs.blobs import MemoryBlobs
from tests.unit.targets.endpoints import answer, endpoint

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient


@contextmanager
def silent() -> Iterator[str]:
    """An endpoint that accepts requests and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=2_000) as listener:
        yield f"http://localhost:{listener.getsockname()[1]}/"


@pytest.mark.e2e
@pytest.mark.exhaustive
def test_a_dead_endpoint_with_1000_events_delays_no_other_for_long(
    dynamodb: DynamoDBClient, fresh_table: str
) -> None:
    clock = SystemClock()
    webhooks = LocalWebhooks(clock, loopback=True)
    built = runtime.build(
        Settings(table=fresh_table, webhook_queue="memory"),
        client=dynamodb,
        blobs=MemoryBlobs(),
        clock=clock,
        hooks=lambda: webhooks.parts,
    )
    stop = webhooks.start(lambda: built.webhook_sender)

    def tell(queue: str, count: int) -> None:
        names = [event_id(clock.now_ms(), f"{queue}{at}") for at in range(count)]
        assert built.webhook_matcher is not None
        assert not built.webhook_matcher.publish(
            [
                Event(each, "job.completed", "ojs://s/api", clock.now_ms(), each, {"queue": queue})
                for each in names
            ]
        )

    try:
        with silent() as dead, endpoint(answer()) as well:
            for url, queue in ((dead, "dead"), (well.url, "well")):
                wanted = {"events": ["job.*"], "filter": {"queues": [queue]}}
                built.webhooks.create({"url": url, **wanted})
            tell("dead", 1_000)
            started = time.monotonic()
            tell("well", 1)
            while not well.requests and time.monotonic() - started < 60:
                time.sleep(0.02)
            # 4 s on quiet cores. Without the time limit of an attempt, 30 s.
            assert time.monotonic() - started < 10
    finally:
        stop()
