"""Enqueue, run and test jobs of an Open Job Spec server: needs Python 3.10 and httpx, no more.

`Client` and `AsyncClient` ask the server; `Worker` does jobs, and `lambda_handler` does them in a
Lambda function that the server pushes them to. `ojs_aws.testing` has what tests of
jobs need.
"""

from ojs_aws.client.asynchronous import AsyncClient
from ojs_aws.client.blocking import Client
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
    "Worker",
    "WorkerStuck",
    "current_job",
    "lambda_handler",
]
