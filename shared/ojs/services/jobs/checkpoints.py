"""Checkpoints of active jobs (ojs-durable-execution)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ojs.clock import Clock
from ojs.domain import jsontext
from ojs.domain.errors import Conflict, PayloadTooLarge
from ojs.domain.job.durable import Checkpoint
from ojs.services.jobs.leased_write import LeasedWrite
from ojs.store.jobs.checkpoints import CheckpointStore
from ojs.store.jobs.records import NEXT_CHECKPOINT, JobStore

MAX_CHECKPOINT_BYTES = 1_048_576


class Checkpoints:
    """Saves, reads, and deletes checkpoints."""

    def __init__(
        self, *, jobs: JobStore, checkpoints: CheckpointStore, leased: LeasedWrite, clock: Clock
    ) -> None:
        self._jobs = jobs
        self._checkpoints = checkpoints
        self._leased = leased
        self._clock = clock

    def save(
        self,
        job_id: str,
        state: Any,
        *,
        worker_id: str | None = None,
        lease_token: str | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Checkpoint:
        """Save the state of an active job, and renew its lease.

        If the process crashes between the two writes, a number is skipped.

        Args:
            job_id: ID of the job.
            state: The state, a JSON value.
            worker_id: ID of the worker. None: not checked.
            lease_token: Lease token of the run. None: not checked, unless the queue requires it.
            more: Other fields to store with the state. They count for its size.

        Returns:
            The checkpoint with its number.

        Raises:
            NotFound: The job doesn't exist.
            InvalidRequest: The queue requires the lease token.
            Conflict: The job isn't active, or isn't under the caller's lease.
            PayloadTooLarge: The state is too large.
        """
        more = more or {}
        size = jsontext.size_of({"state": state, **more} if more else state)
        if size > MAX_CHECKPOINT_BYTES:
            raise PayloadTooLarge("state", size=size, limit=MAX_CHECKPOINT_BYTES)
        job = self._leased.make(
            job_id, NEXT_CHECKPOINT, "save a checkpoint of", worker_id, lease_token
        )
        now_ms = self._clock.now_ms()
        self._checkpoints.put(job, state, more, now_ms=now_ms)
        return Checkpoint(state, job.durable.checkpoints, now_ms, more, size)

    def report(
        self, job_id: str, state: Any, *, worker_id: str | None, lease_token: str | None
    ) -> list[str]:
        """Save the checkpoint of a progress report. Return a warning if the report is ignored.

        Args:
            job_id: ID of the job.
            state: The state, a JSON value.
            worker_id: See `save`.
            lease_token: See `save`.

        Raises:
            OjsError: Any other error of `save`.
        """
        try:
            self.save(job_id, state, worker_id=worker_id, lease_token=lease_token)
        except Conflict as refused:
            return [f"'checkpoint' was not saved. {refused.message}"]
        return []

    def get(self, job_id: str) -> Checkpoint | None:
        """Return the checkpoint of a job, or None if it has none. Raises NotFound."""
        job = self._jobs.existing(job_id, self._clock.now_ms())
        return self._jobs.with_checkpoints([job])[0].checkpoint

    def delete(self, job_id: str) -> None:
        """Delete the checkpoint of a job. Does nothing if it has none. Raises NotFound."""
        now_ms = self._clock.now_ms()
        self._checkpoints.clear(self._jobs.existing(job_id, now_ms), now_ms=now_ms)
