"""A push: a job that was claimed for a delivery and is sent to its target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ojs.domain.delivery.delivery import Delivery, worker_of
from ojs.domain.delivery.outcome import ID_PREFIX, Outcome
from ojs.domain.job.job import Job
from ojs.records import record

# Failure type of an attempt whose lease expired without an outcome.
_LOST = "visibility_timeout"


@record(frozen=True)
class Push:
    """A job that is sent to a target once, with its payload and lease.

    `timeout_ms` is the target's time limit.
    """

    job: Job
    delivery: str
    worker_id: str
    delivery_id: str
    timeout_ms: int

    @classmethod
    def of(cls, job: Job, delivery: str, *, timeout_ms: int) -> Push:
        """Create the push of a job that was just claimed.

        Args:
            job: Claimed job, with its payload.
            delivery: Name of the delivery.
            timeout_ms: Time limit of the target in milliseconds.

        Raises:
            ValueError: The job has no lease.
        """
        if job.lease is None:
            raise ValueError(f"the job {job.id} has no lease")
        delivery_id = ID_PREFIX + job.lease.token
        return cls(job, delivery, worker_of(delivery), delivery_id, timeout_ms)

    @property
    def token(self) -> str:
        """The lease token. The outcome of the push must include it."""
        return self.delivery_id.removeprefix(ID_PREFIX)

    @property
    def outcome_was_lost(self) -> bool:
        """Whether the outcome of the previous attempt never arrived.

        The outcome might have been too large for the destination record.
        """
        return bool(self.job.noted) and self.job.noted[-1].failure.type == _LOST


class Target(Protocol):
    """A target that receives pushes."""

    def waits_for(self, push: Push, *, delivery: Delivery) -> bool:
        """Return whether `send` waits until the target has processed the push.

        If a caller has too little time, it queues such a push for a sender (`SendQueue`).
        """
        ...

    def send(
        self, pushes: Sequence[Push], *, delivery: Delivery, wait: bool = False
    ) -> Sequence[Outcome | None]:
        """Send pushes of one delivery. Failures of the target are outcomes, not exceptions.

        Args:
            pushes: Pushes to send.
            delivery: Delivery that the pushes belong to.
            wait: Whether to wait for all outcomes. Default: false.

        Returns:
            The outcome of each push, in order. None if the target accepted the push and its outcome
            follows later. Never None if `wait` is true.
        """
        ...


class WakeQueue(Protocol):
    """Sends wake-up messages to deliveries, immediately or with a delay."""

    def wake(self, names: Iterable[str], *, delay_s: int = 0) -> None:
        """Send a wake-up message to each of these deliveries after `delay_s` seconds (0 to 900).

        Raises BackendUnavailable if a message was rejected.
        """
        ...


class SendQueue(Protocol):
    """Queues pushes for a sender, which waits for the target."""

    def send(self, delivery: str, pushes: Sequence[Push]) -> Sequence[Push]:
        """Queue pushes. Returns the pushes that were rejected."""
        ...
