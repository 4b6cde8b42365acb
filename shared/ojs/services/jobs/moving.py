"""Moves waiting jobs to another queue, with their capacity and their sort keys there."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.ids import IdSource
from ojs.domain.job import lifecycle
from ojs.domain.job.job import Job
from ojs.domain.queue.queue import Queue
from ojs.services.jobs.placement import FairQueuePlacement
from ojs.services.jobs.transitions import JobChanges
from ojs.services.permits.backpressure import QueueBounds
from ojs.services.permits.lifecycle import Permits
from ojs.store.bounds.depth_counter import period_of


class JobMover:
    """Moves jobs."""

    def __init__(
        self,
        *,
        changes: JobChanges,
        permits: Permits,
        bounds: QueueBounds,
        placement: FairQueuePlacement,
        clock: Clock,
        ids: IdSource,
        choose: Callable[[int], int] = random.randrange,
    ) -> None:
        self._changes = changes
        self._permits = permits
        self._bounds = bounds
        self._placement = placement
        self._clock = clock
        self._ids = ids
        self._choose = choose

    def move(
        self,
        before: Job,
        target: Queue,
        *,
        priority: int | None = None,
        changed_by: str | None = None,
    ) -> Job:
        """Move a job as read, in the same state, and release its capacity in the old queue.

        Args:
            before: The job, as read.
            target: The new queue.
            priority: New priority. Default: unchanged.
            changed_by: Name of the caller, if known.

        Returns:
            The moved job.

        Raises:
            LostRace: The job has changed.
            QueueFull: The new queue is full.
        """
        now_ms = self._clock.now_ms()
        reserved = None
        if target.tracks_depth:
            reserved = before.content_bytes or jsontext.size_of(before.content or {})
        moved = lifecycle.move(
            before,
            queue=target.name,
            lane=target.choose_lane(self._choose),
            order=self._ids.order(),
            reserved_bytes=reserved,
            reserved_in=None if reserved is None else period_of(now_ms),
        )
        moved = replace(
            moved,
            priority=before.priority if priority is None else priority,
            changed_by=changed_by or before.changed_by,
        )
        moved = self._placement.with_share(moved, target)
        self._bounds.note_leaving(before)
        with self._bounds.room([moved], {target.name: target}, drops=False) as reservation:
            moved = self._placement.assign_position(moved)
            stored = self._changes.replace(before, moved)
            reservation.keep([moved])
        self._permits.release(before, ended_ms=now_ms)
        return stored
