"""What durable code takes, returns, and raises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from ojs_aws.client.call import Answer
    from ojs_aws.typed.parents import Reference

R_co = TypeVar("R_co", covariant=True)
Final = type[Exception] | tuple[type[Exception], ...]


class ChildCall(Protocol[R_co]):
    """A call of a job type, such as `ship.job(order)`."""

    @property
    def job_type(self) -> Reference[R_co]:
        """The job type."""

    def wire(self) -> Answer:
        """Return the job as the API expects it."""


class WorkflowCall(Protocol):
    """A workflow, such as `group(…)`."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """Its fields of the API."""

    def wire(self) -> Answer:
        """Return the workflow as the API expects it."""


class StepFailed(Exception):
    """A step or a child job failed, and its error is stored. All later attempts raise it.

    Attributes:
        name: Name of the step, with its key.
        error: Its error with `code`, `type`, and `message`.
    """

    def __init__(self, name: str, error: Mapping[str, Any]) -> None:
        self.name = name
        self.error = dict(error)
        super().__init__(f"{name}: {self.error.get('message') or self.error.get('code')}")

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (self.name, self.error))


class StepInterrupted(BaseException):
    """A step failed, and its outcome is not stored: the attempt ends. Don't catch it.

    Its `__cause__` is the exception of the step.
    """


class JobSuspended(BaseException):
    """The job waits: the attempt ends, and the handler runs again later. Don't catch it."""


@dataclass(frozen=True)
class Signal:
    """A signal that was sent to a job.

    Attributes:
        data: Its data, a JSON value.
        sent_at: When it was sent.
    """

    data: Any
    sent_at: datetime
