"""Enqueue, run, and test jobs of an Open Job Spec server.

Requires Python 3.10, httpx, and websockets.

`Client` and `AsyncClient` send requests. `Worker` fetches and runs jobs. `lambda_handler` runs
jobs that the server pushes to a Lambda function. `ojs_aws.testing` has fixtures for pytest.
"""

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
from ojs_aws.worker.context import JobCancelled, JobContext, JobFailed, current_job
from ojs_aws.worker.functions import lambda_handler
from ojs_aws.worker.session import WorkerStuck
from ojs_aws.worker.worker import Worker

__all__ = [
    "ApiError",
    "AsyncClient",
    "BadRequest",
    "Client",
    "Conflict",
    "Duplicate",
    "Event",
    "Job",
    "JobCancelled",
    "JobContext",
    "JobFailed",
    "JobRequest",
    "JsonFormatter",
    "NotFound",
    "OjsError",
    "PayloadTooLarge",
    "PermissionDenied",
    "QueueFull",
    "RetryPolicy",
    "ServerError",
    "TooManyRequests",
    "Unauthenticated",
    "Unavailable",
    "Unprocessable",
    "Unreachable",
    "Unsupported",
    "WaitTimeout",
    "Worker",
    "WorkerStuck",
    "current_job",
    "lambda_handler",
]
