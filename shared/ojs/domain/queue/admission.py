"""Admission: the job types and producers that a queue admits (ojs-queue-config, section 6.5)."""

from __future__ import annotations

from ojs.domain.errors import JobTypeNotAllowed, PermissionDenied, QueueDraining, QueueMayStay
from ojs.domain.queue.queue import Queue, QueueState


def check(queue: Queue, job_type: str, producer: str | None) -> None:
    """Raise QueueDraining, JobTypeNotAllowed or PermissionDenied if the queue refuses a job.

    `producer` is the caller's name, if known. Raises QueueMayStay for a queue whose deletion may
    still be refused: the caller may try again.
    """
    check_type(queue, job_type)
    if not queue.config.allows_producer(producer):
        raise PermissionDenied(
            f"This producer may not push to the queue '{queue.name}'.",
            details={"queue": queue.name, "producer": producer},
        )


def check_type(queue: Queue, job_type: str) -> None:
    """The same without a producer: for dead letters that an operator retries."""
    if queue.state is QueueState.DRAINING:
        raise QueueMayStay(queue.name) if queue.may_stay else QueueDraining(queue.name)
    if not queue.config.allows_type(job_type):
        raise JobTypeNotAllowed(queue.name, job_type, queue.config.allowed_job_types)
