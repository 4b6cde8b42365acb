"""Enqueue, run, and test jobs of an Open Job Spec server.

Requires Python 3.10, httpx, and websockets.

`Client` and `AsyncClient` send requests. `Worker` fetches and runs jobs. `lambda_handler` runs
jobs that the server pushes to a Lambda function. `ojs_aws.testing` has fixtures for pytest.

The names of typed jobs and of durable code are loaded when they are used first.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ojs_aws.client.asynchronous import AsyncClient
from ojs_aws.client.blocking import Client
from ojs_aws.client.event import Event
from ojs_aws.client.exchange import RetryPolicy
from ojs_aws.client.job import Job
from ojs_aws.client.operations import JobRequest
from ojs_aws.errors import (
    ApiError,
    BadRequest,
    Conflict,
    Duplicate,
    Gone,
    JobError,
    NotFound,
    OjsError,
    PayloadTooLarge,
    PermissionDenied,
    QueueFull,
    ServerError,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
    Unprocessable,
    Unreachable,
    Unsupported,
    WaitTimeout,
)
from ojs_aws.logs import JsonFormatter
from ojs_aws.worker.context import AsyncJobContext, JobCancelled, JobContext, JobFailed, current_job
from ojs_aws.worker.functions import lambda_handler
from ojs_aws.worker.session import WorkerStuck
from ojs_aws.worker.worker import Worker

if TYPE_CHECKING:
    from ojs_aws.typed.job_type import JobHandle, JobType
    from ojs_aws.typed.jobs import Jobs, declare
    from ojs_aws.typed.options import RateLimit, Retry, Throttle, Unique
    from ojs_aws.typed.parents import Parents
    from ojs_aws.typed.signature import InvalidArguments, injected
    from ojs_aws.typed.workflows import WorkflowHandle, batch, chain, dag, group
    from ojs_aws.worker.durable import StepNameReused
    from ojs_aws.worker.steps import JobSuspended, Signal, StepFailed, StepInterrupted

_LATER = {
    "typed.job_type": ("JobHandle", "JobType"),
    "typed.jobs": ("Jobs", "declare"),
    "typed.options": ("RateLimit", "Retry", "Throttle", "Unique"),
    "typed.signature": ("InvalidArguments", "injected"),
    "typed.parents": ("Parents",),
    "typed.workflows": ("WorkflowHandle", "batch", "chain", "dag", "group"),
    "worker.durable": ("StepNameReused",),
    "worker.steps": ("JobSuspended", "Signal", "StepFailed", "StepInterrupted"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"ojs_aws.{module}"), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "ApiError",
    "AsyncClient",
    "AsyncJobContext",
    "BadRequest",
    "Client",
    "Conflict",
    "Duplicate",
    "Event",
    "Gone",
    "InvalidArguments",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobError",
    "JobFailed",
    "JobHandle",
    "JobRequest",
    "JobSuspended",
    "JobType",
    "Jobs",
    "JsonFormatter",
    "NotFound",
    "OjsError",
    "Parents",
    "PayloadTooLarge",
    "PermissionDenied",
    "QueueFull",
    "RateLimit",
    "Retry",
    "RetryPolicy",
    "ServerError",
    "Signal",
    "StepFailed",
    "StepInterrupted",
    "StepNameReused",
    "Throttle",
    "TooManyRequests",
    "Unauthenticated",
    "Unavailable",
    "Unique",
    "Unprocessable",
    "Unreachable",
    "Unsupported",
    "WaitTimeout",
    "Worker",
    "WorkerStuck",
    "WorkflowHandle",
    "batch",
    "chain",
    "current_job",
    "dag",
    "declare",
    "group",
    "injected",
    "lambda_handler",
]
