"""Asks workers for a heartbeat, so that they receive a directive or a cancellation at once."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from ojs.domain.errors import OjsError
from ojs.domain.job.job import Job
from ojs.domain.pool.worker import Worker
from ojs.services.realtime.posts import Posts
from ojs.store.queues.workers import WorkerStore

_BEAT = '{"type":"beat"}'


class Beats:
    """Sends the messages. A worker that receives none sends its heartbeat at its interval."""

    def __init__(self, workers: WorkerStore, posts: Posts) -> None:
        self._workers = workers
        self._posts = posts

    def send_to(self, workers: Iterable[Worker]) -> None:
        """Ask workers for a heartbeat, if they have a connection."""
        found = [worker.connection for worker in workers if worker.connection is not None]
        if found:
            self._posts.send([(connection, _BEAT) for connection in found])

    def send_to_worker_of(self, job: Job) -> None:
        """Ask the worker of a cancelled job. At most two calls."""
        if job.worker_id is not None:
            with suppress(OjsError):
                self.send_to(worker for _, worker in self._workers.records(job.worker_id))
