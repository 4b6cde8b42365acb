"""Projections of the DynamoDB stream: counters, event log, EventBridge, and metrics.

The table's stream serves as an outbox: code that writes items doesn't emit events itself. `build`
creates a `Projector`. Its method `run` processes the records of a stream shard, in the format of
Lambda or of boto3's `get_records`. Records must be in order. They can be split into several calls
and repeated.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ojs.clock import Clock
from ojs.domain.ids import IdSource
from ojs.projections import unpublished
from ojs.projections.dead_letters import CopyMaker
from ojs.projections.deliveries import DeliveryStream
from ojs.projections.metrics import EmbeddedMetrics, MetricsOutlet
from ojs.projections.outlets import Bus, EventBridge, FailureQueue, SqsFailureQueue
from ojs.projections.project import ALWAYS, Projector
from ojs.projections.workflows import DurableStream, WorkflowStream
from ojs.store.bounds.depth_counter import DepthCounter
from ojs.store.derived.projection import ProjectionStore
from ojs.store.jobs.blobs import Blobs, S3Blobs
from ojs.store.jobs.payloads import PayloadStore
from ojs.store.jobs.records import JobStore
from ojs.store.queues.due_notes import DueNotes
from ojs.store.queues.registry import QueueRegistry
from ojs.store.table import clients

if TYPE_CHECKING:
    from ojs.settings import Settings
    from ojs.store.table.table import Table

__all__ = [
    "Bus", "CopyMaker", "DeliveryStream", "EmbeddedMetrics", "EventBridge", "FailureQueue",
    "MetricsOutlet", "Projector", "SqsFailureQueue", "WorkflowStream", "build", "publish_later",
]  # fmt: skip


def publish_later(
    settings: Settings,
    table: Table,
    go_on: Callable[[], bool],
    *,
    bus: Bus | None = None,
    hooks: Bus | None = None,
    sleep: Callable[[float], None] = time.sleep,
    chance: Callable[[], float] = random.random,
) -> int:
    """Publish the events that EventBridge or the queue of webhooks rejected earlier.

    Without such events, this is one call. Without a bus and webhooks, it does nothing.

    Args:
        settings: Settings of the deployment. They name the bus and the selected event types.
        table: Table with the event log.
        go_on: Returns false when the time is up. Called before each page.
        bus: Bus to publish on. Default: the bus of `settings`, or none.
        hooks: Receives all events for webhooks. Default: none.
        sleep: Waits for a number of seconds between attempts.
        chance: Returns a random number from 0 to 1, which varies the waits.

    Returns:
        Number of published event pages.

    Raises:
        OjsError: A read or write of the table failed.
    """
    if bus is None and settings.bus is not None:
        bus = EventBridge(settings.bus, sleep=sleep, chance=chance)
    bus, types = _with_hooks(bus, settings.bus_types, hooks)
    if bus is None:
        return 0
    return unpublished.publish(ProjectionStore(table), bus, (*ALWAYS, *types), go_on)


def _with_hooks(
    bus: Bus | None, types: tuple[str, ...], hooks: Bus | None
) -> tuple[Bus | None, tuple[str, ...]]:
    """Return a bus for EventBridge and webhooks, and the event types that it receives."""
    if hooks is None:
        return bus, types
    from ojs.projections.webhooks import Outlets

    events = [] if bus is None else [(bus, (*ALWAYS, *types))]
    return Outlets(*events, (hooks, ("*",))), ("*",)


def build(
    settings: Settings,
    table: Table,
    clock: Clock,
    *,
    ids: IdSource | None = None,
    blobs: Blobs | None = None,
    bus: Bus | None = None,
    failures: FailureQueue | None = None,
    metrics: MetricsOutlet | None = None,
    copies: CopyMaker | None = None,
    workflows: Callable[[], WorkflowStream] | None = None,
    durable: Callable[[], DurableStream] | None = None,
    deliveries: DeliveryStream | None = None,
    hooks: Bus | None = None,
    sleep: Callable[[float], None] = time.sleep,
    chance: Callable[[], float] = random.random,
) -> Projector:
    """Create a projector for one container.

    Clients of EventBridge and SQS are created on first use.

    Args:
        settings: Settings of the deployment.
        table: Table to write to.
        clock: Current time.
        ids: Source of IDs. Default: random IDs.
        blobs: Store of large payloads. Default: the bucket of `settings`.
        bus: Bus for events. Default: the bus of `settings`, or none.
        failures: Queue for unreadable records. Default: the failure queue of `settings`, or none.
        metrics: Outlet for metrics, for example `EmbeddedMetrics(settings.service)`. Default: none.
        copies: Creates copies of dead letters. Default: none are created.
        workflows: Advances workflows. Default: none is advanced.
        durable: Processes the ends of jobs with durable code. Default: none is processed.
        deliveries: Wakes deliveries. Default: none is woken.
        hooks: Receives all events for webhooks. Default: none.
        sleep: Waits for a number of seconds between attempts.
        chance: Returns a random number from 0 to 1, which varies the waits.
    """
    ids = ids or IdSource(clock)
    blobs = blobs or S3Blobs(clients.s3, settings.bucket or "")
    if bus is None and settings.bus is not None:
        bus = EventBridge(settings.bus, sleep=sleep, chance=chance)
    if failures is None and settings.failure_queue is not None:
        failures = SqsFailureQueue(settings.failure_queue)
    bus, bus_types = _with_hooks(bus, settings.bus_types, hooks)
    registry = QueueRegistry(table, clock)
    return Projector(
        ProjectionStore(table),
        JobStore(
            table,
            PayloadStore(table, blobs),
            ids,
            depth=DepthCounter(table, ids),
            due_notes=DueNotes(table, clock),
        ),
        registry,
        clock,
        service=settings.service,
        results=settings.results_in_events,
        bus=bus,
        bus_types=bus_types,
        failures=failures,
        metrics=metrics,
        copies=copies,
        workflows=workflows,
        durable=durable,
        deliveries=deliveries,
        sleep=sleep,
        chance=chance,
    )
