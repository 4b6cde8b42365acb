"""Projections of the table's stream: counters, event log, EventBridge, metrics.

The stream is the outbox. `build` wires a `Projector`, whose `run` takes the records of a shard, in
Lambda's form or that of boto3's `get_records`, in their order, split or repeated.
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
from ojs.projections.workflows import WorkflowStream
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
    sleep: Callable[[float], None] = time.sleep,
    chance: Callable[[], float] = random.random,
) -> int:
    """Publish what the bus refused when it came; how many event pages. One call when there is
    nothing. Without a bus nothing is done. Raises OjsError.
    """
    if bus is None and settings.bus is not None:
        bus = EventBridge(settings.bus, sleep=sleep, chance=chance)
    if bus is None:
        return 0
    return unpublished.publish(ProjectionStore(table), bus, (*ALWAYS, *settings.bus_types), go_on)


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
    deliveries: DeliveryStream | None = None,
    sleep: Callable[[float], None] = time.sleep,
    chance: Callable[[], float] = random.random,
) -> Projector:
    """A projector for one container; clients of EventBridge and SQS are made on first use.

    `bus`, `failures` and `blobs` default to those of the deployment (`settings.bus`,
    `settings.failure_queue`, `settings.bucket`); there is no bus or failure queue if these are not
    set. Without `metrics` none are written; the stream function passes
    `EmbeddedMetrics(settings.service)`. Without `copies` no copies of dead letters are made,
    without `workflows` none is advanced, without `deliveries` none is woken. `sleep` takes seconds.
    """
    ids = ids or IdSource(clock)
    blobs = blobs or S3Blobs(clients.s3, settings.bucket or "")
    if bus is None and settings.bus is not None:
        bus = EventBridge(settings.bus, sleep=sleep, chance=chance)
    if failures is None and settings.failure_queue is not None:
        failures = SqsFailureQueue(settings.failure_queue)
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
        bus_types=settings.bus_types,
        failures=failures,
        metrics=metrics,
        copies=copies,
        workflows=workflows,
        deliveries=deliveries,
        sleep=sleep,
        chance=chance,
    )
