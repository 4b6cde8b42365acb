"""One push: a job that was claimed for a delivery, on its way to the target."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ojs.domain.delivery.delivery import Delivery, worker_of
from ojs.domain.delivery.outcome import ID_PREFIX, Outcome
from ojs.domain.job.job import Job
from ojs.records import record

# Of an attempt whose outcome never came.
_LOST = "visibility_timeout"


@record(frozen=True)
class Push:
    """A job with its content and lease, sent once. `timeout_ms` is how long the target has."""

    job: Job
    delivery: str
    worker_id: str
    delivery_id: str
    timeout_ms: int

    @classmethod
    def of(cls, job: Job, delivery: str, *, timeout_ms: int) -> Push:
        """The push of a job that was just claimed. Raises ValueError for one without a lease."""
        if job.lease is None:
            raise ValueError(f"the job {job.id} has no lease")
        delivery_id = ID_PREFIX + job.lease.token
        return cls(job, delivery, worker_of(delivery), delivery_id, timeout_ms)

    @property
    def token(self) -> str:
        """The token of the lease that its outcome shows."""
        return self.delivery_id.removeprefix(ID_PREFIX)

    @property
    def outcome_was_lost(self) -> bool:
        """Whether the outcome of the attempt before never came: it may not have fitted into the
        record that brings it.
        """
        return bool(self.job.noted) and self.job.noted[-1].failure.type == _LOST


class Target(Protocol):
    """Where pushes go."""

    def waits_for(self, push: Push, *, delivery: Delivery) -> bool:
        """Whether to send it takes as long as the target does: whoever has no time for that leaves
        it to a sender.
        """
        ...

    def send(
        self, pushes: Sequence[Push], *, delivery: Delivery, wait: bool = False
    ) -> Sequence[Outcome | None]:
        """Send pushes of one delivery; what became of each, in their order.

        None: it was taken, and its outcome comes later; never with `wait`. Raises nothing for the
        target's trouble.
        """
        ...


class WakeQueue(Protocol):
    """Wakes deliveries up: now, or later."""

    def wake(self, names: Iterable[str], *, delay_s: int = 0) -> None:
        """Have these deliveries looked at, in `delay_s` seconds (0 to 900).

        Raises BackendUnavailable if one of them was not taken.
        """
        ...


class SendQueue(Protocol):
    """Takes pushes for a sender, which waits for the target."""

    def send(self, delivery: str, pushes: Sequence[Push]) -> Sequence[Push]:
        """Queue pushes; returns those that were not taken."""
        ...
